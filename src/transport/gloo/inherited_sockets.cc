#include "transport/gloo/inherited_sockets.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <vector>

namespace contextile {
namespace {

// Gloo closes sockets by itself; then a descriptor may come to stand for something else, which has
// another number in the file system of sockets.
struct OpenSocket {
  int descriptor = -1;
  ino_t number = 0;
  [[nodiscard]] bool is_open() const {
    struct stat status {};
    return ::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == number;
  }
};

// NOTE: global because forks are: the handlers of pthread_atfork take no argument. Never destroyed,
// because a process may fork while it ends.
struct OpenSockets {
  std::mutex mutex;
  std::vector<OpenSocket> sockets;
};
OpenSockets& open_sockets() {
  static auto* const kOpen = new OpenSockets;
  return *kOpen;
}

void close_all() {
  for (const OpenSocket& socket : open_sockets().sockets) {
    if (socket.is_open()) ::close(socket.descriptor);
  }
}

void watch_forks() {
  static const int kWatched =
      ::pthread_atfork([] { open_sockets().mutex.lock(); }, [] { open_sockets().mutex.unlock(); },
                       [] {
                         close_all();
                         open_sockets().sockets.clear();
                         open_sockets().mutex.unlock();
                       });
  static_cast<void>(kWatched);
}

}  // namespace

void close_in_children(int socket) {
  watch_forks();
  struct stat status {};
  if (::fstat(socket, &status) != 0) return;
  const std::lock_guard<std::mutex> lock(open_sockets().mutex);
  std::erase_if(open_sockets().sockets, [](const OpenSocket& open) { return !open.is_open(); });
  open_sockets().sockets.push_back({socket, status.st_ino});
}

}  // namespace contextile

#include "cli/commands/stop_on_signal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iterator>
#include <system_error>

#include "base/check.h"

namespace contextile {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

// NOTE: global because signals are. A handler writes a byte here for each signal that arrived.
int signal_pipe = -1;
void pass_on(int) {
  const char byte = 1;
  static_cast<void>(!::write(signal_pipe, &byte, 1));
}

}  // namespace

FirstSignals::FirstSignals(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &action, &before_[i]);
  }
}
FirstSignals::~FirstSignals() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &before_[i], nullptr);
  }
}

StopOnSignal::StopOnSignal(CompletionServer& server) {
  if (::pipe2(ends_, O_CLOEXEC) != 0) {
    fail_io("serve: cannot open a pipe: {}", std::generic_category().message(errno));
  }
  signal_pipe = ends_[1];
  signals_.emplace(pass_on);
  waiter_ = std::thread([this, &server] {
    char byte = 0;
    while (::read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
    }
    if (byte != 0) server.stop("the server was stopped by a signal");
  });
}
StopOnSignal::~StopOnSignal() {
  signals_.reset();
  ::close(ends_[1]);
  waiter_.join();
  ::close(ends_[0]);
}

}  // namespace contextile

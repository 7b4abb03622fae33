// A library as libnccl.so.2 is, for ranks that are processes of this machine and devices that are
// its CPU (fake_libcuda.cc). It does what the manual says of the functions that
// src/transport/cuda/nccl.cc calls. fake_libnccl.cc is the same for ranks that are threads.
//
// Messages are files. CONTEXTILE_FAKE_NCCL names the folder for them, which its owner removes.
// Communicators are not blocking: a call may return before it is done, and ncclCommGetAsyncError
// says when it is. All work of the device is done when it is submitted, so a group that ends may
// send at once.
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kSystemError = 2;
constexpr Result kInvalidArgument = 4;
constexpr Result kInvalidUsage = 5;
constexpr Result kInProgress = 7;

struct Communicator;
struct Call {
  Communicator* communicator = nullptr;
  int peer = 0;
  const void* from = nullptr;  // null: it receives
  void* to = nullptr;
  std::size_t bytes = 0;
  int number = 0;  // among the messages of the pair
};

struct Communicator {
  std::string folder;
  int rank = 0;
  int size = 0;
  std::map<int, int> num_sent = {};  // by peer
  std::map<int, int> num_received = {};
  std::vector<Call> open = {};  // receives that have no message yet
  Result failure = kSuccess;

  [[nodiscard]] std::string joined_file(int of) const {
    return folder + "/joined-" + std::to_string(of);
  }
  [[nodiscard]] std::string message_file(int from, int to, int number) const {
    return folder + "/" + std::to_string(from) + "-" + std::to_string(to) + "-" +
           std::to_string(number);
  }
  [[nodiscard]] bool all_joined() const {
    for (int r = 0; r < size; ++r) {
      if (!std::filesystem::exists(joined_file(r))) return false;
    }
    return true;
  }
};

std::mutex g_mutex;
thread_local bool t_in_group = false;
thread_local std::vector<Call> t_calls;

// Makes a file that peers see only whole.
void put(const std::string& name, const void* data, std::size_t bytes) {
  const std::string part = name + ".part";
  std::ofstream(part, std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  std::filesystem::rename(part, name);
}

// Takes the message of an open receive. Returns false if it has not come.
bool take(Communicator& mine, const Call& call) {
  const std::string name = mine.message_file(call.peer, mine.rank, call.number);
  std::ifstream file(name, std::ios::binary);
  if (!file) return false;
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::filesystem::remove(name);
  if (bytes.size() == call.bytes) {
    std::memcpy(call.to, bytes.data(), bytes.size());
  } else {
    mine.failure = kInvalidUsage;
  }
  return true;
}

Result add(const Call& call, int type, void* stream) {
  if (!t_in_group || stream == nullptr) return kInvalidUsage;
  if (type != 0 || call.bytes == 0 || call.peer < 0 || call.peer >= call.communicator->size) {
    return kInvalidArgument;
  }
  t_calls.push_back(call);
  return kSuccess;
}

}  // namespace

struct UniqueId {
  char bytes[128];
};

extern "C" Result ncclGetUniqueId(UniqueId* id) {
  static int number = 0;
  const std::lock_guard lock(g_mutex);
  const char* const root = std::getenv("CONTEXTILE_FAKE_NCCL");
  if (root == nullptr) return kSystemError;
  const std::string folder =
      std::string(root) + "/group-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
  if (folder.size() >= sizeof(id->bytes)) return kSystemError;
  std::filesystem::create_directories(folder);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  std::memcpy(id->bytes, folder.data(), folder.size());
  return kSuccess;
}
// The layout of ncclConfig_t in nccl.h of 2.14.
struct Config {
  std::size_t size;
  unsigned magic, version;
  int blocking;
};
extern "C" Result ncclCommInitRankConfig(void** communicator, int size, UniqueId id, int rank,
                                         Config* config) {
  const bool is_config = config->size >= 24 && config->magic == 0xcafebeef &&
                         config->version >= 21400 && config->blocking == 0;
  if (rank < 0 || rank >= size || !is_config) return kInvalidArgument;
  if (!std::filesystem::is_directory(id.bytes)) return kInvalidArgument;
  auto* const mine = new Communicator{id.bytes, rank, size};
  put(mine->joined_file(rank), "", 0);
  *communicator = mine;
  return kInProgress;
}
extern "C" Result ncclCommFinalize(void*) { return kSuccess; }
extern "C" Result ncclCommDestroy(void* communicator) {
  const std::lock_guard lock(g_mutex);
  delete static_cast<Communicator*>(communicator);
  return kSuccess;
}
extern "C" Result ncclCommAbort(void* communicator) { return ncclCommDestroy(communicator); }
// Moves messages that have come.
extern "C" Result ncclCommGetAsyncError(void* communicator, Result* error) {
  const std::lock_guard lock(g_mutex);
  auto& mine = *static_cast<Communicator*>(communicator);
  std::erase_if(mine.open, [&](const Call& call) { return take(mine, call); });
  const bool is_done = mine.open.empty() && mine.all_joined();
  *error = mine.failure != kSuccess ? mine.failure : is_done ? kSuccess : kInProgress;
  return kSuccess;
}
extern "C" const char* ncclGetErrorString(Result error) {
  return error == kSystemError    ? "unhandled system error"
         : error == kInvalidUsage ? "invalid usage"
                                  : "invalid argument";
}
extern "C" Result ncclGroupStart() {
  t_in_group = true;
  return kSuccess;
}
extern "C" Result ncclSend(const void* from, std::size_t count, int type, int peer,
                           void* communicator, void* stream) {
  return add({static_cast<Communicator*>(communicator), peer, from, nullptr, count}, type, stream);
}
extern "C" Result ncclRecv(void* to, std::size_t count, int type, int peer, void* communicator,
                           void* stream) {
  return add({static_cast<Communicator*>(communicator), peer, nullptr, to, count}, type, stream);
}
extern "C" Result ncclGroupEnd() {
  const std::lock_guard lock(g_mutex);
  t_in_group = false;
  Result result = kSuccess;
  for (Call& call : std::exchange(t_calls, {})) {
    Communicator& mine = *call.communicator;
    if (call.from != nullptr) {
      const int number = mine.num_sent[call.peer]++;
      put(mine.message_file(mine.rank, call.peer, number), call.from, call.bytes);
    } else {
      call.number = mine.num_received[call.peer]++;
      mine.open.push_back(call);
      result = kInProgress;
    }
  }
  return result;
}

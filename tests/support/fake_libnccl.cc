// A library as libnccl.so.2 is, for ranks that are threads of one process and devices that are this
// machine's CPU (fake_libcuda.cc): what the manual says of the functions that
// src/transport/cuda/nccl.cc calls. Communicators are not blocking: a call may return before it is
// done, and ncclCommGetAsyncError says when it is.
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInvalidArgument = 4;
constexpr Result kInvalidUsage = 5;
constexpr Result kInProgress = 7;

struct Group {
  int size = 0;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> mail;  // from, to
};
struct Communicator;
struct Call {
  Communicator* communicator = nullptr;
  int peer = 0;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
};

struct Communicator {
  std::string id;
  int rank = 0;
  std::vector<Call> open = {};  // receives that have no message yet
  Result failure = kSuccess;
};

std::mutex g_mutex;
std::map<std::string, Group> g_groups;
thread_local bool t_in_group = false;
thread_local std::vector<Call> t_calls;

Result add(const Call& call, std::size_t count, int type, void* stream) {
  const std::lock_guard lock(g_mutex);
  if (!t_in_group || stream == nullptr) return kInvalidUsage;
  const bool known = g_groups.contains(call.communicator->id);
  if (!known || type != 0 || count == 0 || call.peer < 0 ||
      call.peer >= g_groups[call.communicator->id].size) {
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
  std::memset(id->bytes, 'n', sizeof(id->bytes));
  std::memcpy(id->bytes, &++number, sizeof(number));
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
  const std::lock_guard lock(g_mutex);
  const bool is_config = config->size >= 24 && config->magic == 0xcafebeef &&
                         config->version >= 21400 && config->blocking == 0;
  if (rank < 0 || rank >= size || id.bytes[127] != 'n' || !is_config) return kInvalidArgument;
  const std::string name(id.bytes, sizeof(id.bytes));
  Group& group = g_groups[name];
  group.size = size;
  ++group.joined;
  *communicator = new Communicator{name, rank};
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
  Group& group = g_groups[mine.id];
  std::erase_if(mine.open, [&](const Call& call) {
    auto& mail = group.mail[{call.peer, mine.rank}];
    if (mail.empty()) return false;
    if (mail.front().size() != call.bytes) {
      mine.failure = kInvalidUsage;
    } else {
      std::memcpy(call.to, mail.front().data(), call.bytes);
    }
    mail.pop_front();
    return true;
  });
  const bool is_done = group.joined == group.size && mine.open.empty();
  *error = mine.failure != kSuccess ? mine.failure : is_done ? kSuccess : kInProgress;
  return kSuccess;
}
extern "C" const char* ncclGetErrorString(Result error) {
  return error == kInvalidUsage ? "invalid usage" : "invalid argument";
}
extern "C" Result ncclGroupStart() {
  t_in_group = true;
  return kSuccess;
}
extern "C" Result ncclSend(const void* from, std::size_t count, int type, int peer,
                           void* communicator, void* stream) {
  return add({static_cast<Communicator*>(communicator), peer, from, nullptr, count}, count, type,
             stream);
}
extern "C" Result ncclRecv(void* to, std::size_t count, int type, int peer, void* communicator,
                           void* stream) {
  return add({static_cast<Communicator*>(communicator), peer, nullptr, to, count}, count, type,
             stream);
}
extern "C" Result ncclGroupEnd() {
  const std::lock_guard lock(g_mutex);
  const std::vector<Call> calls = std::exchange(t_calls, {});
  t_in_group = false;
  Result result = kSuccess;
  for (const Call& call : calls) {
    if (call.from != nullptr) {
      const auto* bytes = static_cast<const char*>(call.from);
      g_groups[call.communicator->id].mail[{call.communicator->rank, call.peer}].emplace_back(
          bytes, bytes + call.bytes);
    } else {
      call.communicator->open.push_back(call);
      result = kInProgress;
    }
  }
  return result;
}

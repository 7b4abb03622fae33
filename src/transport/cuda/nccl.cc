#include "transport/cuda/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <type_traits>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/quote.h"

namespace contextile::cuda {
namespace {

// The part of the library's interface that is used here, from its manual (NCCL 2: point-to-point,
// groups).
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInProgress = 7;
constexpr int kBytes = 0;  // ncclInt8
struct UniqueId {
  char bytes[128];
};
// The configuration of a communicator as NCCL 2.14 has it. Newer versions take it, too, and fill in
// the rest. Calls of a communicator that is not blocking return before they are done, so that no
// call waits for a peer that never comes.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};
static_assert(sizeof(Config) == 24);

class Library {
 public:
  explicit Library(const std::string& name)
      : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    CONTEXTILE_CHECK(handle_ != nullptr, "nccl: expected the library {}, found none: {}", name,
                     ::dlerror());
    const auto find = [&](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle_, symbol));
      CONTEXTILE_CHECK(function != nullptr, "nccl: expected {} in {}, found no such function",
                       symbol, name);
    };
    find(unique_id, "ncclGetUniqueId");
    find(init, "ncclCommInitRankConfig");
    find(finalize, "ncclCommFinalize");
    find(destroy, "ncclCommDestroy");
    find(abort, "ncclCommAbort");
    find(async_error, "ncclCommGetAsyncError");
    find(error_text, "ncclGetErrorString");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(send, "ncclSend");
    find(recv, "ncclRecv");
  }
  // The library stays open: it has threads of its own.
  ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void check(std::string_view call, Result result) const {
    if (result == kSuccess || result == kInProgress) return;
    throw DeviceError(
        fmt::format("nccl: {}: {} (NCCL error {})", call, error_text(result), result));
  }

  Result (*unique_id)(UniqueId*) = nullptr;
  Result (*init)(void**, int, UniqueId, int, Config*) = nullptr;
  Result (*finalize)(void*) = nullptr;
  Result (*destroy)(void*) = nullptr;
  Result (*abort)(void*) = nullptr;
  Result (*async_error)(void*, Result*) = nullptr;
  const char* (*error_text)(Result) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*send)(const void*, std::size_t, int, int, void*, void*) = nullptr;
  Result (*recv)(void*, std::size_t, int, int, void*, void*) = nullptr;

 private:
  void* handle_;
};

class NcclCommunicator : public PointToPoint {
 public:
  NcclCommunicator(Driver& driver, const NcclId& id, Rank rank, std::int32_t size,
                   std::chrono::milliseconds timeout, const std::string& library)
      : driver_(driver), nccl_(library), rank_(rank), timeout_(timeout) {
    UniqueId unique;
    std::memcpy(unique.bytes, id.data(), id.size());
    try {
      Config config;
      driver.within([&] {
        nccl_.check("ncclCommInitRankConfig",
                    nccl_.init(&communicator_, size, unique, rank.value, &config));
      });
      wait_until_ready("connecting", timeout_);
    } catch (...) {
      abort();
      throw;
    }
  }
  ~NcclCommunicator() override {
    if (communicator_ == nullptr) return;
    try {
      nccl_.check("ncclCommFinalize", nccl_.finalize(communicator_));
      wait_until_ready("ending", kEnd);
      nccl_.destroy(communicator_);
    } catch (const Error&) {
      abort();
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void exchange(Stream stream, std::span<const PeerBytes> sends,
                std::span<const PeerBytes> recvs) override {
    void* const on = driver_.native(stream);
    driver_.within([&] {
      const std::lock_guard lock(mutex_);
      check_open("a group of sends and receives");
      nccl_.check("ncclGroupStart", nccl_.group_start());
      Result first = kSuccess;
      const auto note = [&](Result result) {
        if (first == kSuccess || first == kInProgress) first = result;
      };
      for (const PeerBytes& send : sends) {
        note(nccl_.send(send.data, static_cast<std::size_t>(send.bytes), kBytes, send.peer.value,
                        communicator_, on));
      }
      for (const PeerBytes& recv : recvs) {
        note(nccl_.recv(recv.data, static_cast<std::size_t>(recv.bytes), kBytes, recv.peer.value,
                        communicator_, on));
      }
      note(nccl_.group_end());  // ends the group, whatever failed
      nccl_.check("a group of sends and receives", first);
    });
    // The group is on the stream only when the library says so.
    wait_until_ready("a group of sends and receives", timeout_);
  }

  [[nodiscard]] std::string failure() override {
    const std::lock_guard lock(mutex_);
    if (communicator_ == nullptr) return {};
    const Result state = state_of();
    if (state == kSuccess || state == kInProgress) return {};
    return fmt::format("{} (NCCL error {})", nccl_.error_text(state), state);
  }

  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    if (communicator_ != nullptr) nccl_.abort(communicator_);
    communicator_ = nullptr;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kEnd{2'000};
  static constexpr std::chrono::microseconds kPoll{50};
  // Most calls are done sooner than a thread that sleeps wakes up.
  static constexpr std::chrono::microseconds kAwake{100};

  // Needs the lock.
  [[nodiscard]] Result state_of() const {
    Result state = kSuccess;
    const Result asked = nccl_.async_error(communicator_, &state);
    return asked == kSuccess ? state : asked;
  }
  // Needs the lock.
  void check_open(const char* what) const {
    if (communicator_ != nullptr) return;
    throw TransportError(fmt::format("rank {}, nccl: {}: the group has ended", rank_.value, what));
  }
  // Waits until the last call is done. The lock is free in between, so that `abort` gets in.
  void wait_until_ready(const char* what, std::chrono::milliseconds timeout) {
    const Clock::time_point begin = Clock::now();
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        check_open(what);
        const Result state = state_of();
        nccl_.check(what, state);
        if (state != kInProgress) return;
      }
      const Clock::duration waited = Clock::now() - begin;
      if (waited > timeout) {
        throw TransportError(fmt::format("rank {}, nccl: {}: expected all peers within {} ms",
                                         rank_.value, what, timeout.count()));
      }
      if (waited < kAwake) {
        std::this_thread::yield();
      } else {
        sleep_for(kPoll);
      }
    }
  }

  Driver& driver_;
  Library nccl_;
  const Rank rank_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  void* communicator_ = nullptr;
};

}  // namespace

std::string find_nccl(const std::vector<std::string>& files) {
  std::vector<std::string> reasons;
  for (const std::string& file : files) {
    // It stays open: Library opens it again.
    if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return file;
    const std::string reason = ::dlerror();
    reasons.push_back(
        without_orders(reason.starts_with(file) ? reason : fmt::format("{}: {}", file, reason)));
  }
  fail_argument(
      "nccl: expected NCCL's library, found none ({}); CONTEXTILE_NCCL names its file, such as "
      "site-packages/nvidia/nccl/lib/{} of PyTorch",
      fmt::join(reasons, "; "), kNcclLibrary);
}

NcclId make_nccl_id(const std::string& library) {
  const Library nccl(library);
  UniqueId unique;
  nccl.check("ncclGetUniqueId", nccl.unique_id(&unique));
  NcclId id;
  std::memcpy(id.data(), unique.bytes, id.size());
  return id;
}

std::unique_ptr<PointToPoint> join_nccl(Driver& driver, const NcclId& id, Rank rank,
                                        std::int32_t size, std::chrono::milliseconds timeout,
                                        const std::string& library) {
  return std::make_unique<NcclCommunicator>(driver, id, rank, size, timeout, library);
}

}  // namespace contextile::cuda

#include "transport/cuda/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "base/check.h"

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
    find(init, "ncclCommInitRank");
    find(destroy, "ncclCommDestroy");
    find(abort, "ncclCommAbort");
    find(async_error, "ncclCommGetAsyncError");
    find(error_text, "ncclGetErrorString");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(send, "ncclSend");
    find(recv, "ncclRecv");
  }
  ~Library() { ::dlclose(handle_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void check(std::string_view call, Result result) const {
    if (result == kSuccess || result == kInProgress) return;
    throw DeviceError(
        fmt::format("nccl: {}: {} (NCCL error {})", call, error_text(result), result));
  }

  Result (*unique_id)(UniqueId*) = nullptr;
  Result (*init)(void**, int, UniqueId, int) = nullptr;
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
                   const std::string& library)
      : driver_(driver), nccl_(library) {
    UniqueId unique;
    std::memcpy(unique.bytes, id.data(), id.size());
    driver.enter();
    nccl_.check("ncclCommInitRank", nccl_.init(&communicator_, size, unique, rank.value));
  }
  ~NcclCommunicator() override {
    if (communicator_ != nullptr) nccl_.destroy(communicator_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void exchange(Stream stream, std::span<const PeerBytes> sends,
                std::span<const PeerBytes> recvs) override {
    driver_.enter();
    void* const on = driver_.native(stream);
    nccl_.check("ncclGroupStart", nccl_.group_start());
    Result first = kSuccess;
    const auto note = [&](Result result) {
      if (first == kSuccess) first = result;
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
  }

  [[nodiscard]] std::string failure() override {
    Result state = kSuccess;
    const Result asked = nccl_.async_error(communicator_, &state);
    if (asked != kSuccess) state = asked;
    if (state == kSuccess || state == kInProgress) return {};
    return fmt::format("{} (NCCL error {})", nccl_.error_text(state), state);
  }

  void abort() noexcept override {
    if (communicator_ != nullptr) nccl_.abort(communicator_);
    communicator_ = nullptr;
  }

 private:
  Driver& driver_;
  Library nccl_;
  void* communicator_ = nullptr;
};

}  // namespace

NcclId make_nccl_id(const std::string& library) {
  const Library nccl(library);
  UniqueId unique;
  nccl.check("ncclGetUniqueId", nccl.unique_id(&unique));
  NcclId id;
  std::memcpy(id.data(), unique.bytes, id.size());
  return id;
}

std::unique_ptr<PointToPoint> join_nccl(Driver& driver, const NcclId& id, Rank rank,
                                        std::int32_t size, const std::string& library) {
  return std::make_unique<NcclCommunicator>(driver, id, rank, size, library);
}

}  // namespace contextile::cuda

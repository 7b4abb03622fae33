// A store of small values that processes share. It carries plans from the processes that plan to
// the processes that execute, and does no more than that needs.
//
//   const std::unique_ptr<Store> store = open_store("redis://10.0.0.7:6379");
//   if (store->put("run/3/claim", name, std::chrono::seconds(10))) {}  // no other process has step
// 3
//   const std::optional<StoreValue> value = store->pull("run/3/0", std::chrono::seconds(60));
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Keys are 1 to 80 bytes of any kind; values at most 256 MiB, also empty.
inline constexpr std::size_t kMaxStoreKeyBytes = 80;
inline constexpr std::size_t kMaxStoreValueBytes = std::size_t{256} << 20;
// Longest time that a value may live; the shortest is 1 ms.
inline constexpr std::chrono::milliseconds kMaxStoreExpiry = std::chrono::hours(24 * 1000);

using StoreValue = std::vector<std::uint8_t>;

// Values under keys. Each has an expiry, after which it is as if it had never been there. Calls are
// atomic, whatever other processes do at the same time; a value is never seen in part. Any number
// of threads may call at a time.
//
// Every call throws InvalidArgument on keys, values and times beyond the bounds above. When the
// store is gone, it throws IoError naming the store, the operation, the key and how long it tried.
class Store {
 public:
  virtual ~Store() = default;

  // The address as opened, without its password, for messages.
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Stores the value unless one is there, which then stays. Returns true if it stored the value. A
  // call that is repeated because its answer was lost returns true when it finds its own value.
  [[nodiscard]] bool put(std::string_view key, std::span<const std::uint8_t> value,
                         std::chrono::milliseconds expiry);
  // Stores the value and replaces any that is there.
  void replace(std::string_view key, std::span<const std::uint8_t> value,
               std::chrono::milliseconds expiry);
  // Returns the value, if there is one.
  [[nodiscard]] std::optional<StoreValue> get(std::string_view key);
  // The same, but waits for the value until the timeout if there is none. The value stays in the
  // store.
  [[nodiscard]] std::optional<StoreValue> pull(std::string_view key,
                                               std::chrono::milliseconds timeout);
  // Removes the value. Returns true if there was one.
  bool erase(std::string_view key);
  // Extends the life of the value if it equals `value`. Returns true if it did. A claim that is
  // renewed still belongs to its owner.
  [[nodiscard]] bool renew(std::string_view key, std::span<const std::uint8_t> value,
                           std::chrono::milliseconds expiry);

 protected:
  using Key = std::string_view;
  using Bytes = std::span<const std::uint8_t>;
  using Milliseconds = std::chrono::milliseconds;

  // Implementations of the calls above; the arguments are within bounds.
  [[nodiscard]] virtual bool do_put(Key key, Bytes value, Milliseconds expiry) = 0;
  virtual void do_replace(Key key, Bytes value, Milliseconds expiry) = 0;
  [[nodiscard]] virtual std::optional<StoreValue> do_get(Key key) = 0;
  [[nodiscard]] virtual std::optional<StoreValue> do_pull(Key key, Milliseconds timeout) = 0;
  [[nodiscard]] virtual bool do_erase(Key key) = 0;
  [[nodiscard]] virtual bool do_renew(Key key, Bytes value, Milliseconds expiry) = 0;
};

struct StoreOptions {
  // How long a call may try when the store does not answer. A server that restarts within this time
  // is no error.
  std::chrono::milliseconds timeout{10'000};
};

// One way to keep values.
struct StoreKind {
  std::string_view scheme;   // the beginning of its addresses, without the colon
  std::string_view address;  // the form of its addresses: "file:///FOLDER"
  std::string_view summary;  // one line
  std::string_view missing;  // the reason why this build lacks it; empty if it has it
  // Opens a store. `rest` is the address after the colon.
  std::unique_ptr<Store> (*open)(std::string_view rest, const StoreOptions& options);
};
// All kinds of stores.
[[nodiscard]] std::span<const StoreKind> store_kinds();

// Opens a store by its address:
//   memory:                         of this process: one for every call, which all threads share
//   file:///FOLDER                  a folder that all processes see; made if its parent is there
//   redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]   a Redis server (6.2 or newer)
//   redis+unix:///SOCKET            the same on this machine
// Throws InvalidArgument on another address and if the build lacks the kind of store, IoError when
// the store cannot be reached within the timeout.
[[nodiscard]] std::unique_ptr<Store> open_store(std::string_view address,
                                                const StoreOptions& options = {});

// -------------------------------------------------------------------------------------- membership
//
// Agreement on the members of a group after a failure: the remaining ranks agree on the group that
// goes on without the lost ones.

struct MembershipOptions {
  // Once no rank has arrived for this long, the ranks that are still missing are left out.
  std::chrono::milliseconds settle{2'000};
  // Limit of the whole call.
  std::chrono::milliseconds timeout{60'000};
};

struct Membership {
  std::vector<Rank> members;  // ranks in the old group, ascending
  Rank rank;                  // this process in the new group: its index in members

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(members.size()); }
};

// Every remaining rank of a group of `num_ranks` calls it with its old rank. All ranks that arrive
// in time return the same members. `run` names the job. `generation` numbers the new group: 1 after
// the first failure, then 2, so that no key is used twice. The first decision that reaches the
// store counts, whichever rank made it, so two groups never go on: a rank that is not in it
// (because it was slow or cut off) throws TransportError. Also throws InvalidArgument on numbers
// that are out of range, the errors of the store, and TransportError after the timeout.
[[nodiscard]] Membership agree_on_members(Store& store, std::string_view run,
                                          std::int32_t generation, Rank rank,
                                          std::int32_t num_ranks,
                                          const MembershipOptions& options = {});

}  // namespace contextile

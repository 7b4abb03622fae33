// A store of small values that processes share: plans on their way from those that plan to those
// that execute. What it must do for that, and no more.
//
//   const std::unique_ptr<Store> store = open_store("redis://10.0.0.7:6379");
//   if (store->put("run/3/claim", name, std::chrono::seconds(10))) {}  // nobody else has step 3
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
// A value lives 1 ms to 1000 days.
inline constexpr std::chrono::milliseconds kMaxStoreExpiry = std::chrono::hours(24 * 1000);

using StoreValue = std::vector<std::uint8_t>;

// Values under keys, each with an end of its life, after which it is as if it had never been there.
// Every call happens at once, as others see it, whatever they do at the same time; a value is never
// seen in part. Any thread may call, and many at a time.
//
// Every call throws InvalidArgument on keys, values and times beyond the bounds above, and IoError
// naming store, operation, key and how long was tried when the store is gone.
class Store {
 public:
  virtual ~Store() = default;

  // As opened, without a password: for messages.
  [[nodiscard]] virtual std::string_view name() const = 0;

  // Stores the value unless one is there, which then stays. Returns whether it stands there now: a
  // call whose answer was lost and that is made again is true when it finds its own value.
  [[nodiscard]] bool put(std::string_view key, std::span<const std::uint8_t> value,
                         std::chrono::milliseconds expiry);
  // Stores the value, whatever is there.
  void replace(std::string_view key, std::span<const std::uint8_t> value,
               std::chrono::milliseconds expiry);
  // The value, if there is one.
  [[nodiscard]] std::optional<StoreValue> get(std::string_view key);
  // The same; where there is none, waits for it until the timeout. The value stays.
  [[nodiscard]] std::optional<StoreValue> pull(std::string_view key,
                                               std::chrono::milliseconds timeout);
  // Takes the value away; returns whether there was one.
  bool erase(std::string_view key);
  // Gives the value, if it is this one, a new end of its life; returns whether it was. A claim that
  // is renewed is still its owner's.
  [[nodiscard]] bool renew(std::string_view key, std::span<const std::uint8_t> value,
                           std::chrono::milliseconds expiry);

 protected:
  using Key = std::string_view;
  using Bytes = std::span<const std::uint8_t>;
  using Milliseconds = std::chrono::milliseconds;

  // The calls above with arguments that are within bounds.
  [[nodiscard]] virtual bool do_put(Key key, Bytes value, Milliseconds expiry) = 0;
  virtual void do_replace(Key key, Bytes value, Milliseconds expiry) = 0;
  [[nodiscard]] virtual std::optional<StoreValue> do_get(Key key) = 0;
  [[nodiscard]] virtual std::optional<StoreValue> do_pull(Key key, Milliseconds timeout) = 0;
  [[nodiscard]] virtual bool do_erase(Key key) = 0;
  [[nodiscard]] virtual bool do_renew(Key key, Bytes value, Milliseconds expiry) = 0;
};

struct StoreOptions {
  // How long a call may try when the store does not answer: a server that restarts meanwhile is no
  // error.
  std::chrono::milliseconds timeout{10'000};
};

// One way to keep values.
struct StoreKind {
  std::string_view scheme;   // what its addresses begin with, without the colon
  std::string_view address;  // what they look like: "file:///FOLDER"
  std::string_view summary;  // one line
  std::string_view missing;  // why this build lacks it; empty if it is there
  // `rest` stands behind the colon.
  std::unique_ptr<Store> (*open)(std::string_view rest, const StoreOptions& options);
};
// All there are.
[[nodiscard]] std::span<const StoreKind> store_kinds();

// Opens a store by its address:
//   memory:                         of this process: one for every call, which all threads share
//   file:///FOLDER                  a folder that all processes see; made if its parent is there
//   redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]   a Redis server (6.2 or newer)
//   redis+unix:///SOCKET            the same on this machine
// Throws InvalidArgument on another address and where the build lacks it, IoError when it cannot be
// reached within the timeout.
//
// The clocks of machines that share a folder must agree to well within the expiries.
[[nodiscard]] std::unique_ptr<Store> open_store(std::string_view address,
                                                const StoreOptions& options = {});

// -------------------------------------------------------------------------------------- membership
//
// Who is left: ranks of a group that failed agree on the group that goes on without the lost ones.

struct MembershipOptions {
  // Ranks that have not come when none came for that long are left out.
  std::chrono::milliseconds settle{2'000};
  // For the whole call.
  std::chrono::milliseconds timeout{60'000};
};

struct Membership {
  std::vector<Rank> members;  // numbers in the old group, ascending
  Rank rank;                  // this process in the new one: its place among them

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(members.size()); }
};

// Every rank of a group of `num_ranks` that is left calls it, with its old number; all that come in
// time return the same members. `run` names the job, `generation` the group to come: 1 after the
// first failure, then 2, so that no key is used twice. The first decision that reaches the store
// counts, whoever made it, so that no two groups go on: a rank that is not in it (it was slow, or
// cut off) throws TransportError. Also throws InvalidArgument on numbers that cannot be, what the
// store throws, and TransportError after the timeout.
[[nodiscard]] Membership agree_on_members(Store& store, std::string_view run,
                                          std::int32_t generation, Rank rank,
                                          std::int32_t num_ranks,
                                          const MembershipOptions& options = {});

}  // namespace contextile

#include "contextile/advanced/store.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "store/implementations.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

void check_key(std::string_view operation, std::string_view key) {
  CONTEXTILE_CHECK(!key.empty() && key.size() <= kMaxStoreKeyBytes,
                   "store: {}: expected a key of 1 to {} bytes, found {}: {}", operation,
                   kMaxStoreKeyBytes, key.size(), quote(key));
}

void check_stored(std::string_view operation, std::string_view key,
                  std::span<const std::uint8_t> value, milliseconds expiry) {
  check_key(operation, key);
  CONTEXTILE_CHECK(value.size() <= kMaxStoreValueBytes,
                   "store: {} {}: expected a value of at most {} bytes, found {}", operation,
                   quote(key), kMaxStoreValueBytes, value.size());
  CONTEXTILE_CHECK(expiry >= milliseconds(1) && expiry <= kMaxStoreExpiry,
                   "store: {} {}: expected an expiry of 1 to {} ms, found {}", operation,
                   quote(key), kMaxStoreExpiry.count(), expiry.count());
}

std::array<StoreKind, 4> all_kinds() {
  return {{{"memory", "memory:", "threads of one process", "", open_memory_store},
           {"file", "file:///FOLDER", "processes that see one folder", "", open_file_store},
           {"redis", "redis://HOST[:PORT][/DATABASE]", "processes of many machines, by a server",
            redis_missing(), open_redis_store},
           {"redis+unix", "redis+unix:///SOCKET", "processes of one machine, by a server",
            redis_missing(), open_redis_unix_store}}};
}

// The address for messages, without all that comes before the password's end.
std::string shown(std::string_view address) {
  const std::size_t at = address.rfind('@');
  return at == std::string_view::npos ? quote(address)
                                      : quote("…" + std::string(address.substr(at)));
}

}  // namespace

bool Store::put(std::string_view key, std::span<const std::uint8_t> value, milliseconds expiry) {
  check_stored("put", key, value, expiry);
  return do_put(key, value, expiry);
}

void Store::replace(std::string_view key, std::span<const std::uint8_t> value,
                    milliseconds expiry) {
  check_stored("replace", key, value, expiry);
  do_replace(key, value, expiry);
}

std::optional<StoreValue> Store::get(std::string_view key) {
  check_key("get", key);
  return do_get(key);
}

std::optional<StoreValue> Store::pull(std::string_view key, milliseconds timeout) {
  check_key("pull", key);
  // Without a bound, the sum with the time of day would overflow.
  return do_pull(key, std::clamp(timeout, milliseconds(0), kMaxStoreExpiry));
}

bool Store::erase(std::string_view key) {
  check_key("erase", key);
  return do_erase(key);
}

bool Store::renew(std::string_view key, std::span<const std::uint8_t> value, milliseconds expiry) {
  check_stored("renew", key, value, expiry);
  return do_renew(key, value, expiry);
}

std::span<const StoreKind> store_kinds() {
  static const std::array<StoreKind, 4> kKinds = all_kinds();
  return kKinds;
}

std::unique_ptr<Store> open_store(std::string_view address, const StoreOptions& options) {
  CONTEXTILE_CHECK(options.timeout >= milliseconds(1) && options.timeout <= kMaxStoreExpiry,
                   "store: expected a timeout of 1 to {} ms, found {}", kMaxStoreExpiry.count(),
                   options.timeout.count());
  const std::size_t colon = address.find(':');
  const std::string_view scheme = address.substr(0, colon);
  std::vector<std::string> schemes;
  std::string addresses;
  for (const StoreKind& kind : store_kinds()) {
    if (colon != std::string_view::npos && scheme == kind.scheme) {
      return kind.open(address.substr(colon + 1), options);
    }
    schemes.emplace_back(kind.scheme);
    addresses += (addresses.empty() ? "" : ", ") + std::string(kind.address);
  }
  fail_argument("store: expected one of {}, found {}{}", addresses, shown(address),
                did_you_mean(scheme, schemes));
}

}  // namespace contextile

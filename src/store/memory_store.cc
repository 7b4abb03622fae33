// Values in the memory of one process.

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/process_owner.h"
#include "base/quote.h"
#include "store/implementations.h"

namespace contextile {
namespace {

class MemoryStore : public Store {
 public:
  [[nodiscard]] std::string_view name() const override { return "memory:"; }

 protected:
  [[nodiscard]] bool do_put(Key key, Bytes value, Milliseconds expiry) override {
    const Lock lock = locked();
    if (live(key) != nullptr) return false;
    set(key, value, expiry);
    return true;
  }

  void do_replace(Key key, Bytes value, Milliseconds expiry) override {
    const Lock lock = locked();
    set(key, value, expiry);
  }

  [[nodiscard]] std::optional<StoreValue> do_get(Key key) override {
    const Lock lock = locked();
    const Entry* entry = live(key);
    if (entry == nullptr) return std::nullopt;
    return entry->value;
  }

  [[nodiscard]] std::optional<StoreValue> do_pull(Key key, Milliseconds timeout) override {
    Lock lock = locked();
    const Entry* entry = nullptr;
    static_cast<void>(wait_until(stored_, lock, Clock::now() + timeout, [&] {
      entry = live(key);
      return entry != nullptr;
    }));
    if (entry == nullptr) return std::nullopt;
    return entry->value;
  }

  [[nodiscard]] bool do_erase(Key key) override {
    const Lock lock = locked();
    if (live(key) == nullptr) return false;
    entries_.erase(entries_.find(key));
    return true;
  }

  [[nodiscard]] bool do_renew(Key key, Bytes value, Milliseconds expiry) override {
    const Lock lock = locked();
    Entry* entry = live(key);
    if (entry == nullptr ||
        !std::equal(value.begin(), value.end(), entry->value.begin(), entry->value.end())) {
      return false;
    }
    entry->end = Clock::now() + expiry;
    return true;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct Entry {
    StoreValue value;
    Clock::time_point end;
  };

  // In a child made by fork, no other thread would ever store anything.
  [[nodiscard]] Lock locked() {
    owner_.check("store memory:");
    return Lock(mutex_);
  }

  // Null if the entry's life is over; then it is erased.
  Entry* live(Key key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    if (found->second.end > Clock::now()) return &found->second;
    entries_.erase(found);
    return nullptr;
  }

  void set(Key key, Bytes value, Milliseconds expiry) {
    // Expired values are removed now and then, so that memory is bounded by the values that live.
    if (++num_stored_ % kSweepInterval == 0) {
      std::erase_if(entries_, [now = Clock::now()](const auto& e) { return e.second.end <= now; });
    }
    entries_.insert_or_assign(std::string(key),
                              Entry{{value.begin(), value.end()}, Clock::now() + expiry});
    stored_.notify_all();
  }

  static constexpr std::int64_t kSweepInterval = 256;

  const ProcessOwner owner_;
  std::mutex mutex_;
  std::condition_variable stored_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::int64_t num_stored_ = 0;
};

}  // namespace

std::unique_ptr<Store> open_memory_store(std::string_view rest, const StoreOptions&) {
  CONTEXTILE_CHECK(rest.empty(), "store: expected nothing behind memory:, found {}", quote(rest));
  return std::make_unique<MemoryStore>();
}

}  // namespace contextile

// The pages of a cache: their users, and the order in which unused ones are given out again.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/serving/kv_cache.h"

namespace contextile {

// Unused pages form a queue. A page that became unused earlier is given out earlier, except that
// pages without value go first.
class PagePool {
 public:
  explicit PagePool(std::int32_t num_pages);

  [[nodiscard]] std::int32_t num_pages() const { return static_cast<std::int32_t>(pages_.size()); }
  [[nodiscard]] std::int32_t num_free() const { return num_free_; }
  [[nodiscard]] std::int32_t users(PageId page) const { return pages_[page.index()].users; }
  // The unused page that is given out next. There must be one.
  [[nodiscard]] PageId front() const { return PageId(first_); }

  // Takes the front for one user.
  PageId take();
  // Adds a user; an unused page leaves the queue.
  void use(PageId page);
  // One user less. A page without any goes to the end of the queue.
  void drop(PageId page);
  // The same, but the page goes to the front: its contents are of no use to anybody.
  void discard(PageId page);

  // Throws std::logic_error unless queue and users agree.
  void check_consistency() const;

 private:
  struct Page {
    std::int32_t users = 0;
    std::int32_t before = -1;  // in the queue
    std::int32_t after = -1;
  };

  void append(std::int32_t page);
  void prepend(std::int32_t page);
  void remove(std::int32_t page);

  std::vector<Page> pages_;
  std::int32_t first_ = -1;
  std::int32_t last_ = -1;
  std::int32_t num_free_ = 0;
};

}  // namespace contextile

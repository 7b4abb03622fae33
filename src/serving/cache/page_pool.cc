#include "serving/cache/page_pool.h"

#include <cstddef>
#include <stdexcept>

namespace contextile {

PagePool::PagePool(std::int32_t num_pages) : pages_(static_cast<std::size_t>(num_pages)) {
  for (std::int32_t page = 0; page < num_pages; ++page) append(page);
}

PageId PagePool::take() {
  const PageId page = front();
  use(page);
  return page;
}

void PagePool::use(PageId page) {
  if (pages_[page.index()].users++ == 0) remove(page.value);
}

void PagePool::drop(PageId page) {
  if (--pages_[page.index()].users == 0) append(page.value);
}

void PagePool::discard(PageId page) {
  if (--pages_[page.index()].users == 0) prepend(page.value);
}

void PagePool::prepend(std::int32_t page) {
  Page& added = pages_[static_cast<std::size_t>(page)];
  added.before = -1;
  added.after = first_;
  (first_ >= 0 ? pages_[static_cast<std::size_t>(first_)].before : last_) = page;
  first_ = page;
  ++num_free_;
}

void PagePool::append(std::int32_t page) {
  Page& added = pages_[static_cast<std::size_t>(page)];
  added.before = last_;
  added.after = -1;
  if (last_ >= 0) {
    pages_[static_cast<std::size_t>(last_)].after = page;
  } else {
    first_ = page;
  }
  last_ = page;
  ++num_free_;
}

void PagePool::remove(std::int32_t page) {
  const Page removed = pages_[static_cast<std::size_t>(page)];
  (removed.before >= 0 ? pages_[static_cast<std::size_t>(removed.before)].after : first_) =
      removed.after;
  (removed.after >= 0 ? pages_[static_cast<std::size_t>(removed.after)].before : last_) =
      removed.before;
  --num_free_;
}

void PagePool::check_consistency() const {
  std::int32_t counted = 0;
  std::int32_t before = -1;
  for (std::int32_t page = first_; page >= 0; page = pages_[static_cast<std::size_t>(page)].after) {
    const Page& queued = pages_[static_cast<std::size_t>(page)];
    if (queued.users != 0 || queued.before != before || ++counted > num_pages()) {
      throw std::logic_error("page pool: the queue is broken");
    }
    before = page;
  }
  std::int32_t unused = 0;
  for (const Page& page : pages_) unused += page.users == 0 ? 1 : 0;
  if (counted != num_free_ || unused != num_free_ || before != last_) {
    throw std::logic_error("page pool: the queue lacks an unused page, or holds another");
  }
}

}  // namespace contextile

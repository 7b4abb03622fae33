#include "plan/verify/slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace contextile {

std::string SlotPool::Slot::gone_text() const {
  switch (gone) {
    case Gone::kNever:
      return "";
    case Gone::kSent:
      return fmt::format(" (sent at instruction {})", gone_at);
    case Gone::kReduced:
      return fmt::format(" (reduced at instruction {})", gone_at);
    case Gone::kCopied:
      return fmt::format(" (copied at instruction {})", gone_at);
    case Gone::kOverwritten:
      return fmt::format(" (overwritten at instruction {})", gone_at);
  }
  return "";
}

SlotPool::SlotPool(std::int64_t num_owned, const std::vector<StagingSlot>& staging)
    : num_owned_(static_cast<std::size_t>(num_owned)),
      staging_(&staging),
      slots_(num_owned_ + staging.size()) {
  find_apart();
}

// Finds the staging slots whose ranges overlap no other.
void SlotPool::find_apart() {
  std::vector<SlotId> by_offset;
  by_offset.reserve(staging_->size());
  for (std::size_t s = num_owned_; s < slots_.size(); ++s) {
    by_offset.emplace_back(static_cast<std::int32_t>(s));
  }
  const auto offset = [this](SlotId slot) { return range(slot).begin; };
  if (!std::ranges::is_sorted(by_offset, {}, offset)) std::ranges::sort(by_offset, {}, offset);
  std::int64_t end = 0;  // of all earlier ranges
  for (std::size_t i = 0; i < by_offset.size(); ++i) {
    const Range mine = range(by_offset[i]);
    const bool is_last = i + 1 == by_offset.size();
    slots_[by_offset[i].index()].apart =
        end <= mine.begin && (is_last || mine.end <= range(by_offset[i + 1]).begin);
    end = std::max(end, mine.end);
  }
}

Range SlotPool::range(SlotId slot) const {
  const auto [offset, capacity] = (*staging_)[slot.index() - num_owned_];
  return {offset, offset + capacity};
}

bool SlotPool::overlap(SlotId a, SlotId b) const {
  if (a == b || is_owned(a) || is_owned(b)) return a == b;
  return !intersect(range(a), range(b)).empty();
}

void SlotPool::occupy(SlotId slot, std::vector<SlotId>& pushed_out) {
  if (slots_[slot.index()].apart || slots_[slot.index()].in_use) return;
  const Range mine = range(slot);
  auto at = in_use_.lower_bound(mine.begin);
  if (at != in_use_.begin() && range(std::prev(at)->second).end > mine.begin) --at;
  while (at != in_use_.end() && range(at->second).begin < mine.end) {
    pushed_out.push_back(at->second);
    slots_[at->second.index()].in_use = false;
    at = in_use_.erase(at);
  }
  in_use_.emplace_hint(at, mine.begin, slot);
  slots_[slot.index()].in_use = true;
}

}  // namespace contextile

#include "predict/simulate/part_runs.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace contextile {
namespace {

constexpr std::size_t kFewestSlots = 64;

auto place(const PartRun& part) { return std::tie(part.run, part.q.begin, part.q.end); }

}  // namespace

// The slot that holds the run, or an empty one for it, by linear probing.
PartRuns::Slot& PartRuns::slot_of(std::size_t run, Range q) {
  std::uint64_t hash = static_cast<std::uint64_t>(run) * 0x9E3779B97F4A7C15U;
  hash = (hash ^ static_cast<std::uint64_t>(q.begin)) * 0xC2B2AE3D27D4EB4FU;
  hash = (hash ^ static_cast<std::uint64_t>(q.end)) * 0x9E3779B97F4A7C15U;
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = static_cast<std::size_t>(hash >> 32U) & mask;
  while (slots_[at].call == call_) {
    const PartRun& found = runs_[slots_[at].index];
    if (found.run == run && found.q == q) break;
    at = (at + 1) & mask;
  }
  return slots_[at];
}

void PartRuns::fill_slots(std::size_t num_slots) {
  slots_.assign(num_slots, {});
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    slot_of(runs_[i].run, runs_[i].q) = {call_, static_cast<std::uint32_t>(i)};
  }
}

void PartRuns::add_elsewhere(std::size_t run, Range q, double computed_pairs) {
  if (!ascending_) {
    add_in_any_order(run, q, computed_pairs);
  } else if (runs_.empty() || runs_.back().run < run) {
    runs_.emplace_back(run, q, computed_pairs);
  } else {
    ascending_ = false;
    fill_slots(std::max(slots_.size(), std::bit_ceil(std::max(kFewestSlots, 2 * runs_.size()))));
    add_in_any_order(run, q, computed_pairs);
  }
}

void PartRuns::add_in_any_order(std::size_t run, Range q, double computed_pairs) {
  if (2 * runs_.size() >= slots_.size()) fill_slots(2 * slots_.size());
  Slot& slot = slot_of(run, q);
  if (slot.call == call_) {
    next_ = slot.index + 1;
    runs_[slot.index].computed_pairs += computed_pairs;
    return;
  }
  slot = {call_, static_cast<std::uint32_t>(runs_.size())};
  runs_.emplace_back(run, q, computed_pairs);
  next_ = runs_.size();
}

std::span<const PartRun> PartRuns::sorted() {
  if (ascending_) return runs_;
  std::ranges::sort(runs_, [](const PartRun& a, const PartRun& b) { return place(a) < place(b); });
  return runs_;
}

void PartRuns::clear() {
  runs_.clear();
  ascending_ = true;
  if (++call_ != 0) return;
  slots_.clear();  // calls are numbered from the start again
  call_ = 1;
}

}  // namespace contextile

#include "simulate/part_runs.h"

#include <algorithm>
#include <tuple>

namespace contextile {
namespace {

constexpr std::size_t kFewestSlots = 64;

auto place(const PartRun& part) { return std::tie(part.run, part.q.begin, part.q.end); }

}  // namespace

// Where the run is, or belongs: linear probing.
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

void PartRuns::grow() {
  slots_.assign(std::max(kFewestSlots, 2 * slots_.size()), {});
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    slot_of(runs_[i].run, runs_[i].q) = {call_, static_cast<std::uint32_t>(i)};
  }
}

void PartRuns::add(std::size_t run, Range q, double computed_pairs) {
  if (2 * runs_.size() >= slots_.size()) grow();
  Slot& slot = slot_of(run, q);
  if (slot.call != call_) {
    slot = {call_, static_cast<std::uint32_t>(runs_.size())};
    runs_.push_back({run, q, 0});
  }
  runs_[slot.index].computed_pairs += computed_pairs;
}

std::span<const PartRun> PartRuns::sorted() {
  const auto before = [](const PartRun& a, const PartRun& b) { return place(a) < place(b); };
  if (!std::ranges::is_sorted(runs_, before)) std::ranges::sort(runs_, before);
  return runs_;
}

void PartRuns::clear() {
  runs_.clear();
  if (++call_ != 0) return;
  slots_.clear();  // calls are numbered anew
  call_ = 1;
}

}  // namespace contextile

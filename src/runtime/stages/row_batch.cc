#include "runtime/stages/row_batch.h"

#include <algorithm>
#include <utility>

#include "runtime/stages/stage_calls.h"

namespace contextile {
namespace {

// Keeps the search for overlaps cheap.
constexpr std::size_t kMaxUnits = 256;

bool overlap(Range a, Range b) { return !intersect(a, b).empty(); }

}  // namespace

bool RowBatch::add(bool is_copy, Kind kind, Range dst, std::span<const Range> srcs) {
  if (!units_.empty()) {
    if (is_copy != is_copy_ || kind != kind_ || units_.size() == kMaxUnits) return false;
    for (const Unit& unit : units_) {
      const auto is_read = [&](Range src) { return overlap(src, dst); };
      const auto is_written = [&](Range src) { return overlap(src, unit.dst); };
      if (overlap(unit.dst, dst) || std::ranges::any_of(unit.srcs, is_read) ||
          std::ranges::any_of(srcs, is_written)) {
        return false;
      }
    }
  }
  is_copy_ = is_copy;
  kind_ = kind;
  units_.push_back({dst, {srcs.begin(), srcs.end()}});
  return true;
}

StageInstruction RowBatch::take() {
  std::vector<Unit> units = std::exchange(units_, {});
  if (is_copy_) {
    StageCopy copy{kind_, {}, {}};
    for (const Unit& unit : units) {
      append_rows(unit.dst, copy.dst);
      append_rows(unit.srcs.front(), copy.src);
    }
    return copy;
  }
  // Units with more sources first.
  std::ranges::stable_sort(units, std::ranges::greater{},
                           [](const Unit& unit) { return unit.srcs.size(); });
  StageReduce reduce{kind_, {}, {}};
  reduce.srcs.resize(units.front().srcs.size());
  for (const Unit& unit : units) {
    append_rows(unit.dst, reduce.dst);
    for (std::size_t i = 0; i < unit.srcs.size(); ++i) append_rows(unit.srcs[i], reduce.srcs[i]);
  }
  return reduce;
}

}  // namespace contextile

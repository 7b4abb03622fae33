#include "runtime/executor/reduce_batches.h"

#include <algorithm>
#include <cstdint>
#include <variant>

namespace contextile {
namespace {

// Keeps the search for a batch cheap; a device takes fewer in one launch.
constexpr std::size_t kMostReductions = 64;

// Rows that a unit occupies in an accumulator or an arena of its kind.
struct Place {
  Kind kind = Kind::kO;
  bool is_staged = false;
  GroupId group;  // in an accumulator, whose tokens have the heads of all groups
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

bool overlap(const Place& a, const Place& b) {
  return a.kind == b.kind && a.is_staged == b.is_staged && (a.is_staged || a.group == b.group) &&
         a.begin < b.end && b.begin < a.end;
}

bool any_overlap(const std::vector<Place>& places, const Place& place) {
  return std::ranges::any_of(places, [&](const Place& other) { return overlap(other, place); });
}

// Reductions of a list so far.
class Batch {
 public:
  Batch(const LocalRound& round, const Program& program) : round_(round), program_(program) {}

  // Adds the reduction unless it touches a place that earlier ones write, or writes a place that
  // they touch.
  bool add(const ReduceOp& op) {
    if (num_reductions_ == kMostReductions) return false;
    const Place dst = place(op, op.dst);
    std::vector<Place> srcs;
    for (const SlotId src : op.srcs) srcs.push_back(place(op, src));
    const auto is_written = [&](const Place& src) { return any_overlap(written_, src); };
    if (is_written(dst) || any_overlap(read_, dst) || std::ranges::any_of(srcs, is_written)) {
      return false;
    }
    written_.push_back(dst);
    read_.insert(read_.end(), srcs.begin(), srcs.end());
    ++num_reductions_;
    return true;
  }

 private:
  [[nodiscard]] Place place(const ReduceOp& op, SlotId slot) const {
    const auto k = static_cast<std::size_t>(op.kind);
    const std::int32_t groups = round_.round->head_groups;
    const std::size_t owned = round_.blocks.size() * static_cast<std::size_t>(groups);
    const bool is_staged = slot.index() >= owned;
    if (is_staged) {
      const std::int64_t begin = program_.staging[k][slot.index() - owned].offset_tokens;
      return {op.kind, true, op.group, begin, begin + round_.round->staged_tokens(op.block)};
    }
    const std::int64_t begin =
        round_.accumulator_row[k][static_cast<std::size_t>(slot.value / groups)];
    return {op.kind, false, op.group, begin, begin + round_.round->blocks.num_tokens(op.block)};
  }

  const LocalRound& round_;
  const Program& program_;
  std::size_t num_reductions_ = 0;
  std::vector<Place> written_;
  std::vector<Place> read_;
};

}  // namespace

std::vector<std::size_t> reduce_batches(const LocalRound& round, const Program& program) {
  const std::vector<Instruction>& all = program.instructions;
  std::vector<std::size_t> ends(all.size());
  for (std::size_t first = 0; first < all.size();) {
    Batch batch(round, program);
    std::size_t end = first;
    while (end < all.size() && std::holds_alternative<ReduceOp>(all[end]) &&
           batch.add(std::get<ReduceOp>(all[end]))) {
      ++end;
    }
    end = std::max(end, first + 1);
    for (; first < end; ++first) ends[first] = end;
  }
  return ends;
}

}  // namespace contextile

#include "plan/conversion_layout.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "plan/lower/arena.h"

namespace contextile {
namespace {

constexpr std::int64_t kPackAlignmentBytes = 64;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kPackAlignmentBytes - 1) / kPackAlignmentBytes * kPackAlignmentBytes;
}

// The conversion buffer of one program, followed through its launches and waits.
class ConversionWalk {
 public:
  ConversionWalk(const Plan& plan, const PlanRound& round) : plan_(plan), round_(round) {}

  void launch(const LaunchOp& op) {
    std::vector<Place>& places = in_flight_[op.id];
    layout_.send_offset_bytes[op.id] = allocate(op.sends, places);
    layout_.recv_offset_bytes[op.id] = allocate(op.recvs, places);
  }

  void wait(std::int32_t id) {
    const auto found = in_flight_.find(id);
    if (found == in_flight_.end()) return;  // a broken plan; verify reports it
    for (const Place& place : found->second) arena_.release(place.offset, place.size);
    in_flight_.erase(found);
  }

  ConversionLayout finish() {
    layout_.size_bytes = arena_.extent();
    return std::move(layout_);
  }

 private:
  struct Place {
    std::int64_t offset = 0;
    std::int64_t size = 0;
  };

  std::vector<std::int64_t> allocate(const std::vector<TransferEnd>& ends,
                                     std::vector<Place>& places) {
    std::vector<std::int64_t> offsets;
    offsets.reserve(ends.size());
    for (const TransferEnd& end : ends) {
      const bool known = end.block.valid() && end.block.value < round_.blocks.num_blocks();
      if (!is_converted(end) || !known) {
        offsets.push_back(-1);
        continue;
      }
      const std::int64_t size =
          aligned(unit_bytes(end.kind, round_.blocks.num_tokens(end.block), plan_.shape,
                             round_.groups_of(end.block), end.wire));
      const std::int64_t offset = arena_.allocate(size);
      places.push_back({offset, size});
      offsets.push_back(offset);
    }
    return offsets;
  }

  const Plan& plan_;
  const PlanRound& round_;
  Arena arena_;
  std::map<std::int32_t, std::vector<Place>> in_flight_;  // by launch id
  ConversionLayout layout_;
};

}  // namespace

ConversionLayout conversion_layout(const Plan& plan, const PlanRound& round,
                                   const Program& program) {
  ConversionWalk walk(plan, round);
  for (const Instruction& instruction : program.instructions) {
    if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      walk.launch(*launch);
    } else if (const auto* wait = std::get_if<WaitOp>(&instruction)) {
      walk.wait(wait->id);
    }
  }
  return walk.finish();
}

}  // namespace contextile

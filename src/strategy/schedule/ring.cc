#include "strategy/schedule/ring.h"

namespace contextile {
namespace {

Transfer hop_of(const RingUnit& unit, std::int32_t from, std::int32_t launch_stage) {
  return {unit.kind,
          unit.block,
          unit.group,
          unit.rank_at(from),
          unit.rank_at(ring_shift(from, unit.step, unit.size)),
          launch_stage,
          launch_stage + 1};
}

}  // namespace

void relay_input(const RingUnit& unit, std::int32_t hops, std::int32_t first_stage,
                 std::vector<Transfer>& out) {
  for (std::int32_t h = 0; h < hops; ++h) {
    out.push_back(hop_of(unit, ring_shift(unit.start, h * unit.step, unit.size), first_stage + h));
  }
}

void gather_result(const RingUnit& unit, std::int32_t hops, std::int32_t first_stage,
                   const std::function<bool(std::int32_t)>& holds, std::vector<Transfer>& out) {
  bool gathered = false;
  for (std::int32_t h = 0; h < hops; ++h) {
    const std::int32_t from = ring_shift(unit.start, h * unit.step, unit.size);
    gathered = gathered || holds(from);
    if (gathered) out.push_back(hop_of(unit, from, first_stage + h));
  }
}

}  // namespace contextile

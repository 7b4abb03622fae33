#include "plan/lower/plan_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/out_of_memory.h"
#include "contextile/plan.h"

namespace contextile {
namespace {

constexpr std::int64_t kBlockBytes = 16;  // what the allocator adds to a list

// Counts pairs of a device and a stage, each once.
class StagesOfDevices {
 public:
  StagesOfDevices(std::int32_t num_devices, std::int32_t num_stages)
      : num_stages_(static_cast<std::size_t>(num_stages)),
        seen_(static_cast<std::size_t>(num_devices) * num_stages_) {}

  void add(Rank device, std::int32_t stage) {
    auto seen = seen_[device.index() * num_stages_ + static_cast<std::size_t>(stage)];
    count_ += seen ? 0 : 1;
    seen = true;
  }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  std::size_t num_stages_;
  std::vector<bool> seen_;
  std::int64_t count_ = 0;
};

void add_direction(const ArrangedDirection& arranged, std::int32_t num_devices, PlanSize& size) {
  size.tiles += std::ssize(arranged.tiles);
  size.transfers += std::ssize(arranged.transfers);
  std::int32_t last = 0;
  for (const PlacedTile& tile : arranged.tiles) last = std::max(last, tile.stage);
  for (const Transfer& t : arranged.transfers) last = std::max(last, t.launch_stage);
  // Two bits for each device and stage. Plans of more stages are counted by tiles alone.
  constexpr std::int64_t kMostBits = std::int64_t{1} << 31;
  if (std::int64_t{num_devices} * last >= kMostBits) return;
  StagesOfDevices calls(num_devices, last + 1);
  StagesOfDevices launches(num_devices, last + 1);
  for (const PlacedTile& tile : arranged.tiles) calls.add(tile.device, tile.stage);
  for (const Transfer& t : arranged.transfers) {
    launches.add(t.src, t.launch_stage);
    launches.add(t.dst, t.launch_stage);
  }
  size.calls += calls.count();
  size.launches += launches.count();
}

template <typename Visit>
void for_each_direction(const Arrangement& arrangement, const Visit& visit) {
  for (const ArrangedRound& round : arrangement.rounds) {
    for (const ArrangedMask& mask : round.programs) {
      for (const auto* direction : {&mask.forward, &mask.backward}) {
        if (*direction) visit(**direction);
      }
    }
  }
}

}  // namespace

std::int64_t PlanSize::least_bytes() const {
  constexpr std::int64_t kInstruction = sizeof(Instruction);
  return tiles * static_cast<std::int64_t>(sizeof(TileOp)) + calls * (kInstruction + kBlockBytes) +
         2 * transfers * static_cast<std::int64_t>(sizeof(TransferEnd)) +
         launches * (2 * kInstruction + kBlockBytes);
}

PlanSize size_of_plan(const Arrangement& arrangement, std::int32_t num_devices) {
  PlanSize size;
  for_each_direction(arrangement, [&](const ArrangedDirection& arranged) {
    add_direction(arranged, num_devices, size);
  });
  return size;
}

void check_memory_for_plan(const Arrangement& arrangement, std::int32_t num_devices,
                           std::int64_t available_bytes) {
  // Counting calls and launches takes time, so it is done only if as many as can be do not fit.
  PlanSize most;
  for_each_direction(arrangement, [&](const ArrangedDirection& arranged) {
    most.tiles += std::ssize(arranged.tiles);
    most.transfers += std::ssize(arranged.transfers);
  });
  most.calls = most.tiles;
  most.launches = 2 * most.transfers;
  if (most.least_bytes() <= available_bytes) return;
  const PlanSize size = size_of_plan(arrangement, num_devices);
  if (size.least_bytes() <= available_bytes) return;
  constexpr double kGib = 1 << 30;
  throw OutOfMemory(fmt::format(
      "a plan of {} tiles in {} attention calls and {} launches on {} devices: it takes at least "
      "{:.1f} GiB, {:.1f} GiB are available",
      size.tiles, size.calls, size.launches, num_devices,
      static_cast<double>(size.least_bytes()) / kGib, static_cast<double>(available_bytes) / kGib));
}

}  // namespace contextile

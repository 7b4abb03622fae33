// The places of one device's units, each reused as soon as its unit no longer needs it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/arrangement.h"
#include "contextile/plan.h"
#include "plan/lower/arena.h"

namespace contextile {

// A stage after all others.
inline constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

// A place in a staging arena and the slot that names it.
struct Place {
  SlotId slot;
  std::int64_t offset = 0;
  std::int64_t size = 0;
};

// The staging arenas and slot tables of one device.
class StagingBuffers {
 public:
  StagingBuffers(std::int32_t num_owned, Program& program)
      : num_owned_(num_owned), program_(program) {}

  [[nodiscard]] Place take(Kind kind, std::int64_t tokens) {
    const auto k = static_cast<std::size_t>(kind);
    Place place;
    place.size = tokens;
    place.offset = arenas_[k].allocate(tokens);
    std::vector<StagingSlot>& slots = program_.staging[k];
    const auto [it, is_new] = slot_of_[k].try_emplace({place.offset, tokens}, slots.size());
    if (is_new) slots.push_back({place.offset, tokens});
    place.slot = SlotId{num_owned_ + static_cast<std::int32_t>(it->second)};
    return place;
  }
  void give_back(Kind kind, const Place& place) {
    arenas_[static_cast<std::size_t>(kind)].release(place.offset, place.size);
  }
  // Returns the places of a stage in the order of these calls.
  void give_back_at(std::int32_t stage, Kind kind, const Place& place) {
    if (stage != kNever) later_[stage].emplace_back(kind, place);
  }
  void give_back_until(std::int32_t stage) {
    while (!later_.empty() && later_.begin()->first <= stage) {
      for (const auto& [kind, place] : later_.begin()->second) give_back(kind, place);
      later_.erase(later_.begin());
    }
  }

 private:
  using Extent = std::pair<std::int64_t, std::int64_t>;  // offset and size
  struct HashOfExtent {
    std::size_t operator()(const Extent& extent) const {
      const auto offset = static_cast<std::uint64_t>(extent.first);
      const auto size = static_cast<std::uint64_t>(extent.second);
      return static_cast<std::size_t>(
          ((offset * 0x9E3779B97F4A7C15U) ^ size) * 0xC2B2AE3D27D4EB4FU >> 16U);
    }
  };
  std::int32_t num_owned_;
  Program& program_;
  std::array<Arena, kNumKinds> arenas_;
  std::array<std::unordered_map<Extent, std::size_t, HashOfExtent>, kNumKinds> slot_of_;
  std::map<std::int32_t, std::vector<std::pair<Kind, Place>>> later_;  // by stage
};

}  // namespace contextile

// The size of the plan of an arrangement, counted before the plan is built.
#pragma once

#include <cstdint>

#include "contextile/extend/arrangement.h"

namespace contextile {

struct PlanSize {
  std::int64_t tiles = 0;      // of all rounds, masks and directions
  std::int64_t calls = 0;      // attention instructions
  std::int64_t transfers = 0;  // each counts once, though both ends list it
  std::int64_t launches = 0;   // at least that many launch instructions, with a wait each

  // The least memory that the plan takes.
  [[nodiscard]] std::int64_t least_bytes() const;
};

// O(tiles + transfers).
[[nodiscard]] PlanSize size_of_plan(const Arrangement& arrangement, std::int32_t num_devices);

// Throws OutOfMemory, with an estimate, if the plan takes more than `available_bytes`.
void check_memory_for_plan(const Arrangement& arrangement, std::int32_t num_devices,
                           std::int64_t available_bytes);

}  // namespace contextile

// ring, zigzag, ulysses, hybrid, double_ring and all_gather: presets of the A x P family.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& ring_strategy();
[[nodiscard]] const Strategy& zigzag_strategy();
[[nodiscard]] const Strategy& ulysses_strategy();
[[nodiscard]] const Strategy& hybrid_strategy();
[[nodiscard]] const Strategy& all_gather_strategy();
[[nodiscard]] const Strategy& double_ring_strategy();

}  // namespace contextile

// Megatron-LM's dynamic context parallelism: megatron_dynamic and megatron_packed.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& megatron_dynamic_strategy();
[[nodiscard]] const Strategy& megatron_packed_strategy();

}  // namespace contextile

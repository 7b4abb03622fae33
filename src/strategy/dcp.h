// Dynamic context parallelism: hypergraph placement and division schedule.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& dcp_strategy();

}  // namespace contextile

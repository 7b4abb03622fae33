// The size of a plan, in words.
#pragma once

#include <string>

#include "contextile/plan.h"

namespace contextile {

// "a plan of 4096 tiles on 8 devices": tiles of all rounds, masks and directions.
[[nodiscard]] std::string size_text(const Plan& plan);

}  // namespace contextile

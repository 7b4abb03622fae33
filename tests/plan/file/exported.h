// A plan's JSON as text.
#pragma once

#include <optional>
#include <sstream>
#include <string>

#include "contextile/plan.h"
#include "contextile/plan_file.h"

namespace contextile {

inline std::string exported(const Plan& plan, std::optional<Rank> only = std::nullopt) {
  std::ostringstream out;
  export_json(plan, out, only, ExportedHeadGroups::kOfBlocks);
  return out.str();
}

}  // namespace contextile

// A plan's JSON: any text is an InvalidPlan or a plan that every reader survives, that a plan file
// can hold, and that comes back from its own document.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"

namespace {

std::string exported(const contextile::Plan& plan) {
  std::ostringstream out;
  contextile::export_json(plan, out, std::nullopt, contextile::ExportedHeadGroups::kOfBlocks);
  return out.str();
}

// The even form is refused or a plan that verify survives.
void make_even(const contextile::Plan& plan) {
  contextile::Plan even;
  try {
    even = contextile::with_even_head_groups(plan);
  } catch (const contextile::InvalidPlan&) {
    return;
  }
  static_cast<void>(contextile::verify(even));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  contextile::Plan plan;
  try {
    plan = contextile::import_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const contextile::InvalidPlan&) {  // the only way to refuse
    return 0;
  }
  static_cast<void>(contextile::statistics(plan));
  static_cast<void>(contextile::verify(plan));
  make_even(plan);
  const std::vector<std::uint8_t> bytes = contextile::serialize(plan);
  const std::string json = exported(contextile::deserialize(bytes, "own bytes"));
  if (contextile::serialize(contextile::import_json(json, "own document")) != bytes) std::abort();
  return 0;
}

// The steps of reading a plan's JSON: first the checks of each value alone, then those of values
// that must fit together.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "contextile/plan.h"
#include "plan/file/json_reader.h"

namespace contextile {

// Names in the document, in the order of the enumerations.
inline constexpr std::array<std::string_view, 3> kDtypeNames = {"f32", "bf16", "f16"};
inline constexpr std::array<std::string_view, 3> kRoleNames = {"both", "kv_only", "q_only"};
inline constexpr std::array<std::string_view, kNumKinds> kKindNames = {"q",  "kv", "o",
                                                                       "do", "dq", "dkv"};

// Pairs of a tile whose document states none; check_imported counts them.
inline constexpr std::int64_t kPairsNotGiven = -1;

// Reads the program of one direction. Ids are not negative, but may name nothing.
[[nodiscard]] Program read_program(JsonReader& in, Direction direction);

// Checks that ids name something, ranges lie inside the batch, and rounds, masks and devices are
// like those of a plan file (manifest.h, device_section.h): a plan that imports can be saved and
// loaded. Pairs that the document lacks are counted, those it has are compared. If blocks or bands
// overlap, neither happens; `verify` reports the overlap. Throws InvalidPlan with the path in the
// document.
void check_imported(Plan& plan, std::string_view where);

}  // namespace contextile

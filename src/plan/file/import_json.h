// The steps of reading a plan's JSON: what can be said of each value alone, then what must fit
// together.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "contextile/plan.h"
#include "plan/file/json_reader.h"

namespace contextile {

// What the document calls them, in the order of the enumerations.
inline constexpr std::array<std::string_view, 3> kDtypeNames = {"f32", "bf16", "f16"};
inline constexpr std::array<std::string_view, 3> kRoleNames = {"both", "kv_only", "q_only"};
inline constexpr std::array<std::string_view, kNumKinds> kKindNames = {"q",  "kv", "o",
                                                                       "do", "dq", "dkv"};

// Pairs of a tile whose document does not say; check_imported counts them.
inline constexpr std::int64_t kPairsNotGiven = -1;

// The program of one direction. Ids are not negative, but may name nothing.
[[nodiscard]] Program read_program(JsonReader& in, Direction direction);

// That ids name something, ranges lie inside the batch, and rounds, masks and devices are as a plan
// file's (manifest.h, device_section.h): what imports can be saved and loaded. Pairs that the
// document does not give are counted, those it gives are compared, unless blocks or bands overlap,
// which is for `verify` to say. Throws InvalidPlan with the path in the document.
void check_imported(Plan& plan, std::string_view where);

}  // namespace contextile

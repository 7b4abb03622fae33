// The values that planners put under a step's keys, one for every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace contextile {

enum class StepValueKind : std::uint8_t {
  kPlanned,  // the payload is the rank's slice of the plan
  kFailed,   // the payload is the text of the error
};

struct StepValue {
  std::int64_t step = 0;
  StepValueKind kind = StepValueKind::kPlanned;
  std::int64_t planning_us = 0;           // of the whole plan
  std::span<const std::uint8_t> payload;  // of the encoded bytes, when decoded
};

[[nodiscard]] std::vector<std::uint8_t> encode_step_value(const StepValue& value);
// Untrusted bytes: throws InvalidPlan naming `where` unless they are an intact value for that step.
[[nodiscard]] StepValue decode_step_value(std::span<const std::uint8_t> bytes, std::int64_t step,
                                          std::string_view where);

}  // namespace contextile

// The keys under which planners and ranks of a run exchange data in a store.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Every key of a run. A step has one value for each rank, put by the planner that planned it
// (step_value.h), a mark that all of them are there, and the claim of the planner at work on it. A
// rank has the step that it needs next. The planners have a sign of life, and why the last of them
// that ended did so.
class LookaheadKeys {
 public:
  // Throws InvalidArgument for an id that is not valid in keys.
  explicit LookaheadKeys(std::string run_id);

  [[nodiscard]] std::string slice(std::int64_t step, Rank rank) const;
  [[nodiscard]] std::string ready(std::int64_t step) const;
  [[nodiscard]] std::string claim(std::int64_t step) const;
  [[nodiscard]] std::string next(Rank rank) const;
  [[nodiscard]] std::string alive() const;
  [[nodiscard]] std::string failed() const;

 private:
  std::string run_id_;
};

// A step as the value of a rank's key. Untrusted text: throws InvalidPlan naming `where`.
[[nodiscard]] std::vector<std::uint8_t> step_as_text(std::int64_t step);
[[nodiscard]] std::int64_t parse_step_text(std::span<const std::uint8_t> text,
                                           std::string_view where);

}  // namespace contextile

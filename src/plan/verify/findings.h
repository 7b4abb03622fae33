// The findings of verification, with their places.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "contextile/verify.h"

namespace contextile {

// A place in a plan. Unset members are left out of the text.
struct PlanPlace {
  std::int64_t round = -1;
  std::int64_t mask = -1;
  std::string_view mask_name{};
  std::optional<Direction> direction{};
  std::int64_t rank = -1;
  std::int64_t instruction = -1;
  std::string_view op{};  // of the instruction, or the activity outside of any

  [[nodiscard]] PlanPlace at_rank(std::int64_t value) const {
    PlanPlace place = *this;
    place.rank = value;
    return place;
  }
  [[nodiscard]] PlanPlace at_instruction(std::int64_t index, std::string_view name) const {
    PlanPlace place = *this;
    place.instruction = index;
    place.op = name;
    return place;
  }

  // "round 0 mask 1 (causal) backward rank 3 instruction 17 (attention)".
  [[nodiscard]] std::string text() const {
    std::string out = round < 0 ? "plan" : fmt::format("round {}", round);
    if (mask >= 0) out += fmt::format(" mask {} ({})", mask, mask_name);
    if (direction) out += fmt::format(" {}", to_string(*direction));
    if (rank >= 0) out += fmt::format(" rank {}", rank);
    if (instruction >= 0) {
      out += fmt::format(" instruction {} ({})", instruction, op);
    } else if (!op.empty()) {
      out += fmt::format(" ({})", op);
    }
    return out;
  }
};

// Counts violations and keeps the first few, with causes of many others in front. Texts are made
// only if they are kept: a broken plan may have millions of violations.
class Findings {
 public:
  explicit Findings(std::int64_t max_shown)
      : max_shown_(static_cast<std::size_t>(std::max<std::int64_t>(0, max_shown))) {}

  template <typename... Args>
  void violation(const PlanPlace& place, fmt::format_string<Args...> format, Args&&... args) {
    ++num_violations_;
    keep(violations_, place, format, std::forward<Args>(args)...);
  }
  // Reports a violation that others are likely to follow from.
  template <typename... Args>
  void cause(const PlanPlace& place, fmt::format_string<Args...> format, Args&&... args) {
    ++num_violations_;
    keep(causes_, place, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warning(const PlanPlace& place, fmt::format_string<Args...> format, Args&&... args) {
    keep(warnings_, place, format, std::forward<Args>(args)...);
  }

  [[nodiscard]] std::int64_t num_violations() const { return num_violations_; }

  void move_into(VerifyReport& report) {
    report.num_violations = num_violations_;
    report.warnings = std::move(warnings_);
    report.violations = std::move(causes_);
    for (std::string& text : violations_) {
      if (report.violations.size() >= max_shown_) break;
      report.violations.push_back(std::move(text));
    }
  }

 private:
  template <typename... Args>
  void keep(std::vector<std::string>& texts, const PlanPlace& place,
            fmt::format_string<Args...> format, Args&&... args) const {
    if (texts.size() >= max_shown_) return;
    texts.push_back(place.text() + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  std::size_t max_shown_;
  std::int64_t num_violations_ = 0;
  std::vector<std::string> causes_;
  std::vector<std::string> violations_;
  std::vector<std::string> warnings_;
};

}  // namespace contextile

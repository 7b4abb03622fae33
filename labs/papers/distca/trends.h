// Claims of DistCA's section 6.2 about all settings together: the faster method, gains by the
// longest document, and how both methods scale.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "labs/papers/paper_table.h"

namespace contextile {

// One setting in which both methods have a step.
struct DistcaOutcome {
  std::string_view model;
  std::string dataset;
  std::int32_t devices = 0;
  std::int64_t max_length = 0;
  double tokens = 0;  // of a step
  double wlb_us = 0;
  double distca_us = 0;

  [[nodiscard]] double gain() const { return wlb_us / distca_us; }
};

// The trends of gains with the longest document that a figure's text claims of a model.
enum class LengthTrend : std::uint8_t { kRises, kFalls };
struct LengthClaim {
  std::string_view model;
  LengthTrend trend;
};

// Faster than WLB: in every setting (Fig. 9), or of 34B in most (Fig. 10).
[[nodiscard]] Finding faster_everywhere(std::span<const DistcaOutcome> outcomes);
[[nodiscard]] Finding faster_in_most(std::span<const DistcaOutcome> outcomes,
                                     std::string_view model);
// Gains by dataset, for tables that have both.
[[nodiscard]] std::vector<Finding> more_on_pretrain(std::span<const DistcaOutcome> outcomes);
// Mean gains over datasets and numbers of devices, by the longest document.
[[nodiscard]] Finding length_finding(std::span<const DistcaOutcome> outcomes,
                                     const LengthClaim& claim);
// Tokens/s of one device on the most devices over those on the fewest.
[[nodiscard]] std::vector<Finding> scaling_findings(std::span<const DistcaOutcome> outcomes);

}  // namespace contextile

// Set-ups of a training job that were searched, as text and JSON.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contextile/advanced/advice_report.h"
#include "report/table.h"

namespace contextile {

// A cause why a step takes longer than the work of one forward and one backward: the mean over
// stages, as a share of the step.
struct WaitShare {
  std::string cause;  // "transfers and imbalance of attention", …
  double share = 0;
};
// Largest first; shares below 0.5% are left out.
[[nodiscard]] std::vector<WaitShare> wait_shares(const AdvisedSetup& setup);
// "62% of it waits: 51% for transfers and imbalance of attention, 11% for other stages".
[[nodiscard]] std::string wait_sentence(const AdvisedSetup& setup);

// Below this share two predictions are not told apart (docs/advise.md).
inline constexpr double kLeastGain = 0.1;
// Lines "model", "cluster", "documents", "steps".
[[nodiscard]] std::string job_lines(const AdviceReport& report);
// One sentence: keep the set-up of today, or what another one is predicted to gain.
[[nodiscard]] std::string verdict_sentence(const AdviceReport& report);
// A row for every set-up: step, tokens/s, gain over `now`, memory, device-hours, price, parts.
[[nodiscard]] Table setup_table(const AdviceReport& report, std::span<const AdvisedSetup> setups);
// Lines on how many set-ups were considered, and why most were not predicted.
[[nodiscard]] std::string search_lines(const AdviceReport& report);
[[nodiscard]] Json advice_json(const AdviceReport& report,
                               std::optional<TrainingEngine> engine = std::nullopt);

}  // namespace contextile

// The answer of a search of set-ups, as text and JSON.
//
//   AdviseJob job = {.model = load_model("llama-3-8b"), .cluster = load_gpus("32xh100")};
//   job.lengths = {120'000, 3'000, 800};
//   const Advice advice = advise(job);
//   std::fputs(advice_text({job, advice}, TrainingEngine::kMegatron).c_str(), stdout);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contextile/advanced/advise.h"
#include "contextile/advanced/engine_setup.h"

namespace contextile {

// A search, and the set-up that runs today.
struct AdviceReport {
  const AdviseJob& job;
  const Advice& advice;
  std::optional<AdvisedSetup> now = std::nullopt;
  double price = 0;                        // of a device-hour; 0: not known
  std::vector<std::string> left_out = {};  // parts of the model that the predictions leave out
  std::optional<ReadSetup> read = std::nullopt;  // the flags of `now`
};

// Returns the answer as people read it: the job, the set-up of today, one sentence, the tables of
// set-ups, the flags of the best set-up that `engine` can run, and the counts of the search.
[[nodiscard]] std::string advice_text(const AdviceReport& report,
                                      std::optional<TrainingEngine> engine = std::nullopt);
// The same as one JSON object (docs/cli.md has its keys).
[[nodiscard]] std::string advice_json_text(const AdviceReport& report,
                                           std::optional<TrainingEngine> engine = std::nullopt);

}  // namespace contextile

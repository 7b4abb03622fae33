#include "labs/papers/distca/ping_pong.h"

#include <vector>

#include "base/check.h"
#include "labs/papers/distca/setting.h"
#include "labs/papers/steps.h"

namespace contextile {

NanoBatchPair plan_halves(const TrainingJob& job, const BatchLengths& documents,
                          const std::map<std::string, std::string>& options) {
  CONTEXTILE_CHECK(documents.size() >= 2,
                   "expected batches of at least two documents, one for each half, found {}: more "
                   "--tokens",
                   documents.size());
  NanoBatchPair pair{.step = one_group_step(job, kDistcaTp), .part = {}};
  StrategyChoice choice{"distca", {{"nano_batches", "1"}, {"resend", "on"}}};
  choice.options.insert(options.begin(), options.end());
  const std::vector<BatchLengths> halves = packed_for_tokens(documents, 2);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    pair.part[i] =
        planned_part(choice, job, pair.step.sizes, halves[i], AttentionDetail::kSeparately);
  }
  return pair;
}

double ping_pong_us(const NanoBatchPair& pair) {
  return predict_parts(pair.step, {pair.part[0], pair.part[1]}).time_us;
}

}  // namespace contextile

#include "contextile/extend/strategy.h"

#include "base/check.h"

namespace contextile {

StrategyRequest request_of(const StrategyChoice& choice, const PlanOptions& options) {
  return {options, choice.options};
}

BatchSchedule Strategy::schedule(const Workload&, const Cluster&, const StrategyRequest&) const {
  fail_argument(
      "strategy {}: expected one that schedules micro-batches, found one that runs a "
      "batch at once",
      name());
}

}  // namespace contextile

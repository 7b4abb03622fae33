#include "contextile/advanced/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/quote.h"
#include "contextile/simulate.h"

namespace contextile {
namespace {

// Relative difference up to which times are equal, so that rounding does not decide a ranking.
constexpr double kSameTime = 1e-9;

// Times in µs, by choice or by batch. None: no plan, or one that does not end.
using Times = std::vector<std::optional<double>>;

// Returns none if the programs wait for each other forever on this cluster.
std::optional<double> time_on(const Plan& plan, const Cluster& cluster) {
  try {
    return simulate(plan, cluster).time_us();
  } catch (const InvalidPlan&) {
    return std::nullopt;
  }
}

bool faster(double a, double b) { return a < b * (1 - kSameTime); }

// A choice without a plan for one batch has no mean. A mean over the other batches could not be
// compared with those of other choices.
std::optional<double> mean_of_all(const Times& times_us) {
  double sum = 0;
  for (const std::optional<double>& time_us : times_us) {
    if (!time_us) return std::nullopt;
    sum += *time_us;
  }
  return sum / static_cast<double>(times_us.size());
}

std::optional<double> least_of(const Times& times_us) {
  std::optional<double> least;
  for (const std::optional<double>& time_us : times_us) {
    if (time_us && (!least || *time_us < *least)) least = time_us;
  }
  return least;
}

// Returns all choices that take the least time: several, for example, if their plans are equal.
std::vector<std::size_t> fastest_of(const Times& times_us) {
  const std::optional<double> least = least_of(times_us);
  std::vector<std::size_t> fastest;
  for (std::size_t i = 0; i < times_us.size(); ++i) {
    if (times_us[i] && !faster(*least, *times_us[i])) fastest.push_back(i);
  }
  return fastest;
}

// Counts the pairs of choices whose order the changed constant reverses, as Kendall's distance
// between two rankings does. A pair that ties on one of the clusters is not reversed. The loop sees
// both orders of a pair, and a reversal appears in only one of them.
void count_pairs(const Times& as_is_us, const Times& changed_us, Standing& standing) {
  for (std::size_t i = 0; i < changed_us.size(); ++i) {
    for (std::size_t j = 0; j < changed_us.size(); ++j) {
      if (i == j || !as_is_us[i] || !as_is_us[j] || !changed_us[i] || !changed_us[j]) continue;
      if (i < j) ++standing.pairs;
      if (faster(*as_is_us[i], *as_is_us[j]) && faster(*changed_us[j], *changed_us[i])) {
        ++standing.turned_pairs;
      }
    }
  }
}

// A strategy that cannot plan a batch has no time there, and the comparison goes on. Unknown
// strategies and bad options throw from `unsupported_reason`, outside of the `try`.
std::optional<double> replanned_us(const Workload& workload, const Cluster& cluster,
                                   const StrategyChoice& choice, const PlanOptions& options) {
  if (unsupported_reason(workload, cluster, choice, options)) return std::nullopt;
  try {
    const PlannedBatch planned = plan_batch(workload, cluster, choice, options);
    return planned.verified.ok() ? time_on(*planned.plan, cluster) : std::nullopt;
  } catch (const TransportError&) {
    throw;  // the environment's failure, not the strategy's
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string_view to_string(SensitivityPlans plans) {
  return plans == SensitivityPlans::kKept ? "kept" : "replan";
}

SensitivityPlans parse_sensitivity_plans(std::string_view text) {
  for (const SensitivityPlans plans : {SensitivityPlans::kKept, SensitivityPlans::kReplan}) {
    if (text == to_string(plans)) return plans;
  }
  fail_argument("sensitivity: expected kept or replan, found {}", quote(text));
}

Standing standing(const Sensitivity& sensitivity, std::size_t cluster) {
  CONTEXTILE_CHECK(cluster < sensitivity.times_us.size(),
                   "standing: expected one of {} clusters, found {}", sensitivity.times_us.size(),
                   cluster);
  const Times& times_us = sensitivity.times_us[cluster];
  Standing found;
  found.fastest = fastest_of(times_us);
  found.time_us = least_of(times_us);
  // `second` is the fastest choice that is slower than the tie at the top. If several choices of
  // `auto` were compared, the fastest of them counts.
  for (std::size_t i = 0; i < times_us.size(); ++i) {
    if (!times_us[i]) continue;
    const double slower_by = *times_us[i] / *found.time_us - 1;
    if (faster(*found.time_us, *times_us[i]) &&
        (!found.second || *times_us[i] < *times_us[*found.second])) {
      found.second = i;
      found.second_slower_by = slower_by;
    }
    if (sensitivity.choices[i].name == "auto" &&
        (!found.auto_slower_by || slower_by < *found.auto_slower_by)) {
      found.auto_slower_by = slower_by;
    }
  }
  const std::vector<std::size_t> as_is = fastest_of(sensitivity.times_us.front());
  // Ties need only share a choice: the constant has not changed the winner then.
  found.same_fastest = std::ranges::find_first_of(found.fastest, as_is) != found.fastest.end();
  count_pairs(sensitivity.times_us.front(), times_us, found);
  return found;
}

SensitivityOfPlans::SensitivityOfPlans(const Cluster& cluster,
                                       std::span<const StrategyChoice> choices,
                                       std::size_t num_batches)
    : sensitivity_{.plans = SensitivityPlans::kKept,
                   .choices = {choices.begin(), choices.end()},
                   .clusters = changed_constants(cluster),
                   .times_us = {}},
      num_batches_(num_batches),
      times_us_(sensitivity_.clusters.size(),
                std::vector<Times>(choices.size(), Times(num_batches))) {}

void SensitivityOfPlans::add(std::size_t choice, std::size_t batch, const Plan& plan) {
  CONTEXTILE_CHECK(choice < sensitivity_.choices.size() && batch < num_batches_,
                   "sensitivity: expected a plan of {} choices and {} batches, found one of choice "
                   "{}, batch {}",
                   sensitivity_.choices.size(), num_batches_, choice, batch);
  // Every cluster has its own element, so the simulations need no lock.
  parallel_for(std::size_t{0}, sensitivity_.clusters.size(), [&](std::size_t i) {
    times_us_[i][choice][batch] = time_on(plan, sensitivity_.clusters[i].cluster);
  });
}

Sensitivity SensitivityOfPlans::result() const {
  Sensitivity result = sensitivity_;
  for (const std::vector<Times>& of_choices : times_us_) {
    Times& means_us = result.times_us.emplace_back();
    for (const Times& of_batches : of_choices) means_us.push_back(mean_of_all(of_batches));
  }
  return result;
}

Sensitivity replan_sensitivity(
    const PlanInput& input, std::span<const StrategyChoice> choices,
    const std::function<void(const ChangedConstant& cluster, std::size_t choice)>& started) {
  Sensitivity result{.plans = SensitivityPlans::kReplan,
                     .choices = {choices.begin(), choices.end()},
                     .clusters = changed_constants(input.cluster),
                     .times_us = {}};
  // One whole comparison per cluster, the unchanged cluster first.
  for (const ChangedConstant& changed : result.clusters) {
    Times& times_us = result.times_us.emplace_back();
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (started) started(changed, i);
      Times of_batches;
      for (const Workload& workload : input.batches) {
        of_batches.push_back(replanned_us(workload, changed.cluster, choices[i], input.options));
      }
      times_us.push_back(mean_of_all(of_batches));
    }
  }
  return result;
}

}  // namespace contextile

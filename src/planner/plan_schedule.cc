#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/parallel_for.h"
#include "batch/mask/sequence_parts.h"
#include "contextile/extend/strategy.h"
#include "contextile/schedule.h"
#include "contextile/simulate.h"
#include "planner/checked_batch.h"

namespace contextile {
namespace {

// All that a plan depends on, apart from what the micro-batches of a schedule share.
std::vector<std::int64_t> signature_of(const Workload& workload, const Cluster& cluster) {
  std::vector<std::int64_t> signature = {cluster.nodes, cluster.devices_per_node};
  for (const Range& sequence : workload.sequences) signature.push_back(sequence.end);
  for (const NamedMask& named : workload.masks) {
    signature.push_back(-1);
    for (const Band& band : named.mask.bands) {
      signature.insert(signature.end(),
                       {band.q.begin, band.q.end, band.k.begin, band.k.end, band.lo, band.hi});
    }
  }
  signature.push_back(-1);
  for (const auto& [tokens, role] : workload.roles) {
    signature.insert(signature.end(), {tokens.begin, tokens.end, static_cast<std::int64_t>(role)});
  }
  signature.push_back(-1);
  for (const auto& [tokens, sequence, first_position, follows] : workload.positions) {
    signature.insert(signature.end(),
                     {tokens.begin, tokens.end, sequence, first_position, follows});
  }
  return signature;
}

std::string group_text(const GroupBatch& group) {
  std::string text = fmt::format(
      "sequence{} {}", group.sequences.size() == 1 ? "" : "s",
      fmt::join(group.sequences.begin(),
                group.sequences.begin() + std::min<std::ptrdiff_t>(4, std::ssize(group.sequences)),
                ", "));
  if (group.sequences.size() > 4) text += ", …";
  return text + (group.size == 1 ? fmt::format(" on rank {}", group.first)
                                 : fmt::format(" on ranks {} to {}", group.first,
                                               group.first + group.size - 1));
}

// Returns why neither the tokens nor the strategy allow a schedule, whatever the cluster.
std::optional<std::string> without_schedule(const Workload& workload,
                                            const StrategyChoice& choice) {
  if (!workload.home.empty()) {
    return "a schedule chooses the ranks of every sequence: expected no home of tokens, found one";
  }
  if (find_strategy(choice.name).has_schedule()) return std::nullopt;
  return fmt::format("runs a batch at once: expected a strategy that schedules micro-batches ({})",
                     scheduling_strategies());
}

constexpr std::size_t kPlansBetweenReports = 64;

class SchedulePlanner {
 public:
  SchedulePlanner(const Workload& workload, const Cluster& cluster, const PlanOptions& options)
      : parts_(workload), cluster_(cluster), options_(options) {}

  void run(BatchSchedule decided, const StrategyChoice& attention, PlannedSchedule& schedule) {
    for (ScheduleRound& round : decided.rounds) {
      std::vector<ScheduledMicroBatch>& micro_batches = schedule.rounds.emplace_back();
      for (GroupBatch& group : round) {
        const std::size_t plan = plan_of(group);
        micro_batches.push_back({std::move(group), plan});
      }
    }
    if (!options_.wire) options_.wire = decided.wire;
    const ProgressHook progress = std::exchange(options_.progress, {});  // not that of single plans
    schedule.plans.resize(wanted_.size());
    for (std::size_t begin = 0; begin < wanted_.size(); begin += kPlansBetweenReports) {
      if (progress) progress("planning micro-batches", count(begin), count(wanted_.size()));
      const std::size_t end = std::min(wanted_.size(), begin + kPlansBetweenReports);
      look_during([&] {
        parallel_for(begin, end,
                     [&](std::size_t i) { plan_one(wanted_[i], attention, schedule.plans[i]); });
      });
    }
  }

 private:
  struct Wanted {
    Workload workload;
    Cluster cluster;
    std::string text;  // its first micro-batch, for errors
  };

  static std::int64_t count(std::size_t plans) { return static_cast<std::int64_t>(plans); }

  void plan_one(Wanted& wanted, const StrategyChoice& attention, SchedulePlan& plan) const {
    try {
      const StrategyChoice& inside = is_for_many(wanted, attention) ? alone_ : attention;
      plan.planned = plan_checked_batch(wanted.workload, wanted.cluster, inside, options_);
    } catch (const InvalidArgument& error) {
      fail_argument("schedule, {}: {}", wanted.text, error.what());
    }
    plan.cluster = std::move(wanted.cluster);
    wanted.workload = {};
  }

  // Returns true for a group of one rank if the strategy has to split heads or tokens.
  [[nodiscard]] bool is_for_many(const Wanted& wanted, const StrategyChoice& attention) const {
    return wanted.cluster.num_devices() == 1 &&
           unsupported_reason(wanted.workload, wanted.cluster, attention, options_).has_value();
  }

  // Returns the index of the micro-batch's plan.
  std::size_t plan_of(const GroupBatch& group) {
    Workload workload = parts_.select(group.sequences);
    Cluster cluster = cluster_.consecutive(Rank{group.first}, group.size);
    const auto [known, is_new] =
        known_.try_emplace(signature_of(workload, cluster), wanted_.size());
    if (is_new) wanted_.push_back({std::move(workload), std::move(cluster), group_text(group)});
    return known->second;
  }

  const SequenceParts parts_;
  const Cluster& cluster_;
  PlanOptions options_;
  const StrategyChoice alone_ = {"zigzag"};
  std::map<std::vector<std::int64_t>, std::size_t> known_;
  std::vector<Wanted> wanted_;
};

}  // namespace

std::string micro_batch_text(const PlannedSchedule& schedule, std::size_t plan) {
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    for (const ScheduledMicroBatch& micro_batch : schedule.rounds[r]) {
      if (micro_batch.plan != plan) continue;
      return fmt::format("round {}, {}", r, group_text(micro_batch.group));
    }
  }
  fail_argument("schedule: expected a plan below {}, found {}", schedule.plans.size(), plan);
}

bool PlannedSchedule::ok() const {
  return std::ranges::all_of(plans,
                             [](const SchedulePlan& plan) { return plan.planned.verified.ok(); });
}

std::size_t PlannedSchedule::num_micro_batches() const {
  std::size_t count = 0;
  for (const auto& round : rounds) count += round.size();
  return count;
}

std::vector<std::vector<const ScheduledMicroBatch*>> PlannedSchedule::of(Rank rank) const& {
  CONTEXTILE_CHECK(rank.valid() && rank.value < num_ranks,
                   "schedule: expected a rank below {}, found {}", num_ranks, rank.value);
  std::vector<std::vector<const ScheduledMicroBatch*>> own;
  for (const auto& round : rounds) {
    std::vector<const ScheduledMicroBatch*>& of_round = own.emplace_back();
    for (const ScheduledMicroBatch& micro_batch : round) {
      const std::int32_t place = rank.value - micro_batch.group.first;
      if (place >= 0 && place < micro_batch.group.size) of_round.push_back(&micro_batch);
    }
  }
  return own;
}

std::string scheduling_strategies() {
  std::vector<std::string_view> names;
  for (const Strategy* strategy : strategies()) {
    if (strategy->has_schedule()) names.push_back(strategy->name());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<std::string> unscheduled_reason(const Workload& workload, const Cluster& cluster,
                                              const StrategyChoice& choice,
                                              const PlanOptions& options) {
  if (auto reason = without_schedule(workload, choice)) return reason;
  return unsupported_reason(workload, cluster, choice, options);
}

PlannedSchedule plan_schedule(const Workload& workload, const Cluster& cluster,
                              const StrategyChoice& choice, const PlanOptions& options,
                              const std::optional<StrategyChoice>& attention) {
  check_workload(workload);
  check_cluster(cluster);
  // The strategy refuses what it cannot schedule; asking it first would schedule twice.
  if (const auto reason = without_schedule(workload, choice)) {
    fail_argument("strategy {}: {}", choice.name, *reason);
  }
  PlannedSchedule schedule;
  schedule.strategy = choice.name;
  schedule.num_ranks = cluster.num_devices();
  const Clock::time_point started = Clock::now();
  BatchSchedule decided =
      find_strategy(choice.name).schedule(workload, cluster, request_of(choice, options));
  schedule.options = decided.options;
  schedule.schedule_s = seconds_since(started);
  const Clock::time_point scheduled = Clock::now();
  const StrategyChoice inside = attention.value_or(decided.attention);
  SchedulePlanner(workload, cluster, options).run(std::move(decided), inside, schedule);
  schedule.plan_s = seconds_since(scheduled);
  return schedule;
}

PlannedSchedule plan_and_check_schedule(const Workload& workload, const Cluster& cluster,
                                        const StrategyChoice& choice, const PlanOptions& options,
                                        const std::optional<StrategyChoice>& attention) {
  PlannedSchedule schedule = plan_schedule(workload, cluster, choice, options, attention);
  for (std::size_t i = 0; i < schedule.plans.size(); ++i) {
    const VerifyReport& verified = schedule.plans[i].planned.verified;
    if (verified.ok()) continue;
    throw CheckFailed(fmt::format("{}, {}: {} violations: {}", choice_text(choice),
                                  micro_batch_text(schedule, i), verified.num_violations,
                                  verified.violations.front()));
  }
  return schedule;
}

std::int64_t SchedulePrediction::most_tokens() const {
  std::int64_t most = 0;
  for (const ScheduledRank& rank : ranks) most = std::max(most, rank.most_tokens);
  return most;
}

std::int64_t SchedulePrediction::memory_bytes() const {
  std::int64_t most = 0;
  for (const ScheduledRank& rank : ranks) most = std::max(most, rank.memory_bytes);
  return most;
}

SchedulePrediction predict_schedule(const PlannedSchedule& schedule, double linear_us_per_token) {
  CONTEXTILE_CHECK(std::isfinite(linear_us_per_token) && linear_us_per_token >= 0,
                   "linear layers: expected 0 or more us per token, found {}", linear_us_per_token);
  std::vector<double> times_us(schedule.plans.size());
  look_during([&] {
    parallel_for(std::size_t{0}, schedule.plans.size(), [&](std::size_t i) {
      const auto& [cluster, planned] = schedule.plans[i];
      times_us[i] = layer_us(planned, simulate(*planned.plan, cluster), linear_us_per_token);
    });
  });
  SchedulePrediction prediction;
  prediction.ranks.resize(static_cast<std::size_t>(schedule.num_ranks));
  for (const std::vector<ScheduledMicroBatch>& round : schedule.rounds) {
    std::vector<double> ready_us(prediction.ranks.size());
    for (const auto& [group, plan] : round) {
      const Plan& planned = *schedule.plans[plan].planned.plan;
      const PlanStats& statistics = schedule.plans[plan].planned.statistics;
      const auto first = ready_us.begin() + group.first;
      const double end_us = *std::max_element(first, first + group.size) + times_us[plan];
      std::fill(first, first + group.size, end_us);
      for (std::int32_t d = 0; d < group.size; ++d) {
        ScheduledRank& rank = prediction.ranks[static_cast<std::size_t>(group.first + d)];
        const std::int64_t tokens = num_local_tokens(planned, Rank{d});
        ++rank.micro_batches;
        rank.tokens += tokens;
        rank.most_tokens = std::max(rank.most_tokens, tokens);
        rank.busy_us += times_us[plan];
        for (const auto* direction : {&statistics.forward, &statistics.backward}) {
          if (!*direction) continue;
          rank.memory_bytes = std::max(
              rank.memory_bytes, (*direction)->devices[static_cast<std::size_t>(d)].memory_bytes);
        }
      }
    }
    prediction.rounds_us.push_back(*std::ranges::max_element(ready_us));
    prediction.time_us += prediction.rounds_us.back();
  }
  if (prediction.time_us > 0) {
    double busy_us = 0;
    for (const ScheduledRank& rank : prediction.ranks) busy_us += rank.busy_us;
    prediction.idle_share = 1 - busy_us / (prediction.time_us * schedule.num_ranks);
  }
  return prediction;
}

}  // namespace contextile

#include <algorithm>
#include <utility>

#include "contextile/advanced/model.h"
#include "contextile/planner.h"
#include "contextile/schedule.h"
#include "planner/checked_batch.h"
#include "planner/timed_block_size.h"
#include "predict/bounds/checked_bound.h"
#include "strategy/schedule/token_alignment.h"

namespace contextile {
namespace {

// Batches differ, and a strategy may not apply to all of them: one reason skips the row.
std::string skip_reason(const StrategyChoice& choice, const PlanInput& input) {
  for (const Workload& workload : input.batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options)) {
      return *reason;
    }
  }
  return "";
}

// A strategy before it has planned, or one that has failed: its other batches do not count.
ComparedStrategy without_numbers(StrategyChoice choice) {
  return {.choice = std::move(choice),
          .skipped = {},
          .failed = {},
          .batches = {},
          .simulations = {},
          .bounds = {},
          .layers_us = {},
          .linear_us = {},
          .uneven_us = {},
          .schedules = {}};
}

// Micro-batches are what a strategy makes of the lengths, so whether their tokens are multiples is
// found when they are planned.
bool fits_no_group(const Error& error, const PlanOptions& options) {
  return aligns_tokens(options) && dynamic_cast<const InvalidArgument*>(&error) != nullptr;
}

// Copies the description of the plan: all except bands, owners and programs.
std::shared_ptr<const Plan> description_of(const Plan& plan) {
  auto description = std::make_shared<Plan>();
  description->strategy = plan.strategy;
  description->options = plan.options;
  description->shape = plan.shape;
  description->partial_wire = plan.partial_wire;
  description->cluster_name = plan.cluster_name;
  description->nodes = plan.nodes;
  description->devices_per_node = plan.devices_per_node;
  description->sequences = plan.sequences;
  description->padded_bytes_factor = plan.padded_bytes_factor;
  description->padded_pairs_factor = plan.padded_pairs_factor;
  description->digest = plan.digest;
  for (const PlanRound& round : plan.rounds) {
    PlanRound& described = description->rounds.emplace_back();
    described.head_groups = round.head_groups;
    described.blocks = round.blocks;
    described.block_head_groups = round.block_head_groups;
    described.limits = round.limits;
    for (const NamedMask& mask : round.masks) {
      described.masks.push_back({.name = mask.name, .layers = mask.layers, .mask = {}});
    }
  }
  return description;
}

}  // namespace

LinearTimes linear_times(const PlannedBatch& planned, const Simulation& simulation,
                         double linear_us_per_token) {
  const Plan& plan = *planned.plan;
  const PlanStats& stats = planned.statistics;
  const auto layers = static_cast<double>(plan.rounds.front().masks.size());
  const double passes = layers * (simulation.backward ? kPassesWithBackward : 1);
  const double even_us = passes * linear_us_per_token * static_cast<double>(stats.tokens) /
                         (plan.nodes * plan.devices_per_node);
  const double uneven_us = even_us * stats.token_overload;
  return {.linear_us = even_us + uneven_us, .uneven_us = uneven_us};
}

double layer_us(const PlannedBatch& planned, const Simulation& simulation,
                double linear_us_per_token) {
  return simulation.time_us() + linear_times(planned, simulation, linear_us_per_token).linear_us;
}

namespace {

// bound_beside of a workload that is known to be valid.
BatchBound bound_beside_checked(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                const Simulation& simulation) {
  const BoundOptions options = bound_options_beside(plan, workload, cluster);
  BatchBound bound;
  if (simulation.forward) {
    bound.forward = lower_bound_of_checked(workload, cluster, Direction::kForward, options);
  }
  if (simulation.backward) {
    bound.backward = lower_bound_of_checked(workload, cluster, Direction::kBackward, options);
  }
  return bound;
}

// Time of a token outside attention in one layer, forward.
double token_price(const Workload& workload, const PlanInput& input) {
  return input.options.linear_us_per_token.value_or(
      guessed_linear_us_per_token(workload.shape, input.cluster));
}

// The batch as micro-batches. Linear layers would take `even_linear_us` with even tokens. Throws
// CheckFailed.
ComparedSchedule compared_schedule(const Workload& workload, const PlanInput& input,
                                   const StrategyChoice& choice, const PlanOptions& options,
                                   double even_linear_us) {
  const PlannedSchedule schedule =
      plan_and_check_schedule(workload, input.cluster, choice, options);
  const SchedulePrediction prediction = predict_schedule(schedule, token_price(workload, input));
  const double linear_us = prediction.time_us - predict_schedule(schedule, 0).time_us;
  // The difference of two sums may be off by their last bits.
  const double uneven_us = linear_us - even_linear_us;
  const double above_even = uneven_us > 1e-9 * linear_us ? uneven_us : 0;
  return {.micro_batches = schedule.num_micro_batches(),
          .most_tokens = prediction.most_tokens(),
          .memory_bytes = prediction.memory_bytes(),
          .layer_us = prediction.time_us,
          .linear = {.linear_us = linear_us, .uneven_us = above_even}};
}

}  // namespace

BatchBound bound_beside(const Plan& plan, const Workload& workload, const Cluster& cluster,
                        const Simulation& simulation) {
  check_workload(workload);
  return bound_beside_checked(plan, workload, cluster, simulation);
}

bool ComparedStrategy::ok() const {
  return failed.empty() && std::ranges::all_of(batches, [](const PlannedBatch& batch) {
           return batch.verified.ok();
         });
}

std::vector<ComparedStrategy> compare_strategies(const PlanInput& input,
                                                 std::span<const StrategyChoice> choices,
                                                 const ComparisonHooks& hooks) {
  for (const Workload& workload : input.batches) check_workload(workload);
  PlanOptions options = input.options;
  options.max_roundings = kAnyRoundings;
  std::vector<ComparedStrategy> compared;
  for (const StrategyChoice& choice : choices) {
    compared.push_back(without_numbers(choice));
    compared.back().skipped = skip_reason(choice, input);
  }
  for (std::size_t i = 0; i < compared.size(); ++i) {
    ComparedStrategy& row = compared[i];
    const bool is_scheduled = input.schedules && find_strategy(row.choice.name).has_schedule();
    for (std::size_t b = 0; b < input.batches.size(); ++b) {
      if (hooks.started) hooks.started(i, b);
      if (!row.skipped.empty() || !row.failed.empty()) continue;
      const Workload& workload = input.batches[b];
      try {
        PlannedBatch planned = plan_checked_batch(workload, input.cluster, row.choice, options);
        if (planned.verified.ok()) {
          row.simulations.push_back(simulate(*planned.plan, input.cluster));
          row.bounds.push_back(
              bound_beside_checked(*planned.plan, workload, input.cluster, row.simulations.back()));
          const double price_us = token_price(workload, input);
          double layer_of_batch_us = layer_us(planned, row.simulations.back(), price_us);
          LinearTimes linear = linear_times(planned, row.simulations.back(), price_us);
          if (is_scheduled && workload.home.empty()) {
            row.schedules.push_back(compared_schedule(workload, input, row.choice, options,
                                                      linear.linear_us - linear.uneven_us));
            layer_of_batch_us = row.schedules.back().layer_us;
            linear = row.schedules.back().linear;
          }
          row.layers_us.push_back(layer_of_batch_us);
          row.linear_us.push_back(linear.linear_us);
          row.uneven_us.push_back(linear.uneven_us);
          if (hooks.planned) hooks.planned(i, b, planned);
        }
        planned.plan = description_of(*planned.plan);
        row.batches.push_back(std::move(planned));
      } catch (const TransportError&) {
        throw;  // the environment's failure, not the strategy's
      } catch (const Error& error) {
        row = without_numbers(std::move(row.choice));
        (is_scheduled && fits_no_group(error, options) ? row.skipped : row.failed) = error.what();
      }
    }
  }
  return compared;
}

}  // namespace contextile

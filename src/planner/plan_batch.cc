#include "planner/plan_batch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/check.h"

namespace contextile {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

StrategyRequest request_of(const StrategyChoice& choice, const Input& input) {
  StrategyRequest request = input.request;
  request.options = choice.options;
  return request;
}

bool has_direction(const Plan& plan, Direction direction) {
  for (const PlanRound& round : plan.rounds) {
    for (const DeviceProgram& device : round.devices) {
      for (const ProgramPair& pair : device.programs) {
        if (pair.of(direction)) return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string choice_text(const StrategyChoice& choice) {
  std::string text = choice.name;
  char separator = ':';
  for (const auto& [key, value] : choice.options) {
    text += fmt::format("{}{}={}", separator, key, value);
    separator = ',';
  }
  return text;
}

std::optional<std::string> unsupported_reason(const StrategyChoice& choice, const Input& input,
                                              const Workload& workload) {
  return find_strategy(choice.name).unsupported(workload, input.cluster, request_of(choice, input));
}

PlannedBatch plan_batch(const StrategyChoice& choice, const Input& input,
                        const Workload& workload) {
  const Strategy& strategy = find_strategy(choice.name);
  PlannedBatch planned;
  const Clock::time_point started = Clock::now();
  const Arrangement arrangement =
      strategy.arrange(workload, input.cluster, request_of(choice, input));
  planned.arrange_s = seconds_since(started);
  const Clock::time_point arranged = Clock::now();
  planned.plan =
      std::make_shared<const Plan>(build_plan(workload, input.cluster, arrangement, input.limits));
  planned.build_s = seconds_since(arranged);
  const Clock::time_point built = Clock::now();
  planned.verified = verify(*planned.plan);
  planned.verify_s = seconds_since(built);
  planned.statistics = statistics(*planned.plan);
  return planned;
}

double oracle_flops(const Plan& plan) {
  std::int64_t pairs = 0;
  for (const PlanRound& round : plan.rounds) {
    for (const NamedMask& mask : round.masks) pairs += mask.mask.num_pairs();
  }
  double flops = forward_flops(pairs, plan.shape.q_heads, plan.shape);
  if (has_direction(plan, Direction::kBackward)) {
    flops += backward_flops(pairs, plan.shape.q_heads, plan.shape);
  }
  return flops;
}

void check_run_memory(const Plan& plan, const PlanStats& statistics) {
  const AttentionShape& shape = plan.shape;
  const double elements = static_cast<double>(plan.num_tokens()) *
                          (shape.q_heads + shape.kv_heads) * (shape.head_dim + shape.value_dim);
  // Inputs and the oracle's results in fp64, every rank's inputs and results in the activation
  // dtype.
  double needed_bytes = elements * (2 * sizeof(double) + 2.0 * bytes_per_element(shape.dtype));
  for (const auto& direction : {statistics.forward, statistics.backward}) {
    if (!direction) continue;
    for (const DeviceStats& device : direction->devices) {
      needed_bytes += static_cast<double>(device.memory_bytes);
    }
  }
  const double machine_bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed_bytes > machine_bytes) {
    fail_argument(
        "run: expected a batch that fits this machine's {:.1f} GB, found {} tokens that need about "
        "{:.1f} GB",
        machine_bytes / 1e9, plan.num_tokens(), needed_bytes / 1e9);
  }
}

}  // namespace contextile

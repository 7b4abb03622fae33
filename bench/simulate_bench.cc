// Simulating plans at real sizes. Every plan is verified, and the simulation's bytes and FLOPs are
// compared with the plan's statistics, before anything is timed. Events are instructions and
// messages of both directions.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

constexpr std::string_view kStrategies[] = {"ring", "zigzag", "magi", "dcp"};

struct Case {
  std::string name;
  std::vector<std::int64_t> lengths;
  Cluster cluster;
};

std::vector<Case> cases() {
  const Cluster small = load_cluster("dgx-h200:4x8");
  const Cluster large = load_cluster("dgx-h200:64x8");
  return {{"prolong_128K_32_devices",
           batches_from_dataset("prolong", {.tokens = 131072, .seed = 1}).front(), small},
          {"single_128K_32_devices", {131072}, small},
          {"single_1M_512_devices", {1 << 20}, large}};
}

// True if the simulation moved the plan's bytes and computed its FLOPs.
bool agrees(const std::optional<SimulatedDirection>& simulated,
            const std::optional<DirectionStats>& stats) {
  if (!simulated || !stats) return simulated.has_value() == stats.has_value();
  return simulated->intra_bytes == stats->intra_bytes &&
         simulated->inter_bytes == stats->inter_bytes &&
         std::abs(simulated->flops - stats->flops) <= 1e-9 * stats->flops;
}

std::int64_t num_events(const Plan& plan, const PlanStats& stats) {
  std::int64_t events = stats.forward->messages + stats.backward->messages;
  for (const PlanRound& round : plan.rounds) {
    for (const DeviceProgram& device : round.devices) {
      for (const ProgramPair& pair : device.programs) {
        events += static_cast<std::int64_t>(pair.forward->instructions.size());
        events += static_cast<std::int64_t>(pair.backward->instructions.size());
      }
    }
  }
  return events;
}

[[noreturn]] void fail(std::string_view name, std::string_view reason) {
  fmt::print(stderr, "{}: {}\n", name, reason);
  std::exit(1);
}

struct Planned {
  Plan plan;
  PlanStats stats;
};

Planned plan_case(const Case& c, const Strategy& strategy) {
  const MaskUse causal = parse_mask_use("causal");
  const Workload workload = make_workload(c.lengths, {}, {&causal, 1});
  StrategyRequest request;
  request.max_roundings = kAnyRoundings;  // as the originals
  request.block_size = 1024;
  Planned planned;
  planned.plan = build_plan(workload, c.cluster, strategy.arrange(workload, c.cluster, request));
  const VerifyReport report = verify(planned.plan);
  if (!report.ok()) fail(strategy.name(), report.violations.front());
  planned.stats = statistics(planned.plan);
  const Simulation simulation = simulate(planned.plan, c.cluster);
  if (!agrees(simulation.forward, planned.stats.forward) ||
      !agrees(simulation.backward, planned.stats.backward)) {
    fail(strategy.name(), "the simulation moves other bytes than the plan's statistics say");
  }
  return planned;
}

void simulate_case(benchmark::State& state, const Case& c, const Planned& planned) {
  Simulation simulation;
  for (auto _ : state) {
    simulation = simulate(planned.plan, c.cluster);
    benchmark::DoNotOptimize(simulation);
  }
  const std::int64_t events = num_events(planned.plan, planned.stats);
  state.counters["events"] = static_cast<double>(events);
  state.counters["events/s"] = benchmark::Counter(static_cast<double>(events),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tiles"] =
      static_cast<double>(planned.stats.forward->tiles + planned.stats.backward->tiles);
  state.counters["simulated_ms"] = simulation.time_us() * 1e-3;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  static const std::vector<contextile::Case> kCases = contextile::cases();
  for (const contextile::Case& c : kCases) {
    for (const std::string_view name : contextile::kStrategies) {
      const contextile::Strategy& strategy = contextile::find_strategy(name);
      // Planned when it is first run, so that a filter costs nothing.
      const auto planned = std::make_shared<std::optional<contextile::Planned>>();
      benchmark::RegisterBenchmark(fmt::format("simulate/{}/{}", name, c.name).c_str(),
                                   [&c, &strategy, planned](benchmark::State& state) {
                                     if (!*planned) *planned = contextile::plan_case(c, strategy);
                                     contextile::simulate_case(state, c, **planned);
                                   })
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

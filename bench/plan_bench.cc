// Planning at real sizes: arranging, building, verifying, writing and reading plans. Every case
// verifies its plan before anything is timed.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

struct Case {
  std::string name;
  Workload workload;
  Cluster cluster;
  StrategyRequest request;
};

Workload batch_of(const std::vector<std::int64_t>& lengths, const std::string& mask) {
  const MaskUse use = parse_mask_use(mask);
  return make_workload(lengths, {}, {&use, 1});
}

std::vector<std::int64_t> sampled(const std::string& dataset, std::int64_t tokens) {
  return batches_from_dataset(dataset, {.tokens = tokens, .seed = 1}).front();
}

std::vector<Case> cases() {
  std::vector<Case> result;
  const Cluster small = load_cluster("dgx-h200:4x8");
  StrategyRequest blocks_of_1024;
  blocks_of_1024.max_roundings = kAnyRoundings;
  blocks_of_1024.block_size = 1024;
  for (const char* mask : {"causal", "lambda:64,4096"}) {
    result.push_back({fmt::format("prolong_128K/{}", mask),
                      batch_of(sampled("prolong", 131072), mask), small, blocks_of_1024});
  }
  result.push_back({"single_128K/causal", batch_of({131072}, "causal"), small, blocks_of_1024});
  result.push_back({"single_1M_512_devices/causal", batch_of({1 << 20}, "causal"),
                    load_cluster("dgx-h200:64x8"), blocks_of_1024});
  return result;
}

void add_counters(benchmark::State& state, const Plan& plan) {
  const PlanStats stats = statistics(plan);
  const auto bytes = static_cast<double>(serialize(plan).size());
  const auto tiles = static_cast<double>(stats.forward->tiles + stats.backward->tiles);
  state.counters["tiles"] = tiles;
  state.counters["file_bytes_per_tile"] = bytes / tiles;
  state.counters["tiles/s"] =
      benchmark::Counter(tiles, benchmark::Counter::kIsIterationInvariantRate);
}

template <typename Body>
void add(const std::string& name, Body body) {
  benchmark::RegisterBenchmark(name.c_str(), body)
      ->Unit(benchmark::kMillisecond)
      ->MeasureProcessCPUTime();
}

void register_case(const Case& c, const Strategy& strategy) {
  if (strategy.unsupported(c.workload, c.cluster, c.request)) return;
  const Arrangement arrangement = strategy.arrange(c.workload, c.cluster, c.request);
  const Plan plan = build_plan(c.workload, c.cluster, arrangement);
  const VerifyReport report = verify(plan);
  if (!report.ok()) {
    fmt::print(stderr, "{} {}: {}\n", strategy.name(), c.name, report.violations.front());
    std::exit(1);
  }
  const std::string suffix = fmt::format("/{}/{}", strategy.name(), c.name);
  add("arrange" + suffix, [&c, &strategy](benchmark::State& state) {
    for (auto _ : state)
      benchmark::DoNotOptimize(strategy.arrange(c.workload, c.cluster, c.request));
  });
  add("build" + suffix, [&c, arrangement, plan](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(build_plan(c.workload, c.cluster, arrangement));
    add_counters(state, plan);
  });
  add("verify" + suffix, [plan](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(verify(plan));
    add_counters(state, plan);
  });
  add("serialize" + suffix, [plan](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(serialize(plan));
    add_counters(state, plan);
  });
  add("deserialize" + suffix, [plan](benchmark::State& state) {
    const std::vector<std::uint8_t> file = serialize(plan);
    for (auto _ : state) benchmark::DoNotOptimize(deserialize(file, "memory"));
    add_counters(state, plan);
  });
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  static const std::vector<contextile::Case> kCases = contextile::cases();
  for (const contextile::Case& c : kCases) {
    for (const contextile::Strategy* strategy : contextile::strategies()) {
      if (c.cluster.num_devices() > 64 && strategy->name() != "magi")
        continue;  // rings of 512 steps
      contextile::register_case(c, *strategy);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

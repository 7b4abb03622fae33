// Kernels on one tile, and whole plans over in-process ranks. Every case compares with the oracle
// before anything is timed.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "runtime/check/run_error.h"
#include "runtime/check/single_device.h"

namespace contextile {
namespace {

constexpr double kLargestError = 1e-5;  // fp32, against fp64

AttentionShape bench_shape() {
  return {.q_heads = 8, .kv_heads = 4, .head_dim = 128, .value_dim = 128, .dtype = Dtype::kF32};
}

Workload causal(std::int64_t tokens) {
  const MaskUse use = parse_mask_use("causal");
  const std::vector<std::int64_t> lengths = {tokens};
  return make_workload(lengths, bench_shape(), {&use, 1});
}

// Forward, or forward and backward, of one causal sequence as a single tile.
void run_kernel(benchmark::State& state, const AttentionKernel& kernel, Passes passes) {
  const Workload workload = causal(state.range(0));
  const bool gradients = passes == Passes::kForwardBackward;
  const Mask& mask = workload.masks[0].mask;
  const BatchTensors batch = random_batch(workload, 1);
  const OracleResult truth = oracle(batch, workload.shape, mask, passes);
  OracleResult found = run_single_device(batch, workload.shape, mask, kernel, passes);
  const double error =
      gradients ? relative_error(found.dk, truth.dk, 0) : relative_error(found.out, truth.out, 0);
  if (!(error <= kLargestError)) {
    state.SkipWithError(fmt::format("error {:.3g}", error).c_str());
    return;
  }
  for (auto _ : state) {
    found = run_single_device(batch, workload.shape, mask, kernel, passes);
    benchmark::DoNotOptimize(found);
  }
  double flops = forward_flops(mask.num_pairs(), workload.shape.q_heads, workload.shape);
  if (gradients) flops += backward_flops(mask.num_pairs(), workload.shape.q_heads, workload.shape);
  state.counters["FLOP/s"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
}

// Both directions of a strategy's plan on in-process ranks, with new buffers and threads each time.
void run_strategy(benchmark::State& state, const std::string& name) {
  const Workload workload = causal(state.range(0));
  Cluster cluster;
  cluster.devices_per_node = 4;
  StrategyRequest request;
  request.wire = Dtype::kF32;
  const Strategy& strategy = find_strategy(name);
  if (const auto reason = strategy.unsupported(workload, cluster, request)) {
    state.SkipWithError(reason->c_str());
    return;
  }
  const auto plan = std::make_shared<const Plan>(
      build_plan(workload, cluster, strategy.arrange(workload, cluster, request)));
  if (!run_plan(plan).ok()) {
    state.SkipWithError("the result is wrong");
    return;
  }
  RunOptions options;
  options.compare = false;
  std::int64_t bytes = 0;
  for (auto _ : state) {
    const RunReport report = run_plan(plan, options);
    bytes += report.masks[0].sent_bytes_forward + report.masks[0].sent_bytes_backward;
  }
  state.SetBytesProcessed(bytes);
}

void register_all() {
  for (const AttentionKernel* kernel : kernels()) {
    for (const Passes passes : {Passes::kForward, Passes::kForwardBackward}) {
      const std::string name =
          fmt::format("kernel/{}/{}", kernel->name(),
                      passes == Passes::kForward ? "forward" : "forward_backward");
      benchmark::RegisterBenchmark(
          name.c_str(),
          [kernel, passes](benchmark::State& state) { run_kernel(state, *kernel, passes); })
          ->Arg(256)
          ->Arg(1024)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  for (const Strategy* strategy : strategies()) {
    const std::string name(strategy->name());
    benchmark::RegisterBenchmark(("plan/" + name).c_str(),
                                 [name](benchmark::State& state) { run_strategy(state, name); })
        ->Arg(1024)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  contextile::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

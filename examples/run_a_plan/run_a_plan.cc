// From the lengths of one batch to exact distributed attention: plan, count, execute, compare.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"

namespace {

void print_direction(const char* name, const contextile::DirectionStats& stats) {
  std::printf("%-8s  %lld tiles, %.2f MB moved, compute imbalance %.1f%%\n", name,
              static_cast<long long>(stats.tiles), static_cast<double>(stats.total_bytes()) / 1e6,
              100 * stats.compute_imbalance);
}

// Returns the process's exit code.
int plan_and_run() {
  // Three documents packed into one batch, every token seeing the ones before it in its document,
  // on two nodes of two devices.
  const std::vector<std::int64_t> lengths = {700, 260, 64};
  const contextile::AttentionShape shape = {.q_heads = 8,
                                            .kv_heads = 2,
                                            .head_dim = 32,
                                            .value_dim = 32,
                                            .dtype = contextile::Dtype::kF32};
  const contextile::PlannedBatch planned = contextile::plan_batch(
      contextile::make_workload(lengths, shape), contextile::load_cluster("local:2x2"), {"zigzag"});
  for (const std::string& violation : planned.verified.violations) {
    std::printf("violation: %s\n", violation.c_str());
  }
  if (!planned.verified.ok()) return 1;
  print_direction("forward", *planned.statistics.forward);
  print_direction("backward", *planned.statistics.backward);

  // Four ranks as threads of this process, against the fp64 reference.
  const contextile::RunReport run = contextile::run_plan(planned.plan);
  for (const contextile::RunError& error : run.masks.front().errors) {
    std::printf("%-8s  error %.1e, on one device %.1e\n", error.array.c_str(), error.error,
                error.single_device_error);
  }
  std::printf("%s\n", run.ok() ? "exact" : "WRONG");
  return run.ok() ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return plan_and_run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "run_a_plan: %s\n", error.what());
    return 2;
  }
}

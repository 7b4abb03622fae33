// From the lengths of one batch to exact distributed attention: plan, verify, count, execute.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/executor.h"
#include "contextile/oracle.h"
#include "contextile/plan.h"
#include "contextile/plan_build.h"
#include "contextile/plan_file.h"
#include "contextile/plan_stats.h"
#include "contextile/registry.h"
#include "contextile/strategy.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace {

void print_direction(const char* name, const contextile::DirectionStats& stats) {
  std::printf("%-8s  %lld tiles, %.2f MB moved, compute imbalance %.1f%%\n", name,
              static_cast<long long>(stats.tiles), static_cast<double>(stats.total_bytes()) / 1e6,
              100 * stats.compute_imbalance);
}

// Returns the process's exit code.
int plan_and_run() {
  // Three documents packed into one batch, every token seeing the ones before it in its document.
  const std::vector<std::int64_t> lengths = {700, 260, 64};
  contextile::AttentionShape shape;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = 32;
  shape.value_dim = 32;
  shape.dtype = contextile::Dtype::kF32;
  const std::vector<contextile::MaskUse> masks = {contextile::parse_mask_use("causal")};
  const contextile::Workload workload = contextile::make_workload(lengths, shape, masks);

  // Two nodes of two devices.
  contextile::Cluster cluster;
  cluster.nodes = 2;
  cluster.devices_per_node = 2;

  // Any strategy of the registry gives an arrangement; the plan is what it lowers to.
  const contextile::Strategy& strategy = contextile::find_strategy("zigzag");
  const contextile::Arrangement arrangement = strategy.arrange(workload, cluster, {});
  const auto plan = std::make_shared<const contextile::Plan>(
      contextile::build_plan(workload, cluster, arrangement));

  const contextile::VerifyReport report = contextile::verify(*plan);
  for (const std::string& violation : report.violations) {
    std::printf("violation: %s\n", violation.c_str());
  }
  std::printf("plan      %s, digest %s, %s\n", plan->strategy.c_str(),
              contextile::digest_text(plan->digest).c_str(), report.ok() ? "verified" : "INVALID");
  if (!report.ok()) {
    return 1;
  }

  const contextile::PlanStats stats = contextile::statistics(*plan);
  print_direction("forward", *stats.forward);
  print_direction("backward", *stats.backward);

  // Four ranks as threads of this process, against the fp64 reference.
  const contextile::RunReport run = contextile::run_plan(plan);
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
    std::fprintf(stderr, "plan_a_batch: %s\n", error.what());
    return 2;
  }
}

// What the tables of predicted speed share: times of strategies over batches, and the setting of
// the FCP paper.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/registry.h"
#include "contextile/simulate.h"
#include "papers/paper_table.h"
#include "papers/steps.h"
#include "report/table.h"

namespace contextile {

// For PaperResult::differences.
inline constexpr const char* kTimesAreSimulated =
    "Times are simulated on the preset's constants (contextile info, docs/simulator.md), not "
    "measured on GPUs.";

// Of simulated plans: geometric means over batches.
struct Predicted {
  double forward_s = 0;
  double backward_s = 0;
  double total_s = kInfinity;  // infinity: the method does not apply
  std::string skipped;
};
// Of verified plans, forward and backward.
[[nodiscard]] Predicted predict_times(const StrategyChoice& choice, const PlanInput& input,
                                      std::span<const Workload> batches);

// `first`, then the columns that add_times fills behind its labels and the strategy.
[[nodiscard]] std::vector<Column> time_columns(std::vector<Column> first);
// A method and its baselines on one setting: a row each, `gain` the first one's over it. Returns
// the gain over the fastest baseline; none where the method or every baseline does not apply.
std::optional<double> add_times(std::span<const StrategyChoice> choices, const PlanInput& input,
                                std::span<const Workload> batches, const std::vector<Cell>& labels,
                                Progress& progress, Table& table);

// For Table::add_row: a method that cannot plan a batch.
[[nodiscard]] std::string skipped_note(const StrategyChoice& choice, std::string_view reason);

// With two differences: times are simulated, lengths sampled.
[[nodiscard]] PaperResult timed_result(const BenchSetting& setting, Table table);

// For tables that vary the number of nodes: throws InvalidArgument when --cluster states one.
void refuse_nodes(const BenchOverrides& overrides, std::string_view table);

// ------------------------------------------------------------------- shares of one GPU's MFU

// One device's part of a causal batch, as fast as one device does whole documents.
[[nodiscard]] double single_gpu_us(const Workload& workload, const Cluster& cluster,
                                   Direction direction);

// Of one direction: geometric means over batches. 1: as fast as one GPU alone.
struct GpuShare {
  double time_s = 0;
  double share = 0;  // of one GPU's MFU: its time over the plan's
  double limit = 0;  // the share, were everything but the busiest device's attention free
};

struct GpuShares {
  GpuShare forward;
  GpuShare backward;        // zeros in a request without backward
  double device_bytes = 0;  // both directions, over the number of devices: mean over batches
  std::string skipped;      // why the method does not apply, and nothing is known
};
// Of verified plans of causal batches, planned for the input's cluster and simulated on each of
// `machines`: one result for each.
[[nodiscard]] std::vector<GpuShares> predict_shares(const StrategyChoice& choice,
                                                    const PlanInput& input,
                                                    std::span<const Workload> batches,
                                                    std::span<const Cluster> machines);

// -------------------------------------------------------------------------------------- FCP

// A machine of the FCP paper's Table 1, which names neither: bf16 FLOPs for every byte of network.
struct FcpGpu {
  std::string_view name;
  double flops_per_byte = 0;
};
inline constexpr FcpGpu kGpuX = {.name = "GPU-X", .flops_per_byte = 5920};
inline constexpr FcpGpu kGpuY = {.name = "GPU-Y", .flops_per_byte = 2500};

inline constexpr std::int64_t kFcpTokensPerDevice = 32768;

// The paper's lengths and heads on `devices` of the GPU in nodes of 8. The GPU is our dgx-h100, 50
// GB/s of network a device, with attention as fast as the ratio says.
[[nodiscard]] BenchSetting fcp_setting(const BenchOverrides& overrides, std::int32_t devices,
                                       const FcpGpu& gpu = kGpuX);
inline constexpr std::array<std::int32_t, 4> kFcpDevices = {16, 32, 64, 128};
// FCP beside the one of the verdicts.
inline constexpr const char* kFcpSmallBlocks = "fcp:block=1024";
// The tokens of a block of `fcp` as all of its verdicts have it: the paper's, or --block-size.
inline constexpr std::int64_t kFcpBlock = 4096;
[[nodiscard]] std::int64_t fcp_block(const BenchOverrides& overrides);
// For PaperResult::setting.
[[nodiscard]] std::pair<std::string, std::string> fcp_block_setting(
    const BenchOverrides& overrides);

}  // namespace contextile

// What the tables of predicted speed share: times of strategies over batches, and the setting of
// the FCP paper.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/output.h"
#include "cli/paper_table.h"

namespace contextile {

// For PaperResult::differences.
inline constexpr const char* kTimesAreSimulated =
    "Times are simulated on the preset's constants (contextile info, docs/simulator.md), not "
    "measured on GPUs.";
inline constexpr const char* kLengthsAreModelled =
    "Lengths: samples of our models of the datasets' lengths (contextile info), not the documents "
    "themselves.";

// Geometric means over batches.
struct Predicted {
  double forward_s = 0;
  double backward_s = 0;
  double forward_mfu = 0;  // attention alone over the whole: what one device would reach is 1
  double backward_mfu = 0;
  double total_s = std::numeric_limits<double>::infinity();  // infinity: the method does not apply
  std::string skipped;
};
// Of verified plans, forward and backward.
[[nodiscard]] Predicted predict_times(const StrategyChoice& choice, const Input& input,
                                      std::span<const Workload> batches);

// `first`, then the columns that add_times fills behind its labels and the strategy.
[[nodiscard]] std::vector<Column> time_columns(std::vector<Column> first);
// A method and its baselines on one setting: a row each, `gain` the first one's over it. Returns
// the gain over the fastest baseline.
double add_times(std::span<const StrategyChoice> choices, const Input& input,
                 std::span<const Workload> batches, const std::vector<Cell>& labels,
                 Progress& progress, Table& table);

// With the two differences above.
[[nodiscard]] PaperResult timed_result(const BenchSetting& setting, Table table);

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
// For tables that vary the number of devices. Throws InvalidArgument.
void refuse_cluster(const BenchOverrides& overrides, std::string_view table);

}  // namespace contextile

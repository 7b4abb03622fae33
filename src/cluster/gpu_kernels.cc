#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

// The cost of a document in one direction: its computed pairs, `row_keys` more keys for every row,
// and `call_pairs` pairs. See AttentionProfile::from_overheads.
struct Overheads {
  double row_keys = 0;
  double call_pairs = 0;
};

AttentionProfile profile_of(Overheads forward, double backward_share, Overheads backward,
                            double call_us) {
  AttentionProfile profile =
      AttentionProfile::from_overheads(forward.row_keys, forward.call_pairs, backward_share);
  profile.backward =
      AttentionProfile::from_overheads(backward.row_keys, backward.call_pairs, backward_share)
          .backward;
  profile.call_us = call_us;
  return profile;
}

constexpr std::string_view kMagi =
    "fitted to charts of MagiAttention's benchmark, documents of 1K to 16K, 64 heads of 128";
constexpr std::string_view kTables =
    "forward fitted to tables of aiconfigurator, documents of 128 to 16K, 16 to 64 heads of 128; "
    "backward assumed";
constexpr std::string_view kNode =
    "FlashAttention-3 where all GPUs of a node compute: row costs of its own charts (head dim 128, "
    "documents of 512 to 16384), rate fitted to plans of 8 and 16 GPUs in MagiAttention's "
    "benchmark";
constexpr std::string_view kAmpere =
    "FlashAttention-2, rate fitted to ring-flash-attention's benchmark, forward, documents of 8K "
    "to "
    "64K; rows cost as vllm_fa2's, backward as on H100, both assumed";
constexpr std::string_view kFlash4 =
    "FlashAttention-4, forward fitted to its own benchmark (pull request 2605, head dim 128, "
    "documents of 1K to 4K); backward assumed";
constexpr std::string_view kOwn =
    "fitted to gpu_bench on an H200, documents of 1K to 8K, 32 heads of 128";

}  // namespace

// Constants are least squares of logarithms over the fitted rows of labs/measured/kernels.csv;
// docs/results/measured.md says how far judged rows are off. A weak prior (200 keys per row, 9600
// pairs per document) sets what the rows do not determine. Kernels without rows of backward have an
// assumed one.
const std::vector<GpuKernel>& gpu_kernels() {
  const std::vector<std::string_view> hopper = {"dgx-h100", "dgx-h200"};
  const std::vector<std::string_view> blackwell = {"b200", "gb200-nvl72", "gb300-nvl72"};
  static const std::vector<GpuKernel> kKernels = {
      {"fa2", hopper, kMagi, 387, profile_of({236, 9503}, 0.904, {566, 10013}, 16.4)},
      {"fa3", hopper, kMagi, 703, profile_of({41, 9082}, 0.881, {722, 11963}, 16.8)},
      {"fa3_node", hopper, kNode, 650, profile_of({218, 9600}, 0.9, {722, 11963}, 20)},
      {"cudnn", hopper, kMagi, 586, profile_of({72, 9382}, 0.874, {689, 10661}, 61.5)},
      {"sdpa", hopper, kMagi, 627, profile_of({108, 9240}, 0.892, {744, 10748}, 13.5)},
      {"ffa", hopper, kMagi, 656, profile_of({42, 9742}, 0.883, {452, 9383}, 95.6)},
      {"flash_mask", hopper, kMagi, 376, profile_of({395, 9353}, 0.814, {521, 10841}, 17.9)},
      {"flex", hopper, kMagi, 411, profile_of({396, 10456}, 0.698, {898, 7595}, 14.1)},
      {"vllm_fa3", hopper, kTables, 655, profile_of({479, 5643}, 0.881, {722, 11963}, 12.8)},
      {"trtllm", hopper, kTables, 552, profile_of({594, 7544}, 0.881, {722, 11963}, 13.6)},
      {"cuda:wgmma", hopper, kOwn, 730, profile_of({628, 9505}, 0.682, {1000, 10077}, 18.8)},
      {"cuda:mma", hopper, kOwn, 234, profile_of({316, 9714}, 0.568, {930, 9638}, 23.9)},
      {"fa2", {"p4de"}, kAmpere, 217, profile_of({256, 1211}, 0.904, {566, 10013}, 10.9)},
      {"vllm_fa2", {"p4de"}, kTables, 181, profile_of({256, 1211}, 0.881, {722, 11963}, 10.9)},
      {"trtllm", blackwell, kTables, 1380, profile_of({1112, 27869}, 0.881, {1112, 27869}, 16.1)},
      {"fa4", blackwell, kFlash4, 1663, AttentionProfile::from_overheads(380, 9600, 0.86, 256)}};
  return kKernels;
}

const GpuKernel& find_gpu_kernel(std::string_view preset, std::string_view name) {
  std::vector<std::string> names;
  for (const GpuKernel& kernel : gpu_kernels()) {
    if (std::ranges::find(kernel.presets, preset) == kernel.presets.end()) continue;
    if (kernel.name == name) return kernel;
    names.emplace_back(kernel.name);
  }
  CONTEXTILE_CHECK(!names.empty(), "kernel: expected a preset with measured kernels, found {}",
                   quote(preset));
  fail_argument("kernel: expected one of {} on {}, found {}{}", fmt::join(names, ", "), preset,
                quote(name), did_you_mean(name, names));
}

}  // namespace contextile

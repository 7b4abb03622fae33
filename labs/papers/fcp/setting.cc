#include "labs/papers/fcp/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace contextile {
namespace {

// The paper says that pieces of 512 tokens reach a quarter of one GPU's MFU (section 3.1).
// FlashAttention-3's own charts say twice that of an H100, so the paper's kernel is no preset's. If
// a row costs 654 keys, a causal document of 512 tokens reaches 26%.
constexpr double kRowKeys = 654;
constexpr double kCallPairs = 9600;
constexpr double kBackwardShare = 0.86;
// The share of the peak that unlimited rectangles reach: 680 of 989 TFLOP/s on a causal document of
// 32768.
constexpr double kAttentionOfPeak = 710.0 / 989;

}  // namespace

PaperSetting fcp_setting(const TableOverrides& overrides, std::int32_t devices, const FcpGpu& gpu) {
  constexpr double kGbytesPerS = 50;
  PaperSetting setting;
  setting.datasets = {kFcpLengths};
  setting.batch.tokens = kFcpTokensPerDevice * devices;
  setting.batch.batches = 2;
  setting.shape.q_heads = 64;
  setting.shape.kv_heads = 8;
  setting.cluster_name = fmt::format("dgx-h100:{}x8", devices / 8);
  apply_overrides(overrides, setting);
  if (overrides.cluster.empty()) {
    Cluster& cluster = setting.input.cluster;
    const double peak_tflops = gpu.flops_per_byte * kGbytesPerS * 1e-3;
    cluster.name = gpu.name;
    cluster.attention_tflops = kAttentionOfPeak * peak_tflops;
    cluster.peak_tflops = peak_tflops;
    cluster.attention = AttentionProfile::from_overheads(kRowKeys, kCallPairs, kBackwardShare);
  }
  setting.batch.max_length = std::min(setting.batch.tokens, kFcpLongest);
  return setting;
}

std::vector<std::string> fcp_lengths_compared(const TableOverrides& overrides) {
  if (!overrides.dataset.empty()) return {overrides.dataset};
  return {kFcpLengths, "longalign"};
}

std::vector<StrategyChoice> with_ring(const std::string& strategies, std::int32_t devices) {
  return parse_strategies(devices <= kFcpRingDevices ? strategies + ",zigzag" : strategies);
}

std::int64_t num_with_ring(const std::string& strategies,
                           std::span<const std::int32_t> all_devices) {
  std::int64_t number = 0;
  for (const std::int32_t devices : all_devices) {
    number += std::ssize(with_ring(strategies, devices));
  }
  return number;
}

std::int64_t fcp_block(const TableOverrides& overrides) {
  return overrides.block_size.value_or(kFcpBlock);
}

std::pair<std::string, std::string> fcp_block_setting(const TableOverrides& overrides) {
  return {"fcp", fmt::format("blocks of {} tokens{}; every verdict on FCP is of these",
                             fcp_block(overrides), overrides.block_size ? "" : ", the paper's")};
}

}  // namespace contextile

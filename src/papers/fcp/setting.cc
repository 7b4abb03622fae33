#include "papers/fcp/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace contextile {

BenchSetting fcp_setting(const BenchOverrides& overrides, std::int32_t devices, const FcpGpu& gpu) {
  constexpr double kGbytesPerS = 50;
  BenchSetting setting;
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
    cluster.attention_tflops *= peak_tflops / cluster.peak_tflops;
    cluster.peak_tflops = peak_tflops;
  }
  setting.batch.max_length = std::min(setting.batch.tokens, kFcpLongest);
  return setting;
}

std::vector<std::string> fcp_lengths_compared(const BenchOverrides& overrides) {
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

std::int64_t fcp_block(const BenchOverrides& overrides) {
  return overrides.block_size.value_or(kFcpBlock);
}

std::pair<std::string, std::string> fcp_block_setting(const BenchOverrides& overrides) {
  return {"fcp", fmt::format("blocks of {} tokens{}; every verdict on FCP is of these",
                             fcp_block(overrides), overrides.block_size ? "" : ", the paper's")};
}

}  // namespace contextile

#include "papers/fcp/setting.h"

#include <fmt/format.h>

#include <algorithm>

namespace contextile {

BenchSetting fcp_setting(const BenchOverrides& overrides, std::int32_t devices, const FcpGpu& gpu) {
  constexpr double kGbytesPerS = 50;
  BenchSetting setting;
  setting.datasets = {"lognormal512k"};
  setting.batch.tokens = kFcpTokensPerDevice * devices;
  setting.batch.batches = 2;
  setting.shape.q_heads = 64;
  setting.shape.kv_heads = 8;
  setting.cluster_name = fmt::format("dgx-h100:{}x8", devices / 8);
  apply_overrides(overrides, setting);
  if (overrides.cluster.empty()) {
    setting.input.cluster.name = gpu.name;
    setting.input.cluster.attention_tflops = gpu.flops_per_byte * kGbytesPerS * 1e-3;
  }
  setting.batch.max_length = std::min(setting.batch.tokens, kFcpLongest);
  return setting;
}

std::int64_t fcp_block(const BenchOverrides& overrides) {
  return overrides.block_size.value_or(kFcpBlock);
}

std::pair<std::string, std::string> fcp_block_setting(const BenchOverrides& overrides) {
  return {"fcp", fmt::format("blocks of {} tokens{}; every verdict on FCP is of these",
                             fcp_block(overrides), overrides.block_size ? "" : ", the paper's")};
}

}  // namespace contextile

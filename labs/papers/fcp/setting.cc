#include "labs/papers/fcp/setting.h"

#include <fmt/format.h>

#include <algorithm>

namespace contextile {
namespace {

constexpr std::int32_t kDomain = 72;      // of an NVL72
constexpr std::int32_t kDomainPart = 64;  // of one that is not the only one

std::string cluster_name(const FcpGpu& gpu, std::int32_t devices) {
  std::int32_t per_node = 8;
  if (gpu.preset == kGpuY.preset) per_node = devices <= kDomain ? devices : kDomainPart;
  return fmt::format("{}:{}x{},transfer_sms={}", gpu.preset, devices / per_node, per_node,
                     gpu.transfer_sms);
}

}  // namespace

PaperSetting fcp_setting(const TableOverrides& overrides, std::int32_t devices, const FcpGpu& gpu) {
  PaperSetting setting;
  setting.datasets = {kFcpLengths};
  setting.batch.tokens = kFcpTokensPerDevice * devices;
  setting.batch.batches = kFcpBatches;
  setting.shape.q_heads = 64;
  setting.shape.kv_heads = 8;
  setting.cluster_name = cluster_name(gpu, devices);
  apply_overrides(overrides, setting);
  setting.batch.max_length = std::min(setting.batch.tokens, kFcpLongest);
  return setting;
}

std::vector<std::string> fcp_lengths_compared(const TableOverrides& overrides) {
  if (!overrides.dataset.empty()) return {overrides.dataset};
  return {kFcpLengths, kFcpHeavierLengths};
}

std::int64_t fcp_block(const TableOverrides& overrides) {
  return overrides.block_size.value_or(kFcpBlock);
}

std::pair<std::string, std::string> fcp_block_setting(const TableOverrides& overrides) {
  return {"fcp", fmt::format("blocks of {} tokens{}; every verdict on FCP is of these",
                             fcp_block(overrides), overrides.block_size ? "" : ", the paper's")};
}

}  // namespace contextile

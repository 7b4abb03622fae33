#include "labs/papers/dcp/speed.h"

#include <fmt/format.h>

#include "labs/papers/dcp/setting.h"

namespace contextile {

PaperSetting dcp_speed_setting(const TableOverrides& overrides) {
  PaperSetting setting = dcp_attention_setting();
  setting.datasets = {"longdatacollections"};
  setting.batch.batches = 200;
  apply_overrides(overrides, setting);
  setting.batch.max_length = setting.batch.tokens;
  return setting;
}

std::string dcp_gain_text(const Extent& gains) {
  const std::string least = fmt::format("{:.2f}x", gains.least);
  const std::string most = fmt::format("{:.2f}x", gains.most);
  return least == most ? least : fmt::format("{} to {}", least, most);
}

double mean_sequences(std::span<const Workload> batches) {
  double sequences = 0;
  for (const Workload& batch : batches) sequences += static_cast<double>(batch.sequences.size());
  return sequences / static_cast<double>(batches.size());
}

}  // namespace contextile

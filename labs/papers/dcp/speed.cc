#include "labs/papers/dcp/speed.h"

#include <fmt/format.h>

#include "labs/papers/dcp/setting.h"

namespace contextile {

PaperSetting dcp_speed_setting(const TableOverrides& overrides) {
  PaperSetting setting = dcp_attention_setting();
  setting.datasets = {"longdatacollections"};
  setting.batch.batches = 8;
  apply_overrides(overrides, setting);
  setting.batch.max_length = setting.batch.tokens;
  return setting;
}

std::string dcp_gain_text(const Extent& gains) {
  const std::string least = fmt::format("{:.2f}x", gains.least);
  const std::string most = fmt::format("{:.2f}x", gains.most);
  return least == most ? least : fmt::format("{} to {}", least, most);
}

}  // namespace contextile

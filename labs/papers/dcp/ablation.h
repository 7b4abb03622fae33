// The common parts of the ablations of DCP's §7.3 (Figs. 17 to 20): their setting, and tables of
// bytes by dataset and mask.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/planner.h"
#include "labs/papers/movement.h"
#include "labs/papers/setting.h"
#include "report/table.h"

namespace contextile {

inline constexpr std::int64_t kDcpBlock = 1024;  // tokens, if a figure does not vary them
inline constexpr std::array<std::int64_t, 4> kDcpBlockSizes = {512, 1024, 2048, 4096};

// §7.2: GPT-8B on eight nodes of eight A100, TP 4 x CP 16; a rank has 8 query and 2 KV heads.
[[nodiscard]] PaperSetting ablation_setting(const TableOverrides& overrides);
// For figures that vary the block size: throws InvalidArgument on --block-size.
void refuse_block_size(const TableOverrides& overrides, std::string_view table);

[[nodiscard]] StrategyChoice dcp_with(std::map<std::string, std::string> options = {});

// The dataset's name, shorter if text tables need the width.
[[nodiscard]] std::string short_name(const std::string& dataset);
[[nodiscard]] std::string case_text(const std::string& dataset, std::string_view mask);
// The columns of a row's lengths and mask; text tables show the short name.
[[nodiscard]] std::vector<Column> case_columns(std::vector<Column> more);
[[nodiscard]] std::vector<Cell> case_cells(const std::string& dataset, const char* mask);

// `first`, then the columns that add_movement fills.
[[nodiscard]] std::vector<Column> movement_columns(std::vector<Column> first);
void add_movement(Table& table, std::vector<Cell> cells, const MeanMovement& movement);

// The bytes that a finding is about.
struct Volume {
  std::string_view name;
  double MeanMovement::*bytes;
};
inline constexpr std::array<Volume, 2> kVolumes = {
    {{"inter-node", &MeanMovement::inter_bytes}, {"per-device", &MeanMovement::busiest_bytes}}};

// The result with two differences: lengths are sampled, and the figure's points are not known.
[[nodiscard]] PaperResult ablation_result(const PaperSetting& setting, Table table);
// For PaperResult::differences.
extern const std::string kBytesDiffer;

}  // namespace contextile

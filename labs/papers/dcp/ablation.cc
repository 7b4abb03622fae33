#include "labs/papers/dcp/ablation.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "contextile/advanced/training.h"
#include "labs/papers/dcp/setting.h"

namespace contextile {
namespace {

constexpr std::int32_t kTp = 4;

const std::string kPointsDiffer =
    "The figure's points are not in the paper's text; the column of the paper holds what it says "
    "of them.";

const std::string kTokensAre =
    "A batch and its longest document have 65536 tokens: the paper does not say, its artifact "
    "(benchmark/mlm/dry_run_grid_search.py) does.";

}  // namespace

const std::string kBytesDiffer =
    "Bytes are those of the plan's transfers, forward and backward of one layer, LSE and delta "
    "included; partial results travel as bf16 in every row. Per device: the most that one sends "
    "and "
    "receives.";

PaperSetting ablation_setting(const TableOverrides& overrides) {
  PaperSetting setting = dcp_attention_setting();
  setting.datasets = {"longalign", "longdatacollections"};
  setting.batch.batches = 20;
  setting.cluster_name = "p4de:8x8";
  setting.batch.tokens = 65536;
  apply_overrides(overrides, setting);
  const Cluster& machine = setting.input.cluster;
  CONTEXTILE_CHECK(machine.devices_per_node % kTp == 0,
                   "--cluster: expected nodes of a multiple of {} devices, found {}", kTp,
                   machine.devices_per_node);
  setting.input.cluster = context_parallel_cluster(
      machine, {.tp = kTp, .cp = machine.num_devices() / kTp, .dp = 1, .pp = 1});
  return setting;
}

std::string short_name(const std::string& dataset) {
  return dataset == "longdatacollections" ? "LDC" : dataset;
}

PaperResult ablation_result(const PaperSetting& setting, Table table) {
  PaperResult result{.setting = setting.description(),
                     .table = std::move(table),
                     .differences = {kDocumentsAreWhole, kPointsDiffer, kTokensAre}};
  result.setting.push_back(kDcpIs);
  for (const std::string& dataset : setting.datasets) {
    if (short_name(dataset) != dataset) result.setting.emplace_back(short_name(dataset), dataset);
  }
  return result;
}

StrategyChoice dcp_with(std::map<std::string, std::string> options) {
  return {"dcp", std::move(options)};
}

void refuse_block_size(const TableOverrides& overrides, std::string_view table) {
  refuse_overrides(overrides, table,
                   {"--dataset", "--tokens", "--batches", "--seed", "--heads", "--kv-heads",
                    "--head-dim", "--cluster", "--wire"});
}

std::vector<Column> case_columns(std::vector<Column> more) {
  std::vector<Column> columns = {{"dataset", ""}, {"lengths", "lengths"}, {"mask", "mask"}};
  columns.insert(columns.end(), more.begin(), more.end());
  return columns;
}
std::vector<Cell> case_cells(const std::string& dataset, const char* mask) {
  return {dataset, short_name(dataset), std::string(mask)};
}

std::vector<Column> movement_columns(std::vector<Column> first) {
  for (const Column& column :
       std::vector<Column>{{"inter_bytes", "between\nnodes MB", Format::kMegabytes},
                           {"device_bytes", "", Format::kMegabytes},
                           {"busiest_bytes", "MB per\ndevice", Format::kMegabytes},
                           {"compute_overload", "FLOPs\nover", Format::kPercent},
                           {"token_overload", "tokens\nover", Format::kPercent}}) {
    first.push_back(column);
  }
  return first;
}

void add_movement(Table& table, std::vector<Cell> cells, const MeanMovement& movement) {
  for (const double value : {movement.inter_bytes, movement.device_bytes, movement.busiest_bytes,
                             movement.compute_overload, movement.token_overload}) {
    cells.emplace_back(value);
  }
  table.add_row(std::move(cells));
}

std::string case_text(const std::string& dataset, std::string_view mask) {
  return fmt::format("{} {}", short_name(dataset), mask);
}

}  // namespace contextile

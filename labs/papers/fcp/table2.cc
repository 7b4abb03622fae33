// FCP (flexible context parallelism, MLSys 2026), Table 2: the gains of its components. The paper
// measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/data.h"
#include "labs/papers/fcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/gpu_share.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

struct ComponentRow {
  std::string name;
  StrategyChoice choice;
  Cell forward_paper;
  Cell backward_paper;
  GpuShares shares = {};
};

// The batches with data in a contiguous layout, which moves before all compute or during it (the
// reshuffler).
std::vector<Workload> with_contiguous_home(const PaperSetting& setting,
                                           std::vector<Workload> batches) {
  for (Workload& workload : batches) {
    workload.home =
        load_layout("contiguous", workload.sequences, setting.input.cluster.num_devices());
  }
  return batches;
}

std::vector<ComponentRow> component_rows() {
  const auto choice = [](const char* text) { return parse_strategies(text).front(); };
  return {
      {"base", choice("fcp:pipelining=off,congestion_free=off,coalesce=1"), 0.29, 0.37},
      {"+ pipelining", choice("fcp:congestion_free=off,coalesce=1"), 0.48, 0.46},
      {"+ congestion-free", choice("fcp:coalesce=1"), 0.62, 0.59},
      {"+ coalescer", choice("fcp"), 0.70, 0.69},
      {"caller's layout", choice("fcp:reshuffle=before"), Cell{}, Cell{}},
      {"+ reshuffler", choice("fcp"), 0.75, 0.74},
  };
}
constexpr std::size_t kOwnLayoutRows = 4;  // of them

std::vector<Finding> component_findings(std::span<const ComponentRow> rows) {
  constexpr double kLeastGain = 0.02;
  constexpr double kClose = 0.1;
  constexpr double kReshufflerGain = 0.05;
  constexpr double kReshufflerSlack = 0.02;
  double least_gain = kInfinity;
  double farthest = 0;
  std::vector<std::string> forward;
  std::vector<std::string> backward;
  for (std::size_t i = 0; i < kOwnLayoutRows; ++i) {
    const GpuShares& shares = rows[i].shares;
    forward.push_back(fmt::format("{:.2f}", shares.forward.mfu));
    backward.push_back(fmt::format("{:.2f}", shares.backward.mfu));
    farthest =
        std::max({farthest, std::abs(shares.forward.mfu - std::get<double>(rows[i].forward_paper)),
                  std::abs(shares.backward.mfu - std::get<double>(rows[i].backward_paper))});
    if (i == 0) continue;
    const GpuShares& before = rows[i - 1].shares;
    least_gain = std::min({least_gain, shares.forward.mfu - before.forward.mfu,
                           shares.backward.mfu - before.backward.mfu});
  }
  const std::string ours =
      fmt::format("forward {}, backward {}", fmt::join(forward, " "), fmt::join(backward, " "));
  const GpuShares& before = rows[kOwnLayoutRows].shares;
  const GpuShares& under = rows[kOwnLayoutRows + 1].shares;
  const double forward_gain = under.forward.mfu - before.forward.mfu;
  const double backward_gain = under.backward.mfu - before.backward.mfu;
  return {
      {"every component adds to the MFU of attention, both directions", ours,
       least_gain >= kLeastGain,
       fmt::format("each of the first four rows adds {} or more to the one before, in both "
                   "directions",
                   kLeastGain)},
      {"MFU: forward 0.29 0.48 0.62 0.70, backward 0.37 0.46 0.59 0.69", ours, farthest <= kClose,
       fmt::format("each within {}", kClose)},
      {fmt::format("the reshuffler, which moves data between the caller's layout and the plan's "
                   "under compute, adds {}",
                   kReshufflerGain),
       fmt::format("forward {:.2f} to {:.2f}, backward {:.2f} to {:.2f}", before.forward.mfu,
                   under.forward.mfu, before.backward.mfu, under.backward.mfu),
       std::abs(forward_gain - kReshufflerGain) <= kReshufflerSlack &&
           std::abs(backward_gain - kReshufflerGain) <= kReshufflerSlack,
       fmt::format("in both directions within {} of that", kReshufflerSlack)}};
}

std::vector<std::string> component_differences(const PaperSetting& setting,
                                               std::span<const ComponentRow> rows) {
  const Cluster& cluster = setting.input.cluster;
  double forward_limit = 0;
  double backward_limit = 0;
  for (const ComponentRow& row : rows) {
    forward_limit = std::max(forward_limit, row.shares.forward.limit);
    backward_limit = std::max(backward_limit, row.shares.backward.limit);
  }
  return {
      "MFU: of the tensor cores' peak. Share: the time of one GPU that does a device's part in "
      "whole "
      "documents, over the plan's. Limit: the share, were all but the busiest device's attention "
      "free, which is what tiles of blocks cost and how evenly they are shared.",
      fmt::format("Limits are at most {:.2f} forward and {:.2f} backward: with free transfers none "
                  "of these "
                  "plans on {} devices would reach more.",
                  forward_limit, backward_limit, cluster.num_devices()),
      fmt::format("The first four rows own blocks where they compute; the last two move them from "
                  "and to a contiguous layout, before any compute and after all of it, or (the "
                  "reshuffler) under it: {:.2f} GB a device in both directions, {:.2f} without a "
                  "layout. The paper's layout is not in its text; presumably all its steps move "
                  "data.",
                  1e-9 * rows.back().shares.device_bytes,
                  1e-9 * rows[kOwnLayoutRows - 1].shares.device_bytes)};
}

PaperResult make(const TableOverrides& overrides) {
  const PaperSetting setting = fcp_setting(overrides, kFcpFigureDevices);
  const auto batches = setting.batches(setting.datasets.front(), "causal");
  const auto homed = with_contiguous_home(setting, batches);
  Table table({{"step", "component"},
               {"forward_mfu", "fwd\nMFU", Format::kPercent},
               {"forward_spread", "+-", Format::kPercent},
               {"forward_paper", "paper", Format::kPercent},
               {"forward_share", "of one\nGPU", Format::kPercent},
               {"backward_mfu", "bwd\nMFU", Format::kPercent},
               {"backward_spread", "+-", Format::kPercent},
               {"backward_paper", "paper", Format::kPercent},
               {"backward_share", "of one\nGPU", Format::kPercent}});
  std::vector<ComponentRow> rows = component_rows();
  Progress progress(overrides, std::ssize(rows));
  bool complete = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ComponentRow& row = rows[i];
    progress.step(row.name);
    row.shares = predict_shares(row.choice, setting.input, i < kOwnLayoutRows ? batches : homed);
    const GpuShare& forward = row.shares.forward;
    const GpuShare& backward = row.shares.backward;
    if (!row.shares.skipped.empty()) {
      complete = false;
      table.add_row({row.name}, skipped_note(row.choice, row.shares.skipped));
      continue;
    }
    table.add_row({row.name, forward.mfu, forward.mfu_spread, row.forward_paper, forward.share,
                   backward.mfu, backward.mfu_spread, row.backward_paper, backward.share});
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {
      {.x = "step", .y = {"forward_mfu", "forward_paper", "backward_mfu", "backward_paper"}}};
  if (!complete) return result;
  result.findings = component_findings(rows);
  std::ranges::move(component_differences(setting, rows), std::back_inserter(result.differences));
  for (const char* difference : {kFcpLengthsAre, kFcpMachinesAre, kFcpSmsAre}) {
    result.differences.emplace_back(difference);
  }
  return result;
}

}  // namespace

PaperTable fcp_table2() {
  return {"fcp-table2", "FCP, Table 2", "what each of its components adds to attention's MFU",
          make};
}

}  // namespace contextile

// FCP (flexible context parallelism, MLSys 2026): how evenly it shares work, and what share of one
// GPU's MFU it reaches (Figs. 9 and 10, Table 2).
// The paper measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "contextile/data.h"
#include "contextile/registry.h"
#include "contextile/simulate.h"
#include "papers/paper_table.h"
#include "papers/steps.h"
#include "papers/times.h"

namespace contextile {
namespace {

// Why a method cannot plan one of the batches, or nothing.
std::string skipped_reason(const StrategyChoice& choice, const PlanInput& input,
                           std::span<const Workload> batches) {
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options))
      return *reason;
  }
  return "";
}

// ---------------------------------------------------------------------------------- Table 2

struct ComponentRow {
  std::string name;
  StrategyChoice choice;
  Cell forward_paper;
  Cell backward_paper;
  GpuShares shares = {};
};

// Data sits in a contiguous layout, and moves before all compute or under it (the reshuffler).
std::vector<Workload> with_contiguous_home(const BenchSetting& setting,
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
    forward.push_back(fmt::format("{:.2f}", shares.forward.share));
    backward.push_back(fmt::format("{:.2f}", shares.backward.share));
    farthest = std::max(
        {farthest, std::abs(shares.forward.share - std::get<double>(rows[i].forward_paper)),
         std::abs(shares.backward.share - std::get<double>(rows[i].backward_paper))});
    if (i == 0) continue;
    const GpuShares& before = rows[i - 1].shares;
    least_gain = std::min({least_gain, shares.forward.share - before.forward.share,
                           shares.backward.share - before.backward.share});
  }
  const std::string ours =
      fmt::format("forward {}, backward {}", fmt::join(forward, " "), fmt::join(backward, " "));
  const GpuShares& before = rows[kOwnLayoutRows].shares;
  const GpuShares& under = rows[kOwnLayoutRows + 1].shares;
  const double forward_gain = under.forward.share - before.forward.share;
  const double backward_gain = under.backward.share - before.backward.share;
  return {
      {"every component adds to the MFU of attention, both directions", ours,
       least_gain >= kLeastGain,
       fmt::format("each of the first four rows adds {} or more to the one before, in both "
                   "directions",
                   kLeastGain)},
      {"of one GPU's MFU: forward 0.29 0.48 0.62 0.70, backward 0.37 0.46 0.59 0.69", ours,
       farthest <= kClose, fmt::format("each within {}", kClose)},
      {fmt::format("the reshuffler, which moves data between the caller's layout and the plan's "
                   "under compute, adds {}",
                   kReshufflerGain),
       fmt::format("forward {:.2f} to {:.2f}, backward {:.2f} to {:.2f}", before.forward.share,
                   under.forward.share, before.backward.share, under.backward.share),
       std::abs(forward_gain - kReshufflerGain) <= kReshufflerSlack &&
           std::abs(backward_gain - kReshufflerGain) <= kReshufflerSlack,
       fmt::format("in both directions within {} of that", kReshufflerSlack)}};
}

std::vector<std::string> component_differences(const BenchSetting& setting,
                                               std::span<const ComponentRow> rows) {
  const Cluster& cluster = setting.input.cluster;
  double forward_limit = 0;
  double backward_limit = 0;
  for (const ComponentRow& row : rows) {
    forward_limit = std::max(forward_limit, row.shares.forward.limit);
    backward_limit = std::max(backward_limit, row.shares.backward.limit);
  }
  const double moved_bytes =
      rows.back().shares.device_bytes - rows[kOwnLayoutRows - 1].shares.device_bytes;
  const double gbytes_per_s = cluster.nodes > 1
                                  ? cluster.inter_gbytes_per_s_per_node / cluster.devices_per_node
                                  : cluster.intra_gbytes_per_s;
  return {
      "Shares: the time of one GPU that does a device's part in whole documents, over the plan's "
      "time. Limit: the same, were all but the busiest device's attention free, which is what "
      "tiles "
      "of blocks cost and how evenly they are shared.",
      fmt::format("Limits are at most {:.2f} forward and {:.2f} backward: with free transfers none "
                  "of these "
                  "plans on {} devices would reach more.",
                  forward_limit, backward_limit, cluster.num_devices()),
      fmt::format("The first four rows own blocks where they compute; the last two move them from "
                  "and to a contiguous layout, before any compute and after all of it, or (the "
                  "reshuffler) under it: {:.2f} GB more a device in both directions, {:.0f} ms at "
                  "{:.0f} GB/s. The paper's layout is not in its text; presumably all its steps "
                  "move data.",
                  1e-9 * moved_bytes, 1e-6 * moved_bytes / gbytes_per_s, gbytes_per_s)};
}

PaperResult fcp_table2(const BenchOverrides& overrides) {
  const BenchSetting setting = fcp_setting(overrides, 128);
  const auto batches = setting.batches(setting.datasets.front(), "causal");
  const auto homed = with_contiguous_home(setting, batches);
  Table table({{"step", "component"},
               {"forward_share", "forward\nours"},
               {"forward_limit", "forward\nlimit"},
               {"forward_paper", "forward\npaper"},
               {"backward_share", "backward\nours"},
               {"backward_limit", "backward\nlimit"},
               {"backward_paper", "backward\npaper"}});
  std::vector<ComponentRow> rows = component_rows();
  Progress progress(overrides, std::ssize(rows));
  bool complete = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ComponentRow& row = rows[i];
    progress.step(row.name);
    row.shares = predict_shares(row.choice, setting.input, i < kOwnLayoutRows ? batches : homed,
                                {&setting.input.cluster, 1})
                     .front();
    const auto& [forward, backward, bytes, skipped] = row.shares;
    if (!skipped.empty()) {
      complete = false;
      table.add_row({row.name}, skipped_note(row.choice, skipped));
      continue;
    }
    table.add_row({row.name, forward.share, forward.limit, row.forward_paper, backward.share,
                   backward.limit, row.backward_paper});
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {
      {.x = "step", .y = {"forward_share", "forward_paper", "backward_share", "backward_paper"}}};
  if (!complete) return result;
  result.findings = component_findings(rows);
  std::ranges::move(component_differences(setting, rows), std::back_inserter(result.differences));
  return result;
}

// ------------------------------------------------------------------------------------ Fig. 9

// As the paper has it: (max - mean) / max, the worst of all sizes.
struct Imbalance {
  Extent compute;
  Extent traffic;
};

std::vector<Finding> imbalance_findings(const Imbalance& fcp, const Imbalance& small,
                                        const Imbalance& magi, const Imbalance& bytescale) {
  constexpr double kMagi = 0.17;
  constexpr double kMagiSlack = 0.05;
  constexpr double kByteScale = 0.7;
  constexpr double kByteScaleSlack = 0.1;
  std::vector<Finding> findings;
  if (fcp.compute.any()) {
    const std::string beside = small.compute.any() ? fmt::format(" ({} and {} in blocks of 1024)",
                                                                 whole_percent(small.compute.most),
                                                                 whole_percent(small.traffic.most))
                                                   : "";
    findings.push_back(
        {"fcp: under 5% imbalance of compute and of communication",
         fmt::format("at most {} of compute, {} of bytes{}", whole_percent(fcp.compute.most),
                     whole_percent(fcp.traffic.most), beside),
         fcp.compute.most < 0.05 && fcp.traffic.most < 0.05});
  }
  if (magi.compute.any()) {
    findings.push_back({"MagiAttention: up to 17% of communication",
                        fmt::format("at most {}", whole_percent(magi.traffic.most)),
                        std::abs(magi.traffic.most - kMagi) <= kMagiSlack,
                        "the largest is within 5 percentage points of that"});
  }
  if (bytescale.compute.any()) {
    findings.push_back({"ByteScale: up to 70% of compute",
                        fmt::format("at most {}", whole_percent(bytescale.compute.most)),
                        std::abs(bytescale.compute.most - kByteScale) <= kByteScaleSlack,
                        "the largest is within 10 percentage points of that"});
  }
  return findings;
}

PaperResult fcp_fig9(const BenchOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig9",
                   {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim",
                    "--block-size", "--wire"});
  const auto choices = parse_strategies(fmt::format("fcp,{},magi,bytescale", kFcpSmallBlocks));
  Table table({{"devices", "devices"},
               {"strategy", "strategy"},
               {"compute_imbalance", "FLOPs\nimbal", Format::kPercent},
               {"traffic_imbalance", "bytes\nimbal", Format::kPercent},
               {"inter_bytes", "inter\nMB", Format::kMegabytes}});
  Progress progress(overrides, static_cast<std::int64_t>(kFcpDevices.size() * choices.size()));
  std::vector<Imbalance> worst(choices.size());
  for (const std::int32_t devices : kFcpDevices) {
    const BenchSetting setting = fcp_setting(overrides, devices);
    const auto batches = setting.batches(setting.datasets.front(), "causal");
    for (std::size_t i = 0; i < choices.size(); ++i) {
      progress.step(choice_text(choices[i]));
      const std::string skipped = skipped_reason(choices[i], setting.input, batches);
      if (!skipped.empty()) {
        table.add_row({std::int64_t{devices}, choice_text(choices[i])},
                      skipped_note(choices[i], skipped));
        continue;
      }
      const Movement movement = movement_of(choices[i], setting.input, batches);
      // Bytes are sums of both directions, whose busiest devices need not be the same.
      const double compute = movement.compute_overload / (1 + movement.compute_overload);
      const double traffic =
          movement.max_device_bytes > 0 ? 1 - movement.device_bytes / movement.max_device_bytes : 0;
      worst[i].compute.take(compute);
      worst[i].traffic.take(traffic);
      table.add_row(
          {std::int64_t{devices}, choice_text(choices[i]), compute, traffic, movement.inter_bytes});
    }
  }
  PaperResult result = timed_result(fcp_setting(overrides, kFcpDevices.back()), std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {{.x = "devices", .y = {"compute_imbalance"}, .series = {"strategy"}},
                  {.x = "devices", .y = {"traffic_imbalance"}, .series = {"strategy"}}};
  result.findings = imbalance_findings(worst[0], worst[1], worst[2], worst[3]);
  result.differences = {
      kLengthsAreSampled,
      "Bytes of a device: sent or received, whichever are more, beside the mean of sent bytes.",
      "A few documents of up to 512K tokens hold most pairs: in large blocks they are few rows of "
      "very different work, which cannot be shared as evenly as in small ones."};
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 10

// Over all lengths, forward and backward.
std::vector<Finding> equal_length_findings(const Extent& fcp, const Extent& small,
                                           const Extent& ring) {
  constexpr double kFarLower = 0.1;
  std::vector<Finding> findings;
  if (fcp.any() && small.any()) {
    findings.push_back({"fcp: above 90% of one GPU's MFU",
                        fmt::format("{} to {} ({} to {} in blocks of 1024)",
                                    whole_percent(fcp.least), whole_percent(fcp.most),
                                    whole_percent(small.least), whole_percent(small.most)),
                        fcp.least > 0.9, "every length, forward and backward"});
  }
  if (fcp.any() && ring.any()) {
    findings.push_back(
        {"ring: far lower",
         fmt::format("{} to {}", whole_percent(ring.least), whole_percent(ring.most)),
         ring.most < fcp.least - kFarLower,
         "its largest share is 10 percentage points or more below FCP's smallest"});
  }
  return findings;
}

PaperResult fcp_fig10(const BenchOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig10",
                   {"--heads", "--kv-heads", "--head-dim", "--block-size", "--wire"});
  constexpr std::int32_t kDevices = 64;
  constexpr std::array<std::int64_t, 4> kLengths = {32768, 65536, 131072, 262144};
  const auto choices = parse_strategies(fmt::format("fcp,{},ring", kFcpSmallBlocks));
  const BenchSetting setting = fcp_setting(overrides, kDevices);
  Table table({{"length", "tokens of a\ndocument"},
               {"strategy", "strategy"},
               {"forward_share", "forward\nshare"},
               {"backward_share", "backward\nshare"}});
  Progress progress(overrides, static_cast<std::int64_t>(kLengths.size() * choices.size()));
  std::vector<Extent> shares(choices.size());
  const MaskUse causal = parse_mask_use("causal");
  for (const std::int64_t length : kLengths) {
    const std::vector<std::int64_t> lengths(
        static_cast<std::size_t>(kFcpTokensPerDevice * kDevices / length), length);
    const Workload workload = make_workload(lengths, setting.shape, {&causal, 1});
    for (std::size_t i = 0; i < choices.size(); ++i) {
      progress.step(choice_text(choices[i]));
      const GpuShares of =
          predict_shares(choices[i], setting.input, {&workload, 1}, {&setting.input.cluster, 1})
              .front();
      if (!of.skipped.empty()) {
        table.add_row({length, choice_text(choices[i])}, skipped_note(choices[i], of.skipped));
        continue;
      }
      table.add_row({length, choice_text(choices[i]), of.forward.share, of.backward.share});
      shares[i].take(of.forward.share);
      shares[i].take(of.backward.share);
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.plots = {{.x = "length", .y = {"forward_share"}, .series = {"strategy"}},
                  {.x = "length", .y = {"backward_share"}, .series = {"strategy"}}};
  result.setting[0] = {"lengths", fmt::format("{} tokens in documents of one length",
                                              kFcpTokensPerDevice * kDevices)};
  result.setting.push_back(fcp_block_setting(overrides));
  result.findings = equal_length_findings(shares[0], shares[1], shares[2]);
  result.differences = {
      kTimesAreSimulated,
      "Shares: the time of one GPU that does a device's part in whole documents, over the plan's "
      "time.",
      fmt::format("The paper's lengths and GPU counts are not in its text: {} devices here.",
                  kDevices)};
  return result;
}

constexpr std::array<PaperTable, 3> kTables = {
    {{"fcp-fig9", "FCP, Fig. 9", "imbalance of compute and communication, 16 to 128 devices",
      fcp_fig9},
     {"fcp-fig10", "FCP, Fig. 10", "share of one device's MFU with documents of one length",
      fcp_fig10},
     {"fcp-table2", "FCP, Table 2", "what each of its components adds to attention's MFU",
      fcp_table2}}};

}  // namespace

std::span<const PaperTable> fcp_paper_tables() { return kTables; }

}  // namespace contextile

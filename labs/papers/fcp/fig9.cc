// FCP (flexible context parallelism, MLSys 2026), Fig. 9: the imbalance of work and traffic.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/fcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/movement.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

// The reason why a method cannot plan one of the batches, or nothing.
std::string skipped_reason(const StrategyChoice& choice, const PlanInput& input,
                           std::span<const Workload> batches) {
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options))
      return *reason;
  }
  return "";
}

// The paper's measure: (max - mean) / max, of the mean batch.
struct Imbalance {
  Extent compute;
  Extent traffic;
};

std::vector<Finding> imbalance_findings(const Imbalance& fcp, const Imbalance& small,
                                        const std::array<Imbalance, 2>& magi,
                                        const Imbalance& bytescale) {
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
  if (magi[0].compute.any() && magi[1].compute.any()) {
    findings.push_back(
        {"MagiAttention: up to 17% of communication",
         fmt::format("{}; with chunks of 512 tokens {}", whole_percent(magi[0].traffic.most),
                     whole_percent(magi[1].traffic.most)),
         std::abs(magi[0].traffic.most - kMagi) <= kMagiSlack,
         "with its own chunks within 5 percentage points of that"});
  }
  if (bytescale.compute.any()) {
    findings.push_back({"ByteScale: up to 70% of compute",
                        fmt::format("at most {}", whole_percent(bytescale.compute.most)),
                        std::abs(bytescale.compute.most - kByteScale) <= kByteScaleSlack,
                        "the largest is within 10 percentage points of that"});
  }
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig9",
                   {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim",
                    "--block-size", "--wire"});
  const auto choices =
      parse_strategies(fmt::format("fcp,{},magi,magi:chunk=512,bytescale", kFcpSmallBlocks));
  Table table({{"lengths", "lengths"},
               {"strategy", "strategy"},
               {"compute_imbalance", "FLOPs\nimbal", Format::kPercent},
               {"traffic_imbalance", "bytes\nimbal", Format::kPercent},
               {"inter_bytes", "inter\nMB", Format::kMegabytes}});
  PaperSetting setting = fcp_setting(overrides, kFcpFigureDevices);
  setting.datasets = fcp_lengths_compared(overrides);
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size() * choices.size()));
  std::vector<Imbalance> worst(choices.size());
  for (const std::string& dataset : setting.datasets) {
    const auto batches = setting.batches(dataset, "causal");
    for (std::size_t i = 0; i < choices.size(); ++i) {
      progress.step(choice_text(choices[i]));
      const std::string skipped = skipped_reason(choices[i], setting.input, batches);
      if (!skipped.empty()) {
        table.add_row({dataset, choice_text(choices[i])}, skipped_note(choices[i], skipped));
        continue;
      }
      const MeanMovement movement = movement_of(choices[i], setting.input, batches);
      const double compute = movement.compute_overload / (1 + movement.compute_overload);
      const double traffic =
          movement.busiest_bytes > 0 ? 1 - 2 * movement.device_bytes / movement.busiest_bytes : 0;
      if (dataset == setting.datasets.front()) {
        worst[i].compute.take(compute);
        worst[i].traffic.take(traffic);
      }
      table.add_row({dataset, choice_text(choices[i]), compute, traffic, movement.inter_bytes});
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {{.x = "lengths", .y = {"compute_imbalance"}, .series = {"strategy"}},
                  {.x = "lengths", .y = {"traffic_imbalance"}, .series = {"strategy"}}};
  result.findings = imbalance_findings(worst[0], worst[1], {worst[2], worst[3]}, worst[4]);
  result.differences = {
      kLengthsAreSampled, kFcpLengthsAre,
      "Bytes of a device: sent and received, forward and backward, as the figure adds them up."};
  return result;
}

}  // namespace

PaperTable fcp_fig9() {
  return {"fcp-fig9", "FCP, Fig. 9", "imbalance of compute and communication, 128 devices", make};
}

}  // namespace contextile

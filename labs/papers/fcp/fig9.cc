// FCP (flexible context parallelism, MLSys 2026), Fig. 9: the imbalance of work and traffic.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
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

// The paper's measure, (max - mean) / max, over all numbers of devices: of the mean batch, and of
// what devices accumulate over all batches.
struct Imbalance {
  Extent compute;
  Extent traffic;
  Extent accumulated_compute;
  Extent accumulated_traffic;

  void take(double of_compute, double of_traffic, const MeanMovement& movement) {
    compute.take(of_compute);
    traffic.take(of_traffic);
    accumulated_compute.take(movement.accumulated_compute_imbalance);
    accumulated_traffic.take(movement.accumulated_traffic_imbalance);
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} of compute, {} of bytes", whole_percent(compute.most),
                       whole_percent(traffic.most));
  }
  [[nodiscard]] std::string accumulated_text() const {
    return fmt::format("{} and {} accumulated", whole_percent(accumulated_compute.most),
                       whole_percent(accumulated_traffic.most));
  }
};
using Imbalances = std::map<std::string, Imbalance>;  // by method

std::vector<Finding> imbalance_findings(const Imbalances& of) {
  constexpr double kMagi = 0.17;
  constexpr double kMagiSlack = 0.05;
  constexpr double kByteScale = 0.7;
  constexpr double kByteScaleSlack = 0.1;
  std::vector<Finding> findings;
  if (of.contains("fcp")) {
    const Imbalance& fcp = of.at("fcp");
    std::string ours = fmt::format("at most {}, {}", fcp.text(), fcp.accumulated_text());
    if (of.contains("fcp:cut_heavy=off")) {
      ours += fmt::format("; with all blocks of one size {}", of.at("fcp:cut_heavy=off").text());
    }
    findings.push_back({"fcp: under 5% imbalance of compute and of communication", std::move(ours),
                        fcp.compute.most < 0.05 && fcp.traffic.most < 0.05,
                        "of a batch, at every number of devices"});
  }
  if (of.contains("magi")) {
    const Imbalance& magi = of.at("magi");
    const double most = magi.traffic.most;
    findings.push_back({"MagiAttention: up to 17% of communication",
                        fmt::format("{}, {} accumulated", whole_percent(most),
                                    whole_percent(magi.accumulated_traffic.most)),
                        std::abs(most - kMagi) <= kMagiSlack,
                        "of a batch, with its own chunks, within 5 percentage points of that"});
  }
  if (of.contains("bytescale")) {
    const Imbalance& bytescale = of.at("bytescale");
    const double most = bytescale.compute.most;
    findings.push_back({"ByteScale: up to 70% of compute",
                        fmt::format("{}, {} accumulated", whole_percent(most),
                                    whole_percent(bytescale.accumulated_compute.most)),
                        std::abs(most - kByteScale) <= kByteScaleSlack,
                        "of a batch, the largest within 10 percentage points of that"});
  }
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig9",
                   {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim",
                    "--block-size", "--wire"});
  const auto choices = parse_strategies(
      fmt::format("fcp,fcp:cut_heavy=off,{},magi,bytescale,wlb,zigzag", kFcpSmallBlocks));
  Table table({{"lengths", "lengths"},
               {"devices", "GPUs"},
               {"strategy", "strategy"},
               {"compute_imbalance", "FLOPs\nimbal", Format::kPercent},
               {"traffic_imbalance", "bytes\nimbal", Format::kPercent},
               {"accumulated_compute_imbalance", "FLOPs\naccum", Format::kPercent},
               {"accumulated_traffic_imbalance", "bytes\naccum", Format::kPercent},
               {"token_overload", "tokens\nover mean", Format::kPercent}});
  const std::vector<std::string> datasets = fcp_lengths_compared(overrides);
  Progress progress(overrides,
                    std::ssize(datasets) * std::ssize(kFcpDevices) * std::ssize(choices));
  Imbalances worst;
  for (const std::string& dataset : datasets) {
    for (const std::int32_t devices : kFcpDevices) {
      const PaperSetting setting = fcp_setting(overrides, devices);
      const auto batches = setting.batches(dataset, "causal");
      for (const StrategyChoice& choice : choices) {
        const std::string name = choice_text(choice);
        progress.step(name);
        const std::string skipped = skipped_reason(choice, setting.input, batches);
        if (!skipped.empty()) {
          table.add_row({dataset, std::int64_t{devices}, name}, skipped_note(choice, skipped));
          continue;
        }
        const MeanMovement movement = movement_of(choice, setting.input, batches);
        const double compute = movement.compute_overload / (1 + movement.compute_overload);
        const double traffic =
            movement.busiest_bytes > 0 ? 1 - 2 * movement.device_bytes / movement.busiest_bytes : 0;
        if (dataset == datasets.front()) worst[name].take(compute, traffic, movement);
        table.add_row({dataset, std::int64_t{devices}, name, compute, traffic,
                       movement.accumulated_compute_imbalance,
                       movement.accumulated_traffic_imbalance, movement.token_overload});
      }
    }
  }
  PaperSetting largest = fcp_setting(overrides, kFcpDevices.back());
  largest.datasets = datasets;
  PaperResult result = timed_result(largest, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  const auto plot = [](const char* imbalance) {
    return TablePlot{
        .x = "devices", .y = {imbalance}, .series = {"strategy"}, .panels = {"lengths"}};
  };
  result.plots = {plot("compute_imbalance"), plot("traffic_imbalance")};
  result.findings = imbalance_findings(worst);
  result.differences = {
      kLengthsAreSampled, kFcpLengthsAre,
      "Bytes of a device: sent and received, forward and backward. The paper accumulates FLOPs and "
      "traffic of each GPU and does not say over what. Verdicts are on batches one by one, with "
      "ByteScale's waves one after another; accumulated: summed over waves and batches first."};
  return result;
}

}  // namespace

PaperTable fcp_fig9() {
  return {"fcp-fig9", "FCP, Fig. 9", "imbalance of compute and communication, 16 to 256 devices",
          make};
}

}  // namespace contextile

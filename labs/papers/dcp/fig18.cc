// DCP (Jiang et al., SOSP 2025), Fig. 18: the time of planning.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/planner.h"
#include "contextile/workload.h"
#include "labs/papers/dcp/ablation.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// CPU seconds of planning one batch: all threads, so that other work on the machine does not count.
struct Planning {
  double arrange_s = 0;
  double build_s = 0;
  double tiles = 0;

  [[nodiscard]] double seconds() const { return arrange_s + build_s; }
};

double cpu_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Planning planning_of(const PlanInput& input, const Workload& workload) {
  PlanOptions options = input.options;
  std::map<std::string, double, std::less<>> began_s;  // the steps of planning
  options.progress = [&](std::string_view what, std::int64_t, std::int64_t) {
    began_s.emplace(what, cpu_s());
  };
  const PlannedBatch planned = plan_and_check(workload, input.cluster, dcp_with(), options);
  const double built_s = began_s.at("building the plan");
  return {.arrange_s = built_s - began_s.at("arranging"),
          .build_s = began_s.at("verifying") - built_s,
          .tiles = static_cast<double>(planned.statistics.forward->tiles)};
}

// Seconds of planning, added up over datasets and masks.
struct PlanningTimes {
  std::array<double, kDcpBlockSizes.size()> by_size_s{};
  std::map<std::string, double, std::less<>> by_mask_s;
  double slowest_mean_s = 0;  // of one mask and block size
  double slowest_s = 0;       // one batch

  void take(std::string_view mask, std::size_t size, std::span<const double> batches) {
    const double mean = mean_of(batches);
    by_size_s[size] += mean;
    by_mask_s[std::string(mask)] += mean;
    slowest_mean_s = std::max(slowest_mean_s, mean);
    slowest_s = std::max(slowest_s, std::ranges::max(batches));
  }
};

std::vector<Finding> findings_of(const PlanningTimes& times) {
  constexpr double kMuchLess = 0.5;
  // The paper's reason: time goes with the number of blocks, which falls by this factor.
  const double fewer = static_cast<double>(kDcpBlockSizes.back()) / kDcpBlockSizes.front();
  const double fall = times.by_size_s.front() / times.by_size_s.back();
  Extent sparse;
  std::vector<std::string> shares;
  for (const auto& [name, spec] : kDcpMasks) {
    if (std::string_view(name) == "causal") continue;
    const double share = times.by_mask_s.at(name) / times.by_mask_s.at("causal");
    sparse.take(share);
    shares.push_back(fmt::format("{} {:.2f}", name, share));
  }
  return {
      {"planning time falls rapidly with the block size",
       fmt::format("512 takes {:.1f} times as long as 4096", fall),
       fall >= fewer && std::ranges::is_sorted(times.by_size_s, std::greater<>()),
       fmt::format("all datasets and masks together: every size takes less than the one before, "
                   "and 512 at least {:.0f} times as long as 4096, as it has so many more blocks",
                   fewer)},
      {"much less under sparse masks", fmt::format("of causal's time: {}", fmt::join(shares, ", ")),
       sparse.most <= kMuchLess,
       fmt::format("every sparse mask takes at most {} of causal's time, all datasets and block "
                   "sizes together; the paper has no number",
                   kMuchLess)},
      {"under 10 s a batch on average at reasonable block sizes",
       fmt::format("at most {} ms on average, {} ms for one batch",
                   format_number(1e3 * times.slowest_mean_s), format_number(1e3 * times.slowest_s)),
       times.slowest_mean_s < 10, "at every block size"}};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_block_size(overrides, "dcp-fig18");
  const PaperSetting setting = ablation_setting(overrides);
  Table table(case_columns({{"block_tokens", "block"},
                            {"tiles", "tiles"},
                            {"arrange_s", "place and\nschedule ms", Format::kMilliseconds},
                            {"build_s", "build\nms", Format::kMilliseconds},
                            {"planning_s", "planning\nms", Format::kMilliseconds},
                            {"planning_p10_s", "p10\nms", Format::kMilliseconds},
                            {"planning_p90_s", "p90\nms", Format::kMilliseconds}}));
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size() *
                                                         kDcpMasks.size() * kDcpBlockSizes.size()));
  PlanningTimes times;
  PlanInput input = setting.input;
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kDcpMasks) {
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      for (std::size_t i = 0; i < kDcpBlockSizes.size(); ++i) {
        progress.step(name);
        input.options.block_size = kDcpBlockSizes[i];
        std::vector<double> seconds;
        Planning mean;
        const double share = 1.0 / static_cast<double>(batches.size());
        for (const Workload& workload : batches) {
          const Planning planning = planning_of(input, workload);
          mean.arrange_s += share * planning.arrange_s;
          mean.build_s += share * planning.build_s;
          mean.tiles += share * planning.tiles;
          seconds.push_back(planning.seconds());
        }
        times.take(name, i, seconds);
        const Spread spread = spread_of(seconds);
        std::vector<Cell> cells = case_cells(dataset, name);
        cells.insert(cells.end(), {kDcpBlockSizes[i], mean.tiles, mean.arrange_s, mean.build_s,
                                   mean.seconds(), spread.p10, spread.p90});
        table.add_row(std::move(cells));
      }
    }
  }
  PaperResult result = ablation_result(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {
      {.x = "block_tokens", .y = {"planning_s"}, .series = {"mask"}, .panels = {"dataset"}}};
  result.findings = findings_of(times);
  result.differences.emplace_back(
      "Planning is placing, scheduling and building the plan of one batch, in CPU time of this "
      "machine. The partitioner is our own, the paper's is KaHyPar.");
  return result;
}

}  // namespace

PaperTable dcp_fig18() {
  return {"dcp-fig18", "DCP (SOSP 2025), Fig. 18", "planning time against block size and mask",
          make};
}

}  // namespace contextile

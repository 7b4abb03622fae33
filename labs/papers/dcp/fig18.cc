// DCP (Jiang et al., SOSP 2025), Fig. 18: the time of planning.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "labs/papers/dcp/ablation.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/movement.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// Seconds of planning, added up over datasets and masks.
struct PlanningTimes {
  std::array<double, kDcpBlockSizes.size()> by_size_s{};
  double causal_s = 0;
  double all_s = 0;
  double slowest_s = 0;  // one batch

  void take(std::string_view mask, std::size_t size, double seconds) {
    by_size_s[size] += seconds;
    all_s += seconds;
    if (mask == "causal") causal_s += seconds;
    slowest_s = std::max(slowest_s, seconds);
  }
};

std::vector<Finding> findings_of(const PlanningTimes& times) {
  const double fall = times.by_size_s.front() / times.by_size_s.back();
  const double sparse = (times.all_s - times.causal_s) / (kDcpMasks.size() - 1) / times.causal_s;
  return {
      {"planning time falls quickly with the block size",
       fmt::format("512 takes {:.1f} times as long as 4096", fall),
       fall > 2 && std::ranges::is_sorted(times.by_size_s, std::greater<>()),
       "all datasets and masks together: every size takes less than the one "
       "before, 512 more than twice 4096's"},
      {"much less under sparse masks",
       fmt::format("sparse masks take {:.2f} of causal's time", sparse), sparse < 1,
       "the mean of the sparse masks over datasets and block sizes is below "
       "causal's; the paper has no number"},
      {"under 10 s a batch at reasonable block sizes",
       fmt::format("at most {} ms", format_number(1e3 * times.slowest_s)), times.slowest_s < 10}};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_block_size(overrides, "dcp-fig18");
  const PaperSetting setting = ablation_setting(overrides);
  Table table(case_columns({{"block_tokens", "block"},
                            {"tiles", "tiles"},
                            {"arrange_s", "place and\nschedule ms", Format::kMilliseconds},
                            {"build_s", "build\nms", Format::kMilliseconds},
                            {"planning_s", "planning\nms", Format::kMilliseconds}}));
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
        const MeanMovement movement = movement_of(dcp_with(), input, batches);
        const double seconds = movement.arrange_s + movement.build_s;
        std::vector<Cell> cells = case_cells(dataset, name);
        cells.insert(cells.end(), {kDcpBlockSizes[i], movement.tiles, movement.arrange_s,
                                   movement.build_s, seconds});
        table.add_row(std::move(cells));
        times.take(name, i, seconds);
      }
    }
  }
  PaperResult result = ablation_result(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {
      {.x = "block_tokens", .y = {"planning_s"}, .series = {"mask"}, .panels = {"dataset"}}};
  result.findings = findings_of(times);
  result.differences.emplace_back(
      "Planning is placing, scheduling and building the plan of one batch on this machine; the "
      "partitioner is our own, the paper's is KaHyPar.");
  return result;
}

}  // namespace

PaperTable dcp_fig18() {
  return {"dcp-fig18", "DCP (SOSP 2025), Fig. 18", "planning time against block size and mask",
          make};
}

}  // namespace contextile

// DCP (Jiang et al., SOSP 2025), Fig. 19: bytes against the sparsity of the mask.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/dcp/ablation.h"
#include "labs/papers/movement.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// Masks from nearly nothing to nearly causal.
constexpr const char* kSparsityMasks[] = {"lambda:64,1024",
                                          "lambda:64,4096",
                                          "lambda:64,16384",
                                          "lambda:64,65536",
                                          "causal_blockwise:256,2,1",
                                          "causal_blockwise:256,8,1",
                                          "causal_blockwise:256,32,1",
                                          "causal_blockwise:256,128,1",
                                          "shared_question:0.05,16",
                                          "shared_question:0.2,4",
                                          "shared_question:0.5,4",
                                          "shared_question:0.8,2",
                                          "causal"};

std::int64_t pairs_of(std::span<const Workload> batches) {
  std::int64_t pairs = 0;
  for (const Workload& workload : batches) pairs += workload.masks.front().mask.num_pairs();
  return pairs;
}

// Share of the variance of y that a straight line in x explains.
double linearity(const std::vector<std::pair<double, double>>& points) {
  const auto n = static_cast<double>(points.size());
  double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (const auto& [a, b] : points) {
    x += a / n;
    y += b / n;
    xx += a * a / n;
    yy += b * b / n;
    xy += a * b / n;
  }
  const double spread = (xx - x * x) * (yy - y * y);
  return spread > 0 ? (xy - x * y) * (xy - x * y) / spread : 0;
}

PaperResult make(const TableOverrides& overrides) {
  constexpr double kNearlyLinear = 0.9;
  PaperSetting setting = ablation_setting(overrides);
  if (!overrides.block_size) setting.input.options.block_size = kDcpBlock;
  Table table(movement_columns({{"dataset", ""},
                                {"mask", "mask"},
                                {"lengths", "lengths"},
                                {"sparsity", "FLOPs of\ncausal"}}));
  Progress progress(overrides,
                    static_cast<std::int64_t>(setting.datasets.size() * std::size(kSparsityMasks)));
  std::vector<std::string> fits;
  double least = 1;
  for (const std::string& dataset : setting.datasets) {
    const auto causal = static_cast<double>(pairs_of(setting.batches(dataset, "causal")));
    std::vector<std::pair<double, double>> points;
    for (const char* mask : kSparsityMasks) {
      progress.step(mask);
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      const double sparsity = static_cast<double>(pairs_of(batches)) / causal;
      const MeanMovement movement = movement_of(dcp_with(), setting.input, batches);
      points.emplace_back(sparsity, movement.busiest_bytes);
      add_movement(table, {dataset, std::string(mask), short_name(dataset), sparsity}, movement);
    }
    least = std::min(least, linearity(points));
    fits.push_back(fmt::format("{:.2f} ({})", linearity(points), dataset));
  }
  PaperResult result = ablation_result(setting, std::move(table));
  result.plots = {{.x = "sparsity", .y = {"inter_bytes"}, .series = {"dataset"}},
                  {.x = "sparsity", .y = {"busiest_bytes"}, .series = {"dataset"}}};
  result.findings.push_back(
      {"volume grows nearly linearly with FLOPs over causal FLOPs",
       fmt::format(
           "a straight line explains this share of the variance of the busiest device's bytes: {}",
           fmt::join(fits, ", ")),
       least >= kNearlyLinear,
       fmt::format("{} or more of the variance for every dataset", kNearlyLinear)});
  result.differences.push_back(kBytesDiffer);
  result.differences.emplace_back("Which masks the paper varied, and how, is not in its text.");
  return result;
}

}  // namespace

PaperTable dcp_fig19() {
  return {"dcp-fig19", "DCP (SOSP 2025), Fig. 19", "bytes against the sparsity of the mask", make};
}

}  // namespace contextile

// DistCA, Fig. 5: the kernel's throughput by the length of the shards it fuses.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/simulate.h"
#include "labs/papers/findings.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// The rate of one attention call that fuses as many shards of `rows` queries as make up `tokens`.
// A shard is the end of a document of `context` tokens.
double fused_tflops(const PaperSetting& setting, Direction direction, std::int64_t tokens,
                    std::int64_t rows, std::int64_t context) {
  const TileCosts costs(setting.shape, setting.input.cluster);
  const std::int64_t pairs = rows * (context - rows) + rows * (rows + 1) / 2;
  const std::int64_t shards = tokens / rows;
  const double us =
      setting.input.cluster.attention.call_us +
      static_cast<double>(shards) * costs.piece_us(direction, rows, context, pairs, 1);
  const auto flops_of = direction == Direction::kForward ? forward_flops : backward_flops;
  return 1e-6 * flops_of(shards * pairs, setting.shape.q_heads, setting.shape) / us;
}

constexpr std::array<std::int64_t, 8> kShardRows = {16, 32, 64, 128, 256, 512, 1024, 4096};
constexpr std::int64_t kKernelTile = 128;

// Shares of the best shard length's throughput.
struct ShardShares {
  Extent full;    // from the kernel's tile on
  Extent halved;  // shards of half a tile
};

// Adds a row for every shard length of one context.
void add_shards(const PaperSetting& setting, std::int64_t context, Table& table,
                ShardShares& shares) {
  std::array<std::array<double, kShardRows.size()>, 2> tflops{};
  std::array<double, 2> peak{};
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto d = static_cast<std::size_t>(direction);
    for (std::size_t i = 0; i < kShardRows.size(); ++i) {
      tflops[d][i] = fused_tflops(setting, direction, setting.batch.tokens, kShardRows[i], context);
    }
    peak[d] = *std::max_element(tflops[d].begin(), tflops[d].end());
  }
  for (std::size_t i = 0; i < kShardRows.size(); ++i) {
    for (std::size_t d = 0; d < 2; ++d) {
      if (kShardRows[i] >= kKernelTile) shares.full.take(tflops[d][i] / peak[d]);
      if (kShardRows[i] == kKernelTile / 2) shares.halved.take(tflops[d][i] / peak[d]);
    }
    table.add_row({context, kShardRows[i], tflops[0][i], tflops[0][i] / peak[0], tflops[1][i],
                   tflops[1][i] / peak[1]});
  }
}

// True if its attention is that of a preset: assumed, not measured.
bool is_presets_kernel(const Cluster& cluster) {
  return std::ranges::any_of(cluster_presets(), [&cluster](const ClusterPreset& preset) {
    return preset.cluster.attention == cluster.attention;
  });
}

std::vector<Finding> shard_findings(const ShardShares& shares) {
  constexpr double kNearPeak = 0.9;
  constexpr double kSlower = 0.75;
  return {{"high throughput once every shard has 128 tokens",
           fmt::format("{} of the peak or more", whole_percent(shares.full.least)),
           shares.full.least >= kNearPeak,
           fmt::format("{} of the peak or more at every context, forward and backward",
                       whole_percent(kNearPeak))},
          {"shards shorter than the kernel's tile are slower",
           fmt::format("shards of 64 tokens reach {} to {} of the peak",
                       whole_percent(shares.halved.least), whole_percent(shares.halved.most)),
           shares.halved.most < kSlower,
           fmt::format("shards of 64 tokens stay below {} of the peak", whole_percent(kSlower))}};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "distca-fig5",
                   {"--tokens", "--heads", "--kv-heads", "--head-dim", "--cluster"});
  PaperSetting setting;
  setting.cluster_name = "dgx-h200";
  setting.batch.tokens = 32768;
  apply_overrides(overrides, setting);
  if (setting.batch.tokens % kShardRows.back() != 0) {
    fail_argument("--tokens: expected a multiple of {}, found {}", kShardRows.back(),
                  setting.batch.tokens);
  }
  Table table({{"context", "context"},
               {"shard_tokens", "tokens of\na shard"},
               {"forward_tflops", "forward\nTFLOP/s"},
               {"forward_share", "of its\npeak", Format::kPercent},
               {"backward_tflops", "backward\nTFLOP/s"},
               {"backward_share", "of its\npeak", Format::kPercent}});
  ShardShares shares;
  for (const std::int64_t context : {8192, 32768, 131072}) {
    add_shards(setting, context, table, shares);
  }
  PaperResult result{
      .setting = {{"batch",
                   fmt::format(
                       "one call of {} query tokens in shards of one length, each the end of "
                       "a document",
                       setting.batch.tokens)},
                  {"shape", fmt::format("{}/{} heads of {}", setting.shape.q_heads,
                                        setting.shape.kv_heads, setting.shape.head_dim)},
                  {"cluster", setting.input.cluster.name}},
      .table = std::move(table),
      .differences = {"Throughput is the cluster's cost model's, the one that prices every tile "
                      "(docs/predict.md); no kernel is run.",
                      "The claim is what the authors write about it; that this is Fig. 5 is our "
                      "reading, its axes "
                      "and points are not in their text."}};
  if (is_presets_kernel(setting.input.cluster)) {
    result.differences.push_back(fmt::format(
        "No verdict: the preset's cost model assumes that a kernel computes whole tiles of {} "
        "rows, "
        "so the table shows what that assumption does and is no evidence for it. Give the file of "
        "a kernel that `contextile profile` measured as --cluster.",
        setting.input.cluster.attention.kernel_tile_rows));
  } else {
    result.findings = shard_findings(shares);
  }
  result.plots = {{.x = "shard_tokens", .y = {"forward_share"}, .series = {"context"}}};
  return result;
}

}  // namespace

PaperTable distca_fig5() {
  return {"distca-fig5", "DistCA, Fig. 5", "kernel throughput by the length of fused shards", make};
}

}  // namespace contextile

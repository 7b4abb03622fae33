// What papers work out on paper: DistCA's kernel throughput by shard length (Fig. 5) and number of
// shards that hide their transfers (Appendix A), and Megatron-LM's example of rounds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/model.h"
#include "contextile/registry.h"
#include "contextile/simulate.h"
#include "papers/paper_table.h"
#include "papers/steps.h"

namespace contextile {
namespace {

// ------------------------------------------------------------------------------------ Fig. 5

// Attention of one call that fuses as many shards of `rows` queries as make up `tokens`; a shard is
// the end of a document of `context` tokens.
double fused_tflops(const BenchSetting& setting, Direction direction, std::int64_t tokens,
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

// A row for every shard length of one context.
void add_shards(const BenchSetting& setting, std::int64_t context, Table& table,
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

// Whether its attention is that of a preset: assumed, not measured.
bool is_presets_kernel(const Cluster& cluster) {
  return std::ranges::any_of(cluster_presets(), [&cluster](const ClusterPreset& preset) {
    return preset.cluster.attention == cluster.attention;
  });
}

std::vector<Finding> shard_findings(const ShardShares& shares) {
  constexpr double kNearPeak = 0.9;
  constexpr double kSlower = 0.75;
  return {{"near peak throughput once every shard has 128 tokens",
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

PaperResult distca_fig5(const BenchOverrides& overrides) {
  refuse_overrides(overrides, "distca-fig5",
                   {"--tokens", "--heads", "--kv-heads", "--head-dim", "--cluster"});
  BenchSetting setting;
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
  PaperResult result = paper_result(
      {{"batch", fmt::format("one call of {} query tokens in shards of one length, each the end of "
                             "a document",
                             setting.batch.tokens)},
       {"shape", fmt::format("{}/{} heads of {}", setting.shape.q_heads, setting.shape.kv_heads,
                             setting.shape.head_dim)},
       {"cluster", setting.input.cluster.name}},
      std::move(table),
      {"Throughput is the cluster's cost model's, the one that prices every tile "
       "(docs/simulator.md); no kernel is run.",
       "The claim is what the authors write about it; that this is Fig. 5 is our reading, its axes "
       "and points are not in their text."});
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

// -------------------------------------------------------------------------------- Appendix A

// Per token of a layer. A document in s shards: each sends its queries, and its keys to the shards
// after it, (s - 1) / 2 on average; that hides while the linear layers take as long.
struct HiddenShards {
  double linear_flops = 0;
  double hidden_bytes = 0;  // what moves meanwhile
  double q_bytes = 0;
  double kv_bytes = 0;

  [[nodiscard]] double most() const {
    return q_bytes > hidden_bytes ? 1 : std::floor(2 * (hidden_bytes - q_bytes) / kv_bytes) + 1;
  }
};

HiddenShards hidden_shards(std::string_view model_name, double gbytes_per_s, double tflops) {
  constexpr double kMfu = 0.5;
  const ModelSpec model = load_model(model_name);
  const AttentionShape shape = attention_shape_of(model, 1);
  HiddenShards hidden;
  hidden.linear_flops = linear_flops_of(model).layer();
  hidden.hidden_bytes = hidden.linear_flops / (1e12 * tflops * kMfu) * 1e9 * gbytes_per_s;
  hidden.q_bytes = static_cast<double>(unit_bytes(Kind::kQ, 1, shape, 1, shape.dtype));
  hidden.kv_bytes = static_cast<double>(unit_bytes(Kind::kKv, 1, shape, 1, shape.dtype));
  return hidden;
}

PaperResult distca_appa(const BenchOverrides& overrides) {
  refuse_overrides(overrides, "distca-appa", {"--cluster"});
  constexpr std::string_view kPaperModel = "llama-34b";
  double gbytes_per_s = 50;
  double tflops = 990;
  std::string machine = "the paper's";
  if (!overrides.cluster.empty()) {
    const Cluster cluster = load_cluster(overrides.cluster);
    gbytes_per_s = cluster.inter_gbytes_per_s_per_node / cluster.devices_per_node;
    tflops = peak_tflops_of(cluster);
    machine = cluster.name;
  }
  Table table({{"model", "model"},
               {"linear_flops", "MFLOP\na token"},
               {"hidden_bytes", "bytes that\nhide"},
               {"q_bytes", "bytes of\nQ"},
               {"kv_bytes", "bytes of\nKV"},
               {"most_shards", "most\nshards"}});
  double ours = 0;
  for (const std::string_view model :
       {kPaperModel, std::string_view("llama-3-8b"), std::string_view("llama-3-70b")}) {
    const HiddenShards hidden = hidden_shards(model, gbytes_per_s, tflops);
    if (model == kPaperModel) ours = hidden.most();
    table.add_row({std::string(model), 1e-6 * hidden.linear_flops, hidden.hidden_bytes,
                   hidden.q_bytes, hidden.kv_bytes, static_cast<std::int64_t>(hidden.most())});
  }
  PaperResult result = paper_result(
      {{"machine", fmt::format("{}: {} GB/s between devices, {} TFLOP/s at an MFU of 50%", machine,
                               format_number(gbytes_per_s), format_number(tflops))}},
      std::move(table), {});
  result.findings = {{"Llama-34B: up to 31 shards of a document with communication hidden",
                      fmt::format("{:.0f}", ours), ours == 31}};
  result.differences = {
      "No plan stands behind this: it is the formula 2 bytes · (hidden + (s - 1) · KV) <= "
      "bandwidth "
      "· time of a token in the layer's linear products.",
      "FLOPs count the projections of keys and of values; only llama-34b is in the paper."};
  result.plots = {{.x = "model", .y = {"most_shards"}}};
  return result;
}

// ---------------------------------------------------------------------------------- Megatron

constexpr std::int64_t kCapTokens = 4096;
const std::vector<std::int64_t> kExampleLengths = {32768, 16384, 8192, 4096,
                                                   4096,  4096,  4096, 2048};

// Ranks -> the sequences they share, in a round.
using Groups = std::map<std::vector<std::int32_t>, std::vector<std::size_t>>;

Groups groups_of(const Plan& plan, const PlanRound& round) {
  std::vector<std::vector<std::int32_t>> ranks(plan.sequences.size());
  for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
    for (const Range& range : round.blocks.ranges(BlockId{b})) {
      for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
        if (intersect(range, plan.sequences[s]).empty()) continue;
        ranks[s].push_back(round.owners[static_cast<std::size_t>(b)].value);
      }
    }
  }
  Groups groups;
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    if (ranks[s].empty()) continue;
    std::sort(ranks[s].begin(), ranks[s].end());
    ranks[s].erase(std::unique(ranks[s].begin(), ranks[s].end()), ranks[s].end());
    groups[ranks[s]].push_back(s);
  }
  return groups;
}

void add_rounds(const StrategyChoice& choice, const PlannedBatch& planned, const Cluster& cluster,
                Table& table) {
  const Plan& plan = *planned.plan;
  const Simulation simulation = simulate(plan, cluster);
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    const double round_us =
        simulation.forward->programs[r].time_us + simulation.backward->programs[r].time_us;
    for (const auto& [ranks, sequences] : groups_of(plan, plan.rounds[r])) {
      std::vector<std::string> lengths;
      std::int64_t tokens = 0;
      double work = 0;
      for (const std::size_t s : sequences) {
        const std::int64_t length = plan.sequences[s].size();
        lengths.push_back(fmt::format("{}K", length / 1024));
        tokens += length;
        work += static_cast<double>(length) * static_cast<double>(length);
      }
      const auto size = static_cast<std::int64_t>(ranks.size());
      table.add_row({choice.name, static_cast<std::int64_t>(r + 1),
                     size == 1 ? fmt::format("{}", ranks.front())
                               : fmt::format("{}-{}", ranks.front(), ranks.back()),
                     fmt::format("{}", fmt::join(lengths, " ")), tokens / size,
                     1e-6 * work / static_cast<double>(size), 1e-6 * round_us});
    }
  }
}

PaperResult megatron_example(const BenchOverrides& overrides) {
  refuse_overrides(overrides, "megatron-example",
                   {"--heads", "--kv-heads", "--head-dim", "--cluster", "--block-size"});
  constexpr std::int32_t kRanks = 8;
  BenchSetting setting;
  setting.cluster_name = "dgx-h100";
  apply_overrides(overrides, setting);
  if (setting.input.cluster.num_devices() != kRanks) {
    fail_argument("--cluster: expected {} devices, found {}", kRanks,
                  setting.input.cluster.num_devices());
  }
  const MaskUse causal;
  const Workload workload = make_workload(kExampleLengths, setting.shape, {&causal, 1});
  Table table({{"strategy", "strategy"},
               {"round", "round"},
               {"ranks", "ranks"},
               {"sequences", "sequences"},
               {"rank_tokens", "tokens\na rank"},
               {"rank_work", "work a rank\n(L²/c, M)"},
               {"round_s", "round\nms", Format::kMilliseconds}});
  const std::string cap = fmt::format("{}", kCapTokens);
  std::vector<std::size_t> rounds;
  for (const char* name : {"megatron_dynamic", "megatron_packed"}) {
    const StrategyChoice choice{name, {{"cap", cap}}};
    const PlannedBatch planned =
        plan_and_check(workload, setting.input.cluster, choice, setting.input.options);
    add_rounds(choice, planned, setting.input.cluster, table);
    rounds.push_back(planned.plan->rounds.size());
  }
  PaperResult result = paper_result(
      {{"batch",
        fmt::format("32K, 16K, 8K, 4K, 4K, 4K, 4K and 2K tokens on {} ranks, {} tokens of a "
                    "sequence on each",
                    kRanks, kCapTokens)},
       {"shape", fmt::format("{}/{} heads of {}", setting.shape.q_heads, setting.shape.kv_heads,
                             setting.shape.head_dim)},
       {"cluster", setting.input.cluster.name}},
      std::move(table), {});
  result.findings = {
      {"two rounds",
       fmt::format("megatron_dynamic: {}", count(static_cast<std::int64_t>(rounds[0]), "round")),
       rounds[0] == 2}};
  result.differences = {
      "The published drawing puts the short sequences elsewhere; here they are where the code's "
      "rule "
      "puts them: each to the rank with the least work so far.",
      fmt::format(
          "megatron_packed, its successor, keeps a rank's tokens of a round below the limit "
          "and needs {}.",
          count(static_cast<std::int64_t>(rounds[1]), "round"))};
  result.plots = {{.x = "ranks", .y = {"rank_work"}, .series = {"round"}, .panels = {"strategy"}}};
  return result;
}

constexpr std::array<PaperTable, 3> kTables = {
    {{"distca-fig5", "DistCA, Fig. 5", "kernel throughput by the length of fused shards",
      distca_fig5},
     {"distca-appa", "DistCA, Appendix A",
      "shards of a document whose transfers hide under the linear layers", distca_appa},
     {"megatron-example", "Megatron-LM, dynamic context parallelism",
      "the published example: eight sequences in two rounds", megatron_example}}};

}  // namespace

std::span<const PaperTable> example_paper_tables() { return kTables; }

}  // namespace contextile

// Megatron-LM, dynamic context parallelism: the example its authors drew.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

constexpr std::int64_t kCapTokens = 4096;
const std::vector<std::int64_t> kExampleLengths = {32768, 16384, 8192, 4096,
                                                   4096,  4096,  4096, 2048};

// The source's table: every sequence by its round and ranks.
struct Placed {
  std::int64_t length_tokens;
  std::size_t round;
  std::int32_t first_rank;
  std::int32_t last_rank;

  friend auto operator<=>(const Placed&, const Placed&) = default;
};
constexpr Placed kPublished[] = {{32768, 0, 0, 7}, {16384, 1, 0, 3}, {8192, 1, 4, 5},
                                 {4096, 1, 6, 6},  {4096, 1, 6, 6},  {4096, 1, 7, 7},
                                 {4096, 1, 7, 7},  {2048, 1, 6, 6}};

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

// Returns true if the plan runs sequences of the same lengths in the source's rounds and ranks.
bool is_as_published(const Plan& plan) {
  std::vector<Placed> placed;
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    for (const auto& [ranks, sequences] : groups_of(plan, plan.rounds[r])) {
      for (const std::size_t s : sequences) {
        placed.push_back({plan.sequences[s].size(), r, ranks.front(), ranks.back()});
      }
    }
  }
  std::vector<Placed> published(std::begin(kPublished), std::end(kPublished));
  std::ranges::sort(placed);
  std::ranges::sort(published);
  return placed == published;
}

// The source's table of the tokens on three ranks of three packed sequences in zigzag order.
const std::vector<std::int64_t> kZigzagLengths = {12, 24, 6};
const std::vector<std::vector<std::int64_t>> kZigzagTokens = {
    {0, 1, 10, 11, 12, 13, 14, 15, 32, 33, 34, 35, 36, 41},
    {2, 3, 8, 9, 16, 17, 18, 19, 28, 29, 30, 31, 37, 40},
    {4, 5, 6, 7, 20, 21, 22, 23, 24, 25, 26, 27, 38, 39}};

Finding zigzag_finding() {
  const MaskUse causal;
  const Workload workload = make_workload(kZigzagLengths, AttentionShape{}, {&causal, 1});
  const PlannedBatch planned =
      plan_and_check(workload, load_cluster("dgx-h100:1x3"), {"zigzag", {}});
  std::vector<std::vector<std::int64_t>> tokens(kZigzagTokens.size());
  for (const PlanRound& round : planned.plan->rounds) {
    for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
      const std::int32_t owner = round.owners[static_cast<std::size_t>(b)].value;
      std::vector<std::int64_t>& of_rank = tokens[static_cast<std::size_t>(owner)];
      for (const Range& range : round.blocks.ranges(BlockId{b})) {
        for (std::int64_t token = range.begin; token < range.end; ++token) of_rank.push_back(token);
      }
    }
  }
  for (std::vector<std::int64_t>& of_rank : tokens) std::ranges::sort(of_rank);
  const bool same = tokens == kZigzagTokens;
  return {"sequences of 12, 24 and 6 tokens on three ranks in zigzag order: which rank has which",
          same ? "the same" : "others", same};
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

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "megatron-example",
                   {"--heads", "--kv-heads", "--head-dim", "--cluster", "--block-size"});
  constexpr std::int32_t kRanks = 8;
  PaperSetting setting;
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
  bool as_published = false;
  for (const char* name : {"megatron_dynamic", "megatron_packed"}) {
    const StrategyChoice choice{name, {{"cap", cap}}};
    const PlannedBatch planned =
        plan_and_check(workload, setting.input.cluster, choice, setting.input.options);
    add_rounds(choice, planned, setting.input.cluster, table);
    if (rounds.empty()) as_published = is_as_published(*planned.plan);
    rounds.push_back(planned.plan->rounds.size());
  }
  PaperResult result{
      .setting = {{"batch",
                   fmt::format(
                       "32K, 16K, 8K, 4K, 4K, 4K, 4K and 2K tokens on {} ranks, {} tokens of a "
                       "sequence on each",
                       kRanks, kCapTokens)},
                  {"shape", fmt::format("{}/{} heads of {}", setting.shape.q_heads,
                                        setting.shape.kv_heads, setting.shape.head_dim)},
                  {"cluster", setting.input.cluster.name}},
      .table = std::move(table)};
  result.findings = {
      {"two rounds",
       fmt::format("megatron_dynamic: {}", count(static_cast<std::int64_t>(rounds[0]), "round")),
       rounds[0] == 2},
      {"every length in the round and on the ranks of the source's table",
       as_published ? "the same" : "others", as_published},
      zigzag_finding()};
  result.differences = {
      "The source's s4 and s5, both of 4K, change places: each sequence goes to the rank with the "
      "least work so far. Loads are the same.",
      fmt::format(
          "megatron_packed, its successor, keeps a rank's tokens of a round below the limit "
          "and needs {}.",
          count(static_cast<std::int64_t>(rounds[1]), "round"))};
  result.plots = {{.x = "ranks", .y = {"rank_work"}, .series = {"round"}, .panels = {"strategy"}}};
  return result;
}

}  // namespace

PaperTable megatron_example() {
  return {"megatron-example", "Megatron-LM, dynamic context parallelism",
          "the published example: eight sequences in two rounds", make};
}

}  // namespace contextile

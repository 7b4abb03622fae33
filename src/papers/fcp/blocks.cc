// FCP (flexible context parallelism, MLSys 2026), what its block size rests on: the machines of its
// Table 1, what short pieces cost, and the network that hides a block's transfer
// (section 3.5).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "contextile/registry.h"
#include "contextile/simulate.h"
#include "contextile/training.h"
#include "papers/paper_table.h"
#include "papers/steps.h"
#include "papers/times.h"

namespace contextile {
namespace {

// ---------------------------------------------------------------------------------- Table 1

PaperResult fcp_table1(const BenchOverrides& overrides) {
  refuse_overrides(overrides, "fcp-table1", {"--cluster"});
  std::vector<Cluster> machines;
  if (overrides.cluster.empty()) {
    for (const ClusterPreset& preset : cluster_presets()) {
      if (preset.cluster.peak_tflops > 0) machines.push_back(preset.cluster);
    }
  } else {
    machines.push_back(load_cluster(overrides.cluster));
  }
  Table table({{"machine", "machine"},
               {"tflops", "bf16\nTFLOP/s"},
               {"network_gbytes_per_s", "network\nGB/s"},
               {"network_flops_per_byte", "FLOP a byte\nof network"},
               {"node_gbytes_per_s", "in a node\nGB/s"},
               {"node_flops_per_byte", "FLOP a byte\nin a node"},
               {"paper_flops_per_byte", "paper"}});
  constexpr double kClose = 0.1;
  for (const FcpGpu& gpu : {kGpuX, kGpuY}) {
    table.add_row(
        {std::string(gpu.name), Cell{}, Cell{}, Cell{}, Cell{}, Cell{}, gpu.flops_per_byte});
  }
  std::vector<std::string> ratios;
  std::array<bool, 2> found{};
  for (const Cluster& machine : machines) {
    const double tflops = peak_tflops_of(machine);
    const double network_gbytes_per_s =
        machine.inter_gbytes_per_s_per_node / machine.devices_per_node;
    const double network = 1e3 * tflops / network_gbytes_per_s;
    const double node = 1e3 * tflops / machine.intra_gbytes_per_s;
    table.add_row({machine.name, tflops, network_gbytes_per_s, network, machine.intra_gbytes_per_s,
                   node, Cell{}});
    ratios.push_back(fmt::format("{} {:.0f}, {:.0f} inside a node", machine.name, network, node));
    found[0] = found[0] || std::abs(network / kGpuX.flops_per_byte - 1) <= kClose;
    found[1] = found[1] || std::abs(network / kGpuY.flops_per_byte - 1) <= kClose;
  }
  return {
      .setting = {{"machine", "a device's peak over its share of its node's network"}},
      .table = std::move(table),
      .findings = {{fmt::format("FLOPs for a byte of network: GPU-X {:.0f}, GPU-Y {:.0f}",
                                kGpuX.flops_per_byte, kGpuY.flops_per_byte),
                    fmt::format("{}", fmt::join(ratios, "; ")), found[0] && found[1],
                    "a machine of the table is within 10% of each, by its network"}},
      .differences =
          {"The paper names neither GPU, nor their FLOP/s nor their bytes/s. For its figures we "
           "take dgx-h100 with 50 GB/s of network a device and attention at the ratio times "
           "that: 296 TFLOP/s (GPU-X) and 125 (GPU-Y)."},
      .plots = {{.x = "machine",
                 .y = {"network_flops_per_byte", "node_flops_per_byte", "paper_flops_per_byte"}}}};
}

// ------------------------------------------------------------------------------- short pieces

// Bytes of forward that a strategy's plans move for the documents of at most `longest` tokens; none
// where it cannot plan them.
std::optional<double> forward_bytes(const StrategyChoice& choice, const BenchSetting& setting,
                                    std::span<const std::vector<std::int64_t>> batches,
                                    std::int64_t longest) {
  const MaskUse causal = parse_mask_use("causal");
  double bytes = 0;
  for (const std::vector<std::int64_t>& lengths : batches) {
    std::vector<std::int64_t> documents;
    std::ranges::copy_if(lengths, std::back_inserter(documents),
                         [longest](std::int64_t length) { return length <= longest; });
    if (documents.empty()) continue;
    const Workload workload = make_workload(documents, setting.shape, {&causal, 1});
    if (unsupported_reason(workload, setting.input.cluster, choice, setting.input.options))
      return std::nullopt;
    const PlannedBatch planned =
        plan_and_check(workload, setting.input.cluster, choice, setting.input.options);
    bytes += static_cast<double>(planned.statistics.forward->total_bytes());
  }
  return bytes;
}

constexpr std::array<std::int64_t, 6> kLengths = {512, 1024, 2048, 4096, 8192, 16384};

// From its first row, 512 tokens, and its fourth, 4096. What cannot be planned has no number.
std::vector<Finding> shard_findings(const Table& table) {
  constexpr double kPieceShare = 0.25;
  constexpr double kPieceSlack = 0.05;
  constexpr double kHalf = 0.5;
  constexpr double kHalfSlack = 0.1;
  const auto share = [&table](std::size_t row, std::size_t column) {
    const double* value = std::get_if<double>(&table.cells(row)[column]);
    return value == nullptr ? std::optional<double>() : *value;
  };
  const double shortest = *share(0, 2);
  std::vector<Finding> findings = {
      {"pieces of 512 tokens reach 25% of one GPU's MFU",
       fmt::format("{} as a causal document, {} as a piece that attends all its keys",
                   whole_percent(shortest), whole_percent(*share(0, 1))),
       std::abs(shortest - kPieceShare) <= kPieceSlack,
       "read as a causal document of 512 tokens, within 5 percentage points; the other reading is "
       "not within them"}};
  if (std::abs(*share(0, 1) - kPieceShare) <= kPieceSlack) {
    findings.front().criterion = "either reading, within 5 percentage points";
  }
  if (const auto short_bytes = share(3, 3)) {
    findings.push_back(
        {"sequences under 4K cause about half of the communication of plain context "
         "parallelism",
         fmt::format("{} of the ring's bytes", whole_percent(*short_bytes)),
         std::abs(*short_bytes - kHalf) <= kHalfSlack,
         "documents of 4096 tokens or fewer, within 10 percentage points of 50%"});
  }
  if (const auto fcp_bytes = share(3, 4)) {
    findings.push_back(
        {"they could stay on one GPU and move nothing",
         fmt::format("FCP moves {:.1f}% of the ring's bytes for them", 100 * *fcp_bytes),
         *fcp_bytes == 0});
  }
  return findings;
}

PaperResult fcp_shards(const BenchOverrides& overrides) {
  constexpr std::int64_t kWhole = 131072;  // a document that fills the kernel
  refuse_overrides(overrides, "fcp-shards",
                   {"--dataset", "--tokens", "--batches", "--seed", "--heads", "--kv-heads",
                    "--head-dim", "--cluster", "--block-size"});
  BenchSetting setting = fcp_setting(overrides, 32);
  setting.input.options.backward = false;
  const TileCosts costs(setting.shape, setting.input.cluster);
  const auto rate = [&costs](std::int64_t length, std::int64_t pairs) {
    return static_cast<double>(pairs) /
           costs.piece_us(Direction::kForward, length, length, pairs, 1);
  };
  const auto causal_rate = [&rate](std::int64_t length) {
    return rate(length, length * (length + 1) / 2);
  };
  const auto batches = batches_from_dataset(setting.datasets.front(), setting.batch);
  const StrategyChoice ring{"zigzag", {}};
  const StrategyChoice fcp{"fcp", {}};
  const std::int64_t longest = setting.batch.max_length;
  Table table({{"length", "tokens"},
               {"piece_share", "whole piece\nof one GPU", Format::kPercent},
               {"causal_share", "document\nof one GPU", Format::kPercent},
               {"ring_share", "ring's bytes\nup to here", Format::kPercent},
               {"fcp_share", "FCP's", Format::kPercent}});
  Progress progress(overrides, static_cast<std::int64_t>(2 * kLengths.size() + 2));
  progress.step("zigzag");
  const auto ring_bytes = forward_bytes(ring, setting, batches, longest);
  const auto share_of = [&](const StrategyChoice& choice, std::int64_t length) -> Cell {
    const auto bytes = forward_bytes(choice, setting, batches, length);
    if (!bytes || ring_bytes.value_or(0) <= 0) return {};  // on one device nothing moves
    return *bytes / *ring_bytes;
  };
  for (const std::int64_t length : kLengths) {
    progress.step(fmt::format("zigzag, {}", length));
    Cell ring_share = share_of(ring, length);
    progress.step(fmt::format("fcp, {}", length));
    Cell fcp_share = share_of(fcp, length);
    table.add_row({length, rate(length, length * length) / causal_rate(kWhole),
                   causal_rate(length) / causal_rate(kWhole), std::move(ring_share),
                   std::move(fcp_share)});
  }
  std::vector<Finding> findings = shard_findings(table);
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {{.x = "length", .y = {"piece_share", "causal_share"}},
                  {.x = "length", .y = {"ring_share", "fcp_share"}}};
  result.findings = std::move(findings);
  result.differences.push_back(
      "One GPU's MFU: a causal document of 128K tokens. The kernel's constants are of other "
      "sources; the lengths' model was made such that the second statement holds of tokens.");
  result.differences.push_back(
      "A figure of the paper shows this; which one, and its points, we do not know.");
  return result;
}

// ------------------------------------------------------------------------------- Section 3.5

constexpr std::array<std::int64_t, 4> kBlocks = {1024, 2048, 4096, 8192};
constexpr double kAloneSlack = 0.2;
constexpr double kPaperGbytesPerS = 22;
constexpr std::array<std::int64_t, 2> kCoalesce = {16, 4};

// Bytes/s of a device at which the keys and values of a block arrive while a block of queries
// attends a block of keys.
double hiding_gbytes_per_s(const AttentionShape& shape, std::int64_t block, double tile_us) {
  return 1e-3 * static_cast<double>(unit_bytes(Kind::kKv, block, shape, 1, shape.dtype)) / tile_us;
}

struct NetworkNeed {
  double gbytes_per_s = 0;  // of a device: the least that suffices
  double slowdown = 0;      // what the cluster's own network adds to forward's time
};

// "Suffices": forward takes at most 2% longer than on a network a hundred times the cluster's. By
// bisection, to 2%.
NetworkNeed need_of(const Plan& plan, const Cluster& cluster) {
  constexpr double kSlack = 0.02;
  constexpr double kPrecision = 1.02;
  const double own_gbytes_per_s = cluster.inter_gbytes_per_s_per_node / cluster.devices_per_node;
  const auto forward_us = [&](double gbytes_per_s) {
    Cluster other = cluster;
    other.inter_gbytes_per_s_per_node = gbytes_per_s * cluster.devices_per_node;
    return simulate(plan, other).forward->time_us;
  };
  double high = 100 * own_gbytes_per_s;
  double low = 1e-4 * high;
  const double unlimited_us = forward_us(high);
  const NetworkNeed own{.gbytes_per_s = low,
                        .slowdown = forward_us(own_gbytes_per_s) / unlimited_us - 1};
  const double limit_us = (1 + kSlack) * unlimited_us;
  if (forward_us(low) <= limit_us) return own;  // nothing to speak of moves
  while (high > kPrecision * low) {
    const double middle = std::sqrt(low * high);
    (forward_us(middle) <= limit_us ? high : low) = middle;
  }
  return {.gbytes_per_s = high, .slowdown = own.slowdown};
}

// `tokens` in documents of `length`; the last may be shorter.
std::vector<std::int64_t> equal_documents(std::int64_t tokens, std::int64_t length) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(tokens / length), length);
  if (tokens % length > 0) lengths.push_back(tokens % length);
  return lengths;
}

BenchSetting sec35_setting(const BenchOverrides& overrides) {
  refuse_overrides(
      overrides, "fcp-sec35",
      {"--dataset", "--tokens", "--seed", "--heads", "--kv-heads", "--head-dim", "--cluster"});
  BenchSetting setting;
  setting.datasets = {"lognormal512k"};
  setting.batch.tokens = kFcpTokensPerDevice * 32;
  setting.shape.q_heads = 64;
  setting.shape.kv_heads = 8;
  setting.cluster_name = "dgx-h100:32x1";
  apply_overrides(overrides, setting);
  setting.batch.max_length = std::min<std::int64_t>(setting.batch.tokens, 524288);
  setting.input.options.backward = false;
  if (overrides.cluster.empty()) {
    setting.input.cluster.nics_per_node = 1;
    setting.input.cluster.inter_gbytes_per_s_per_node = 50;
  }
  return setting;
}

std::string machine_text(const BenchOverrides& overrides, const Cluster& cluster) {
  const std::string speed = fmt::format(
      "attention {:.0f} TFLOP/s, network {:.0f} GB/s a device", cluster.attention_tflops,
      cluster.inter_gbytes_per_s_per_node / cluster.devices_per_node);
  if (!overrides.cluster.empty()) return fmt::format("{}; not the paper's", speed);
  return fmt::format(
      "{}, every device a node, so that all transfers cross it: the claim is of a Hopper GPU with "
      "50 GB/s, not of GPU-X or GPU-Y as FCP's other tables",
      speed);
}

// One document; documents of 128K; sampled ones.
std::vector<std::pair<std::string, BatchLengths>> sec35_batches(const BenchSetting& setting) {
  const std::int64_t tokens = setting.batch.tokens;
  return {{"one document", {tokens}},
          {"128K each", equal_documents(tokens, std::min<std::int64_t>(tokens, 131072))},
          {"sampled", batches_from_dataset(setting.datasets.front(), setting.batch).front()}};
}

constexpr const char* kSec35Differences[] = {
    "Alone: bytes of a block's keys and values over the time of a block of queries on a block of "
    "keys. Plan: the slowest network on which forward takes at most 2% longer than on one 100 "
    "times as fast as the cluster's.",
    "The arithmetic is of one block among many: a stage of rounds that is more than what a device "
    "fetches has only its local tiles to hide it, and in sampled lengths some receivers fetch "
    "several times the mean."};

// GB/s, in blocks of 4096 tokens.
struct BlockNeed {
  double alone_gbytes_per_s = 0;
  Extent default_stages;           // plans with the first of kCoalesce
  std::vector<std::string> plans;  // all of them, for people
};

std::vector<Finding> network_findings(const BlockNeed& need, const Cluster& cluster) {
  std::vector<Finding> findings = {
      {"22 GB/s hide the transfer of a block of 4096 tokens in its compute",
       fmt::format("{:.1f} GB/s", need.alone_gbytes_per_s),
       std::abs(need.alone_gbytes_per_s / kPaperGbytesPerS - 1) <= kAloneSlack,
       fmt::format("within {} of 22 GB/s, either way: the kernel's speed is not the paper's",
                   whole_percent(kAloneSlack))}};
  if (cluster.nodes > 1) {  // else nothing crosses the network
    findings.push_back(
        {"so they hide the communication of plans", fmt::format("{}", fmt::join(need.plans, ", ")),
         need.default_stages.most <= kPaperGbytesPerS,
         fmt::format("with stages of {} rounds, FCP's default, every plan needs 22 GB/s or less",
                     kCoalesce.front())});
  }
  return findings;
}

PaperResult fcp_sec35(const BenchOverrides& overrides) {
  const BenchSetting setting = sec35_setting(overrides);
  const auto batches = sec35_batches(setting);
  const TileCosts costs(setting.shape, setting.input.cluster);
  const MaskUse causal = parse_mask_use("causal");
  Table table({{"lengths", "lengths"},
               {"coalesce", "coalesce"},
               {"block_tokens", "block"},
               {"tile_us", "tile\nus"},
               {"alone_gbytes_per_s", "alone\nGB/s"},
               {"plan_gbytes_per_s", "plan\nGB/s"},
               {"slowdown", "slower on\nthe cluster", Format::kPercent}});
  Progress progress(overrides,
                    static_cast<std::int64_t>(batches.size() * kCoalesce.size() * kBlocks.size()));
  BlockNeed need_of_block;
  bool complete = true;
  for (const auto& [name, lengths] : batches) {
    const Workload workload = make_workload(lengths, setting.shape, {&causal, 1});
    for (const std::int64_t coalesce : kCoalesce) {
      for (const std::int64_t block : kBlocks) {
        progress.step(fmt::format("{}, {}", name, block));
        const StrategyChoice choice{
            "fcp",
            {{"block", fmt::format("{}", block)}, {"coalesce", fmt::format("{}", coalesce)}}};
        if (const auto reason = unsupported_reason(workload, setting.input.cluster, choice,
                                                   setting.input.options)) {
          table.add_row({name, coalesce, block}, skipped_note(choice, *reason));
          complete = false;
          continue;
        }
        const PlannedBatch planned =
            plan_and_check(workload, setting.input.cluster, choice, setting.input.options);
        const NetworkNeed need = need_of(*planned.plan, setting.input.cluster);
        const double tile_us = costs.piece_us(Direction::kForward, block, block, block * block, 1);
        const double alone = hiding_gbytes_per_s(setting.shape, block, tile_us);
        table.add_row({name, coalesce, block, tile_us, alone, need.gbytes_per_s, need.slowdown});
        if (block != kFcpBlock) continue;
        need_of_block.alone_gbytes_per_s = alone;
        need_of_block.plans.push_back(
            fmt::format("{} {:.0f} GB/s (coalesce {})", name, need.gbytes_per_s, coalesce));
        if (coalesce == kCoalesce.front()) need_of_block.default_stages.take(need.gbytes_per_s);
      }
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.plots = {{.x = "block_tokens",
                   .y = {"plan_gbytes_per_s"},
                   .series = {"coalesce"},
                   .panels = {"lengths"}}};
  result.setting.emplace_back("machine", machine_text(overrides, setting.input.cluster));
  if (complete) result.findings = network_findings(need_of_block, setting.input.cluster);
  result.differences.insert(result.differences.end(), std::begin(kSec35Differences),
                            std::end(kSec35Differences));
  return result;
}

constexpr std::array<PaperTable, 3> kTables = {
    {{"fcp-shards", "FCP, motivation", "what pieces of few tokens cost: kernels and transfers",
      fcp_shards},
     {"fcp-sec35", "FCP, section 3.5", "the network that hides a block's transfer", fcp_sec35},
     {"fcp-table1", "FCP, Table 1", "FLOPs for a byte of network", fcp_table1}}};

}  // namespace

std::span<const PaperTable> fcp_block_tables() { return kTables; }

}  // namespace contextile

// FCP (flexible context parallelism, MLSys 2026), what its block size rests on: the machines of its
// Table 1, what short pieces cost, and the network that hides a block's transfer
// (section 3.5).
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
#include "cli/paper_steps.h"
#include "cli/paper_table.h"
#include "cli/paper_times.h"
#include "contextile/iteration.h"
#include "contextile/simulate.h"

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
               {"network_flops_per_byte", "FLOP a\nbyte"},
               {"node_gbytes_per_s", "in a node\nGB/s"},
               {"node_flops_per_byte", "FLOP a\nbyte"},
               {"paper_flops_per_byte", "paper"}});
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
    found[0] = found[0] || std::abs(network / kGpuX.flops_per_byte - 1) <= 0.1;
    found[1] = found[1] || std::abs(network / kGpuY.flops_per_byte - 1) <= 0.1;
  }
  return {
      .setting = {{"machine", "a device's peak over its share of its node's network"}},
      .table = std::move(table),
      .findings = {{fmt::format("FLOPs for a byte of network: GPU-X {:.0f}, GPU-Y {:.0f}",
                                kGpuX.flops_per_byte, kGpuY.flops_per_byte),
                    fmt::format("{}", fmt::join(ratios, "; ")), found[0] && found[1]}},
      .differences =
          {"The paper names neither GPU, nor their FLOP/s nor their bytes/s. For its figures we "
           "take dgx-h100 with 50 GB/s of network a device and attention at the ratio times "
           "that: 296 TFLOP/s (GPU-X) and 125 (GPU-Y)."},
      .plots = {{.x = "machine",
                 .y = {"network_flops_per_byte", "node_flops_per_byte", "paper_flops_per_byte"}}}};
}

// ------------------------------------------------------------------------------- short pieces

// Bytes of forward that a strategy's plans move for the documents of at most `longest` tokens.
double forward_bytes(const StrategyChoice& choice, const BenchSetting& setting,
                     std::span<const std::vector<std::int64_t>> batches, std::int64_t longest) {
  const MaskUse causal = parse_mask_use("causal");
  double bytes = 0;
  for (const std::vector<std::int64_t>& lengths : batches) {
    std::vector<std::int64_t> documents;
    std::ranges::copy_if(lengths, std::back_inserter(documents),
                         [longest](std::int64_t length) { return length <= longest; });
    if (documents.empty()) continue;
    const Workload workload = make_workload(documents, setting.shape, {&causal, 1});
    const PlannedBatch planned = plan_and_check(choice, setting.input, workload);
    bytes += static_cast<double>(planned.statistics.forward->total_bytes());
  }
  return bytes;
}

constexpr std::array<std::int64_t, 6> kLengths = {512, 1024, 2048, 4096, 8192, 16384};

// From its first row, 512 tokens, and its fourth, 4096.
std::vector<Finding> shard_findings(const Table& table) {
  const auto share = [&table](std::size_t row, std::size_t column) {
    return std::get<double>(table.cells(row)[column]);
  };
  const double shortest = share(0, 2);
  const double short_bytes = share(3, 3);
  return {{"pieces of 512 tokens reach 25% of one GPU's MFU",
           fmt::format("{:.0f}% as a causal document, {:.0f}% as a piece that attends all its keys",
                       100 * shortest, 100 * share(0, 1)),
           std::abs(shortest - 0.25) <= 0.05},
          {"sequences under 4K cause about half of the communication of plain context parallelism",
           fmt::format("{:.0f}% of the ring's bytes", 100 * short_bytes),
           std::abs(short_bytes - 0.5) <= 0.1},
          {"they could stay on one GPU and move nothing",
           fmt::format("FCP moves {:.1f}% of the ring's bytes for them", 100 * share(3, 4)),
           share(3, 4) == 0}};
}

PaperResult fcp_shards(const BenchOverrides& overrides) {
  constexpr std::int64_t kWhole = 131072;  // a document that fills the kernel
  BenchSetting setting = fcp_setting(overrides, 32);
  setting.input.request.backward = false;
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
  Progress progress(static_cast<std::int64_t>(2 * kLengths.size() + 2));
  progress.step("zigzag");
  const double ring_bytes = forward_bytes(ring, setting, batches, longest);
  for (const std::int64_t length : kLengths) {
    progress.step(fmt::format("zigzag, {}", length));
    const double ring_share = forward_bytes(ring, setting, batches, length) / ring_bytes;
    progress.step(fmt::format("fcp, {}", length));
    const double fcp_share = forward_bytes(fcp, setting, batches, length) / ring_bytes;
    table.add_row({length, rate(length, length * length) / causal_rate(kWhole),
                   causal_rate(length) / causal_rate(kWhole), ring_share, fcp_share});
  }
  std::vector<Finding> findings = shard_findings(table);
  PaperResult result = timed_result(setting, std::move(table));
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
constexpr std::int64_t kPaperBlock = 4096;
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
  setting.input.request.backward = false;
  if (overrides.cluster.empty()) {
    setting.input.cluster.nics_per_node = 1;
    setting.input.cluster.inter_gbytes_per_s_per_node = 50;
  }
  return setting;
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
    "times as fast as the cluster's; every device is a node, so that all transfers cross it.",
    "The arithmetic is of one block among many. A stage of 16 rounds is more than what a device "
    "fetches where documents are short, and then only its local tiles are there to hide it; with "
    "stages of 4, documents of 128K need what the arithmetic says. In sampled lengths some "
    "receivers fetch several times the mean."};

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
  Progress progress(static_cast<std::int64_t>(batches.size() * kCoalesce.size() * kBlocks.size()));
  double alone_gbytes_per_s = 0;
  std::vector<std::string> plans;
  double most_gbytes_per_s = 0;
  for (const auto& [name, lengths] : batches) {
    const Workload workload = make_workload(lengths, setting.shape, {&causal, 1});
    for (const std::int64_t coalesce : kCoalesce) {
      for (const std::int64_t block : kBlocks) {
        progress.step(fmt::format("{}, {}", name, block));
        const StrategyChoice choice{
            "fcp",
            {{"block", fmt::format("{}", block)}, {"coalesce", fmt::format("{}", coalesce)}}};
        const PlannedBatch planned = plan_and_check(choice, setting.input, workload);
        const NetworkNeed need = need_of(*planned.plan, setting.input.cluster);
        const double tile_us = costs.piece_us(Direction::kForward, block, block, block * block, 1);
        const double alone = hiding_gbytes_per_s(setting.shape, block, tile_us);
        table.add_row({name, coalesce, block, tile_us, alone, need.gbytes_per_s, need.slowdown});
        if (block != kPaperBlock) continue;
        alone_gbytes_per_s = alone;
        plans.push_back(
            fmt::format("{} {:.0f} GB/s (coalesce {})", name, need.gbytes_per_s, coalesce));
        if (coalesce == kCoalesce.front()) {
          most_gbytes_per_s = std::max(most_gbytes_per_s, need.gbytes_per_s);
        }
      }
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.plots = {{.x = "block_tokens",
                   .y = {"plan_gbytes_per_s"},
                   .series = {"coalesce"},
                   .panels = {"lengths"}}};
  result.findings = {
      {"22 GB/s suffice to hide the transfer of a block of 4096 tokens in its compute",
       fmt::format("{:.1f} GB/s", alone_gbytes_per_s), alone_gbytes_per_s <= kPaperGbytesPerS},
      {"so they hide the communication of plans", fmt::format("{}", fmt::join(plans, ", ")),
       most_gbytes_per_s <= kPaperGbytesPerS}};
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

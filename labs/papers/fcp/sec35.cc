// FCP (flexible context parallelism, MLSys 2026), section 3.5: the network that hides a block's
// transfer in its compute.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "contextile/simulate.h"
#include "labs/papers/fcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

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
  double slowdown = 0;      // the cluster's own network's addition to forward's time
};

// The network need of a plan, by bisection, to 2%. A network suffices if forward takes at most 2%
// longer than on a network a hundred times the cluster's.
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

PaperSetting sec35_setting(const TableOverrides& overrides) {
  refuse_overrides(
      overrides, "fcp-sec35",
      {"--dataset", "--tokens", "--seed", "--heads", "--kv-heads", "--head-dim", "--cluster"});
  PaperSetting setting;
  setting.datasets = {kFcpLengths};
  setting.batch.tokens = kFcpTokensPerDevice * 32;
  setting.shape.q_heads = 64;
  setting.shape.kv_heads = 8;
  setting.cluster_name = "dgx-h100:32x1";
  apply_overrides(overrides, setting);
  setting.batch.max_length = std::min(setting.batch.tokens, kFcpLongest);
  setting.input.options.backward = false;
  if (overrides.cluster.empty()) {
    setting.input.cluster.nics_per_node = 1;
    setting.input.cluster.inter_gbytes_per_s_per_node = 50;
  }
  return setting;
}

std::string machine_text(const TableOverrides& overrides, const Cluster& cluster) {
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
std::vector<std::pair<std::string, std::vector<std::int64_t>>> sec35_batches(
    const PaperSetting& setting) {
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
      {"22 GB/s hide the transfer of a block in its compute",
       fmt::format("{:.1f} GB/s", need.alone_gbytes_per_s),
       std::abs(need.alone_gbytes_per_s / kPaperGbytesPerS - 1) <= kAloneSlack,
       fmt::format(
           "blocks of 4096 tokens, as the paper names no size: within {} of 22 GB/s, either "
           "way: the kernel's speed is not the paper's",
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

PaperResult make(const TableOverrides& overrides) {
  const PaperSetting setting = sec35_setting(overrides);
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

}  // namespace

PaperTable fcp_sec35() {
  return {"fcp-sec35", "FCP, section 3.5", "the network that hides a block's transfer", make};
}

}  // namespace contextile

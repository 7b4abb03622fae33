#include "strategy/fcp/fcp.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/strategies.h"
#include "strategy/fcp/distributor.h"
#include "strategy/fcp/fcp_pipeline.h"
#include "strategy/schedule/home.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

// Block sizes that block=auto tries, largest first. The paper uses 4096 (Hyper-parameters, §6.1).
constexpr std::array<std::int64_t, 4> kBlockSizes = {8192, 4096, 2048, 1024};

FcpLayout layout_of(const Workload& workload, const Cluster& cluster, const FcpOptions& options) {
  WorkBlocks work = distribute(
      workload, {.block = options.block,
                 .token_cap = options.token_cap,
                 .head_parallel = options.head_parallel,
                 .num_devices = cluster.num_devices(),
                 .cut_heavy = options.cut_heavy,
                 .profile = options.cost == TaskCost::kProfile ? &cluster.attention : nullptr});
  FcpLayout layout;
  layout.owners = owners_of(workload, work);
  for (const Rank worker : work.workers) {
    layout.positions.push_back(worker.value / options.head_parallel);
  }
  layout.blocks = std::move(work.blocks);
  layout.head_parallel = options.head_parallel;
  layout.num_devices = cluster.num_devices();
  layout.shape = workload.shape;
  layout.is_home = !workload.home.empty();
  return layout;
}

FcpPipelineOptions pipeline_options(const FcpOptions& options) {
  FcpPipelineOptions pipeline;
  pipeline.rounds = options.congestion_free ? Rounds::kCongestionFree : Rounds::kBlockOrder;
  pipeline.coalesce = options.coalesce;
  pipeline.buffers = options.pipelining ? options.buffers : 1;
  pipeline.reshuffle = options.reshuffle;
  return pipeline;
}

// Source: FCP (flexible context parallelism by fixed-size blocks): distributor, bipartite matching,
// coalescer, block-level pipeline, reshuffler. Steps: ceil(Δ / coalesce) stages, where Δ is the
// most KV blocks a device sends or receives; local tiles run first and, while results leave, last.
// Bytes: a KV block once to each device that needs it, in backward again with dKV back. With a home
// layout or head_parallel > 1 also Q in and O out of every block whose worker is not its owner, but
// never data that its home has. Memory: KV of `buffers` stages of `coalesce` blocks, and as many
// dKV accumulators; with a home layout, KV waits for its Q and for its stage. Loses where few KV
// heads are shared by few query heads (only KV ever moves, never Q and O), and on batches with too
// few blocks to balance. It also loses where a block is attended by all devices: without relays it
// crosses the node boundary once per receiver.
class FcpStrategy : public TypedStrategy<FcpOptions> {
 public:
  FcpStrategy()
      : TypedStrategy({"fcp",
                       "FCP: blocks balanced in pairs, congestion-free rounds of KV, block-level "
                       "pipeline",
                       PartialWire::kF32, Deciding::kBySearch},
                      option_table()) {}

 protected:
  [[nodiscard]] std::optional<std::string> unsupported_with(
      const Workload& workload, const Cluster& cluster, const FcpOptions& options) const override {
    const std::int32_t heads = options.head_parallel;
    if (workload.shape.kv_heads % heads != 0) {
      return fmt::format("splits heads over {} ranks: expected a divisor of {} KV heads", heads,
                         workload.shape.kv_heads);
    }
    if (cluster.devices_per_node % heads != 0) {
      return fmt::format("splits heads over {} ranks: expected a divisor of {} devices per node",
                         heads, cluster.devices_per_node);
    }
    // "auto" always has room.
    const std::int64_t capacity = options.token_cap * cluster.num_devices();
    if (capacity > 0 && capacity < workload.num_tokens()) {
      return fmt::format("caps tokens at {} a device: expected room for {} on {} devices, found {}",
                         options.token_cap, workload.num_tokens(), cluster.num_devices(), capacity);
    }
    return std::nullopt;
  }

  [[nodiscard]] std::vector<std::int64_t> block_sizes_with(
      const StrategyRequest& request, const FcpOptions& options) const override {
    if (options.block != 0 || request.block_size) return {};
    return {kBlockSizes.begin(), kBlockSizes.end()};
  }

  // Variants with half of the paper's block size, and with heads split over a node. In the latter,
  // a device fetches keys of a part of the heads once, while otherwise every device fetches those
  // of all heads.
  [[nodiscard]] std::vector<FcpOptions> variants_with(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const override {
    const std::int32_t heads = std::gcd(workload.shape.kv_heads, cluster.devices_per_node);
    std::vector<FcpOptions> variants = {FcpOptions{}};
    if (heads > 1) variants.push_back({.head_parallel = heads});
    if (request.block_size) return variants;
    for (std::size_t i = variants.size(); i > 0; --i) {
      FcpOptions& finer = variants.emplace_back(variants[i - 1]);
      finer.block /= 2;
    }
    return variants;
  }

  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         FcpOptions& options) const override {
    if (request.block_size && (options.block == 0 || !request.options.contains("block"))) {
      options.block = *request.block_size;
      CONTEXTILE_CHECK(options.block > 0,
                       "block size: expected a positive number of tokens, found {}", options.block);
    }
    if (options.block == 0) options.block = kBlockSizes.front();
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    FcpLayout layout = layout_of(workload, cluster, options);
    round.head_groups = options.head_parallel;
    for (const NamedMask& mask : workload.masks) {
      round.masks.push_back(mask.mask);
      const std::vector<Tile> tiles = TileIndex(mask.mask, layout.blocks).tiles();
      const FcpPipeline pipeline(layout, tiles, pipeline_options(options));
      ArrangedMask& programs = round.programs.emplace_back();
      programs.forward = pipeline.arrange(Direction::kForward);
      if (request.backward) {
        programs.backward = pipeline.arrange(Direction::kBackward);
        programs.retain = pipeline.retained();
      }
    }
    round.blocks = std::move(layout.blocks);
    round.owners = std::move(layout.owners);
    return arrangement;
  }

 private:
  static OptionTable<FcpOptions> option_table() {
    constexpr std::int64_t kMaxTokensOption = std::int64_t{1} << 32;
    OptionTable<FcpOptions> table;
    return table
        .integer_or("auto", "block", &FcpOptions::block, 1, kMaxTokensOption,
                    "tokens of a block (also set by the block size); auto: 8192, 4096, 2048 or "
                    "1024, whichever is predicted fastest")
        .integer("coalesce", &FcpOptions::coalesce, 1, 1 << 16,
                 "rounds in a stage, with a home layout as many bytes; 1: no coalescing")
        .integer("buffers", &FcpOptions::buffers, 1, 1 << 10,
                 "stages whose keys a device computes with or receives; 1: nothing overlaps")
        .integer("head_parallel", &FcpOptions::head_parallel, 1, 1 << 16,
                 "consecutive ranks of a node that split heads")
        .integer_or("auto", "token_cap", &FcpOptions::token_cap, 1, kMaxTokensOption,
                    "tokens a device may work on; auto: the mean and one block, with a home layout "
                    "equally many blocks each")
        .choice("cost", &FcpOptions::cost, {"profile", "pairs"},
                "blocks are balanced by time from the cluster's attention profile: profile; or by "
                "attended pairs: pairs")
        .on_off("cut_heavy", &FcpOptions::cut_heavy,
                "a block that takes longer than the mean device is cut: on; or blocks have a fixed "
                "size, as published: off")
        .on_off("pipelining", &FcpOptions::pipelining, "transfers overlap with compute: on, off")
        .on_off("congestion_free", &FcpOptions::congestion_free,
                "a device sends and receives once in a round: on; or blocks are fetched in order: "
                "off")
        .choice("reshuffle", &FcpOptions::reshuffle, {"overlapped", "before"},
                "how data moves between home and where the plan wants it: overlapped, before (and "
                "after) all compute");
  }
};

const FcpStrategy& fcp() {
  static const FcpStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& fcp_strategy() { return fcp(); }

StrategyChoice choice_of(const FcpOptions& options) { return fcp().choice(options); }

}  // namespace contextile

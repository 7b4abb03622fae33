#include "strategy/magi/magi.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/strategies.h"
#include "strategy/magi/dispatch.h"
#include "strategy/magi/magi_arranger.h"
#include "strategy/magi/overlap_degree.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

// Source: MagiAttention (SandAI, 2025), its dispatch and overlap solvers and (hierarchical)
// group-collectives. Steps: local tiles, then the remote keys in `stages` portions, each fetched
// under the compute of the one before (launch=all: all under the local tiles). Backward is the
// same, and each portion's dKV is reduced at its owner under the next. hierarchical=on: local tiles
// in two stages, with the hop across nodes under the first and the hop inside nodes under the
// second. Bytes: exactly the needed rows of K and V, once per (row, rank), or once per (row, node)
// across nodes; backward that and as much dKV in the activations' dtype. Memory: the needed KV of
// two portions (launch=all: of all). Loses where one rank's chunks lie in many long documents,
// since nearly all KV is then needed everywhere. With one stage, transfers that take longer than
// the local tiles are exposed.
class MagiStrategy : public TypedStrategy<MagiOptions> {
 public:
  MagiStrategy()
      : TypedStrategy(
            {"magi",
             "MagiAttention: equally many chunks per rank balanced by area, group-cast of "
             "the rows of KV each needs, group-reduce of their gradients",
             PartialWire::kActivations, Deciding::kBySearch},
            option_table()) {}

 protected:
  // Stages hide transfers that take longer than local tiles; across nodes relays move less.
  [[nodiscard]] std::vector<MagiOptions> variants_with(const Workload&, const Cluster& cluster,
                                                       const StrategyRequest&) const override {
    return {MagiOptions{}, MagiOptions{.stages = 4, .hierarchical = cluster.nodes > 1}};
  }

  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         MagiOptions& options) const override {
    if (options.chunk == 0 && request.block_size) {
      options.chunk = *request.block_size;
      CONTEXTILE_CHECK(options.chunk > 0,
                       "block size: expected a positive number of tokens, found {}", options.chunk);
    }
    const std::int32_t num_ranks = cluster.num_devices();
    options.chunk = magi_chunk_tokens(workload.num_tokens(), num_ranks, options.chunk);
    const std::vector<Range> chunks = magi_chunks(workload.num_tokens(), options.chunk);
    std::vector<ChunkWork> work = chunk_work(workload.masks, chunks);
    // The original pads the batch until every rank has equally many chunks.
    const auto ranks = static_cast<std::size_t>(num_ranks);
    work.resize((work.size() + ranks - 1) / ranks * ranks);
    const std::vector<Rank> workers =
        dispatch_chunks(work, num_ranks, options.algorithm, options.top_p);
    const auto arranged = [&] {
      return arrange_chunks(workload, cluster, chunks, workers, options, request.backward);
    };
    if (options.stages > 0) return arranged();
    // More stages must save at least as much time as predictions are worth.
    constexpr double kSaving = 0.995;
    Arrangement best;
    double best_us = 0;
    std::int32_t best_stages = 0;
    for (options.stages = 1; options.stages <= kMaxOverlapDegree; ++options.stages) {
      Arrangement next = arranged();
      const double us = overlapped_us(next.rounds.front(), workload, cluster);
      if (best_stages > 0 && us >= kSaving * best_us) continue;
      best = std::move(next);
      best_us = us;
      best_stages = options.stages;
    }
    options.stages = best_stages;
    return best;
  }

 private:
  static OptionTable<MagiOptions> option_table() {
    OptionTable<MagiOptions> table;
    return table
        .integer_or("auto", "chunk", &MagiOptions::chunk, 1, std::int64_t{1} << 32,
                    "tokens of a dispatch chunk, at most what gives every rank eight; auto: as "
                    "many, or the block size")
        .choice("algorithm", &MagiOptions::algorithm,
                {"min_heap", "topp_heap", "sequential", "binary_search", "backtracking"},
                "chunks by area to the least loaded rank, to that of the less loaded ones that has "
                "most of their keys, equal runs in order, or the least load of the fullest rank "
                "with any or equal counts: min_heap, topp_heap, sequential, binary_search, "
                "backtracking")
        .real("top_p", &MagiOptions::top_p, 0, 1,
              "topp_heap: share of the ranks that a chunk chooses from; 0: the least loaded")
        .integer_or("auto", "stages", &MagiOptions::stages, 1, 1 << 10,
                    "portions of remote KV, each fetched under the compute of the one before; "
                    "auto: up to eight, by estimated time")
        .integer("keys_per_element", &MagiOptions::keys_per_element, 1, std::int64_t{1} << 32,
                 "keys of the elements that stages are made of")
        .integer("max_elements", &MagiOptions::max_elements, 1, 1 << 20,
                 "elements of a rank at most; more keys make them larger")
        .choice("launch", &MagiOptions::launch, {"next", "all"},
                "transfers start one stage ahead, or all with the local tiles: next, all")
        .on_off("hierarchical", &MagiOptions::hierarchical,
                "a row crosses to a node once and is passed on inside: off, on");
  }
};

const MagiStrategy& magi() {
  static const MagiStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& magi_strategy() { return magi(); }

StrategyChoice choice_of(const MagiOptions& options) { return magi().choice(options); }

}  // namespace contextile

#include "strategy/axp/axp.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "contextile/mask.h"
#include "strategy/schedule/home.h"
#include "strategy/schedule/nested_ring.h"
#include "strategy/schedule/ring.h"

namespace contextile {
namespace {

class AxpArranger {
 public:
  AxpArranger(const Workload& workload, const Cluster& cluster, const AxpConfig& config)
      : workload_(workload),
        config_(config),
        a_(config.head_parallel),
        p_(config.context_parallel) {
    const auto ranges = rank_ranges(config.layout, workload.sequences, cluster.num_devices());
    for (std::int32_t r = 0; r < cluster.num_devices(); ++r) {
      append_blocks(workload, ranges[static_cast<std::size_t>(r)], Rank{r}, config.block_size,
                    work_);
    }
    // The all-to-all comes before any attention.
    first_stage_ = a_ > 1 || is_replicated() ? 1 : 0;
  }

  Arrangement run() {
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    round.head_groups = a_;
    for (const NamedMask& mask : workload_.masks) {
      round.masks.push_back(mask.mask);
      tiles_ = TileIndex(mask.mask, work_.blocks).tiles();
      note_shares();
      ArrangedMask& programs = round.programs.emplace_back();
      programs.forward = forward();
      if (config_.backward) {
        programs.backward = backward();
        retain(programs.retain);
      }
    }
    finish_round(workload_, std::move(work_), round);
    return arrangement;
  }

 private:
  [[nodiscard]] bool is_replicated() const { return config_.movement == KvMovement::kReplicate; }
  // Replicas of a head group are neighbours: each takes every P-th rank's queries, so that they
  // have equal work whichever tokens ranks own.
  [[nodiscard]] Rank rank_at(std::int32_t a, std::int32_t p) const {
    return Rank{is_replicated() ? a * p_ + p : p * a_ + a};
  }
  [[nodiscard]] std::int32_t head_position(BlockId b) const {
    return is_replicated() ? worker(b).value / p_ : worker(b).value % a_;
  }
  [[nodiscard]] std::int32_t position(BlockId b) const {
    return is_replicated() ? worker(b).value % p_ : worker(b).value / a_;
  }
  [[nodiscard]] Rank worker(BlockId b) const { return work_.workers[b.index()]; }
  [[nodiscard]] bool has(BlockId b, Kind kind) const {
    return role_has(work_.blocks.role(b), kind);
  }

  // Notes which positions compute a share of each key block's gradient and which query blocks have
  // any tile.
  void note_shares() {
    shares_.assign(
        static_cast<std::size_t>(work_.blocks.num_blocks()) * static_cast<std::size_t>(p_), false);
    attends_.assign(static_cast<std::size_t>(work_.blocks.num_blocks()), false);
    for (const Tile& tile : tiles_) {
      shares_[share_index(tile.kv_block, position(tile.q_block))] = true;
      attends_[tile.q_block.index()] = true;
    }
  }
  [[nodiscard]] std::size_t share_index(BlockId kv_block, std::int32_t p) const {
    return kv_block.index() * static_cast<std::size_t>(p_) + static_cast<std::size_t>(p);
  }
  [[nodiscard]] bool has_gradient(BlockId kv_block) const {
    const auto first = shares_.begin() + static_cast<std::ptrdiff_t>(share_index(kv_block, 0));
    return std::find(first, first + p_, true) != first + p_;
  }

  template <typename Visit>
  void for_each_block(Kind kind, const Visit& visit) const {
    for (std::int32_t b = 0; b < work_.blocks.num_blocks(); ++b) {
      if (has(BlockId{b}, kind)) visit(BlockId{b});
    }
  }

  // Sends every unit of the kind from its block's worker to the rank of the unit's head group.
  void scatter_heads(Kind kind, std::vector<Transfer>& out) const {
    for_each_block(kind, [&](BlockId b) {
      for (std::int32_t g = 0; g < a_; ++g) {
        if (g == head_position(b)) continue;
        out.push_back({kind, b, GroupId{g}, worker(b), rank_at(g, position(b)), 0, 1});
      }
    });
  }

  // Visits every key block and head group with each rank of the group that is not the block's
  // owner.
  template <typename Visit>
  void for_each_replica(const Visit& visit) const {
    for_each_block(Kind::kKv, [&](BlockId b) {
      for (std::int32_t g = 0; g < a_; ++g) {
        for (std::int32_t p = 0; p < p_; ++p) {
          if (rank_at(g, p) != worker(b)) visit(b, g, p);
        }
      }
    });
  }

  // Brings the keys and values of every head group to its rank, or to all its ranks.
  void scatter_kv(std::vector<Transfer>& out) const {
    if (!is_replicated()) return scatter_heads(Kind::kKv, out);
    for_each_replica([&](BlockId b, std::int32_t g, std::int32_t p) {
      out.push_back({Kind::kKv, b, GroupId{g}, worker(b), rank_at(g, p), 0, 1});
    });
  }

  // Sends the gradients of keys and values home. The owner adds up those of replicas.
  void gather_dkv(std::int32_t stage, std::vector<Transfer>& out) const {
    if (!is_replicated()) return gather_heads(Kind::kDkv, stage, out);
    for_each_replica([&](BlockId b, std::int32_t g, std::int32_t p) {
      if (!shares_[share_index(b, p)]) return;
      out.push_back({Kind::kDkv, b, GroupId{g}, rank_at(g, p), worker(b), stage, stage + 1});
    });
  }

  // Sends the results of the kind back, those that exist.
  void gather_heads(Kind kind, std::int32_t stage, std::vector<Transfer>& out) const {
    for_each_block(kind, [&](BlockId b) {
      if (is_of_kv(kind) ? !has_gradient(b) : !attends_[b.index()]) return;
      for (std::int32_t g = 0; g < a_; ++g) {
        if (g == head_position(b)) continue;
        out.push_back({kind, b, GroupId{g}, rank_at(g, position(b)), worker(b), stage, stage + 1});
      }
    });
  }

  // Returns the ring of head group g over the positions, nested as configured.
  [[nodiscard]] NestedRing ring_of(std::int32_t g) const {
    const std::int32_t inner = config_.inner_ring > 0 ? config_.inner_ring : p_;
    return {p_, inner, [this, g](std::int32_t p) { return rank_at(g, p); }};
  }

  template <typename StageOf>
  void place_tiles(const StageOf& stage_of, std::vector<PlacedTile>& out) const {
    out.reserve(tiles_.size() * static_cast<std::size_t>(a_));
    for (std::int32_t g = 0; g < a_; ++g) {
      for (const Tile& tile : tiles_) {
        const std::int32_t p = position(tile.q_block);
        out.push_back({tile.q_block, tile.kv_block, GroupId{g}, rank_at(g, p),
                       stage_of(p, position(tile.kv_block)), tile.pairs});
      }
    }
  }

  // Moves all keys and values to every position before any compute. Returns the stage of the
  // compute.
  std::int32_t gather_kv(std::vector<Transfer>& out) const {
    if (p_ == 1 || is_replicated()) return first_stage_;
    for_each_block(Kind::kKv, [&](BlockId b) {
      for (std::int32_t g = 0; g < a_; ++g) {
        const std::int32_t home = position(b);
        if (config_.movement == KvMovement::kGatherRing) {
          ring_of(g).relay_forward(b, GroupId{g}, home, first_stage_, out);
          continue;
        }
        for (std::int32_t step = 1; step < p_; ++step) {
          out.push_back({Kind::kKv, b, GroupId{g}, rank_at(g, home),
                         rank_at(g, ring_shift(home, step, p_)), first_stage_, first_stage_ + 1});
        }
      }
    });
    return config_.movement == KvMovement::kGatherRing ? first_stage_ + p_ - 1 : first_stage_ + 1;
  }

  ArrangedDirection forward() const {
    ArrangedDirection out;
    scatter_heads(Kind::kQ, out.transfers);
    scatter_kv(out.transfers);
    std::int32_t last = first_stage_ + p_ - 1;
    if (config_.movement == KvMovement::kRing) {
      for_each_block(Kind::kKv, [&](BlockId b) {
        for (std::int32_t g = 0; g < a_; ++g) {
          ring_of(g).relay_forward(b, GroupId{g}, position(b), first_stage_, out.transfers);
        }
      });
      const NestedRing ring = ring_of(0);
      place_tiles(
          [&](std::int32_t q, std::int32_t kv) { return first_stage_ + ring.forward_stage(q, kv); },
          out.tiles);
    } else {
      last = gather_kv(out.transfers);
      place_tiles([&](std::int32_t, std::int32_t) { return last; }, out.tiles);
    }
    gather_heads(Kind::kO, last + 1, out.transfers);
    return out;
  }

  ArrangedDirection backward() const {
    ArrangedDirection out;
    scatter_heads(Kind::kDo, out.transfers);
    const std::int32_t end =
        config_.movement == KvMovement::kRing ? backward_ring(out) : backward_gather(out);
    gather_heads(Kind::kDq, end, out.transfers);
    gather_dkv(end, out.transfers);
    return out;
  }

  // Returns the first stage after all tiles and transfers of the ring.
  std::int32_t backward_ring(ArrangedDirection& out) const {
    for_each_block(Kind::kKv, [&](BlockId b) {
      for (std::int32_t g = 0; g < a_; ++g) {
        ring_of(g).relay_backward(
            b, GroupId{g}, position(b), first_stage_,
            [&](std::int32_t p) { return shares_[share_index(b, p)]; }, out.transfers);
      }
    });
    const NestedRing ring = ring_of(0);
    place_tiles(
        [&](std::int32_t q, std::int32_t kv) { return first_stage_ + ring.backward_stage(q, kv); },
        out.tiles);
    return first_stage_ + ring.backward_stages();
  }

  std::int32_t backward_gather(ArrangedDirection& out) const {
    const std::int32_t compute = gather_kv(out.transfers);
    place_tiles([&](std::int32_t, std::int32_t) { return compute; }, out.tiles);
    if (p_ == 1 || is_replicated()) return compute + 1;
    for_each_block(Kind::kKv, [&](BlockId b) {
      const std::int32_t home = position(b);
      for (std::int32_t g = 0; g < a_; ++g) {
        if (config_.movement == KvMovement::kGatherRing) {
          ring_of(g).collect(
              b, GroupId{g}, home, compute + 1,
              [&](std::int32_t p) { return shares_[share_index(b, p)]; }, out.transfers);
          continue;
        }
        for (std::int32_t step = 1; step < p_; ++step) {
          const std::int32_t from = ring_shift(home, step, p_);
          if (!shares_[share_index(b, from)]) continue;
          out.transfers.push_back({Kind::kDkv, b, GroupId{g}, rank_at(g, from), rank_at(g, home),
                                   compute + 1, compute + 2});
        }
      }
    });
    return compute + 1 +
           (config_.movement == KvMovement::kGatherRing ? ring_of(0).collecting_stages() : 1);
  }

  // Retains for backward the units that the all-to-all brought.
  void retain(std::vector<RetainedUnit>& out) const {
    for (const Kind kind : {Kind::kQ, Kind::kKv}) {
      if (kind == Kind::kKv && is_replicated()) continue;
      for_each_block(kind, [&](BlockId b) {
        for (std::int32_t g = 0; g < a_; ++g) {
          if (g != head_position(b)) out.push_back({rank_at(g, position(b)), kind, b, GroupId{g}});
        }
      });
    }
    if (!is_replicated()) return;
    for_each_replica([&](BlockId b, std::int32_t g, std::int32_t p) {
      out.push_back({rank_at(g, p), Kind::kKv, b, GroupId{g}});
    });
  }

  const Workload& workload_;
  const AxpConfig& config_;
  std::int32_t a_;
  std::int32_t p_;
  std::int32_t first_stage_ = 0;
  WorkBlocks work_;
  std::vector<Tile> tiles_;  // of the current mask
  // [key block][position]: the position computes a share of its gradient
  std::vector<bool> shares_;
  std::vector<bool> attends_;  // [query block]: it has a tile
};

}  // namespace

void gather_by(GatherAlgorithm algorithm, const Cluster& cluster, AxpConfig& config) {
  config.movement =
      algorithm == GatherAlgorithm::kDirect ? KvMovement::kGatherDirect : KvMovement::kGatherRing;
  config.inner_ring = algorithm == GatherAlgorithm::kNested ? cluster.devices_per_node : 0;
}

Arrangement arrange_axp(const Workload& workload, const Cluster& cluster, const AxpConfig& config) {
  return AxpArranger(workload, cluster, config).run();
}

PaddingFactors padding_factors(const Workload& workload, TokenLayout layout,
                               std::int32_t num_ranks) {
  if (layout == TokenLayout::kPerDocument) return {};  // this layout never pads
  const std::int64_t unit = layout == TokenLayout::kContiguous ? num_ranks : 2 * num_ranks;
  const auto padded = [&](std::int64_t length) { return (length + unit - 1) / unit * unit; };
  if (layout == TokenLayout::kPerSequence) {  // the padding is a document that no query attends
    const auto tokens = static_cast<double>(workload.num_tokens());
    return {static_cast<double>(padded(workload.num_tokens())) / tokens, 1};
  }
  double tokens = 0;
  double pairs = 0;
  double real_pairs = 0;
  for (const Range& sequence : workload.sequences) {
    const auto real = static_cast<double>(sequence.size());
    const auto full = static_cast<double>(padded(sequence.size()));
    tokens += full;
    pairs += full * (full + 1) / 2;
    real_pairs += real * (real + 1) / 2;
  }
  return {tokens / static_cast<double>(workload.num_tokens()), pairs / real_pairs};
}

}  // namespace contextile

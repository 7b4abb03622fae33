#include "strategy/schedule/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "contextile/mask.h"
#include "strategy/schedule/home.h"
#include "strategy/schedule/nested_ring.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {
namespace {

class RoundArranger {
 public:
  RoundArranger(const Workload& workload, const ScheduleRound& items, const GroupsConfig& config)
      : workload_(workload), items_(items), config_(config) {
    for (std::size_t i = 0; i < items.size(); ++i) cut(i);
    start_items();
  }

  ArrangedRound run() {
    ArrangedRound round;
    const std::vector<Range> tokens = tokens_of_round();
    for (const NamedMask& named : workload_.masks) {
      Mask mask = restrict(named.mask, tokens);
      tiles_ = TileIndex(mask, work_.blocks).tiles();
      note_shares();
      ArrangedMask& programs = round.programs.emplace_back();
      programs.forward = arrange(Direction::kForward);
      if (config_.backward) programs.backward = arrange(Direction::kBackward);
      round.masks.push_back(std::move(mask));
    }
    finish_round(workload_, std::move(work_), round);
    return round;
  }

 private:
  struct Start {  // first stages of an item
    std::int32_t forward = 0;
    std::int32_t backward = 0;
  };

  // Cuts the sequences of item i into blocks in a zigzag over its ranks.
  void cut(std::size_t i) {
    const GroupBatch& item = items_[i];
    std::vector<Range> sequences;
    for (const std::int32_t s : item.sequences) {
      sequences.push_back(workload_.sequences[static_cast<std::size_t>(s)]);
    }
    const auto ranges = rank_ranges(TokenLayout::kZigzag, sequences, item.size);
    for (std::int32_t p = 0; p < item.size; ++p) {
      append_blocks(workload_, ranges[static_cast<std::size_t>(p)], Rank{item.first + p},
                    config_.block_size, work_);
    }
    item_of_.resize(static_cast<std::size_t>(work_.blocks.num_blocks()), i);
    const std::int32_t first = item.first;
    rings_.emplace_back(item.size, item.size, [first](std::int32_t p) { return Rank{first + p}; });
  }

  // An item begins when the last of its ranks has finished the items before.
  void start_items() {
    std::int32_t num_ranks = 0;
    for (const GroupBatch& item : items_) num_ranks = std::max(num_ranks, item.first + item.size);
    std::vector<Start> next(static_cast<std::size_t>(num_ranks));
    for (std::size_t i = 0; i < items_.size(); ++i) {
      Start start;
      const auto ranks = std::span(next).subspan(static_cast<std::size_t>(items_[i].first),
                                                 static_cast<std::size_t>(items_[i].size));
      for (const Start& rank : ranks) {
        start.forward = std::max(start.forward, rank.forward);
        start.backward = std::max(start.backward, rank.backward);
      }
      starts_.push_back(start);
      std::fill(ranks.begin(), ranks.end(),
                Start{start.forward + rings_[i].forward_stages(),
                      start.backward + rings_[i].backward_stages()});
    }
  }

  [[nodiscard]] std::vector<Range> tokens_of_round() const {
    std::vector<Range> tokens;
    for (const GroupBatch& item : items_) {
      for (const std::int32_t s : item.sequences) {
        tokens.push_back(workload_.sequences[static_cast<std::size_t>(s)]);
      }
    }
    std::sort(tokens.begin(), tokens.end());
    std::vector<Range> joined;
    for (const Range& range : tokens) {
      if (!joined.empty() && joined.back().end == range.begin) {
        joined.back().end = range.end;
      } else {
        joined.push_back(range);
      }
    }
    return joined;
  }

  [[nodiscard]] std::size_t item_of(BlockId b) const { return item_of_[b.index()]; }
  [[nodiscard]] std::int32_t position(BlockId b) const {
    return work_.workers[b.index()].value - items_[item_of(b)].first;
  }

  // Notes which positions of its ring compute a share of each key block's gradient.
  void note_shares() {
    shares_.assign(static_cast<std::size_t>(work_.blocks.num_blocks()), {});
    for (const Tile& tile : tiles_) {
      std::vector<bool>& shares = shares_[tile.kv_block.index()];
      shares.resize(static_cast<std::size_t>(items_[item_of(tile.kv_block)].size));
      shares[static_cast<std::size_t>(position(tile.q_block))] = true;
    }
  }

  [[nodiscard]] ArrangedDirection arrange(Direction direction) const {
    const bool forward = direction == Direction::kForward;
    ArrangedDirection out;
    out.tiles.reserve(tiles_.size());
    for (const Tile& tile : tiles_) {
      const std::size_t i = item_of(tile.q_block);
      const std::int32_t q = position(tile.q_block);
      const std::int32_t kv = position(tile.kv_block);
      const std::int32_t stage = forward ? starts_[i].forward + rings_[i].forward_stage(q, kv)
                                         : starts_[i].backward + rings_[i].backward_stage(q, kv);
      out.tiles.push_back({tile.q_block, tile.kv_block, GroupId{0},
                           work_.workers[tile.q_block.index()], stage, tile.pairs});
    }
    for (std::int32_t b = 0; b < work_.blocks.num_blocks(); ++b) {
      const BlockId block{b};
      if (!role_has(work_.blocks.role(block), Kind::kKv)) continue;
      const std::size_t i = item_of(block);
      if (forward) {
        rings_[i].relay_forward(block, GroupId{0}, position(block), starts_[i].forward,
                                out.transfers);
        continue;
      }
      const std::vector<bool>& shares = shares_[block.index()];
      rings_[i].relay_backward(
          block, GroupId{0}, position(block), starts_[i].backward,
          [&](std::int32_t p) { return !shares.empty() && shares[static_cast<std::size_t>(p)]; },
          out.transfers);
    }
    return out;
  }

  const Workload& workload_;
  const ScheduleRound& items_;
  const GroupsConfig& config_;
  WorkBlocks work_;
  std::vector<std::size_t> item_of_;       // of every block
  std::vector<NestedRing> rings_;          // of every item
  std::vector<Start> starts_;              // of every item
  std::vector<Tile> tiles_;                // of the current mask
  std::vector<std::vector<bool>> shares_;  // [key block][position]; empty: it has no tile
};

}  // namespace

ScheduleRound group_items(const RankSamples& samples, SampleOrder order) {
  ScheduleRound items;
  for (std::size_t first = 0; first < samples.size();) {
    std::size_t end = first + 1;
    while (end < samples.size() && !samples[first].empty() && samples[end] == samples[first]) ++end;
    GroupBatch item{static_cast<std::int32_t>(first), static_cast<std::int32_t>(end - first), {}};
    if (order == SampleOrder::kPacked && !samples[first].empty()) {
      item.sequences = samples[first];
      items.push_back(std::move(item));
    } else if (order == SampleOrder::kOneByOne) {
      for (const std::int32_t sample : samples[first]) {
        item.sequences = {sample};
        items.push_back(item);
      }
    }
    first = end;
  }
  return items;
}

Arrangement arrange_groups(const Workload& workload, std::span<const ScheduleRound> rounds,
                           const GroupsConfig& config) {
  Arrangement arrangement;
  for (const ScheduleRound& items : rounds) {
    arrangement.rounds.push_back(RoundArranger(workload, items, config).run());
  }
  return arrangement;
}

std::optional<std::string> crosses_sequences(const Workload& workload) {
  const auto& sequences = workload.sequences;
  for (const NamedMask& named : workload.masks) {
    for (const Band& band : named.mask.bands) {
      std::int64_t inside = 0;
      auto s = std::partition_point(sequences.begin(), sequences.end(),
                                    [&](Range r) { return r.end <= band.q.begin; });
      for (; s != sequences.end() && s->begin < band.q.end; ++s) {
        inside += num_pairs(clip(band, *s, *s));
      }
      if (inside == num_pairs(band)) continue;
      return fmt::format(
          "gives every sequence ranks of its own: expected a mask inside sequences, found mask "
          "'{}' "
          "with queries [{}, {}) and keys [{}, {}) of different sequences",
          named.name, band.q.begin, band.q.end, band.k.begin, band.k.end);
    }
  }
  return std::nullopt;
}

}  // namespace contextile

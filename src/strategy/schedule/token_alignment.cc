#include "strategy/schedule/token_alignment.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/interrupt.h"
#include "contextile/mask.h"
#include "strategy/schedule/home.h"

namespace contextile {
namespace {

using Tokens = IdVector<Rank, std::int64_t>;

// A part of a block in its order of tokens, with the device that will own it.
struct Piece {
  std::int64_t tokens = 0;
  Rank owner;
};
struct BlockOfRound {
  std::size_t round = 0;
  BlockId block;
};

Tokens tokens_of_devices(const Cluster& cluster, const Arrangement& arrangement) {
  Tokens owned(IdRange<Rank>{cluster.num_devices()}, 0);
  for (const ArrangedRound& round : arrangement.rounds) {
    for (const BlockId b : IdRange<BlockId>(round.blocks.num_blocks())) {
      owned[round.owners[b.index()]] += round.blocks.num_tokens(b);
    }
  }
  return owned;
}

// Takes what devices own above the cap and fills the emptiest up to a common level.
void keep_to_cap(std::int64_t cap, Tokens& tokens) {
  std::int64_t above = 0;
  for (std::int64_t& t : tokens) {
    above += std::max<std::int64_t>(0, t - cap);
    t = std::min(t, cap);
  }
  while (above > 0) {
    const std::int64_t least = *std::ranges::min_element(tokens);
    std::int64_t next = cap;
    std::int64_t emptiest = 0;
    for (const std::int64_t t : tokens) {
      if (t > least) next = std::min(next, t);
      emptiest += t == least ? 1 : 0;
    }
    const std::int64_t each = std::max<std::int64_t>(1, std::min(next - least, above / emptiest));
    for (std::int64_t& t : tokens) {
      if (t != least || above == 0) continue;
      t += each;
      above -= each;
    }
  }
}

// Rounds to multiples, up where most is missing, so that the sum stays.
void round_to_multiples(std::int64_t multiple, std::int64_t cap, Tokens& tokens) {
  std::int64_t left = 0;
  std::vector<std::pair<std::int64_t, Rank>> rests;
  for (const Rank rank : tokens.ids()) {
    const std::int64_t rest = tokens[rank] % multiple;
    tokens[rank] -= rest;
    left += rest;
    rests.emplace_back(-rest, rank);
  }
  std::ranges::sort(rests);
  while (left > 0) {
    for (const auto& [rest, rank] : rests) {
      if (left == 0 || tokens[rank] + multiple > cap) continue;
      tokens[rank] += multiple;
      left -= multiple;
    }
  }
}

// Chooses the tokens that leave their owners. Blocks that few transfers carry are cut first, since
// every transfer of a block becomes one of each of its pieces.
class Pieces {
 public:
  Pieces(const Cluster& cluster, const Arrangement& arrangement, Tokens owned, Tokens wanted)
      : cluster_(cluster),
        arrangement_(arrangement),
        owned_(std::move(owned)),
        wanted_(std::move(wanted)) {
    for (const ArrangedRound& round : arrangement.rounds) {
      pieces_.emplace_back(IdRange<BlockId>(round.blocks.num_blocks()));
    }
    list_blocks();
    for (const Rank rank : owned_.ids()) unload(rank);
  }

  // The pieces of every block of a round, the first tokens first; none: it stays as it is.
  [[nodiscard]] const IdVector<BlockId, std::vector<Piece>>& of_round(std::size_t round) const {
    return pieces_[round];
  }

 private:
  void list_blocks() {
    mine_ = IdVector<Rank, std::vector<BlockOfRound>>(owned_.ids());
    std::vector<std::vector<std::int64_t>> transfers;
    for (std::size_t r = 0; r < arrangement_.rounds.size(); ++r) {
      const ArrangedRound& round = arrangement_.rounds[r];
      auto& of_block = transfers.emplace_back(static_cast<std::size_t>(round.blocks.num_blocks()));
      for (const ArrangedMask& mask : round.programs) {
        for (const auto* direction : {&mask.forward, &mask.backward}) {
          if (!*direction) continue;
          for (const Transfer& t : (*direction)->transfers) ++of_block[t.block.index()];
        }
      }
      for (const BlockId b : IdRange<BlockId>(round.blocks.num_blocks())) {
        mine_[round.owners[b.index()]].push_back({r, b});
      }
    }
    for (std::vector<BlockOfRound>& blocks : mine_) {
      std::ranges::stable_sort(blocks, {}, [&](const BlockOfRound& b) {
        return std::pair(transfers[b.round][b.block.index()],
                         -arrangement_.rounds[b.round].blocks.num_tokens(b.block));
      });
    }
  }

  void unload(Rank rank) {
    for (const BlockOfRound& at : mine_[rank]) {
      if (owned_[rank] <= wanted_[rank]) return;
      std::int64_t kept = arrangement_.rounds[at.round].blocks.num_tokens(at.block);
      std::vector<Piece>& pieces = pieces_[at.round][at.block];
      while (kept > 0 && owned_[rank] > wanted_[rank]) {
        const Rank to = with_most_room(rank);
        const std::int64_t tokens =
            std::min({owned_[rank] - wanted_[rank], wanted_[to] - owned_[to], kept});
        pieces.insert(pieces.begin(), {tokens, to});
        kept -= tokens;
        owned_[rank] -= tokens;
        owned_[to] += tokens;
      }
      if (kept > 0) pieces.insert(pieces.begin(), {kept, rank});
    }
  }
  // One of the same node if one there has room.
  [[nodiscard]] Rank with_most_room(Rank from) const {
    const auto key = [&](Rank rank) {
      const std::int64_t room = wanted_[rank] - owned_[rank];
      return std::tuple(room <= 0, !cluster_.same_node(rank, from), -room);
    };
    const auto ranks = owned_.ids();
    return *std::ranges::min_element(ranks, {}, key);
  }

  const Cluster& cluster_;
  const Arrangement& arrangement_;
  Tokens owned_;
  Tokens wanted_;
  std::vector<IdVector<BlockId, std::vector<Piece>>> pieces_;  // by round
  IdVector<Rank, std::vector<BlockOfRound>> mine_;
};

// Tells which transfers of inputs carry what their receiver computes with, retains or passes on.
// Receivers of `wanted` use what those carry.
class NeededInputs {
 public:
  using Use = std::tuple<Kind, BlockId, GroupId, Rank>;

  NeededInputs(const ArrangedDirection& arranged, const std::vector<RetainedUnit>& retained,
               Direction direction, const std::vector<bool>& cut,
               const std::vector<Transfer>& wanted = {}) {
    for (const Transfer& t : wanted) uses_.emplace(t.kind, t.block, t.group, t.dst);
    for (const PlacedTile& tile : arranged.tiles) {
      for (int k = 0; k < kNumKinds; ++k) {
        const auto kind = static_cast<Kind>(k);
        const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
        if (!occurs_in(kind, direction) || is_result(kind) || !cut[block.index()]) continue;
        uses_.emplace(kind, block, tile.group, tile.device);
      }
    }
    if (direction == Direction::kForward) {
      for (const RetainedUnit& unit : retained) {
        uses_.emplace(unit.kind, unit.block, unit.group, unit.device);
      }
    }
    std::vector<const Transfer*> latest_first;
    for (const Transfer& t : arranged.transfers) {
      if (!is_result(t.kind) && cut[t.block.index()]) latest_first.push_back(&t);
    }
    std::ranges::stable_sort(latest_first, std::ranges::greater{}, &Transfer::launch_stage);
    for (const Transfer* t : latest_first) {
      if (carries_needed(*t)) uses_.emplace(t->kind, t->block, t->group, t->src);
    }
  }
  [[nodiscard]] bool carries_needed(const Transfer& t) const {
    return uses_.contains({t.kind, t.block, t.group, t.dst});
  }

 private:
  std::set<Use> uses_;
};

// Cuts a round into pieces, which follow each other in the order of their tokens.
class RoundCutter {
 public:
  RoundCutter(const IdVector<BlockId, std::vector<Piece>>& pieces, ArrangedRound& round)
      : round_(round), parts_(pieces.ids()) {
    if (std::ranges::all_of(pieces, &std::vector<Piece>::empty)) return;
    cut_blocks(pieces);
    for (std::size_t m = 0; m < round_.programs.size(); ++m) {
      const TileIndex index(round_.masks[m], round_.blocks);
      pairs_.clear();
      ArrangedMask& mask = round_.programs[m];
      const std::vector<RetainedUnit> retained = mask.retain;
      cut_units(mask.retain);
      for (const Direction direction : kDirections) {
        auto& arranged = direction == Direction::kForward ? mask.forward : mask.backward;
        if (!arranged) continue;
        const NeededInputs before(*arranged, retained, direction, was_cut_);
        cut_tiles(index, arranged->tiles);
        cut_transfers(direction, mask.retain, before, *arranged);
      }
    }
    route_home(workers_, routed_, round_);
  }

 private:
  void cut_blocks(const IdVector<BlockId, std::vector<Piece>>& pieces) {
    const Blocking before = std::move(round_.blocks);
    const std::vector<Rank> owners = std::move(round_.owners);
    const std::vector<std::int32_t> head_groups = std::move(round_.block_head_groups);
    round_.blocks = {};
    round_.owners.clear();
    round_.block_head_groups.clear();
    for (const BlockId b : pieces.ids()) {
      const Rank worker = owners[b.index()];
      const auto add = [&](std::span<const Range> ranges, Rank owner) {
        parts_[b].push_back(round_.blocks.add(ranges, before.role(b)));
        round_.owners.push_back(owner);
        workers_.push_back(worker);
        routed_.push_back(!pieces[b].empty());
        if (!head_groups.empty()) round_.block_head_groups.push_back(head_groups[b.index()]);
      };
      was_cut_.push_back(!pieces[b].empty());
      std::vector<Range> rest(before.ranges(b).begin(), before.ranges(b).end());
      for (const Piece& piece : pieces[b]) add(take_first(piece.tokens, rest), piece.owner);
      if (pieces[b].empty()) add(rest, worker);
    }
  }
  // Removes that many tokens from the front of the ranges and returns them.
  static std::vector<Range> take_first(std::int64_t tokens, std::vector<Range>& ranges) {
    std::vector<Range> taken;
    std::size_t used = 0;
    for (; tokens > 0; ++used) {
      Range& range = ranges[used];
      const std::int64_t end = std::min(range.end, range.begin + tokens);
      taken.push_back({range.begin, end});
      tokens -= end - range.begin;
      range.begin = end;
      if (!range.empty()) break;
    }
    ranges.erase(ranges.begin(), ranges.begin() + static_cast<std::ptrdiff_t>(used));
    return taken;
  }

  void cut_tiles(const TileIndex& index, std::vector<PlacedTile>& tiles) {
    std::vector<PlacedTile> cut;
    cut.reserve(tiles.size());
    RareInterruptCheck check;
    for (const PlacedTile& tile : tiles) {
      check();
      const bool is_cut = was_cut_[tile.q_block.index()] || was_cut_[tile.kv_block.index()];
      for (const BlockId q : parts_[tile.q_block]) {
        for (const BlockId kv : parts_[tile.kv_block]) {
          PlacedTile part = tile;
          part.q_block = q;
          part.kv_block = kv;
          if (is_cut) part.pairs = pairs_of(index, q, kv);
          if (part.pairs > 0) cut.push_back(part);
        }
      }
    }
    tiles = std::move(cut);
  }
  // Every head group and direction needs the same numbers.
  std::int64_t pairs_of(const TileIndex& index, BlockId q, BlockId kv) {
    const auto [found, is_new] = pairs_.try_emplace({q, kv}, 0);
    if (is_new) {
      std::vector<TilePiece> pieces;
      index.append_pieces(q, kv, pieces);
      for (const TilePiece& piece : pieces) found->second += piece.pairs;
    }
    return found->second;
  }
  // Cuts transfers. If one was needed, only those of its pieces that still are stay. Others, such
  // as those of a ring, stay as they are.
  void cut_transfers(Direction direction, const std::vector<RetainedUnit>& retained,
                     const NeededInputs& before, ArrangedDirection& arranged) const {
    std::vector<Transfer> needless;
    std::ranges::copy_if(arranged.transfers, std::back_inserter(needless), [&](const Transfer& t) {
      return !is_result(t.kind) && was_cut_[t.block.index()] && !before.carries_needed(t);
    });
    cut_units(needless);
    cut_units(arranged.transfers);
    const NeededInputs after(arranged, retained, direction, routed_, needless);
    std::erase_if(arranged.transfers, [&](const Transfer& t) {
      return !is_result(t.kind) && routed_[t.block.index()] && !after.carries_needed(t);
    });
  }
  // Transfers, or retained units.
  template <typename Unit>
  void cut_units(std::vector<Unit>& units) const {
    std::vector<Unit> cut;
    cut.reserve(units.size());
    for (const Unit& unit : units) {
      for (const BlockId block : parts_[unit.block]) {
        cut.push_back(unit);
        cut.back().block = block;
      }
    }
    units = std::move(cut);
  }

  ArrangedRound& round_;
  IdVector<BlockId, std::vector<BlockId>> parts_;  // of every block as it was
  std::vector<bool> was_cut_;  // likewise: it is in pieces, or its owner changes
  std::vector<Rank> workers_;  // of every block as it is
  std::vector<bool> routed_;   // likewise
  std::map<std::pair<BlockId, BlockId>, std::int64_t> pairs_;
};

}  // namespace

void check_alignment(const Workload& workload, const Cluster& cluster, const PlanOptions& options) {
  if (!aligns_tokens(options)) return;
  const std::int64_t multiple = options.tokens_multiple;
  CONTEXTILE_CHECK(multiple >= 1 && multiple <= kMaxTokens,
                   "tokens_multiple: expected 1 to {}, found {}", kMaxTokens, multiple);
  CONTEXTILE_CHECK(workload.home.empty(),
                   "{}: expected a workload without a home layout, which says itself how many "
                   "tokens a device owns",
                   options.equal_tokens ? "equal_tokens" : "tokens_multiple");
  const std::int64_t devices = cluster.num_devices();
  const std::int64_t tokens = workload.num_tokens();
  if (options.equal_tokens) {
    CONTEXTILE_CHECK(tokens % (devices * multiple) == 0,
                     "equal_tokens: expected a batch of a multiple of {} tokens ({} on each of {} "
                     "devices), found {}; pad it by {}",
                     devices * multiple, multiple, devices, tokens,
                     devices * multiple - tokens % (devices * multiple));
  }
  CONTEXTILE_CHECK(tokens % multiple == 0,
                   "tokens_multiple: expected a batch of a multiple of {} tokens, found {}; pad it "
                   "by {}",
                   multiple, tokens, multiple - tokens % multiple);
  if (!options.limits.tokens) return;
  const std::int64_t most = *options.limits.tokens / multiple * multiple;
  CONTEXTILE_CHECK(most >= (tokens + devices - 1) / devices,
                   "token limit: expected room for {} tokens on {} devices in multiples of {}, "
                   "found a limit of {}",
                   tokens, devices, multiple, *options.limits.tokens);
}

IdVector<Rank, std::int64_t> aligned_tokens(const IdVector<Rank, std::int64_t>& owned,
                                            const PlanOptions& options,
                                            std::optional<std::int64_t> cap) {
  const std::int64_t total = std::accumulate(owned.begin(), owned.end(), std::int64_t{0});
  const std::int64_t multiple = options.tokens_multiple;
  Tokens wanted = owned;
  if (options.equal_tokens) {
    wanted.assign(owned.ids(), total / static_cast<std::int64_t>(owned.size()));
    return wanted;
  }
  std::int64_t most = total;
  // A cap of the mean leaves room for all only if its last multiple may be filled.
  if (cap) most = std::min(most, (*cap + multiple - 1) / multiple * multiple);
  if (options.limits.tokens) most = std::min(most, *options.limits.tokens / multiple * multiple);
  keep_to_cap(most, wanted);
  round_to_multiples(multiple, most, wanted);
  return wanted;
}

void align_tokens(const Workload& workload, const Cluster& cluster, const PlanOptions& options,
                  Arrangement& arrangement) {
  if (!aligns_tokens(options)) return;
  check_alignment(workload, cluster, options);
  Tokens owned = tokens_of_devices(cluster, arrangement);
  Tokens wanted = aligned_tokens(owned, options);
  if (std::ranges::equal(owned, wanted)) return;
  const Pieces pieces(cluster, arrangement, std::move(owned), std::move(wanted));
  for (std::size_t r = 0; r < arrangement.rounds.size(); ++r) {
    RoundCutter(pieces.of_round(r), arrangement.rounds[r]);
  }
}

}  // namespace contextile

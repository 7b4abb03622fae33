#include "support/plan_support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "contextile/verify.h"

namespace contextile {
namespace {

MaskSpec random_spec(Chance& chance) {
  const std::array specs = {
      "full",        "causal",    "sliding_window:3",       "lambda:2,5",           "causal",
      "prefix_lm:3", "chunked:5", "causal_blockwise:3,1,1", "shared_question:0.3,3"};
  return parse_mask_spec(chance.pick(specs));
}

AttentionShape random_shape(Chance& chance) {
  constexpr std::array<std::array<std::int32_t, 2>, 5> kHeads = {
      {{2, 1}, {4, 2}, {4, 4}, {8, 4}, {6, 6}}};
  const auto [q_heads, kv_heads] = chance.pick(kHeads);
  return {.q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = static_cast<std::int32_t>(chance.between(1, 3)),
          .value_dim = static_cast<std::int32_t>(chance.between(1, 3)),
          .dtype = chance.one_in(3) ? Dtype::kF32 : Dtype::kBf16};
}

std::vector<HomeRange> random_home(Chance& chance, std::int64_t num_tokens,
                                   std::int32_t num_ranks) {
  std::vector<HomeRange> home;
  for (std::int64_t begin = 0; begin < num_tokens;) {
    const std::int64_t end = std::min(num_tokens, begin + chance.between(1, 12));
    home.push_back(
        {{begin, end}, Rank{static_cast<std::int32_t>(chance.between(0, num_ranks - 1))}});
    begin = end;
  }
  return home;
}

// ------------------------------------------------------------------------ random arrangements

// Lays one direction of one mask over devices and stages at random.
class RandomDirection {
 public:
  RandomDirection(Chance& chance, const ArrangedRound& round, const std::vector<Tile>& tiles,
                  Direction direction, std::int32_t num_ranks)
      : chance_(chance), round_(round), direction_(direction) {
    for (const Tile& tile : tiles) {
      for (std::int32_t g = 0; g < round.groups_of(tile.q_block); ++g) {
        const Rank q_owner = round.owners[tile.q_block.index()];
        const Rank device = chance.one_in(2) ? q_owner : random_rank(num_ranks);
        arranged_.tiles.push_back({tile.q_block, tile.kv_block, GroupId{g}, device, 0, tile.pairs});
      }
    }
    for (std::size_t n = arranged_.tiles.size(); n > 1; --n) {
      std::swap(arranged_.tiles[n - 1], arranged_.tiles[chance.below(n)]);
    }
  }

  // Inputs that are already on the device when the direction begins.
  void start_with(const std::vector<RetainedUnit>& retained) {
    for (const RetainedUnit& unit : retained) {
      here_from_[{unit.kind, unit.block, unit.group, unit.device}] = 0;
    }
  }

  ArrangedDirection arrange() {
    for (PlacedTile& tile : arranged_.tiles) {
      tile.stage = static_cast<std::int32_t>(chance_.between(0, 2));
      for (const Kind kind : {Kind::kQ, Kind::kKv, Kind::kDo}) {
        if (!occurs_in(kind, direction_)) continue;
        const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
        tile.stage = std::max(tile.stage, bring(kind, block, tile.group, tile.device));
      }
    }
    std::ranges::stable_sort(arranged_.tiles, {}, &PlacedTile::stage);
    for (const Kind kind : {Kind::kO, Kind::kDq, Kind::kDkv}) {
      if (occurs_in(kind, direction_)) send_results(kind);
    }
    return std::move(arranged_);
  }

 private:
  using Place = std::tuple<Kind, BlockId, GroupId, Rank>;

  Rank random_rank(std::int32_t num_ranks) {
    return Rank{static_cast<std::int32_t>(chance_.between(0, num_ranks - 1))};
  }

  // First stage at which the unit is on the device.
  std::int32_t bring(Kind kind, BlockId block, GroupId group, Rank device) {
    const Rank owner = round_.owners[block.index()];
    if (device == owner) return 0;
    const auto found = here_from_.find({kind, block, group, device});
    if (found != here_from_.end()) return found->second;
    std::vector<std::pair<Rank, std::int32_t>> sources = {{owner, 0}};
    for (const auto& [place, stage] : here_from_) {
      const auto& [k, b, g, rank] = place;
      if (k == kind && b == block && g == group) sources.emplace_back(rank, stage);
    }
    const auto [src, from] = chance_.pick(sources);
    const auto launch = static_cast<std::int32_t>(from + chance_.between(0, 1));
    const auto need = static_cast<std::int32_t>(launch + chance_.between(1, 2));
    arranged_.transfers.push_back({kind, block, group, src, device, launch, need});
    here_from_[{kind, block, group, device}] = need;
    return need;
  }

  // Every device sends what it has once, to the owner or to another that has not sent yet.
  void send_results(Kind kind) {
    std::map<std::pair<BlockId, GroupId>, std::map<Rank, std::int32_t>> ready;
    for (const PlacedTile& tile : arranged_.tiles) {
      const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
      std::int32_t& from = ready[{block, tile.group}][tile.device];
      from = std::max(from, tile.stage + 1);
    }
    for (auto& [unit, devices] : ready) {
      const Rank owner = round_.owners[unit.first.index()];
      while (true) {
        std::vector<Rank> senders;
        for (const auto& [rank, from] : devices) {
          if (rank != owner) senders.push_back(rank);
        }
        if (senders.empty()) break;
        const Rank src = senders.front();
        const Rank dst = senders.size() > 1 && chance_.one_in(2) ? senders.back() : owner;
        const auto launch = static_cast<std::int32_t>(devices[src] + chance_.between(0, 1));
        const auto need = static_cast<std::int32_t>(launch + chance_.between(1, 2));
        arranged_.transfers.push_back({kind, unit.first, unit.second, src, dst, launch, need});
        devices[dst] = std::max(devices[dst], need);
        devices.erase(src);
      }
    }
  }

  Chance& chance_;
  const ArrangedRound& round_;
  Direction direction_;
  ArrangedDirection arranged_;
  std::map<Place, std::int32_t> here_from_;
};

// Blocks of one to three pieces of random length.
Blocking random_blocks(Chance& chance, const std::vector<Range>& tokens) {
  std::vector<std::vector<Range>> blocks;
  for (const Range range : tokens) {
    for (std::int64_t begin = range.begin; begin < range.end;) {
      const std::int64_t end = std::min(range.end, begin + chance.between(1, 9));
      if (!blocks.empty() && blocks.size() % 3 == 0 && chance.one_in(3)) {
        chance.pick(blocks).push_back({begin, end});
      } else {
        blocks.push_back({{begin, end}});
      }
      begin = end;
    }
  }
  Blocking blocking;
  for (const auto& ranges : blocks) blocking.add(ranges);
  return blocking;
}

// Divisors of the round's, equal for blocks that attend one another under any mask.
std::vector<std::int32_t> random_block_head_groups(Chance& chance, const ArrangedRound& round) {
  std::vector<std::size_t> joined(static_cast<std::size_t>(round.blocks.num_blocks()));
  std::iota(joined.begin(), joined.end(), std::size_t{0});
  for (const Mask& mask : round.masks) {
    for (const Tile& tile : TileIndex(mask, round.blocks).tiles()) {
      const std::size_t from = joined[tile.kv_block.index()];
      std::ranges::replace(joined, from, joined[tile.q_block.index()]);
    }
  }
  std::map<std::size_t, std::int32_t> groups_of;
  std::vector<std::int32_t> groups;
  for (const std::size_t root : joined) {
    std::int32_t& of_root = groups_of[root];
    while (of_root == 0 || round.head_groups % of_root != 0) {
      of_root = static_cast<std::int32_t>(chance.between(1, round.head_groups));
    }
    groups.push_back(of_root);
  }
  return groups;
}

ArrangedMask random_programs(Chance& chance, const ArrangedRound& round, const Mask& mask,
                             std::int32_t num_ranks, bool with_backward) {
  const std::vector<Tile> tiles = TileIndex(mask, round.blocks).tiles();
  ArrangedMask arranged;
  arranged.forward =
      RandomDirection(chance, round, tiles, Direction::kForward, num_ranks).arrange();
  if (!with_backward) return arranged;
  for (const Transfer& transfer : arranged.forward->transfers) {
    if (is_result(transfer.kind) || !chance.one_in(3)) continue;
    arranged.retain.push_back({transfer.dst, transfer.kind, transfer.block, transfer.group});
  }
  RandomDirection backward(chance, round, tiles, Direction::kBackward, num_ranks);
  backward.start_with(arranged.retain);
  arranged.backward = backward.arrange();
  return arranged;
}

}  // namespace

RandomBatch random_batch_of(Chance& chance, const BatchLimits& limits) {
  RandomBatch batch;
  std::vector<std::int64_t> lengths;
  std::int64_t left = chance.between(1, limits.max_tokens);
  const std::int64_t sequences = chance.between(1, limits.max_sequences);
  while (left > 0 && std::ssize(lengths) < sequences) {
    lengths.push_back(chance.one_in(4) ? 1 : chance.between(1, left));
    left -= lengths.back();
  }
  std::vector<MaskUse> masks;
  std::vector<std::string> specs;
  for (std::int64_t m = chance.between(1, limits.max_masks); m > 0; --m) {
    masks.push_back({fmt::format("mask{}", m), static_cast<std::int32_t>(chance.between(1, 3)),
                     random_spec(chance)});
    specs.push_back(to_string(masks.back().spec));
  }
  const std::int32_t ranks = chance.pick(limits.ranks);
  batch.workload = make_workload(lengths, random_shape(chance), masks);
  batch.cluster.devices_per_node = ranks % 2 == 0 && chance.one_in(2) ? ranks / 2 : ranks;
  batch.cluster.nodes = ranks / batch.cluster.devices_per_node;
  if (limits.homes && chance.one_in(3)) {
    batch.workload.home = random_home(chance, batch.workload.num_tokens(), ranks);
  }
  const AttentionShape& shape = batch.workload.shape;
  batch.text = fmt::format("lengths {} masks {} on {}x{} devices, {}/{} heads{}", lengths, specs,
                           batch.cluster.nodes, batch.cluster.devices_per_node, shape.q_heads,
                           shape.kv_heads, batch.workload.home.empty() ? "" : ", home layout");
  return batch;
}

Arrangement random_arrangement(Chance& chance, const RandomBatch& batch) {
  const Workload& workload = batch.workload;
  const std::int32_t num_ranks = batch.cluster.num_devices();
  Arrangement arrangement;
  arrangement.strategy = "random";
  arrangement.partial_wire = chance.one_in(3) ? workload.shape.dtype : Dtype::kF32;
  const bool with_backward = !chance.one_in(6);
  // Two rounds: sequences dealt between them, each mask restricted to its round's.
  std::array<std::vector<Range>, 2> tokens;
  for (const Range sequence : workload.sequences) tokens[chance.one_in(4)].push_back(sequence);
  for (const std::vector<Range>& share : tokens) {
    if (share.empty()) continue;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    round.blocks = random_blocks(chance, share);
    for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
      round.owners.emplace_back(static_cast<std::int32_t>(chance.between(0, num_ranks - 1)));
    }
    do {
      round.head_groups = static_cast<std::int32_t>(chance.between(1, workload.shape.kv_heads));
    } while (workload.shape.kv_heads % round.head_groups != 0);
    for (const NamedMask& named : workload.masks) {
      round.masks.push_back(restrict(named.mask, share));
    }
    if (chance.one_in(2)) round.block_head_groups = random_block_head_groups(chance, round);
    for (const Mask& mask : round.masks) {
      round.programs.push_back(random_programs(chance, round, mask, num_ranks, with_backward));
    }
  }
  return arrangement;
}

std::vector<NamedPlan> plans_of_every_strategy(Chance& chance, const RandomBatch& batch) {
  std::vector<NamedPlan> plans;
  for (const Strategy* strategy : strategies()) {
    StrategyRequest request;
    request.backward = !chance.one_in(8);
    if (chance.one_in(2)) request.block_size = chance.between(1, 12);
    // The search makes and simulates many plans: a sample of batches is enough of it.
    if (strategy->name() == "auto" && !chance.one_in(6)) continue;
    if (strategy->unsupported(batch.workload, batch.cluster, request)) continue;
    plans.push_back({std::string(strategy->name()),
                     build_plan(batch.workload, batch.cluster,
                                strategy->arrange(batch.workload, batch.cluster, request))});
  }
  if (batch.workload.home.empty()) {
    plans.push_back(
        {"random", build_plan(batch.workload, batch.cluster, random_arrangement(chance, batch))});
  }
  return plans;
}

std::string violations_text(const VerifyReport& report) {
  return fmt::format("{} violations\n{}", report.num_violations,
                     fmt::join(report.violations, "\n"));
}

// --------------------------------------------------------------------------------- by hand

namespace {

TileOp forward_tile(int q_block, int kv_block, int q, int kv, int o, bool init,
                    std::int64_t pairs) {
  TileOp tile;
  tile.q_block = BlockId{q_block};
  tile.kv_block = BlockId{kv_block};
  tile.group = GroupId{0};
  tile.q = SlotId{q};
  tile.kv = SlotId{kv};
  tile.result = SlotId{o};
  tile.init_result = init;
  tile.pairs = pairs;
  return tile;
}

// The query, dO and dQ slots are one number in the example.
TileOp backward_tile(int q_block, int kv_block, int q, int kv, bool init_dkv, std::int64_t pairs) {
  TileOp tile = forward_tile(q_block, kv_block, q, kv, q, true, pairs);
  tile.d_o = SlotId{q};
  tile.dkv = SlotId{kv};
  tile.init_dkv = init_dkv;
  return tile;
}

TransferEnd unit_of_block_1(Kind kind, int slot, int peer, Dtype wire) {
  return {kind, BlockId{1}, GroupId{0}, SlotId{slot}, Rank{peer}, wire};
}

std::vector<StagingSlot>& staging(Program& program, Kind kind) {
  return program.staging[static_cast<std::size_t>(kind)];
}

// Rank 0 computes its own tile and the one of block 1's query, which arrives as `input`.
Program rank_0_program(Kind input, Kind result, const TileOp& own, const TileOp& remote) {
  Program program;
  program.instructions = {
      LaunchOp{0, {}, {unit_of_block_1(input, 1, 1, Dtype::kBf16)}},
      AttentionOp{{own}},
      WaitOp{0},
      AttentionOp{{remote}},
      LaunchOp{1, {unit_of_block_1(result, 1, 1, Dtype::kF32)}, {}},
      WaitOp{1},
  };
  staging(program, Kind::kQ) = {{0, 1}};
  staging(program, input) = {{0, 1}};
  staging(program, result) = {{0, 1}};
  return program;
}

Program rank_1_program(Kind input, Kind result, const std::vector<TileOp>& own) {
  Program program;
  program.instructions = {
      LaunchOp{0, {unit_of_block_1(input, 0, 0, Dtype::kBf16)}, {}},
      AttentionOp{own},
      WaitOp{0},
      LaunchOp{1, {}, {unit_of_block_1(result, 2, 0, Dtype::kF32)}},
      WaitOp{1},
      ReduceOp{result, BlockId{1}, GroupId{0}, SlotId{0}, {SlotId{0}, SlotId{2}}},
  };
  staging(program, result) = {{0, 1}};
  return program;
}

}  // namespace

Plan example_plan() {
  Plan plan;
  plan.strategy = "example";
  plan.shape = {.q_heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4, .scale = 0.5};
  plan.cluster_name = "local";
  plan.devices_per_node = 2;
  plan.sequences = {{0, 5}, {5, 8}};
  PlanRound& round = plan.rounds.emplace_back();
  round.blocks.add({0, 4});
  round.blocks.add({4, 5});
  round.blocks.add({5, 8});
  round.owners = {Rank{0}, Rank{1}, Rank{1}};
  round.limits.tokens = 4;
  round.masks = {
      {"causal", 1, {{{{0, 5}, {0, 5}, -kUnbounded, 0}, {{5, 8}, {5, 8}, -kUnbounded, 0}}}}};
  ProgramPair first;
  first.forward = rank_0_program(Kind::kQ, Kind::kO, forward_tile(0, 0, 0, 0, 0, true, 10),
                                 forward_tile(1, 0, 1, 0, 1, true, 4));
  first.forward->retain = {{Kind::kQ, SlotId{1}, SlotId{1}}};
  first.backward = rank_0_program(Kind::kDo, Kind::kDq, backward_tile(0, 0, 0, 0, true, 10),
                                  backward_tile(1, 0, 1, 0, false, 4));
  ProgramPair second;
  second.forward =
      rank_1_program(Kind::kQ, Kind::kO,
                     {forward_tile(1, 1, 0, 0, 0, true, 1), forward_tile(2, 2, 1, 1, 1, true, 6)});
  second.backward =
      rank_1_program(Kind::kDo, Kind::kDq,
                     {backward_tile(1, 1, 0, 0, true, 1), backward_tile(2, 2, 1, 1, true, 6)});
  round.devices = {{{BlockId{0}}, {first}}, {{BlockId{1}, BlockId{2}}, {second}}};
  return plan;
}

}  // namespace contextile

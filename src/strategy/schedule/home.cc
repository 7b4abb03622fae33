#include "strategy/schedule/home.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace contextile {
namespace {

// A unit of some kind. Only units of routed blocks are noted.
struct UnitKey {
  Kind kind;
  BlockId block;
  GroupId group;
  friend auto operator<=>(const UnitKey&, const UnitKey&) = default;
};
// All uses of a unit in one direction.
struct UnitUse {
  std::vector<std::pair<std::int32_t, Rank>> tiles;  // (stage, device), as arranged
  std::vector<Transfer> transfers;
};

class HomeRouter {
 public:
  HomeRouter(const ArrangedRound& round, const std::vector<Rank>& workers,
             const std::vector<bool>& routed, Direction direction, ArrangedDirection& arranged)
      : round_(round),
        workers_(workers),
        routed_(routed),
        direction_(direction),
        arranged_(arranged) {}

  void run() {
    shift_and_note();
    const std::int32_t end = last_stage();
    for (auto& [key, use] : uses_) {
      if (is_result(key.kind)) {
        route_result(key, use, end);
      } else {
        route_input(key, use);
      }
    }
  }

 private:
  [[nodiscard]] Rank home(const UnitKey& key) const { return round_.owners[key.block.index()]; }
  [[nodiscard]] Rank worker(const UnitKey& key) const { return workers_[key.block.index()]; }
  [[nodiscard]] bool is_routed(BlockId block) const { return routed_[block.index()]; }

  // Delays everything by a stage, for the moves from home, and notes the uses of routed units.
  void shift_and_note() {
    for (PlacedTile& tile : arranged_.tiles) {
      ++tile.stage;
      for (int k = 0; k < kNumKinds; ++k) {
        const auto kind = static_cast<Kind>(k);
        const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
        if (!occurs_in(kind, direction_) || !is_routed(block)) continue;
        uses_[{kind, block, tile.group}].tiles.emplace_back(tile.stage, tile.device);
      }
    }
    std::vector<Transfer> unchanged;
    for (Transfer& t : arranged_.transfers) {
      ++t.launch_stage;
      ++t.need_stage;
      if (is_routed(t.block)) {
        uses_[{t.kind, t.block, t.group}].transfers.push_back(t);
      } else {
        unchanged.push_back(t);
      }
    }
    arranged_.transfers = std::move(unchanged);
  }

  [[nodiscard]] std::int32_t last_stage() const {
    std::int32_t last = 1;
    for (const PlacedTile& tile : arranged_.tiles) last = std::max(last, tile.stage + 1);
    for (const Transfer& t : arranged_.transfers) last = std::max(last, t.need_stage);
    for (const auto& [key, use] : uses_) {
      for (const Transfer& t : use.transfers) last = std::max(last, t.need_stage);
    }
    return last;
  }

  // Adds the move from home to the worker, if that is another device and uses the unit, and drops
  // hops to the home.
  void route_input(const UnitKey& key, const UnitUse& use) {
    const Rank worker_rank = worker(key);
    bool used = std::any_of(use.tiles.begin(), use.tiles.end(),
                            [&](const auto& tile) { return tile.second == worker_rank; });
    for (const Transfer& t : use.transfers) {
      used = used || t.src == worker_rank;
      if (t.dst != home(key)) arranged_.transfers.push_back(t);
    }
    if (used && home(key) != worker_rank) {
      arranged_.transfers.push_back({key.kind, key.block, key.group, home(key), worker_rank, 0, 1});
    }
  }

  // Replays which device holds a partial result at which time, given that a partial that reaches
  // home stays there.
  void route_result(const UnitKey& key, UnitUse& use, std::int32_t end) {
    std::stable_sort(
        use.transfers.begin(), use.transfers.end(),
        [](const Transfer& a, const Transfer& b) { return a.launch_stage < b.launch_stage; });
    // Stage boundaries from which a device holds one more partial.
    std::map<Rank, std::vector<std::int32_t>> deposits;
    for (const auto& [stage, device] : use.tiles) deposits[device].push_back(stage + 1);
    for (const Transfer& t : use.transfers) {
      std::vector<std::int32_t>& at_src = deposits[t.src];
      const auto later =
          std::stable_partition(at_src.begin(), at_src.end(),
                                [&](std::int32_t stage) { return stage <= t.launch_stage; });
      // A transfer without partials to carry is dropped.
      if (later == at_src.begin() || t.src == home(key)) continue;
      at_src.erase(at_src.begin(), later);
      deposits[t.dst].push_back(t.need_stage);
      arranged_.transfers.push_back(t);
    }
    for (const auto& [device, stages] : deposits) {
      if (stages.empty() || device == home(key)) continue;
      arranged_.transfers.push_back(
          {key.kind, key.block, key.group, device, home(key), end, end + 1});
    }
  }

  const ArrangedRound& round_;
  const std::vector<Rank>& workers_;
  const std::vector<bool>& routed_;
  Direction direction_;
  ArrangedDirection& arranged_;
  std::map<UnitKey, UnitUse> uses_;
};

}  // namespace

std::vector<Rank> owners_of(const Workload& workload, const WorkBlocks& work) {
  if (workload.home.empty()) return work.workers;
  std::vector<Rank> owners;
  for (std::int32_t b = 0; b < work.blocks.num_blocks(); ++b) {
    const std::int64_t token = work.blocks.ranges(BlockId{b}).front().begin;
    const auto it = std::partition_point(workload.home.begin(), workload.home.end(),
                                         [&](const HomeRange& h) { return h.tokens.end <= token; });
    owners.push_back(it->owner);
  }
  return owners;
}

void finish_round(const Workload& workload, WorkBlocks&& work, ArrangedRound& round) {
  round.owners = owners_of(workload, work);
  round.blocks = std::move(work.blocks);
  if (workload.home.empty()) return;
  std::vector<bool> is_away;
  for (std::size_t b = 0; b < round.owners.size(); ++b) {
    is_away.push_back(round.owners[b] != work.workers[b]);
  }
  route_home(work.workers, is_away, round);
}

void route_home(const std::vector<Rank>& workers, const std::vector<bool>& routed,
                ArrangedRound& round) {
  for (ArrangedMask& mask : round.programs) {
    for (const Direction direction : kDirections) {
      auto& arranged = direction == Direction::kForward ? mask.forward : mask.backward;
      if (arranged) HomeRouter(round, workers, routed, direction, *arranged).run();
    }
    std::erase_if(mask.retain, [&](const RetainedUnit& kept) {
      return kept.device == round.owners[kept.block.index()];
    });
  }
}

}  // namespace contextile

#include "planner/auto/polish.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/parallel_for.h"
#include "base/portable_math.h"
#include "base/rng.h"
#include "planner/auto/tuning.h"

namespace contextile {
namespace {

enum class PolishMove : std::uint8_t {
  kTile,
  kSwapTiles,
  kRow,     // the tiles of a row that a device has
  kColumn,  // likewise
  kBlock,   // another owner
  kSwapBlocks,
  kForwardSchedule,
  kBackwardSchedule,
};
// A move is as likely as it is often listed.
constexpr std::array kMoves = {PolishMove::kTile,
                               PolishMove::kSwapTiles,
                               PolishMove::kRow,
                               PolishMove::kRow,
                               PolishMove::kColumn,
                               PolishMove::kBlock,
                               PolishMove::kBlock,
                               PolishMove::kSwapBlocks,
                               PolishMove::kForwardSchedule,
                               PolishMove::kBackwardSchedule};

// One walk through placements. The caller simulates them.
class PolishChain {
 public:
  PolishChain(const Tried& start, std::int32_t num_devices, std::uint64_t seed)
      : now_(start),
        best_(start),
        num_devices_(num_devices),
        groups_(static_cast<std::size_t>(start.placement.choice.head_groups)),
        rng_(seed) {}

  // A changed copy of the current placement, with the old times.
  Tried changed() {
    Tried trial = now_;
    const int changes = tuning::kPolishChanges[pick(tuning::kPolishChanges.size())];
    for (int c = 0; c < changes; ++c) change(trial);
    return trial;
  }
  // Walks on from the simulated trial if it is not much slower. `done` is the part of the walk so
  // far.
  void walk_on_if_good(Tried trial, double done) {
    const double heat = tuning::kFirstPolishHeat * best_.cost_us * (1 - done) * (1 - done);
    const double threshold = -heat * portable_log(rng_.uniform() + 0x1p-54);
    if (trial.cost_us > now_.cost_us + threshold) return;
    now_ = std::move(trial);
    if (now_.cost_us < best_.cost_us) best_ = now_;
  }
  [[nodiscard]] const Tried& best() const { return best_; }

 private:
  [[nodiscard]] std::size_t pick(std::size_t count) {
    return static_cast<std::size_t>(rng_.next() % static_cast<std::uint64_t>(count));
  }
  [[nodiscard]] std::int32_t any(std::int32_t count) {
    return static_cast<std::int32_t>(pick(static_cast<std::size_t>(count)));
  }
  [[nodiscard]] bool chance(double part) { return rng_.uniform() < part; }
  [[nodiscard]] static TileId tile_id(std::size_t at) {
    return TileId{static_cast<std::int32_t>(at)};
  }
  [[nodiscard]] const std::vector<Tile>& tiles() const {
    return now_.placement.priced->tiles.all_tiles;
  }

  // The device that ends last in the current placement.
  [[nodiscard]] Rank latest() const {
    std::vector<double> ends = now_.outcome.ends.forward;
    const std::vector<double>& backward = now_.outcome.ends.backward;
    ends.resize(static_cast<std::size_t>(num_devices_), 0);
    for (std::size_t d = 0; d < backward.size(); ++d) ends[d] += backward[d];
    return Rank{static_cast<std::int32_t>(std::ranges::max_element(ends) - ends.begin())};
  }
  // Any tile of any head group, often one of the device that ends last.
  [[nodiscard]] std::size_t any_tile(const GridPartition& partition) {
    std::size_t at = pick(partition.device.size());
    if (chance(0.5)) return at;
    const Rank late = latest();
    for (int t = 0; t < tuning::kLateTileTries && partition.device[tile_id(at)] != late; ++t) {
      at = pick(partition.device.size());
    }
    return at;
  }

  void change(Tried& trial) {
    GridPartition& partition = trial.placement.partition;
    const std::size_t at = any_tile(partition);
    const Tile& tile = tiles()[at / groups_];
    Rank& device = partition.device[tile_id(at)];
    Rank to{any(num_devices_)};
    if (chance(1.0 / 3)) to = partition.owner[chance(0.5) ? tile.kv_block : tile.q_block];
    switch (kMoves[pick(kMoves.size())]) {
      case PolishMove::kTile:
        device = to;
        break;
      case PolishMove::kSwapTiles:
        std::swap(device, partition.device[tile_id(pick(partition.device.size()))]);
        break;
      case PolishMove::kRow:
        move_tiles(partition, at, to, [&](const Tile& t) { return t.q_block == tile.q_block; });
        break;
      case PolishMove::kColumn:
        move_tiles(partition, at, to, [&](const Tile& t) { return t.kv_block == tile.kv_block; });
        break;
      case PolishMove::kBlock:
        move_block(partition, tile.q_block, to, chance(tuning::kPolishWithRows));
        break;
      case PolishMove::kSwapBlocks: {
        const BlockId other{any(static_cast<std::int32_t>(partition.owner.size()))};
        const Rank mine = partition.owner[tile.q_block];
        const bool with_rows = chance(tuning::kPolishWithRows);
        move_block(partition, tile.q_block, partition.owner[other], with_rows);
        move_block(partition, other, mine, with_rows);
        break;
      }
      case PolishMove::kForwardSchedule:
        trial.outcome.schedules.forward = any_schedule();
        break;
      case PolishMove::kBackwardSchedule:
        (now_.outcome.ends.backward.empty() ? trial.outcome.schedules.forward
                                            : trial.outcome.schedules.backward) = any_schedule();
        break;
    }
  }

  [[nodiscard]] Schedule any_schedule() {
    const std::int32_t stages = 1 + any(4);
    const std::int32_t ahead = 1 + any(3);
    switch (any(3)) {
      case 0:
        return TimelineOptions{stages, ahead};
      case 1:
        return InOrderOptions{stages, ahead};
      default:
        return OverlapOptions{stages, ahead};
    }
  }

  // Moves the tiles that `belongs` selects and that are on the device of tile `at`: those of its
  // head group, or of all.
  template <typename Belongs>
  void move_tiles(GridPartition& partition, std::size_t at, Rank to, const Belongs& belongs) {
    const Rank from = partition.device[tile_id(at)];
    const bool all_groups = chance(0.5);
    for (std::size_t t = 0; t < partition.device.size(); ++t) {
      if (!all_groups && t % groups_ != at % groups_) continue;
      Rank& device = partition.device[tile_id(t)];
      if (device == from && belongs(tiles()[t / groups_])) device = to;
    }
  }
  // Moves a block to another owner, and the tiles of its rows that the old one has if `with_rows`.
  void move_block(GridPartition& partition, BlockId block, Rank to, bool with_rows) {
    const Rank from = std::exchange(partition.owner[block], to);
    for (std::size_t t = 0; with_rows && t < partition.device.size(); ++t) {
      Rank& device = partition.device[tile_id(t)];
      if (device == from && tiles()[t / groups_].q_block == block) device = to;
    }
  }

  Tried now_;
  Tried best_;
  std::int32_t num_devices_;
  std::size_t groups_;
  Rng rng_;
};

}  // namespace

void Polish::anneal(std::vector<Tried>& tried, std::int64_t plans) {
  std::vector<std::int32_t> simulated(tried.size(), 0);
  state_.progress.expect(std::ssize(tried));
  parallel_for(std::size_t{0}, tried.size(), [&](std::size_t i) {
    PolishChain chain(tried[i], state_.cluster.num_devices(), state_.request.seed + 1 + i);
    const std::int64_t steps =
        steps_of_simulating(state_.num_devices(), num_tiles(tried[i].placement));
    for (; simulated[i] < plans && state_.has_time_for(steps); ++simulated[i]) {
      Tried trial = chain.changed();
      trials_.simulate_again(trial);
      chain.walk_on_if_good(std::move(trial), simulated[i] / static_cast<double>(plans));
    }
    tried[i] = chain.best();
    state_.progress.one_done("polishing placements");
  });
  state_.tried += std::accumulate(simulated.begin(), simulated.end(), 0);
  std::ranges::stable_sort(tried, {}, &Tried::cost_us);
  trials_.keep_if_best(tried.front());
}

void Polish::run(std::vector<Tried> starts, double share) {
  std::erase_if(starts, [&](const Tried& start) {
    return start.cost_us > tuning::kNearPolishStarts * state_.best.cost_us ||
           num_tiles(start.placement) == 0;  // a mask without pairs has nothing to move
  });
  if (starts.empty()) return;
  std::ranges::stable_sort(starts, {}, &Tried::cost_us);
  if (starts.size() > tuning::kPolishChains) starts.resize(tuning::kPolishChains);
  std::int64_t steps = 0;  // of a plan in all chains
  for (const Tried& start : starts) {
    steps =
        std::max(steps, static_cast<std::int64_t>(tuning::kPolishChains) *
                            steps_of_simulating(state_.num_devices(), num_tiles(start.placement)));
  }
  state_.settle();
  auto plans = static_cast<std::int64_t>(tuning::kPolishSteps * state_.options.effort) / steps;
  while (plans >= tuning::kFewestPolishPlans && !state_.spend(plans * steps, share)) {
    plans = plans * 3 / 4;
  }
  if (plans < tuning::kFewestPolishPlans) return;
  // All chains share the first half. Two others go on from the best, with as many plans together.
  anneal(starts, plans / 2);
  std::vector<Tried> best(2, starts.front());
  anneal(best, plans);
}

}  // namespace contextile

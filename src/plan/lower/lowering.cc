#include "plan/lower/lowering.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/parallel_for.h"
#include "plan/lower/staging_buffers.h"
#include "plan/lower/unit_table.h"

namespace contextile {
namespace {

// An input unit that is not owned here: received, or retained from forward.
struct InputCopy {
  Place place;
  std::int32_t available_stage = 0;
  std::int32_t free_stage = 0;  // first boundary at which nothing reads it any longer
};

// The parts of one result unit that this device has gathered.
struct Gathered {
  bool owned = false;
  bool holds = false;                      // `place` holds a partial
  bool in_flight = false;                  // a transfer writes the owned slot
  Place place;                             // of the accumulator
  std::vector<Place> pending;              // arrived, not merged yet
  std::vector<std::int32_t> write_stages;  // attention stages that write it, ascending
};

// Transfers of one device with equal stages: one launch instruction.
struct Group {
  std::int32_t launch_stage = 0;
  std::int32_t need_stage = 0;
  std::vector<std::int32_t> sends;  // indices of transfers
  std::vector<std::int32_t> recvs;
};

// Lowers the tiles and transfers of one device to its program.
class DeviceLowering {
 public:
  DeviceLowering(const LoweringRequest& request, Rank rank,
                 std::span<const PlacedTile* const> tiles, UnitTable& table)
      : request_(request),
        layout_(*request.layout),
        rank_(rank),
        tiles_(tiles),
        table_(table),
        buffers_(static_cast<std::int32_t>(layout_.local_blocks[rank.index()].size()) *
                     layout_.round->head_groups,
                 program_) {}

  Program run(std::span<const std::int32_t> sends, std::span<const std::int32_t> recvs,
              std::span<const std::int32_t> retained, std::vector<SlotId>& retained_slots) {
    group_transfers(sends, recvs);
    const bool backward = request_.direction == Direction::kBackward;
    for (const std::int32_t i : retained) {
      if (backward) place_retained(i);
    }
    collect_inputs(recvs);
    collect_uses(sends);
    if (!backward) {
      // Forward keeps a retained input to the end, so its place is never reused.
      for (const std::int32_t i : retained) retained_copy(i).free_stage = kNever;
    }
    if (backward) {  // the first boundary comes after everything retained is in place
      for (const std::int32_t i : retained) {
        InputCopy& copy = retained_copy(i);
        retained_slots[static_cast<std::size_t>(i)] = copy.place.slot;
        buffers_.give_back_at(copy.free_stage, request_.retain[static_cast<std::size_t>(i)].kind,
                              copy.place);
      }
    }
    sweep();
    check_nothing_left();
    if (!backward) {
      for (const std::int32_t i : retained) {
        retained_slots[static_cast<std::size_t>(i)] = retained_copy(i).place.slot;
      }
    }
    table_.wipe();
    return std::move(program_);
  }

 private:
  [[nodiscard]] const Transfer& transfer(std::int32_t i) const {
    return request_.arranged->transfers[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] std::size_t unit_of(const Transfer& t) const {
    return layout_.unit(t.block, t.group);
  }
  [[nodiscard]] bool owns(std::size_t unit) const { return layout_.owner_of(unit) == rank_; }
  // The tokens that the unit takes in an arena.
  [[nodiscard]] std::int64_t tokens_of(std::size_t unit) const {
    const ArrangedRound& round = *layout_.round;
    const BlockId block = layout_.block_of(unit);
    return round.blocks.num_tokens(block) * round.parts_of(block);
  }
  [[nodiscard]] std::string name(Kind kind, std::size_t unit) const {
    return fmt::format("{} of block {} group {}", to_string(kind), layout_.block_of(unit).value,
                       layout_.group_of(unit).value);
  }
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_argument("{} rank {}: {}", request_.where, rank_.value,
                  fmt::format(format, std::forward<Args>(args)...));
  }

  // Collects transfers with equal stages into launches, in launch order, and sorts these by need
  // stage for their waits.
  void group_transfers(std::span<const std::int32_t> sends, std::span<const std::int32_t> recvs) {
    std::map<std::pair<std::int32_t, std::int32_t>, Group> groups;
    Group* last = nullptr;
    for (const bool sending : {true, false}) {
      for (const std::int32_t i : sending ? sends : recvs) {
        const Transfer& t = transfer(i);
        if (last == nullptr || last->launch_stage != t.launch_stage ||
            last->need_stage != t.need_stage) {
          last = &groups[{t.launch_stage, t.need_stage}];
          last->launch_stage = t.launch_stage;
          last->need_stage = t.need_stage;
        }
        (sending ? last->sends : last->recvs).push_back(i);
      }
    }
    groups_.reserve(groups.size());
    for (auto& [stages, group] : groups) groups_.push_back(std::move(group));
    by_need_.resize(groups_.size());
    std::iota(by_need_.begin(), by_need_.end(), std::size_t{0});
    std::stable_sort(by_need_.begin(), by_need_.end(), [&](std::size_t a, std::size_t b) {
      return groups_[a].need_stage < groups_[b].need_stage;
    });
  }

  // Adds an input that becomes available at boundary `available_stage`.
  InputCopy& add_copy(Kind kind, std::size_t unit, std::int32_t available_stage) {
    if (owns(unit)) fail("{} arrives at its owner, which has it", name(kind, unit));
    if (table_.find(kind, unit) >= 0) fail("{} arrives twice", name(kind, unit));
    table_.set(kind, unit, copies_.size());
    return copies_.emplace_back(InputCopy{{}, available_stage, available_stage});
  }

  void place_retained(std::int32_t i) {
    const RetainedUnit& kept = request_.retain[static_cast<std::size_t>(i)];
    const std::size_t unit = layout_.unit(kept.block, kept.group);
    InputCopy& copy = add_copy(kept.kind, unit, 0);
    copy.place = buffers_.take(kept.kind, tokens_of(unit));
  }

  InputCopy& retained_copy(std::int32_t i) {
    const RetainedUnit& kept = request_.retain[static_cast<std::size_t>(i)];
    const std::size_t unit = layout_.unit(kept.block, kept.group);
    const std::int32_t found = table_.find(kept.kind, unit);
    if (found < 0) fail("retains {}, which never arrives", name(kept.kind, unit));
    return copies_[static_cast<std::size_t>(found)];
  }

  void collect_inputs(std::span<const std::int32_t> recvs) {
    for (const std::int32_t i : recvs) {
      const Transfer& t = transfer(i);
      if (!is_result(t.kind)) add_copy(t.kind, unit_of(t), t.need_stage);
    }
  }

  // Records that the unit is read from `stage` on until boundary `until`.
  void use_input(Kind kind, std::size_t unit, std::int32_t stage, std::int32_t until) {
    if (owns(unit)) return;
    const std::int32_t found = table_.find(kind, unit);
    if (found < 0) fail("stage {} reads {}, which never arrives", stage, name(kind, unit));
    InputCopy& copy = copies_[static_cast<std::size_t>(found)];
    if (copy.available_stage > stage) {
      fail("stage {} reads {}, which arrives for stage {}", stage, name(kind, unit),
           copy.available_stage);
    }
    copy.free_stage = std::max(copy.free_stage, until);
  }

  // The entry of a result unit, added on first use.
  Gathered& gathered(Kind kind, std::size_t unit) {
    const std::int32_t found = table_.find(kind, unit);
    if (found >= 0) return gathered_[static_cast<std::size_t>(found)];
    table_.set(kind, unit, gathered_.size());
    results_.emplace_back(kind, unit);
    Gathered& result = gathered_.emplace_back();
    result.owned = owns(unit);
    if (result.owned) result.place.slot = layout_.owned_slot(unit);
    return result;
  }

  // Determines how long inputs are needed and which stages write results. A sent input must stay
  // until the wait for its launch.
  void collect_uses(std::span<const std::int32_t> sends) {
    const bool backward = request_.direction == Direction::kBackward;
    for (const PlacedTile* tile : tiles_) {
      const std::size_t q_unit = layout_.unit(tile->q_block, tile->group);
      const std::size_t kv_unit = layout_.unit(tile->kv_block, tile->group);
      use_input(Kind::kQ, q_unit, tile->stage, tile->stage + 1);
      use_input(Kind::kKv, kv_unit, tile->stage, tile->stage + 1);
      if (backward) use_input(Kind::kDo, q_unit, tile->stage, tile->stage + 1);
      note_write(gathered(backward ? Kind::kDq : Kind::kO, q_unit), tile->stage);
      if (backward) note_write(gathered(Kind::kDkv, kv_unit), tile->stage);
    }
    for (const std::int32_t i : sends) {
      const Transfer& t = transfer(i);
      if (!is_result(t.kind)) use_input(t.kind, unit_of(t), t.launch_stage, t.need_stage);
    }
  }

  static void note_write(Gathered& result, std::int32_t stage) {
    if (result.write_stages.empty() || result.write_stages.back() != stage) {
      result.write_stages.push_back(stage);
    }
  }

  // All stages at which this device does something, ascending.
  [[nodiscard]] std::vector<std::int32_t> boundaries() const {
    std::vector<std::int32_t> stages;
    for (const PlacedTile* tile : tiles_) {
      if (stages.empty() || stages.back() != tile->stage) stages.push_back(tile->stage);
    }
    for (const Group& group : groups_) {
      stages.push_back(group.launch_stage);
      stages.push_back(group.need_stage);
    }
    std::sort(stages.begin(), stages.end());
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
    return stages;
  }

  // Emits the instructions: at each boundary waits, merges of arrived partials and launches; then
  // the attention of the stage.
  void sweep() {
    std::size_t next_wait = 0;
    std::size_t next_launch = 0;
    std::size_t next_tile = 0;
    for (const std::int32_t stage : boundaries()) {
      for (; next_wait < by_need_.size() && groups_[by_need_[next_wait]].need_stage == stage;
           ++next_wait) {
        finish_launch(by_need_[next_wait]);
      }
      buffers_.give_back_until(stage);
      merge_arrived();
      for (; next_launch < groups_.size() && groups_[next_launch].launch_stage == stage;
           ++next_launch) {
        start_launch(next_launch);
      }
      const std::size_t first = next_tile;
      while (next_tile < tiles_.size() && tiles_[next_tile]->stage == stage) ++next_tile;
      if (next_tile > first) attend(tiles_.subspan(first, next_tile - first));
    }
  }

  // Emits the wait for a launch and hands its received results to merging.
  void finish_launch(std::size_t g) {
    program_.instructions.emplace_back(WaitOp{static_cast<std::int32_t>(g)});
    for (const std::int32_t i : groups_[g].recvs) {
      const Transfer& t = transfer(i);
      if (!is_result(t.kind)) continue;
      Gathered& result = gathered(t.kind, unit_of(t));
      const auto direct = landing_.find(i);
      if (direct == landing_.end()) {  // straight into the owned slot
        result.in_flight = false;
        result.holds = true;
      } else {
        result.pending.push_back(direct->second);
        landing_.erase(direct);
      }
      arrived_.push_back(static_cast<std::size_t>(table_.find(t.kind, unit_of(t))));
    }
  }

  void merge_arrived() {
    std::vector<std::size_t> deferred;
    for (const std::size_t r : arrived_) {
      Gathered& result = gathered_[r];
      if (result.pending.empty()) continue;
      if (result.in_flight) {  // the owned slot is being written: merge after that has arrived
        deferred.push_back(r);
        continue;
      }
      merge(results_[r].first, results_[r].second, result);
    }
    arrived_ = std::move(deferred);
  }

  // Merges partials in the order they arrived, after those that were gathered here.
  void merge(Kind kind, std::size_t unit, Gathered& result) {
    std::vector<Place> sources = std::move(result.pending);
    result.pending.clear();
    if (!result.owned && !result.holds) {
      // Without an accumulator the first arrival becomes it.
      result.place = sources.front();
    } else if (result.holds) {
      sources.insert(sources.begin(), result.place);
    }
    result.holds = true;
    if (sources.size() == 1 && sources.front().slot == result.place.slot) return;  // adopted
    ReduceOp reduce{kind, layout_.block_of(unit), layout_.group_of(unit), result.place.slot, {}};
    reduce.srcs.reserve(sources.size());
    for (const Place& source : sources) {
      reduce.srcs.push_back(source.slot);
      if (source.slot != result.place.slot) buffers_.give_back(kind, source);
    }
    program_.instructions.emplace_back(std::move(reduce));
  }

  void start_launch(std::size_t g) {
    const Group& group = groups_[g];
    LaunchOp launch;
    launch.id = static_cast<std::int32_t>(g);
    launch.sends.reserve(group.sends.size());
    launch.recvs.reserve(group.recvs.size());
    for (const std::int32_t i : group.sends) launch.sends.push_back(send(i));
    for (const std::int32_t i : group.recvs) launch.recvs.push_back(receive(i));
    program_.instructions.emplace_back(std::move(launch));
  }

  [[nodiscard]] TransferEnd end_of(std::int32_t i, SlotId slot, Rank peer) const {
    const Transfer& t = transfer(i);
    return {t.kind, t.block, t.group, slot, peer, request_.wires[static_cast<std::size_t>(i)]};
  }

  TransferEnd send(std::int32_t i) {
    const Transfer& t = transfer(i);
    const std::size_t unit = unit_of(t);
    if (!is_result(t.kind)) return end_of(i, input_slot(t.kind, unit), t.dst);
    Gathered& result = gathered(t.kind, unit);
    if (result.owned) fail("sends its own {} away", name(t.kind, unit));
    if (!result.holds)
      fail("sends {} at stage {} but has nothing of it", name(t.kind, unit), t.launch_stage);
    result.holds = false;
    // The place is reused only after the wait, because the transfer reads it until then.
    buffers_.give_back_at(t.need_stage, t.kind, result.place);
    return end_of(i, result.place.slot, t.dst);
  }

  TransferEnd receive(std::int32_t i) {
    const Transfer& t = transfer(i);
    const std::size_t unit = unit_of(t);
    if (!is_result(t.kind)) {
      InputCopy& copy = copies_[static_cast<std::size_t>(table_.find(t.kind, unit))];
      copy.place = buffers_.take(t.kind, tokens_of(unit));
      buffers_.give_back_at(copy.free_stage, t.kind, copy.place);
      return end_of(i, copy.place.slot, t.src);
    }
    Gathered& result = gathered(t.kind, unit);
    // A partial may arrive straight in the owned slot if that is empty and nothing writes it before
    // the wait. Otherwise it is staged and merged.
    if (result.owned && !result.holds && !result.in_flight && result.pending.empty() &&
        !writes_between(result, t.launch_stage, t.need_stage)) {
      result.in_flight = true;
      return end_of(i, result.place.slot, t.src);
    }
    const Place place = buffers_.take(t.kind, tokens_of(unit));
    landing_.emplace(i, place);
    return end_of(i, place.slot, t.src);
  }

  [[nodiscard]] static bool writes_between(const Gathered& result, std::int32_t begin,
                                           std::int32_t end) {
    const auto it = std::lower_bound(result.write_stages.begin(), result.write_stages.end(), begin);
    return it != result.write_stages.end() && *it < end;
  }

  [[nodiscard]] SlotId input_slot(Kind kind, std::size_t unit) const {
    if (owns(unit)) return layout_.owned_slot(unit);
    return copies_[static_cast<std::size_t>(table_.find(kind, unit))].place.slot;
  }

  // Returns the accumulator that a tile writes; sets `init` if the tile is the first to write it.
  SlotId accumulate(Kind kind, std::size_t unit, bool& init) {
    Gathered& result = gathered(kind, unit);
    init = !result.holds;
    if (init && !result.owned) result.place = buffers_.take(kind, tokens_of(unit));
    result.holds = true;
    return result.place.slot;
  }

  void attend(std::span<const PlacedTile* const> tiles) {
    const bool backward = request_.direction == Direction::kBackward;
    AttentionOp attention;
    attention.tiles.reserve(tiles.size());
    for (const PlacedTile* tile : tiles) {
      const std::size_t q_unit = layout_.unit(tile->q_block, tile->group);
      const std::size_t kv_unit = layout_.unit(tile->kv_block, tile->group);
      TileOp op;
      op.q_block = tile->q_block;
      op.kv_block = tile->kv_block;
      op.group = tile->group;
      op.pairs = tile->pairs;
      op.q = input_slot(Kind::kQ, q_unit);
      op.kv = input_slot(Kind::kKv, kv_unit);
      op.result = accumulate(backward ? Kind::kDq : Kind::kO, q_unit, op.init_result);
      if (backward) {
        op.d_o = input_slot(Kind::kDo, q_unit);
        op.dkv = accumulate(Kind::kDkv, kv_unit, op.init_dkv);
      }
      attention.tiles.push_back(op);
    }
    program_.instructions.emplace_back(std::move(attention));
  }

  void check_nothing_left() const {
    for (std::size_t r = 0; r < gathered_.size(); ++r) {
      if (!gathered_[r].owned && gathered_[r].holds) {
        fail("{} is never sent to its owner", name(results_[r].first, results_[r].second));
      }
    }
  }

  const LoweringRequest& request_;
  const RoundLayout& layout_;
  Rank rank_;
  std::span<const PlacedTile* const> tiles_;  // ordered by stage
  UnitTable& table_;
  Program program_;
  StagingBuffers buffers_;
  std::vector<Group> groups_;         // ordered by (launch, need); index = launch id
  std::vector<std::size_t> by_need_;  // groups ordered by need stage
  std::vector<InputCopy> copies_;
  std::vector<Gathered> gathered_;
  std::vector<std::pair<Kind, std::size_t>> results_;  // kind and unit of every Gathered
  std::unordered_map<std::int32_t, Place> landing_;    // staged receives of results in flight
  std::vector<std::size_t> arrived_;                   // Gathered with something to merge
};

// Stable bucket sort of indices by rank.
template <typename RankOf>
std::vector<std::vector<std::int32_t>> by_rank(std::size_t count, std::int32_t num_devices,
                                               RankOf rank_of) {
  std::vector<std::vector<std::int32_t>> buckets(static_cast<std::size_t>(num_devices));
  std::vector<std::size_t> sizes(buckets.size());
  for (std::size_t i = 0; i < count; ++i) ++sizes[rank_of(i).index()];
  for (std::size_t r = 0; r < sizes.size(); ++r) buckets[r].reserve(sizes[r]);
  for (std::size_t i = 0; i < count; ++i) {
    buckets[rank_of(i).index()].push_back(static_cast<std::int32_t>(i));
  }
  return buckets;
}

// Number of consecutive devices that share a table of all units. A second thread does not pay for
// small rounds.
std::int32_t devices_of_share(std::int32_t num_devices) {
  constexpr std::int32_t kFew = 64;
  constexpr std::int32_t kShares = 8;
  return num_devices <= kFew ? std::max(num_devices, 1) : (num_devices + kShares - 1) / kShares;
}

}  // namespace

LoweredDirection lower_direction(const LoweringRequest& request) {
  const std::int32_t num_devices = request.layout->num_devices();
  const ArrangedDirection& arranged = *request.arranged;
  std::vector<std::vector<const PlacedTile*>> tiles(static_cast<std::size_t>(num_devices));
  std::vector<std::size_t> num_tiles(tiles.size());
  for (const PlacedTile& tile : arranged.tiles) ++num_tiles[tile.device.index()];
  for (std::size_t r = 0; r < tiles.size(); ++r) tiles[r].reserve(num_tiles[r]);
  for (const PlacedTile& tile : arranged.tiles) tiles[tile.device.index()].push_back(&tile);
  const auto sends = by_rank(arranged.transfers.size(), num_devices,
                             [&](std::size_t i) { return arranged.transfers[i].src; });
  const auto recvs = by_rank(arranged.transfers.size(), num_devices,
                             [&](std::size_t i) { return arranged.transfers[i].dst; });
  const auto retained = by_rank(request.retain.size(), num_devices,
                                [&](std::size_t i) { return request.retain[i].device; });
  LoweredDirection lowered;
  lowered.retained_slots.resize(request.retain.size());
  lowered.programs.resize(tiles.size());
  const std::int32_t share = devices_of_share(num_devices);
  parallel_for(0, (num_devices + share - 1) / share, [&](std::int32_t s) {
    UnitTable table(static_cast<std::size_t>(request.layout->num_units()));
    for (std::int32_t r = s * share; r < std::min(num_devices, (s + 1) * share); ++r) {
      const auto at = static_cast<std::size_t>(r);
      check_interrupt();
      if (!std::ranges::is_sorted(tiles[at], {}, &PlacedTile::stage)) {
        std::ranges::stable_sort(tiles[at], {}, &PlacedTile::stage);
      }
      DeviceLowering device(request, Rank{r}, tiles[at], table);
      lowered.programs[at] = device.run(sends[at], recvs[at], retained[at], lowered.retained_slots);
    }
  });
  return lowered;
}

}  // namespace contextile

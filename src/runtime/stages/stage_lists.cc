#include "contextile/advanced/stage_lists.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "contextile/plan_file.h"
#include "runtime/executor/begin_cut.h"
#include "runtime/executor/check_program.h"
#include "runtime/executor/prepared_plan.h"
#include "runtime/executor/token_places.h"
#include "runtime/stages/row_batch.h"
#include "runtime/stages/row_segments.h"
#include "runtime/stages/stage_calls.h"
#include "runtime/stages/stage_intervals.h"

namespace contextile {
namespace {

// Pieces of tiles, which head groups share.
class PieceTable {
 public:
  explicit PieceTable(const PlanRound& round, std::size_t mask)
      : index_(round.masks[mask].mask, round.blocks) {}

  std::span<const BandPiece> find(const TileOp& tile, std::string_view where) {
    const auto [at, is_new] = found_.try_emplace({tile.q_block, tile.kv_block});
    auto& [pieces, pairs] = at->second;
    if (is_new) {
      std::vector<LocalBand> bands;
      pairs = index_.append_bands(tile.q_block, tile.kv_block, bands);
      for (const LocalBand& band : bands) append_pieces(band, pieces);
    }
    if (pairs != tile.pairs) {
      fail_plan("{}, tile (q block {}, kv block {}): expected {} pairs under the mask, found {}",
                where, tile.q_block.value, tile.kv_block.value, pairs, tile.pairs);
    }
    return pieces;
  }

 private:
  TileIndex index_;
  std::map<std::pair<BlockId, BlockId>, std::pair<std::vector<BandPiece>, std::int64_t>> found_;
};

// The slot of a tile by kind.
SlotId slot_of(const TileOp& tile, Kind kind) {
  switch (kind) {
    case Kind::kQ:
      return tile.q;
    case Kind::kKv:
      return tile.kv;
    case Kind::kDo:
      return tile.d_o;
    case Kind::kDkv:
      return tile.dkv;
    case Kind::kO:
    case Kind::kDq:
      return tile.result;
  }
  return {};
}

// Turns one program into lists. Its blocks all have the round's head groups.
class ProgramLists {
 public:
  // `begin_cut` counts instructions of the plan.
  ProgramLists(const Plan& plan, const PlanRound& round, Rank rank, std::size_t mask,
               Direction direction, const StageOptions& options, std::size_t begin_cut,
               std::string where)
      : round_(round),
        direction_(direction),
        options_(scaled(options, round.head_groups)),
        begin_cut_(begin_cut),
        where_(std::move(where)),
        device_(round.devices[rank.index()]),
        program_(*device_.programs[mask].of(direction)),
        pieces_(round, mask),
        places_(plan, round) {
    out_.head_groups = round.head_groups;
    for (const BlockId block : device_.local_blocks) {
      first_row_.push_back(own_tokens_);
      own_tokens_ += round.blocks.num_tokens(block);
    }
    out_.own_tokens = own_tokens_;
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (!occurs_in(kind, direction)) continue;
      const std::int64_t rows = own_tokens_ * round.head_groups + program_.arena_tokens(kind);
      if (rows > std::numeric_limits<std::int32_t>::max()) {
        fail_plan("{}: expected fewer than 2^31 rows of {}, found {}", where_, to_string(kind),
                  rows);
      }
      out_.rows[index_of(kind)] = rows;
    }
    written_.emplace(out_.rows);
  }

  StageProgram make() {
    for (at_ = 0; at_ < program_.instructions.size(); ++at_) {
      if (at_ == begin_cut_) mark_begin_cut();
      std::visit([this](const auto& op) { add(op); }, program_.instructions[at_]);
    }
    close_batch();
    if (at_ <= begin_cut_) mark_begin_cut();
    find_last_launch();
    return std::move(out_);
  }

  // Returns the rows of units that forward retains, and those that backward has them in.
  [[nodiscard]] std::vector<StageRetain> retained(std::span<const RetainedSlot> units,
                                                  const Program& backward) const {
    std::vector<StageRetain> rows;
    for (const RetainedSlot& unit : units) {
      rows.push_back({unit.kind, rows_of(program_, unit.kind, unit.block, unit.slot),
                      rows_of(backward, unit.kind, unit.block, unit.backward_slot)});
    }
    return rows;
  }

 private:
  static StageOptions scaled(StageOptions options, std::int32_t head_groups) {
    // Offsets of entries are 32-bit numbers.
    constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();
    options.max_rows = std::min(options.max_rows, kMaxRows / head_groups) * head_groups;
    return options;
  }
  // Returns the first row of a slot.
  [[nodiscard]] std::int64_t row_of(const Program& program, Kind kind, SlotId slot) const {
    const std::int64_t owned = std::ssize(device_.local_blocks) * round_.head_groups;
    if (slot.value >= owned) {
      const auto at = static_cast<std::size_t>(slot.value - owned);
      return own_tokens_ * round_.head_groups + program.staging[index_of(kind)][at].offset_tokens;
    }
    const std::int32_t group = slot.value % round_.head_groups;
    return group * own_tokens_ +
           first_row_[static_cast<std::size_t>(slot.value / round_.head_groups)];
  }
  [[nodiscard]] std::int64_t row_of(Kind kind, SlotId slot) const {
    return row_of(program_, kind, slot);
  }
  [[nodiscard]] Range rows_of(const Program& program, Kind kind, BlockId block, SlotId slot) const {
    const std::int64_t first = row_of(program, kind, slot);
    return {first, first + round_.blocks.num_tokens(block)};
  }
  [[nodiscard]] Range rows_of(Kind kind, BlockId block, SlotId slot) const {
    return rows_of(program_, kind, block, slot);
  }

  // ------------------------------------------------------------------------------ attention

  void add(const AttentionOp& op) {
    close_batch();
    StageAttention stage;
    std::vector<RowSegment> segments = segments_of(op, stage);
    stage.num_keys = num_keys(segments);
    const Kind result = direction_ == Direction::kForward ? Kind::kO : Kind::kDq;
    stage.is_first = std::ranges::none_of(segments, [&](const RowSegment& segment) {
      const std::int64_t base = segment.base[index_of(result)];
      return written_->any(result, Range{base + segment.q.begin, base + segment.q.end});
    });
    stage.calls = stage_calls(segments, direction_, options_, *written_);
    std::int64_t pairs = 0;
    for (const StageCall& call : stage.calls) pairs += call.pairs;
    if (pairs != stage.pairs) {
      fail_plan("{} instruction {}: expected entries of {} pairs, found {}", where_, at_,
                stage.pairs, pairs);
    }
    if (options_.intervals) stage.intervals = stage_intervals(segments, direction_);
    if (options_.tokens) add_places(op, segments, stage);
    out_.instructions.emplace_back(std::move(stage));
  }

  // Returns the segments of all units of queries, in the order in which tiles name them first.
  std::vector<RowSegment> segments_of(const AttentionOp& op, StageAttention& stage) {
    using Base = std::array<std::int64_t, kNumKinds>;
    std::map<Base, std::size_t> unit_of;
    std::vector<UnitPieces> units;
    std::set<std::pair<Kind, SlotId>> used;
    for (const TileOp& tile : op.tiles) {
      Base base{};
      for (const Kind kind : kinds_of_queries(direction_)) {
        base[index_of(kind)] = row_of(kind, slot_of(tile, kind));
      }
      const auto [at, is_new] = unit_of.try_emplace(base, units.size());
      if (is_new) units.emplace_back(base, tile.group.value);
      const std::int64_t key = row_of(Kind::kKv, tile.kv);
      const std::int64_t shift =
          direction_ == Direction::kForward ? 0 : row_of(Kind::kDkv, tile.dkv) - key;
      units[at->second].add(pieces_.find(tile, where_), key, shift);
      stage.pairs += tile.pairs;
      const Kind result = direction_ == Direction::kForward ? Kind::kO : Kind::kDq;
      reset(tile.init_result, result, tile.q_block, tile.result, used, stage);
      if (direction_ == Direction::kBackward) {
        reset(tile.init_dkv, Kind::kDkv, tile.kv_block, tile.dkv, used, stage);
      }
    }
    std::vector<RowSegment> segments;
    for (UnitPieces& unit : units) unit.append_segments(segments);
    return segments;
  }

  // Begins a slot again if its first tile of the instruction says so.
  void reset(bool init, Kind kind, BlockId block, SlotId slot,
             std::set<std::pair<Kind, SlotId>>& used, StageAttention& stage) {
    const bool is_first = used.emplace(kind, slot).second;
    if (!init) return;
    if (!is_first) {
      fail_plan(
          "{} instruction {}: expected {}[{}] to begin with its first tile, found a later one",
          where_, at_, to_string(kind), slot.value);
    }
    const Range rows = rows_of(kind, block, slot);
    if (!written_->any(kind, rows)) return;
    RowList list;
    append_rows(rows, list);
    written_->remove(kind, list);
    RowList& resets = stage.resets[index_of(kind)];
    resets.insert(resets.end(), list.begin(), list.end());
  }

  // The tokens of runs of rows, by the first row of each run.
  using Places = std::map<std::int64_t, std::span<const TokenPlace>>;

  static void append_places(const Places& places, const RowList& rows,
                            std::vector<std::int32_t>& tokens,
                            std::vector<std::int32_t>& positions) {
    auto run = places.begin();
    for (const std::int64_t row : rows) {
      if (row < run->first || row >= run->first + std::ssize(run->second)) {
        run = std::prev(places.upper_bound(row));
      }
      const TokenPlace& found = run->second[static_cast<std::size_t>(row - run->first)];
      tokens.push_back(found.token);
      positions.push_back(found.position);
    }
  }

  void add_places(const AttentionOp& op, std::span<const RowSegment> segments,
                  StageAttention& stage) {
    Places of_queries;
    Places of_keys;
    for (const TileOp& tile : op.tiles) {
      of_queries[row_of(Kind::kQ, tile.q)] = places_.of(tile.q_block);
      of_keys[row_of(Kind::kKv, tile.kv)] = places_.of(tile.kv_block);
    }
    for (StageCall& call : stage.calls) {
      append_places(of_queries, call.rows[index_of(Kind::kQ)], call.q_tokens, call.q_positions);
      append_places(of_keys, call.rows[index_of(Kind::kKv)], call.k_tokens, call.k_positions);
    }
    if (!options_.intervals) return;
    StageIntervals& all = stage.intervals;
    append_places(of_queries, all.rows[index_of(Kind::kQ)], all.q_tokens, all.q_positions);
    append_places(of_keys, all.rows[index_of(Kind::kKv)], all.k_tokens, all.k_positions);
    for (const RowSegment& segment : segments) {
      all.q_groups.insert(all.q_groups.end(), static_cast<std::size_t>(segment.q.size()),
                          segment.group);
    }
  }

  // ------------------------------------------------------------------------ reduce and copy

  void add(const ReduceOp& op) {
    std::vector<Range> srcs;
    for (const SlotId src : op.srcs) srcs.push_back(rows_of(op.kind, op.block, src));
    add_to_batch(false, op.kind, rows_of(op.kind, op.block, op.dst), std::move(srcs));
  }
  void add(const CopyOp& op) {
    add_to_batch(true, op.kind, rows_of(op.kind, op.block, op.dst),
                 {rows_of(op.kind, op.block, op.src)});
  }

  void add_to_batch(bool is_copy, Kind kind, Range dst, std::vector<Range> srcs) {
    if (!batch_.add(is_copy, kind, dst, srcs)) {
      close_batch();
      static_cast<void>(batch_.add(is_copy, kind, dst, srcs));
    }
    RowList list;
    append_rows(dst, list);
    written_->add(kind, list);
  }

  void close_batch() {
    if (batch_.empty()) return;
    out_.instructions.push_back(batch_.take());
  }

  // ------------------------------------------------------------------------- launch and wait

  [[nodiscard]] std::vector<StageMessage> messages(const std::vector<TransferEnd>& ends) const {
    std::vector<StageMessage> all;
    std::map<std::tuple<Rank, Kind, Dtype>, std::size_t> found;
    for (const TransferEnd& end : ends) {
      const auto [at, is_new] = found.try_emplace({end.peer, end.kind, end.wire}, all.size());
      if (is_new) all.push_back({end.peer, end.kind, end.wire, {}});
      append_rows(rows_of(end.kind, end.block, end.slot), all[at->second].rows);
    }
    return all;
  }

  void add(const LaunchOp& op) {
    close_batch();
    StageLaunch launch{op.id, messages(op.sends), messages(op.recvs)};
    for (const StageMessage& message : launch.recvs) written_->add(message.kind, message.rows);
    out_.instructions.emplace_back(std::move(launch));
  }
  void add(const WaitOp& op) {
    close_batch();
    out_.instructions.emplace_back(StageWait{op.id});
  }

  void mark_begin_cut() {
    close_batch();
    out_.begin_cut = out_.instructions.size();
  }

  void find_last_launch() {
    const auto& all = out_.instructions;
    out_.launches_end = all.size();
    while (out_.launches_end > 0 &&
           !std::holds_alternative<StageLaunch>(all[out_.launches_end - 1])) {
      --out_.launches_end;
    }
  }

  const PlanRound& round_;
  const Direction direction_;
  const StageOptions options_;
  const std::size_t begin_cut_;
  const std::string where_;
  const DeviceProgram& device_;
  const Program& program_;
  PieceTable pieces_;
  TokenPlaces places_;
  std::int64_t own_tokens_ = 0;
  std::vector<std::int64_t> first_row_;  // of the owned blocks among the rank's tokens
  StageProgram out_;
  std::optional<WrittenRows> written_;
  RowBatch batch_;
  std::size_t at_ = 0;  // instruction
};

void check_place(const Plan& plan, Rank rank, std::size_t mask, Direction direction) {
  CONTEXTILE_CHECK(rank.valid() && rank.value < plan.num_devices(),
                   "stages: expected a rank among 0 … {}, found {}", plan.num_devices() - 1,
                   rank.value);
  check_has_rank(plan, rank, "stages");
  if (plan.rounds.empty()) return;
  const std::size_t num_masks = plan.rounds[0].masks.size();
  CONTEXTILE_CHECK(mask < num_masks, "stages: expected a mask below {}, found {}", num_masks, mask);
  CONTEXTILE_CHECK(plan.rounds[0].has_direction(mask, direction),
                   "stages: expected a plan with a {} program for mask {}, found none",
                   to_string(direction), mask);
}

}  // namespace

std::string_view to_string(EntryClass entry_class) {
  constexpr std::array<std::string_view, 4> kNames = {"full", "causal", "window", "inverse"};
  return kNames[static_cast<std::size_t>(entry_class)];
}

std::vector<StageProgram> stage_lists(const Plan& plan, Rank rank, std::size_t mask,
                                      Direction direction, const StageOptions& options) {
  check_structure(plan);
  check_place(plan, rank, mask, direction);
  CONTEXTILE_CHECK(options.max_rows > 0, "stages: expected max_rows of at least 1, found {}",
                   options.max_rows);
  if (has_block_head_groups(plan)) {
    return stage_lists(with_even_head_groups(plan), rank, mask, direction, options);
  }
  std::vector<StageProgram> programs;
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    const PlanRound& round = plan.rounds[r];
    const ProgramPair& pair = round.devices[rank.index()].programs[mask];
    const std::string where =
        fmt::format("round {} mask {} {} rank {}", r, mask, to_string(direction), rank.value);
    check_program(plan, round, *pair.of(direction), direction, rank, where);
    // A slice does not show how far the other ranks go.
    const std::size_t cut = plan.slice_of.valid() ? 0 : begin_cut(round, mask, direction, rank);
    ProgramLists lists(plan, round, rank, mask, direction, options, cut, where);
    StageProgram program = lists.make();
    if (direction == Direction::kForward && pair.backward) {
      std::int64_t saved_bytes = 0;
      const auto units = retained_slots(plan, round, *pair.forward, where, saved_bytes);
      check_retained(plan, round, units, pair.backward, rank, where);
      program.retain = lists.retained(units, *pair.backward);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace contextile

// Checks the ranges of every number that later steps index with or multiply.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "plan/verify/facts.h"

namespace contextile {
namespace {

// Far above any real size; they keep products of sizes inside 64 bits.
constexpr std::int32_t kMaxShapeExtent = 1 << 20;
constexpr std::int64_t kMaxStagingTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMaxPairs = std::int64_t{1} << 61;  // sums of a few stay inside 64 bits
constexpr std::int64_t kMaxUnits = std::int64_t{1} << 22;

bool is_kind(Kind kind) { return static_cast<int>(kind) < kNumKinds; }
bool is_dtype(Dtype dtype) { return dtype <= Dtype::kF16; }
bool is_role(Role role) { return role <= Role::kQOnly; }

// Bytes in fp32 of all tensors of one token, of the widest kinds together.
std::int64_t max_bytes_per_token(const AttentionShape& shape) {
  const std::int64_t dims = std::int64_t{shape.head_dim} + shape.value_dim;
  return 4 * (shape.q_heads * (dims + 2) + shape.kv_heads * dims);
}

bool check_shape_extents(const AttentionShape& shape, Dtype partial_wire, Findings& findings) {
  const std::int64_t before = findings.num_violations();
  const auto extent = [&](std::string_view name, std::int32_t value) {
    if (value >= 1 && value <= kMaxShapeExtent) return;
    findings.violation({}, "{} {} is not in [1, {}]", name, value, kMaxShapeExtent);
  };
  extent("q_heads", shape.q_heads);
  extent("kv_heads", shape.kv_heads);
  extent("head_dim", shape.head_dim);
  extent("value_dim", shape.value_dim);
  if (shape.kv_heads > 0 && shape.q_heads % shape.kv_heads != 0) {
    findings.violation({}, "{} query heads are no multiple of {} KV heads", shape.q_heads,
                       shape.kv_heads);
  }
  if (!std::isfinite(shape.scale) || !std::isfinite(shape.softcap) || shape.softcap < 0) {
    findings.violation({}, "scale {} or softcap {} is out of range", shape.scale, shape.softcap);
  }
  if (!is_dtype(shape.dtype) || !is_dtype(partial_wire)) {
    findings.violation({}, "unknown dtype {} or partial wire {}", static_cast<int>(shape.dtype),
                       static_cast<int>(partial_wire));
  }
  return findings.num_violations() == before;
}

bool check_sequences(const std::vector<Range>& sequences, Findings& findings) {
  if (sequences.empty()) {
    findings.violation({}, "no sequences");
    return false;
  }
  std::int64_t end = 0;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const Range sequence = sequences[n];
    if (sequence.begin != end || sequence.empty() || sequence.end > kMaxTokens) {
      findings.violation({}, "sequence {} is [{}, {}), expected a non-empty one from {} on", n,
                         sequence.begin, sequence.end, end);
      return false;
    }
    end = sequence.end;
  }
  return true;
}

// Checks that ranges are the whole batch in ascending order; `ranges` yields them.
template <typename Items>
void check_partition(std::string_view what, const Items& items, std::int64_t num_tokens,
                     Findings& findings) {
  if (items.empty()) return;
  std::int64_t end = 0;
  for (const auto& item : items) {
    if (item.tokens.begin != end || item.tokens.empty()) {
      findings.violation({}, "{} range [{}, {}) does not continue at token {}", what,
                         item.tokens.begin, item.tokens.end, end);
      return;
    }
    end = item.tokens.end;
  }
  if (end != num_tokens) {
    findings.violation({}, "{} ranges end at {}, the batch has {} tokens", what, end, num_tokens);
  }
}

// Checks that a branch continues behind an earlier token of its sequence.
void check_branch(const Plan& plan, const PositionSegment& segment, Range sequence,
                  Findings& findings) {
  const auto begin_of = [](const PositionSegment& other) { return other.tokens.begin; };
  const auto after = std::ranges::upper_bound(plan.positions, segment.follows, {}, begin_of);
  const bool is_earlier =
      sequence.begin <= segment.follows && segment.follows < segment.tokens.begin;
  if (!is_earlier || after == plan.positions.begin() || (after - 1)->tokens.begin < 0 ||
      !(after - 1)->tokens.contains(segment.follows)) {
    findings.violation({}, "positions of tokens [{}, {}) follow token {}", segment.tokens.begin,
                       segment.tokens.end, segment.follows);
    return;
  }
  const PositionSegment& holder = *(after - 1);
  // A wrong first position of the holder is found there.
  const std::int64_t first = std::clamp<std::int64_t>(holder.first_position, 0, kMaxTokens);
  const std::int64_t position = first + (segment.follows - holder.tokens.begin);
  if (segment.first_position != position + 1) {
    findings.violation({},
                       "positions of tokens [{}, {}) begin at {}, token {} before them is at {}",
                       segment.tokens.begin, segment.tokens.end, segment.first_position,
                       segment.follows, position);
  }
}

// Checks that every segment is inside the sequence it names.
void check_positions(const Plan& plan, Findings& findings) {
  check_partition("position", plan.positions, plan.num_tokens(), findings);
  for (const PositionSegment& segment : plan.positions) {
    const auto& [tokens, sequence, first_position, follows] = segment;
    if (sequence < 0 || sequence >= std::ssize(plan.sequences)) {
      findings.violation({}, "positions of tokens [{}, {}): no sequence {} of {}", tokens.begin,
                         tokens.end, sequence, plan.sequences.size());
      continue;
    }
    const Range own = plan.sequences[static_cast<std::size_t>(sequence)];
    if (tokens.begin < own.begin || tokens.end > own.end) {
      findings.violation({}, "positions of tokens [{}, {}): sequence {} is [{}, {})", tokens.begin,
                         tokens.end, sequence, own.begin, own.end);
    }
    if (first_position < 0 || first_position > kMaxTokens) {
      findings.violation({}, "positions of tokens [{}, {}) begin at {}", tokens.begin, tokens.end,
                         first_position);
      continue;
    }
    if (follows < kPositionsUnknown) {
      findings.violation({}, "positions of tokens [{}, {}) follow token {}", tokens.begin,
                         tokens.end, follows);
    }
    if (follows >= 0) check_branch(plan, segment, own, findings);
  }
}

// Checks that the blocks of all rounds partition the tokens.
void check_blocks_partition(const Plan& plan, Findings& findings) {
  struct Piece {
    Range tokens;
    std::size_t round;
    std::int32_t block;
  };
  std::vector<Piece> pieces;
  for (std::size_t n = 0; n < plan.rounds.size(); ++n) {
    const Blocking& blocks = plan.rounds[n].blocks;
    for (std::int32_t b = 0; b < blocks.num_blocks(); ++b) {
      for (const Range range : blocks.ranges(BlockId{b})) pieces.push_back({range, n, b});
    }
  }
  std::ranges::stable_sort(pieces, {}, &Piece::tokens);
  std::int64_t end = 0;
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    const Piece& piece = pieces[n];
    if (piece.tokens.begin > end) {
      findings.violation({}, "tokens [{}, {}) are in no block", end, piece.tokens.begin);
    } else if (piece.tokens.begin < end) {
      findings.violation({}, "token {} is in block {} of round {} and in another block",
                         piece.tokens.begin, piece.block, piece.round);
    }
    end = std::max(end, piece.tokens.end);
  }
  if (end != plan.num_tokens()) {
    findings.violation({}, "blocks end at token {}, the batch has {}", end, plan.num_tokens());
  }
}

void check_mask_names(const Plan& plan, Findings& findings) {
  std::set<std::string_view> names;
  for (const NamedMask& mask : plan.rounds.front().masks) {
    if (!names.insert(mask.name).second) {
      findings.violation({}, "two masks have the name '{}'", mask.name);
    }
  }
  for (std::size_t n = 0; n < plan.rounds.size(); ++n) {
    if (!std::ranges::equal(plan.rounds.front().masks, plan.rounds[n].masks,
                            [](const NamedMask& a, const NamedMask& b) {
                              return a.name == b.name && a.layers == b.layers;
                            })) {
      findings.violation({.round = static_cast<std::int64_t>(n)},
                         "masks differ from those of round 0");
    }
  }
}

bool check_blocks(const RoundFacts& facts, Findings& findings) {
  const Blocking& blocks = facts.round.blocks;
  const std::int64_t num_tokens = facts.plan.num_tokens();
  const std::int64_t before = findings.num_violations();
  std::vector<Range> ranges;
  for (std::int32_t b = 0; b < blocks.num_blocks(); ++b) {
    if (!is_role(blocks.role(BlockId{b}))) {
      findings.violation(facts.place, "block {}: unknown role {}", b,
                         static_cast<int>(blocks.role(BlockId{b})));
    }
    for (const Range range : blocks.ranges(BlockId{b})) {
      if (range.begin < 0 || range.empty() || range.end > num_tokens) {
        findings.violation(facts.place, "block {}: range [{}, {}) is not inside [0, {})", b,
                           range.begin, range.end, num_tokens);
      }
      ranges.push_back(range);
    }
  }
  std::ranges::sort(ranges);
  for (std::size_t n = 1; n < ranges.size(); ++n) {
    if (ranges[n].begin < ranges[n - 1].end) {
      findings.violation(facts.place, "blocks overlap at token {}", ranges[n].begin);
      break;
    }
  }
  const auto num_blocks = static_cast<std::size_t>(blocks.num_blocks());
  if (facts.round.owners.size() != num_blocks) {
    findings.violation(facts.place, "{} owners of {} blocks", facts.round.owners.size(),
                       num_blocks);
    return false;
  }
  for (std::size_t b = 0; b < num_blocks; ++b) {
    const Rank owner = facts.round.owners[b];
    if (owner.valid() && owner.value < facts.num_ranks()) continue;
    findings.violation(facts.place, "block {}: owner {} is no rank of {}", b, owner.value,
                       facts.num_ranks());
  }
  return findings.num_violations() == before;
}

bool check_mask_bands(const RoundFacts& facts, Findings& findings) {
  const std::int64_t num_tokens = facts.plan.num_tokens();
  const std::int64_t before = findings.num_violations();
  const auto inside = [&](Range range) {
    return 0 <= range.begin && range.begin <= range.end && range.end <= num_tokens;
  };
  for (std::size_t m = 0; m < facts.round.masks.size(); ++m) {
    const NamedMask& named = facts.round.masks[m];
    PlanPlace place = facts.place;
    place.mask = static_cast<std::int64_t>(m);
    place.mask_name = named.name;
    if (named.layers < 1) findings.violation(place, "{} layers, expected at least 1", named.layers);
    const std::int64_t before_bands = findings.num_violations();
    for (std::size_t b = 0; b < named.mask.bands.size(); ++b) {
      const Band& band = named.mask.bands[b];
      if (inside(band.q) && inside(band.k)) {
        if (band.k.empty() || band.q.size() <= kMaxPairs / band.k.size()) continue;
        findings.violation(place, "band {}: {} x {} pairs are too many to count", b, band.q.size(),
                           band.k.size());
        continue;
      }
      findings.violation(place, "band {}: queries [{}, {}), keys [{}, {}) are not inside [0, {})",
                         b, band.q.begin, band.q.end, band.k.begin, band.k.end, num_tokens);
    }
    if (findings.num_violations() != before_bands) continue;
    if (const auto overlap = find_overlap(named.mask.bands)) {
      findings.violation(place, "bands {} and {} overlap", overlap->first, overlap->second);
    }
  }
  return findings.num_violations() == before;
}

bool check_devices(const RoundFacts& facts, Findings& findings) {
  const std::int64_t before = findings.num_violations();
  std::int64_t num_local_blocks = 0;
  for (std::int32_t r = 0; r < facts.num_ranks(); ++r) {
    const DeviceProgram& device = facts.round.devices[static_cast<std::size_t>(r)];
    for (const BlockId block : device.local_blocks) {
      if (block.valid() && block.value < facts.round.blocks.num_blocks()) continue;
      findings.violation(facts.place.at_rank(r), "local block {} is none of {}", block.value,
                         facts.round.blocks.num_blocks());
    }
    if (device.programs.size() != facts.round.masks.size()) {
      findings.violation(facts.place.at_rank(r), "{} programs for {} masks", device.programs.size(),
                         facts.round.masks.size());
    }
    num_local_blocks += static_cast<std::int64_t>(device.local_blocks.size());
  }
  if (num_local_blocks > kMaxUnits / facts.round.head_groups) {
    findings.violation(facts.place, "{} local blocks on all ranks, the round has {} blocks",
                       num_local_blocks, facts.round.blocks.num_blocks());
  }
  return findings.num_violations() == before;
}

// Walks a program's instructions and reports units that do not exist, and what only the other
// direction has.
class UnitCheck {
 public:
  UnitCheck(const RoundFacts& facts, Direction direction, const PlanPlace& place,
            Findings& findings)
      : facts_(facts), direction_(direction), program_(place), findings_(findings) {}

  void check(std::int64_t index, const Instruction& instruction) {
    place_ = program_.at_instruction(index, op_name(instruction));
    std::visit([this](const auto& op) { check_op(op); }, instruction);
  }

 private:
  void check_op(const AttentionOp& op) {
    for (const TileOp& tile : op.tiles) {
      check_unit(tile.q_block, tile.group);
      check_unit(tile.kv_block, tile.group);
      if (direction_ == Direction::kForward) check_forward(tile);
    }
  }
  // A forward tile that names what a backward one writes was meant to be something else.
  void check_forward(const TileOp& tile) {
    if (tile.init_dkv) findings_.violation(place_, "a forward tile overwrites dkv");
    for (const auto& [slot, kind] : {std::pair(tile.d_o, Kind::kDo), {tile.dkv, Kind::kDkv}}) {
      if (!slot.valid()) continue;
      findings_.violation(place_, "a forward tile uses {}[{}]", to_string(kind), slot.value);
    }
  }
  void check_op(const ReduceOp& op) { check_slot_unit(op); }
  void check_op(const CopyOp& op) { check_slot_unit(op); }
  void check_op(const LaunchOp& op) {
    for (const auto* ends : {&op.sends, &op.recvs}) {
      for (const TransferEnd& end : *ends) {
        check_slot_unit(end);
        if (!is_dtype(end.wire)) {
          findings_.violation(place_, "unknown wire dtype {}", static_cast<int>(end.wire));
        }
      }
    }
  }
  void check_op(const WaitOp&) {}

  template <typename Op>
  void check_slot_unit(const Op& op) {
    check_unit(op.block, op.group);
    if (!is_kind(op.kind)) {
      findings_.violation(place_, "unknown kind {}", static_cast<int>(op.kind));
    }
  }
  void check_unit(BlockId block, GroupId group) {
    if (facts_.has_unit(block, group)) return;
    findings_.violation(place_, "there is no unit of block {} group {}", block.value, group.value);
  }

  const RoundFacts& facts_;
  const Direction direction_;
  const PlanPlace& program_;
  Findings& findings_;
  PlanPlace place_;
};

bool check_block_head_groups(const RoundFacts& facts, Findings& findings) {
  const std::vector<std::int32_t>& groups = facts.round.block_head_groups;
  if (!groups.empty() && std::ssize(groups) != facts.round.blocks.num_blocks()) {
    findings.violation(facts.place, "head groups of {} blocks, the round has {}", groups.size(),
                       facts.round.blocks.num_blocks());
    return false;
  }
  const std::int64_t before = findings.num_violations();
  for (std::size_t b = 0; b < groups.size(); ++b) {
    if (groups[b] >= 1 && facts.round.head_groups % groups[b] == 0) continue;
    findings.violation(facts.place, "block {}: {} head groups do not divide the {} of the round", b,
                       groups[b], facts.round.head_groups);
  }
  return findings.num_violations() == before;
}

}  // namespace

bool check_plan_structure(const Plan& plan, Findings& findings) {
  if (plan.slice_of.valid()) {
    findings.violation({}, "expected a whole plan, found the slice of rank {}",
                       plan.slice_of.value);
    return false;
  }
  if (plan.nodes < 1 || plan.devices_per_node < 1 ||
      std::int64_t{plan.nodes} * plan.devices_per_node > std::numeric_limits<std::int32_t>::max()) {
    findings.violation({}, "{} nodes of {} devices", plan.nodes, plan.devices_per_node);
    return false;
  }
  if (!check_shape_extents(plan.shape, plan.partial_wire, findings)) return false;
  if (!check_sequences(plan.sequences, findings)) return false;
  if (plan.num_tokens() > kMaxBytes / max_bytes_per_token(plan.shape)) {
    findings.violation({}, "{} tokens of this shape are more than {} bytes", plan.num_tokens(),
                       kMaxBytes);
    return false;
  }
  check_partition("home", plan.home, plan.num_tokens(), findings);
  for (const HomeRange& home : plan.home) {
    if (home.owner.valid() && home.owner.value < plan.num_devices()) continue;
    findings.violation({}, "home of tokens [{}, {}): owner {} is no rank of {}", home.tokens.begin,
                       home.tokens.end, home.owner.value, plan.num_devices());
  }
  check_positions(plan, findings);
  if (plan.rounds.empty()) {
    findings.violation({}, "no rounds");
    return false;
  }
  check_mask_names(plan, findings);
  check_blocks_partition(plan, findings);
  return true;
}

bool check_round_structure(const RoundFacts& facts, Findings& findings) {
  const PlanRound& round = facts.round;
  if (round.devices.size() != static_cast<std::size_t>(facts.plan.num_devices())) {
    findings.violation(facts.place, "{} devices, the cluster has {}", round.devices.size(),
                       facts.plan.num_devices());
    return false;
  }
  if (round.head_groups < 1 || facts.plan.shape.kv_heads % round.head_groups != 0) {
    findings.violation(facts.place, "{} head groups do not divide {} KV heads", round.head_groups,
                       facts.plan.shape.kv_heads);
    return false;
  }
  if (round.blocks.num_blocks() > kMaxUnits / round.head_groups) {
    findings.violation(facts.place, "{} blocks of {} head groups are more than {} units",
                       round.blocks.num_blocks(), round.head_groups, kMaxUnits);
    return false;
  }
  if (!check_block_head_groups(facts, findings)) return false;
  const bool blocks_ok = check_blocks(facts, findings);
  const bool bands_ok = check_mask_bands(facts, findings);
  const bool devices_ok = check_devices(facts, findings);
  return blocks_ok && bands_ok && devices_ok;
}

bool check_program_structure(const RoundFacts& facts, const Program& program, Direction direction,
                             const PlanPlace& place, Findings& findings) {
  const std::int64_t before = findings.num_violations();
  const std::int64_t max_arena_tokens = kMaxBytes / max_bytes_per_token(facts.plan.shape);
  for (int n = 0; n < kNumKinds; ++n) {
    const auto kind = static_cast<Kind>(n);
    const std::vector<StagingSlot>& slots = program.staging[static_cast<std::size_t>(n)];
    if (!slots.empty() && !occurs_in(kind, direction)) {
      findings.violation(place, "staging of {}, which does not occur", to_string(kind));
    }
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const auto [offset, capacity] = slots[s];
      const bool in_range = 0 <= offset && offset < kMaxStagingTokens && 1 <= capacity &&
                            capacity < kMaxStagingTokens && offset + capacity <= max_arena_tokens;
      if (in_range) continue;
      findings.violation(place, "staging slot {} of {}: offset {}, capacity {}", s, to_string(kind),
                         offset, capacity);
    }
  }
  UnitCheck units(facts, direction, place, findings);
  for (std::size_t n = 0; n < program.instructions.size(); ++n) {
    units.check(static_cast<std::int64_t>(n), program.instructions[n]);
  }
  return findings.num_violations() == before;
}

}  // namespace contextile

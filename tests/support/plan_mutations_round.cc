// Mutations of the surroundings of the programs: blocks, owners, masks, devices, limits, cluster.
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"
#include "support/plan_mutations.h"
#include "support/plan_places.h"

namespace contextile {
namespace {

struct Block {
  std::vector<Range> ranges;
  Role role;
  friend bool operator==(const Block&, const Block&) = default;
};

std::vector<Block> blocks_of(const PlanRound& round) {
  std::vector<Block> blocks;
  for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
    const auto ranges = round.blocks.ranges(BlockId{b});
    blocks.push_back({{ranges.begin(), ranges.end()}, round.blocks.role(BlockId{b})});
  }
  return blocks;
}

// Changes the list of blocks; false if a block cannot even be built or nothing changed.
template <typename Change>
bool change_blocks(Plan& plan, Chance& chance, Change change) {
  PlanRound& round = chance.pick(plan.rounds);
  std::vector<Block> blocks = blocks_of(round);
  if (blocks.empty()) return false;
  const std::vector<Block> before = blocks;
  change(blocks);
  if (blocks == before) return false;
  Blocking blocking;
  try {
    for (const Block& block : blocks) blocking.add(block.ranges, block.role);
  } catch (const InvalidArgument&) {
    return false;
  }
  round.blocks = blocking;
  return true;
}

bool move_block_edge(Plan& plan, Chance& chance) {
  return change_blocks(plan, chance, [&](std::vector<Block>& blocks) {
    Range& range = chance.pick(chance.pick(blocks).ranges);
    (chance.one_in(2) ? range.begin : range.end) += step(chance);
  });
}
bool swap_ranges(Plan& plan, Chance& chance) {
  return change_blocks(plan, chance, [&](std::vector<Block>& blocks) {
    auto& a = chance.pick(blocks).ranges;
    auto& b = chance.pick(blocks).ranges;
    std::swap(chance.pick(a), chance.pick(b));
  });
}
// The rows of a block in another order, on every rank alike: harmless.
bool rotate_ranges(Plan& plan, Chance& chance) {
  return change_blocks(plan, chance, [&](std::vector<Block>& blocks) {
    auto& ranges = chance.pick(blocks).ranges;
    std::rotate(ranges.begin(), ranges.begin() + 1, ranges.end());
  });
}
bool drop_block(Plan& plan, Chance& chance) {
  return change_blocks(plan, chance, [&](std::vector<Block>& blocks) {
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(chance.below(blocks.size())));
  });
}
bool duplicate_block(Plan& plan, Chance& chance) {
  return change_blocks(plan, chance, [&](std::vector<Block>& blocks) {
    const Block copy = chance.pick(blocks);
    blocks.push_back(copy);
  });
}
bool change_role(Plan& plan, Chance& chance) {
  return change_blocks(plan, chance, [&](std::vector<Block>& blocks) {
    chance.pick(blocks).role = static_cast<Role>(chance.between(0, 2));
  });
}

bool change_owner(Plan& plan, Chance& chance) {
  PlanRound& round = chance.pick(plan.rounds);
  if (round.owners.empty()) return false;
  chance.pick(round.owners).value += step(chance);
  return true;
}
bool drop_owner(Plan& plan, Chance& chance) {
  PlanRound& round = chance.pick(plan.rounds);
  if (round.owners.empty()) return false;
  round.owners.pop_back();
  return true;
}

bool swap_local_blocks(Plan& plan, Chance& chance) {
  auto& local = chance.pick(chance.pick(plan.rounds).devices).local_blocks;
  if (local.size() < 2) return false;
  BlockId& a = chance.pick(local);
  BlockId& b = chance.pick(local);
  if (a == b) return false;
  std::swap(a, b);
  return true;
}
bool move_local_block(Plan& plan, Chance& chance) {
  auto& devices = chance.pick(plan.rounds).devices;
  auto& from = chance.pick(devices).local_blocks;
  auto& to = chance.pick(devices).local_blocks;
  if (from.empty() || &from == &to) return false;
  to.push_back(from.back());
  from.pop_back();
  return true;
}
bool duplicate_local_block(Plan& plan, Chance& chance) {
  auto& local = chance.pick(chance.pick(plan.rounds).devices).local_blocks;
  if (local.empty()) return false;
  const BlockId copy = chance.pick(local);
  local.push_back(copy);
  return true;
}
bool drop_local_block(Plan& plan, Chance& chance) {
  auto& local = chance.pick(chance.pick(plan.rounds).devices).local_blocks;
  if (local.empty()) return false;
  local.pop_back();
  return true;
}

std::vector<Mask*> masks_with_bands(Plan& plan) {
  std::vector<Mask*> masks;
  for (PlanRound& round : plan.rounds) {
    for (NamedMask& named : round.masks) {
      if (!named.mask.bands.empty()) masks.push_back(&named.mask);
    }
  }
  return masks;
}

bool change_band(Plan& plan, Chance& chance) {
  auto masks = masks_with_bands(plan);
  if (masks.empty()) return false;
  Band& band = chance.pick(chance.pick(masks)->bands);
  std::array edges = {&band.q.begin, &band.q.end, &band.k.begin, &band.k.end, &band.lo, &band.hi};
  *edges[chance.below(edges.size())] += step(chance);
  return true;
}
bool drop_band(Plan& plan, Chance& chance) {
  auto masks = masks_with_bands(plan);
  if (masks.empty()) return false;
  auto& bands = chance.pick(masks)->bands;
  bands.erase(bands.begin() + static_cast<std::ptrdiff_t>(chance.below(bands.size())));
  return true;
}
bool duplicate_band(Plan& plan, Chance& chance) {
  auto masks = masks_with_bands(plan);
  if (masks.empty()) return false;
  auto& bands = chance.pick(masks)->bands;
  const Band copy = chance.pick(bands);
  bands.push_back(copy);
  return true;
}
bool change_layers(Plan& plan, Chance& chance) {
  chance.pick(chance.pick(plan.rounds).masks).layers += step(chance);
  return true;
}
bool rename_mask(Plan& plan, Chance& chance) {
  chance.pick(chance.pick(plan.rounds).masks).name = "renamed";
  return true;
}
bool swap_programs_of_masks(Plan& plan, Chance& chance) {
  auto& programs = chance.pick(chance.pick(plan.rounds).devices).programs;
  if (programs.size() < 2 || programs.front() == programs.back()) return false;
  std::swap(programs.front(), programs.back());
  return true;
}
bool drop_program(Plan& plan, Chance& chance) {
  auto& programs = chance.pick(chance.pick(plan.rounds).devices).programs;
  programs.resize(chance.below(programs.size()));
  return true;
}
// Changes only one of several ranks: a plan may lack a direction as a whole.
bool drop_direction(Plan& plan, Chance& chance) {
  auto& devices = chance.pick(plan.rounds).devices;
  ProgramPair& pair = chance.pick(chance.pick(devices).programs);
  std::optional<Program>& program = chance.one_in(2) ? pair.forward : pair.backward;
  if (devices.size() < 2 || !program) return false;
  program.reset();
  return true;
}
bool swap_programs_of_ranks(Plan& plan, Chance& chance) {
  auto& devices = chance.pick(plan.rounds).devices;
  ProgramPair& a = chance.pick(devices).programs.at(0);
  ProgramPair& b = chance.pick(devices).programs.at(0);
  if (a == b) return false;
  if (chance.one_in(2)) {
    std::swap(a.forward, b.forward);
  } else {
    std::swap(a.backward, b.backward);
  }
  return true;
}
bool swap_devices(Plan& plan, Chance& chance) {
  auto& devices = chance.pick(plan.rounds).devices;
  DeviceProgram& a = chance.pick(devices);
  DeviceProgram& b = chance.pick(devices);
  if (a == b) return false;
  std::swap(a, b);
  return true;
}
bool drop_device(Plan& plan, Chance& chance) {
  auto& devices = chance.pick(plan.rounds).devices;
  devices.resize(chance.below(devices.size()));
  return true;
}

bool drop_round(Plan& plan, Chance& chance) {
  plan.rounds.erase(plan.rounds.begin() +
                    static_cast<std::ptrdiff_t>(chance.below(plan.rounds.size())));
  return true;
}
bool duplicate_round(Plan& plan, Chance& chance) {
  const PlanRound copy = chance.pick(plan.rounds);
  plan.rounds.push_back(copy);
  return true;
}
bool swap_rounds(Plan& plan, Chance&) {
  if (plan.rounds.size() < 2) return false;
  std::swap(plan.rounds.front(), plan.rounds.back());
  return true;
}

bool change_sequence(Plan& plan, Chance& chance) {
  Range& sequence = chance.pick(plan.sequences);
  (chance.one_in(2) ? sequence.begin : sequence.end) += step(chance);
  return true;
}
bool move_sequence_edge(Plan& plan, Chance& chance) {
  if (plan.sequences.size() < 2) return false;
  const std::size_t n = chance.below(plan.sequences.size() - 1);
  plan.sequences[n + 1].begin = plan.sequences[n].end += step(chance);
  return true;
}
bool change_position(Plan& plan, Chance& chance) {
  if (plan.positions.empty()) return false;
  PositionSegment& segment = chance.pick(plan.positions);
  if (segment.follows >= 0 && chance.one_in(3)) {
    segment.follows += step(chance);
  } else {
    (chance.one_in(2) ? segment.tokens.end : segment.sequence) += step(chance);
  }
  return true;
}
bool change_home(Plan& plan, Chance& chance) {
  if (plan.home.empty()) {
    plan.home = {{{0, plan.num_tokens()}, Rank{0}}};
    return plan.num_devices() > 1;
  }
  HomeRange& home = chance.pick(plan.home);
  if (chance.one_in(2)) {
    home.tokens.end += step(chance);
  } else {
    home.owner.value += step(chance);
  }
  return true;
}

bool lower_token_limit(Plan& plan, Chance& chance) {
  PlanRound& round = chance.pick(plan.rounds);
  round.limits.tokens = chance.between(0, std::max<std::int64_t>(1, round.blocks.total_tokens()));
  return true;
}
bool lower_memory_limit(Plan& plan, Chance& chance) {
  constexpr std::array<std::int64_t, 3> kLimits = {0, 200, 1 << 20};
  chance.pick(plan.rounds).limits.memory_bytes = chance.pick(kLimits);
  return true;
}
bool change_head_groups(Plan& plan, Chance& chance) {
  PlanRound& round = chance.pick(plan.rounds);
  round.head_groups = chance.one_in(2) ? round.head_groups * 2 : round.head_groups + step(chance);
  return true;
}
bool change_block_head_groups(Plan& plan, Chance& chance) {
  PlanRound& round = chance.pick(plan.rounds);
  std::vector<std::int32_t>& groups = round.block_head_groups;
  if (groups.empty()) groups.assign(round.owners.size(), round.head_groups);
  if (chance.one_in(4)) {
    groups.pop_back();
  } else {
    chance.pick(groups) += step(chance);
  }
  return true;
}
bool drop_block_head_groups(Plan& plan, Chance& chance) {
  std::vector<std::int32_t>& groups = chance.pick(plan.rounds).block_head_groups;
  if (groups.empty()) return false;
  groups.clear();
  return true;
}
bool change_cluster(Plan& plan, Chance& chance) {
  (chance.one_in(2) ? plan.nodes : plan.devices_per_node) += step(chance);
  return true;
}
// Changes only to values that no shape can have: other heads or dims are just another model.
bool break_shape(Plan& plan, Chance& chance) {
  AttentionShape& shape = plan.shape;
  const std::array extents = {&shape.q_heads, &shape.kv_heads, &shape.head_dim, &shape.value_dim};
  *extents[chance.below(extents.size())] = static_cast<std::int32_t>(chance.between(-1, 0));
  return true;
}
bool change_dtype(Plan& plan, Chance& chance) {
  Dtype& dtype = chance.one_in(2) ? plan.shape.dtype : plan.partial_wire;
  dtype = dtype == Dtype::kF32 ? Dtype::kF16 : Dtype::kF32;
  return true;
}

constexpr PlanMutation kMutations[] = {
    {"move_block_edge", move_block_edge},
    {"swap_ranges", swap_ranges},
    {"rotate_ranges", rotate_ranges},
    {"drop_block", drop_block},
    {"duplicate_block", duplicate_block},
    {"change_role", change_role},
    {"change_owner", change_owner},
    {"drop_owner", drop_owner},
    {"swap_local_blocks", swap_local_blocks},
    {"move_local_block", move_local_block},
    {"duplicate_local_block", duplicate_local_block},
    {"drop_local_block", drop_local_block},
    {"change_band", change_band},
    {"drop_band", drop_band},
    {"duplicate_band", duplicate_band},
    {"change_layers", change_layers},
    {"rename_mask", rename_mask},
    {"swap_programs_of_masks", swap_programs_of_masks},
    {"drop_program", drop_program},
    {"drop_direction", drop_direction},
    {"swap_programs_of_ranks", swap_programs_of_ranks},
    {"swap_devices", swap_devices},
    {"drop_device", drop_device},
    {"drop_round", drop_round},
    {"duplicate_round", duplicate_round},
    {"swap_rounds", swap_rounds},
    {"change_sequence", change_sequence},
    {"move_sequence_edge", move_sequence_edge},
    {"change_position", change_position},
    {"change_home", change_home},
    {"lower_token_limit", lower_token_limit},
    {"lower_memory_limit", lower_memory_limit},
    {"change_head_groups", change_head_groups},
    {"change_block_head_groups", change_block_head_groups},
    {"drop_block_head_groups", drop_block_head_groups},
    {"change_cluster", change_cluster},
    {"break_shape", break_shape},
    {"change_dtype", change_dtype},
};

}  // namespace

std::span<const PlanMutation> round_mutations() { return kMutations; }

}  // namespace contextile

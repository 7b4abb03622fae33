// Mutations of whole lists: elements doubled, left out or exchanged where the others change one.
#include <cstddef>
#include <utility>
#include <vector>

#include "support/plan_mutations.h"
#include "support/plan_places.h"

namespace contextile {
namespace {

// Duplicates a slot, so that the slots behind it get other numbers.
bool duplicate_slot(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  if (lists.empty()) return false;
  auto& slots = *chance.pick(lists);
  const std::size_t at = chance.below(slots.size());
  put(slots, at, StagingSlot(slots[at]));
  return true;
}

// Two blocks exchange their numbers; owners and programs stay with the numbers.
bool swap_blocks(Plan& plan, Chance& chance) {
  PlanRound& round = chance.pick(plan.rounds);
  const auto num_blocks = static_cast<std::size_t>(round.blocks.num_blocks());
  if (num_blocks < 2) return false;
  const std::size_t a = chance.below(num_blocks);
  const std::size_t b = chance.below(num_blocks);
  Blocking swapped;
  for (std::size_t i = 0; i < num_blocks; ++i) {
    const BlockId from{static_cast<std::int32_t>(i == a ? b : i == b ? a : i)};
    swapped.add(round.blocks.ranges(from), round.blocks.role(from));
  }
  if (swapped == round.blocks) return false;
  round.blocks = std::move(swapped);
  return true;
}
bool swap_owners(Plan& plan, Chance& chance) {
  PlanRound& round = chance.pick(plan.rounds);
  return !round.owners.empty() && swap_two(round.owners, chance);
}

bool swap_bands(Plan& plan, Chance& chance) {
  auto& bands = chance.pick(chance.pick(plan.rounds).masks).mask.bands;
  return !bands.empty() && swap_two(bands, chance);
}
// Exchanges the bands of two masks; their programs stay.
bool swap_masks(Plan& plan, Chance& chance) {
  std::vector<NamedMask>& masks = chance.pick(plan.rounds).masks;
  if (masks.size() < 2 || masks.front().mask.bands == masks.back().mask.bands) return false;
  std::swap(masks.front().mask, masks.back().mask);
  return true;
}
// Drops a mask in all rounds; its programs stay.
bool drop_mask(Plan& plan, Chance& chance) {
  const std::size_t mask = chance.below(chance.pick(plan.rounds).masks.size());
  for (PlanRound& round : plan.rounds) {
    if (mask < round.masks.size()) take(round.masks, mask);
  }
  return true;
}

bool duplicate_device(Plan& plan, Chance& chance) {
  auto& devices = chance.pick(plan.rounds).devices;
  if (devices.size() < 2) return false;
  const std::size_t from = chance.below(devices.size());
  const std::size_t to = chance.below(devices.size());
  if (devices[from] == devices[to]) return false;
  devices[to] = DeviceProgram(devices[from]);
  return true;
}
// One rank does backward where the others do forward.
bool swap_directions(Plan& plan, Chance& chance) {
  auto& devices = chance.pick(plan.rounds).devices;
  ProgramPair& pair = chance.pick(chance.pick(devices).programs);
  if (!pair.forward || !pair.backward || *pair.forward == *pair.backward) return false;
  std::swap(pair.forward->instructions, pair.backward->instructions);
  return true;
}

bool drop_sequence(Plan& plan, Chance& chance) {
  take(plan.sequences, chance.below(plan.sequences.size()));
  return true;
}
bool swap_sequences(Plan& plan, Chance& chance) { return swap_two(plan.sequences, chance); }
bool drop_position(Plan& plan, Chance& chance) {
  if (plan.positions.empty()) return false;
  take(plan.positions, chance.below(plan.positions.size()));
  return true;
}
bool drop_home(Plan& plan, Chance& chance) {
  if (plan.home.size() < 2) return false;
  take(plan.home, chance.below(plan.home.size()));
  return true;
}

constexpr PlanMutation kMutations[] = {
    {"duplicate_slot", duplicate_slot},
    {"swap_blocks", swap_blocks},
    {"swap_owners", swap_owners},
    {"swap_bands", swap_bands},
    {"swap_masks", swap_masks},
    {"drop_mask", drop_mask},
    {"duplicate_device", duplicate_device},
    {"swap_directions", swap_directions},
    {"drop_sequence", drop_sequence},
    {"swap_sequences", swap_sequences},
    {"drop_position", drop_position},
    {"drop_home", drop_home},
};

}  // namespace

std::span<const PlanMutation> list_mutations() { return kMutations; }

}  // namespace contextile

#include "plan/verify/machine.h"

#include <algorithm>
#include <utility>

namespace contextile {
namespace {

constexpr std::array<Kind, kNumKinds> kKinds = {Kind::kQ,  Kind::kKv, Kind::kO,
                                                Kind::kDo, Kind::kDq, Kind::kDkv};

}  // namespace

PlanMachine::PlanMachine(const RoundFacts& facts, const MaskFacts& mask,
                         const MessagePlan& messages, const DirectionPrograms& programs,
                         Direction direction, const PlanPlace& place,
                         std::vector<Movement>& movements, Findings& findings)
    : facts_(facts),
      mask_(mask),
      messages_(messages),
      programs_(programs),
      direction_(direction),
      place_(place),
      movements_(movements),
      findings_(findings),
      pools_(programs.size()),
      cursors_(programs.size()),
      launched_sides_(messages.messages.size()),
      missing_sides_(messages.launches.size()),
      in_flight_(messages.units.size()),
      seen_at_(static_cast<std::size_t>(facts.round.blocks.num_blocks()), -1) {
  const auto tiles = static_cast<std::size_t>(
      facts.round.num_tiles(static_cast<std::size_t>(place.mask), direction));
  tiles_.reserve(direction == Direction::kForward ? tiles : 2 * tiles);
  movements_.reserve(movements_.size() + messages.units.size() / 2);  // two ends each
  for (std::size_t n = 0; n < messages.launches.size(); ++n) {
    missing_sides_[n] = messages.launches[n].last_side - messages.launches[n].first_side;
  }
  for (std::size_t r = 0; r < programs.size(); ++r) {
    rank_ = Rank{static_cast<std::int32_t>(r)};
    for (const Kind kind : kKinds) {
      if (!occurs_in(kind, direction)) continue;
      SlotPool& slots = pool(kind) = SlotPool(facts.num_owned_slots(rank_),
                                              programs[r]->staging[static_cast<std::size_t>(kind)]);
      if (is_result(kind)) continue;
      for (std::size_t s = 0; s < slots.num_owned(); ++s) {
        const SlotId slot{static_cast<std::int32_t>(s)};
        const UnitId unit = facts.owned_unit(rank_, slot);
        if (unit.valid() && role_has(facts.round.blocks.role(facts.block_of(unit)), kind)) {
          slots.at(slot).content.unit = unit;
        }
      }
    }
  }
}

// Runs each rank until it blocks in a wait or ends. A launch wakes ranks whose waits it completes.
bool PlanMachine::run() {
  for (std::size_t r = programs_.size(); r-- > 0;) {
    awake_.emplace_back(static_cast<std::int32_t>(r));
  }
  while (!awake_.empty()) {
    const Rank rank = awake_.back();
    awake_.pop_back();
    run_rank(rank);
  }
  if (report_deadlock()) return false;
  check_results();
  return true;
}

void PlanMachine::run_rank(Rank rank) {
  Cursor& cursor = cursors_[rank.index()];
  const std::vector<Instruction>& instructions = programs_[rank.index()]->instructions;
  cursor.blocked = false;
  rank_ = rank;
  here_ = place_.at_rank(rank.value);
  for (; cursor.instruction < instructions.size(); ++cursor.instruction) {
    const Instruction& instruction = instructions[cursor.instruction];
    here_.instruction = static_cast<std::int64_t>(cursor.instruction);
    here_.op = op_name(instruction);
    if (!std::visit([this](const auto& op) { return execute(op); }, instruction)) {
      cursor.blocked = true;
      return;
    }
    if (progress_ != nullptr) progress_->add_instruction();
  }
}

bool PlanMachine::report_deadlock() {
  bool stuck = false;
  for (std::size_t r = 0; r < cursors_.size(); ++r) {
    if (!cursors_[r].blocked) continue;
    stuck = true;
    const LaunchEvent& event = messages_.events[r][cursors_[r].event];
    const PlannedLaunch& launch = messages_.launches[static_cast<std::size_t>(event.launch)];
    for (const MessageSide& side : messages_.sides_of(launch)) {
      if (launched_sides_[static_cast<std::size_t>(side.message)] == 2) continue;
      const PlannedMessage& message = messages_.messages[static_cast<std::size_t>(side.message)];
      findings_.cause(
          place_.at_rank(static_cast<std::int64_t>(r)).at_instruction(event.instruction, "wait"),
          "deadlock, waits for message {} from {} to {}", message.number, message.src.value,
          message.dst.value);
      break;
    }
  }
  return stuck;
}

void PlanMachine::attend(Kind input, SlotId slot, UnitId unit) {
  const SlotContent content = read(input, slot, unit);
  if (content.origin >= 0) movements_[static_cast<std::size_t>(content.origin)].used = true;
}

void PlanMachine::accumulate(Kind result, SlotId slot, bool init, UnitId unit, BlockId other) {
  SlotContent one;
  one.unit = unit;
  one.first_tile = one.last_tile = static_cast<std::int32_t>(tiles_.size());
  one.num_tiles = 1;
  tiles_.push_back({other, -1});
  if (init) {
    write(result, slot, unit, one);
    return;
  }
  const SlotContent before = read(result, slot, unit);
  if (!before.unit.valid()) return;
  SlotPool::Slot& into = pool(result).at(slot);
  if (into.num_sending > 0) {
    flag("writes {}[{}] while a transfer reads it", to_string(result), slot.value);
  }
  into.content = join(before, one);
}

bool PlanMachine::execute(const AttentionOp& op) {
  for (const TileOp& tile : op.tiles) {
    const UnitId q_unit = facts_.unit(tile.q_block, tile.group);
    const UnitId kv_unit = facts_.unit(tile.kv_block, tile.group);
    attend(Kind::kQ, tile.q, q_unit);
    attend(Kind::kKv, tile.kv, kv_unit);
    if (direction_ == Direction::kForward) {
      accumulate(Kind::kO, tile.result, tile.init_result, q_unit, tile.kv_block);
    } else {
      attend(Kind::kDo, tile.d_o, q_unit);
      accumulate(Kind::kDq, tile.result, tile.init_result, q_unit, tile.kv_block);
      accumulate(Kind::kDkv, tile.dkv, tile.init_dkv, kv_unit, tile.q_block);
    }
  }
  return true;
}

bool PlanMachine::execute(const ReduceOp& op) {
  if (!is_result(op.kind) || op.srcs.empty()) {
    flag("reduces {} slots of kind {}", op.srcs.size(), to_string(op.kind));
    return true;
  }
  const UnitId unit = facts_.unit(op.block, op.group);
  SlotContent sum;
  sum.unit = unit;
  for (const SlotId src : op.srcs) {
    const SlotContent part = consume(op.kind, src, unit, SlotPool::Gone::kReduced);
    if (!part.unit.valid()) continue;
    sum = join(sum, part);
    check_apart(op.kind, src, op.dst);
  }
  write(op.kind, op.dst, unit, sum);
  return true;
}

bool PlanMachine::execute(const CopyOp& op) {
  const UnitId unit = facts_.unit(op.block, op.group);
  const SlotContent content = consume(op.kind, op.src, unit, SlotPool::Gone::kCopied);
  if (op.src == op.dst) {
    flag("copies {}[{}] onto itself", to_string(op.kind), op.src.value);
    return true;
  }
  if (!content.unit.valid()) return true;
  check_apart(op.kind, op.src, op.dst);
  write(op.kind, op.dst, unit, content);
  return true;
}

bool PlanMachine::execute(const LaunchOp&) {
  const LaunchEvent& event = messages_.events[rank_.index()][cursors_[rank_.index()].event++];
  if (event.launch < 0) return true;
  const auto sides = messages_.sides_of(messages_.launches[static_cast<std::size_t>(event.launch)]);
  for (const MessageSide& side : sides) {
    // Sends come first, so that a receive into a slot that the launch sends from is reported.
    if (side.is_send) begin_send(side);
  }
  for (const MessageSide& side : sides) {
    if (!side.is_send) begin_receive(side);
  }
  for (const MessageSide& side : sides) {
    const auto message = static_cast<std::size_t>(side.message);
    // Both sides of the message are launched: it no longer blocks either launch.
    if (++launched_sides_[message] < 2) continue;
    for (const std::int32_t end :
         {messages_.messages[message].sent, messages_.messages[message].expected}) {
      const MessageSide& both = messages_.sides[static_cast<std::size_t>(end)];
      const std::int32_t left = --missing_sides_[static_cast<std::size_t>(both.launch)];
      if (left == 0 && cursors_[both.rank.index()].blocked) awake_.push_back(both.rank);
    }
  }
  return true;
}

bool PlanMachine::execute(const WaitOp&) {
  Cursor& cursor = cursors_[rank_.index()];
  const LaunchEvent& event = messages_.events[rank_.index()][cursor.event];
  if (event.launch >= 0) {
    const auto launch = static_cast<std::size_t>(event.launch);
    if (missing_sides_[launch] > 0) return false;
    for (const MessageSide& side : messages_.sides_of(messages_.launches[launch])) {
      if (side.is_send) {
        end_send(side);
      } else {
        end_receive(side);
      }
    }
  }
  ++cursor.event;
  return true;
}

// -------------------------------------------------------------------------------- transfers

void PlanMachine::check_wire(const TransferEnd& end, const SlotContent& content) {
  const Dtype activation = facts_.plan.shape.dtype;
  if (!is_result(end.kind)) {
    if (end.wire == activation) return;
    flag("input {} travels in {}, not {}", to_string(end.kind), to_string(end.wire),
         to_string(activation));
    return;
  }
  if (!content.unit.valid() || end.wire == facts_.plan.partial_wire) return;
  const bool finished =
      content.num_tiles >= mask_.num_tiles_of(end.kind, facts_.block_of(content.unit));
  // A result may travel in the activation dtype only if no tile is missing.
  if (end.wire == activation && finished) return;
  flag("partial {} of {} travels in {}, not {}", to_string(end.kind), unit_text(content.unit),
       to_string(end.wire), to_string(facts_.plan.partial_wire));
}

void PlanMachine::begin_send(const MessageSide& side) {
  const auto units = messages_.units_of(side);
  for (std::size_t n = 0; n < units.size(); ++n) {
    const TransferEnd& end = *units[n];
    const SlotContent content =
        consume(end.kind, end.slot, facts_.unit(end.block, end.group), SlotPool::Gone::kSent);
    check_wire(end, content);
    in_flight_[side.first + n] = content;
    if (pool(end.kind).contains(end.slot)) ++pool(end.kind).at(end.slot).num_sending;
  }
}

void PlanMachine::begin_receive(const MessageSide& side) {
  for (const TransferEnd* end : messages_.units_of(side)) {
    if (!is_result(end->kind)) check_wire(*end, {});
    write(end->kind, end->slot, facts_.unit(end->block, end->group), {});
    if (pool(end->kind).contains(end->slot)) pool(end->kind).at(end->slot).receiving = true;
  }
}

void PlanMachine::end_send(const MessageSide& side) {
  for (const TransferEnd* end : messages_.units_of(side)) {
    if (pool(end->kind).contains(end->slot)) --pool(end->kind).at(end->slot).num_sending;
  }
}

void PlanMachine::end_receive(const MessageSide& side) {
  const PlannedMessage& message = messages_.messages[static_cast<std::size_t>(side.message)];
  const MessageSide& from = messages_.sides[static_cast<std::size_t>(message.sent)];
  const auto units = messages_.units_of(side);
  for (std::size_t n = 0; n < units.size(); ++n) {
    const TransferEnd& end = *units[n];
    SlotPool& slots = pool(end.kind);
    if (!slots.contains(end.slot)) continue;
    SlotPool::Slot& slot = slots.at(end.slot);
    slot.receiving = false;
    // If the two sides disagree, only the units that match arrive; the mismatch was reported.
    if (!message.agreed &&
        (n >= from.count || !same_transfer(*messages_.units[from.first + n], end))) {
      continue;
    }
    SlotContent content = in_flight_[from.first + n];
    // Owned input slots are never written; that was reported when the receive began.
    if (!content.unit.valid() || (slots.is_owned(end.slot) && !is_result(end.kind))) continue;
    Movement move;
    move.direction = direction_;
    move.kind = end.kind;
    move.wire = end.wire;
    move.unit = content.unit;
    move.used = is_result(end.kind);
    move.parent = content.origin;
    // A later use of an input is attributed to this movement and, through its parent, to earlier
    // ones.
    if (!is_result(end.kind)) content.origin = static_cast<std::int32_t>(movements_.size());
    movements_.push_back(move);
    slot.content = content;
  }
}

// --------------------------------------------------------------------------- slot contents

SlotPool::Slot* PlanMachine::find(Kind kind, SlotId slot) {
  if (pool(kind).contains(slot)) return &pool(kind).at(slot);
  flag("there is no slot {}[{}]", to_string(kind), slot.value);
  return nullptr;
}

// Returns the content if it is `unit`; else reports why it is not.
SlotContent PlanMachine::read(Kind kind, SlotId slot, UnitId unit) {
  const SlotPool::Slot* found = find(kind, slot);
  if (found == nullptr) return {};
  if (found->receiving) {
    flag("reads {}[{}] before the wait of its receive", to_string(kind), slot.value);
    return {};
  }
  if (!found->content.unit.valid()) {
    flag("reads {}[{}] for {}, it holds nothing{}", to_string(kind), slot.value, unit_text(unit),
         found->gone_text());
    return {};
  }
  if (found->content.unit != unit) {
    flag("reads {}[{}] for {}, it holds {}", to_string(kind), slot.value, unit_text(unit),
         unit_text(found->content.unit));
    return {};
  }
  return found->content;
}

SlotContent PlanMachine::consume(Kind kind, SlotId slot, UnitId unit, SlotPool::Gone how) {
  const SlotContent content = read(kind, slot, unit);
  if (content.unit.valid() && is_result(kind)) {
    SlotPool::Slot& from = pool(kind).at(slot);
    from.content = {};
    from.gone = how;
    from.gone_at = static_cast<std::int32_t>(here_.instruction);
  }
  return content;
}

// Writes a slot. Content without a unit means that a receive of `unit` begins.
void PlanMachine::write(Kind kind, SlotId slot, UnitId unit, const SlotContent& content) {
  SlotPool::Slot* into = find(kind, slot);
  if (into == nullptr) return;
  SlotPool& slots = pool(kind);
  pushed_out_.clear();
  if (slots.is_owned(slot)) {
    if (!is_result(kind)) {
      flag("overwrites the caller's input {}[{}]", to_string(kind), slot.value);
      return;
    }
    // An owned slot is for one unit only.
    if (const UnitId own = facts_.owned_unit(rank_, slot); unit != own) {
      flag("writes {} into {}[{}], the place of {}", unit_text(unit), to_string(kind), slot.value,
           unit_text(own));
    }
  } else {
    const std::int64_t capacity = slots.range(slot).size();
    const std::int64_t needed = facts_.round.staged_tokens(facts_.block_of(unit));
    if (capacity < needed) {
      flag("{}[{}] has {} tokens, {} needs {}", to_string(kind), slot.value, capacity,
           unit_text(unit), needed);
    }
    slots.occupy(slot, pushed_out_);
  }
  displace(kind, slot, slot);
  for (const SlotId other : pushed_out_) displace(kind, other, slot);
  into->content = content;
}

// Removes the content of `slot` for a write into `by`, which is the same or overlaps it.
void PlanMachine::displace(Kind kind, SlotId slot, SlotId by) {
  SlotPool::Slot& old = pool(kind).at(slot);
  if (old.receiving || old.num_sending > 0) {
    flag("writes {}[{}] while a transfer {} {}[{}]", to_string(kind), by.value,
         old.receiving ? "writes" : "reads", to_string(kind), slot.value);
  }
  if (!old.content.unit.valid()) return;
  if (is_result(kind)) {
    flag("writes {}[{}], losing a partial of {} in {}[{}]", to_string(kind), by.value,
         unit_text(old.content.unit), to_string(kind), slot.value);
  }
  old.content = {};
  old.gone = SlotPool::Gone::kOverwritten;
  old.gone_at = static_cast<std::int32_t>(here_.instruction);
}

void PlanMachine::check_apart(Kind kind, SlotId src, SlotId dst) {
  if (src == dst || !pool(kind).contains(dst) || !pool(kind).overlap(src, dst)) return;
  flag("{}[{}] overlaps its source {}[{}]", to_string(kind), dst.value, to_string(kind), src.value);
}

// Concatenates the lists of tiles in O(1).
SlotContent PlanMachine::join(const SlotContent& a, const SlotContent& b) {
  if (a.num_tiles == 0) return b;
  if (b.num_tiles == 0) return a;
  tiles_[static_cast<std::size_t>(a.last_tile)].next = b.first_tile;
  SlotContent sum = a;
  sum.last_tile = b.last_tile;
  sum.num_tiles += b.num_tiles;
  return sum;
}

std::string PlanMachine::unit_text(UnitId unit) const {
  if (!unit.valid()) return "no unit";
  return fmt::format("block {} group {}", facts_.block_of(unit).value, facts_.group_of(unit).value);
}

void PlanMachine::place_retained(std::span<const RetainedInput> inputs) {
  for (const RetainedInput& input : inputs) {
    rank_ = input.rank;
    here_ = place_.at_rank(rank_.value).at_instruction(-1, "retained input");
    SlotContent content = input.content;
    Movement move;
    move.direction = direction_;
    move.kind = input.kind;
    move.unit = content.unit;
    move.parent = content.origin;
    move.retained = true;
    content.origin = static_cast<std::int32_t>(movements_.size());
    movements_.push_back(move);
    write(input.kind, input.backward_slot, content.unit, content);
  }
}

std::vector<RetainedInput> PlanMachine::retained() {
  std::vector<RetainedInput> kept;
  for (std::size_t r = 0; r < programs_.size(); ++r) {
    rank_ = Rank{static_cast<std::int32_t>(r)};
    here_ = place_.at_rank(rank_.value).at_instruction(-1, "retain");
    for (const Retain& retain : programs_[r]->retain) {
      if (retain.kind != Kind::kQ && retain.kind != Kind::kKv) {
        flag("retains kind {}, which is not a received input", static_cast<int>(retain.kind));
        continue;
      }
      const SlotPool::Slot* slot = find(retain.kind, retain.slot);
      if (slot == nullptr) continue;
      if (pool(retain.kind).is_owned(retain.slot)) {
        flag("retains {}[{}], which is not a received input", to_string(retain.kind),
             retain.slot.value);
      } else if (!slot->content.unit.valid()) {
        flag("retains {}[{}], which holds nothing at the end{}", to_string(retain.kind),
             retain.slot.value, slot->gone_text());
      } else {
        kept.push_back({rank_, retain.kind, retain.backward_slot, slot->content});
      }
    }
  }
  return kept;
}

void PlanMachine::check_results() {
  for (std::size_t r = 0; r < pools_.size(); ++r) {
    rank_ = Rank{static_cast<std::int32_t>(r)};
    here_ = place_.at_rank(rank_.value);
    for (const Kind kind : kKinds) {
      if (!is_result(kind)) continue;
      const auto slots = pool(kind).slots();
      for (std::size_t s = 0; s < slots.size(); ++s) {
        const SlotId slot{static_cast<std::int32_t>(s)};
        if (s < pool(kind).num_owned()) {
          const UnitId unit = facts_.owned_unit(rank_, slot);
          if (unit.valid()) check_owned_result(kind, unit, slots[s].content);
        } else if (slots[s].content.unit.valid()) {
          flag("partial of {} in {}[{}] is never used", unit_text(slots[s].content.unit),
               to_string(kind), s);
        }
      }
    }
  }
}

// Checks that a result holds every tile of its unit exactly once. If the cover is proven, their
// number suffices.
void PlanMachine::check_owned_result(Kind kind, UnitId unit, const SlotContent& content) {
  const std::int32_t wanted = mask_.num_tiles_of(kind, facts_.block_of(unit));
  if (covered_ && content.num_tiles == wanted) return;
  std::int32_t distinct = 0;
  for (std::int32_t n = content.first_tile; n >= 0; n = tiles_[static_cast<std::size_t>(n)].next) {
    const BlockId other = tiles_[static_cast<std::size_t>(n)].other;
    std::int32_t& seen = seen_at_[other.index()];
    const BlockId own = facts_.block_of(unit);
    const TileTable& tiles = mask_.table();
    const bool in_mask = (is_of_kv(kind) ? tiles.find(other, own) : tiles.find(own, other)) >= 0;
    if (seen == content.first_tile) {
      flag("{} of {} holds its tile with block {} twice", to_string(kind), unit_text(unit),
           other.value);
    } else if (in_mask) {
      ++distinct;
    }
    seen = content.first_tile;  // a tile is in one list only, so its index names the list
  }
  if (distinct == wanted) return;
  flag("{} of {} ends at its owner with {} of {} tiles", to_string(kind), unit_text(unit), distinct,
       wanted);
}

}  // namespace contextile

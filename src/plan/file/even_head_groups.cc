// Converts plans whose blocks have head groups of their own into plans whose blocks all have the
// round's.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

// Most of the round's groups that one group of a block may cover. An even form has at most that
// many times as much data, even for a plan from outside.
constexpr std::int32_t kMaxParts = 256;

// A unit's slot becomes one slot for each of the round's head groups in the unit, next to each
// other in place of the unit.
class EvenProgram {
 public:
  // `where` names the program in messages.
  EvenProgram(const PlanRound& round, const DeviceProgram& device, const Program& program,
              std::string where)
      : round_(round),
        num_owned_(std::ssize(device.local_blocks) * round.head_groups),
        program_(program),
        where_(std::move(where)) {
    if (num_owned_ > std::numeric_limits<std::int32_t>::max()) {
      fail("expected fewer than 2^31 owned slots, found {} blocks of {} head groups",
           device.local_blocks.size(), round.head_groups);
    }
    for (const Instruction& instruction : program.instructions) {
      std::visit([this](const auto& op) { add(op); }, instruction);
      ++instruction_;
    }
  }

  void retain(EvenProgram& backward) {
    if (program_.retain.empty()) return;
    const auto last = program_.last_brought();
    for (const Retain& kept : program_.retain) {
      const auto at = last.find({kept.kind, kept.slot});
      if (at == last.end()) {
        fail_plan("even head groups: {}: expected to retain what forward received, found {}[{}]",
                  where_, to_string(kept.kind), kept.slot.value);
      }
      const BlockId block = at->second.first;
      for (std::int32_t i = 0; i < round_.parts_of(block); ++i) {
        out_.retain.push_back({kept.kind, slot(kept.kind, block, kept.slot, i),
                               backward.slot(kept.kind, block, kept.backward_slot, i)});
      }
    }
  }
  [[nodiscard]] Program take() { return std::move(out_); }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_plan("even head groups: {}, instruction {}: {}", where_, instruction_,
              fmt::format(format, std::forward<Args>(args)...));
  }

  [[nodiscard]] GroupId group(BlockId block, GroupId whole, std::int32_t part) const {
    check_group(block, whole.value, "a head group");
    return GroupId{whole.value * round_.parts_of(block) + part};
  }

  [[nodiscard]] SlotId slot(Kind kind, BlockId block, SlotId whole, std::int32_t part) {
    const std::int32_t n = round_.parts_of(block);
    if (whole.value < num_owned_) {
      const std::int32_t of_block = whole.value % round_.head_groups;
      check_group(block, of_block, "an owned slot of a head group");
      return SlotId{whole.value + of_block * (n - 1) + part};
    }
    const auto k = static_cast<std::size_t>(kind);
    check_staged(kind, whole);
    StagingSlot place = program_.staging[k][static_cast<std::size_t>(whole.value - num_owned_)];
    if (n > 1) {
      // If the slot is smaller or larger than the unit, the last parts get less or more.
      const std::int64_t tokens = round_.blocks.num_tokens(block);
      const std::int64_t left = std::max<std::int64_t>(place.capacity_tokens - part * tokens, 0);
      place = {place.offset_tokens + part * tokens, part + 1 < n ? std::min(left, tokens) : left};
    }
    std::vector<StagingSlot>& slots = out_.staging[k];
    const auto [at, is_new] = number_of_[k].try_emplace(
        {place.offset_tokens, place.capacity_tokens}, static_cast<std::int32_t>(slots.size()));
    if (is_new) slots.push_back(place);
    return SlotId{static_cast<std::int32_t>(num_owned_) + at->second};
  }

  void check_group(BlockId block, std::int32_t group, std::string_view what) const {
    const std::int32_t groups = round_.groups_of(block);
    if (group >= 0 && group < groups) return;
    fail("expected {} of block {} among 0 … {}, found {}", what, block.value, groups - 1, group);
  }
  void check_staged(Kind kind, SlotId slot) const {
    const auto end = num_owned_ + std::ssize(program_.staging[static_cast<std::size_t>(kind)]);
    if (slot.value >= end) {
      fail("expected a slot of {} among 0 … {}, found {}", to_string(kind), end - 1, slot.value);
    }
  }

  void add(const AttentionOp& op) {
    AttentionOp even;
    for (const TileOp& tile : op.tiles) {
      const std::int32_t n = round_.parts_of(tile.q_block);
      if (round_.parts_of(tile.kv_block) != n) {
        fail("expected blocks of equally many head groups in a tile, found {} and {}",
             round_.groups_of(tile.q_block), round_.groups_of(tile.kv_block));
      }
      for (std::int32_t i = 0; i < n; ++i) {
        TileOp& part = even.tiles.emplace_back(tile);
        part.group = group(tile.q_block, tile.group, i);
        part.q = slot(Kind::kQ, tile.q_block, tile.q, i);
        part.kv = slot(Kind::kKv, tile.kv_block, tile.kv, i);
        const bool forward = !tile.d_o.valid();
        part.result = slot(forward ? Kind::kO : Kind::kDq, tile.q_block, tile.result, i);
        if (forward) continue;
        part.d_o = slot(Kind::kDo, tile.q_block, tile.d_o, i);
        part.dkv = slot(Kind::kDkv, tile.kv_block, tile.dkv, i);
      }
    }
    out_.instructions.emplace_back(std::move(even));
  }

  void add(const ReduceOp& op) {
    for (std::int32_t i = 0; i < round_.parts_of(op.block); ++i) {
      ReduceOp part{
          op.kind, op.block, group(op.block, op.group, i), slot(op.kind, op.block, op.dst, i), {}};
      for (const SlotId src : op.srcs) part.srcs.push_back(slot(op.kind, op.block, src, i));
      out_.instructions.emplace_back(std::move(part));
    }
  }

  void add(const CopyOp& op) {
    for (std::int32_t i = 0; i < round_.parts_of(op.block); ++i) {
      out_.instructions.emplace_back(CopyOp{op.kind, op.block, group(op.block, op.group, i),
                                            slot(op.kind, op.block, op.dst, i),
                                            slot(op.kind, op.block, op.src, i)});
    }
  }

  void add(const LaunchOp& op) {
    out_.instructions.emplace_back(LaunchOp{op.id, even(op.sends), even(op.recvs)});
  }
  void add(const WaitOp& op) { out_.instructions.emplace_back(op); }

  [[nodiscard]] std::vector<TransferEnd> even(const std::vector<TransferEnd>& ends) {
    std::vector<TransferEnd> all;
    for (const TransferEnd& end : ends) {
      for (std::int32_t i = 0; i < round_.parts_of(end.block); ++i) {
        TransferEnd& part = all.emplace_back(end);
        part.group = group(end.block, end.group, i);
        part.slot = slot(end.kind, end.block, end.slot, i);
      }
    }
    return all;
  }

  const PlanRound& round_;
  const std::int64_t num_owned_;
  const Program& program_;
  const std::string where_;
  std::size_t instruction_ = 0;
  Program out_;
  std::array<std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t>, kNumKinds> number_of_;
};

ProgramPair even_pair(const PlanRound& round, const DeviceProgram& device, const ProgramPair& pair,
                      const std::string& where) {
  std::optional<EvenProgram> forward;
  std::optional<EvenProgram> backward;
  if (pair.forward) forward.emplace(round, device, *pair.forward, where + ", forward");
  if (pair.backward) backward.emplace(round, device, *pair.backward, where + ", backward");
  const bool may_retain = forward && backward && pair.backward->retain.empty();
  for (const std::optional<Program>* program : {&pair.forward, &pair.backward}) {
    if (may_retain || !*program || (*program)->retain.empty()) continue;
    fail_plan(
        "even head groups: {}: expected slots retained by a forward before a backward, found {}",
        where, (*program)->retain.size());
  }
  if (may_retain) forward->retain(*backward);
  ProgramPair even;
  if (forward) even.forward = forward->take();
  if (backward) even.backward = backward->take();
  return even;
}

void check_block_head_groups(const PlanRound& round, std::size_t number) {
  const std::vector<std::int32_t>& all = round.block_head_groups;
  if (!all.empty() && std::ssize(all) != round.blocks.num_blocks()) {
    fail_plan("even head groups: round {}: expected head groups of {} blocks, found {}", number,
              round.blocks.num_blocks(), all.size());
  }
  for (std::size_t b = 0; b < all.size(); ++b) {
    const std::int32_t groups = all[b];
    if (groups < 1 || round.head_groups % groups != 0) {
      fail_plan(
          "even head groups: round {}, block {}: expected a divisor of {} head groups, found {}",
          number, b, round.head_groups, groups);
    }
    if (round.head_groups / groups > kMaxParts) {
      fail_plan(
          "even head groups: round {}, block {}: expected at most {} of the round's head "
          "groups in one, found {}",
          number, b, kMaxParts, round.head_groups / groups);
    }
  }
}

}  // namespace

Plan with_even_head_groups(Plan plan) {
  if (!has_block_head_groups(plan)) return plan;
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) check_block_head_groups(plan.rounds[r], r);
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    PlanRound& round = plan.rounds[r];
    if (round.block_head_groups.empty()) continue;
    for (std::size_t rank = 0; rank < round.devices.size(); ++rank) {
      DeviceProgram& device = round.devices[rank];
      for (std::size_t m = 0; m < device.programs.size(); ++m) {
        const std::string where = fmt::format("round {}, rank {}, mask {}", r, rank, m);
        device.programs[m] = even_pair(round, device, device.programs[m], where);
      }
    }
    round.block_head_groups.clear();
  }
  if (!plan.slice_of.valid()) plan.digest = compute_digest(plan);
  return plan;
}

}  // namespace contextile

#include "runtime/executor/program_run.h"

#include <algorithm>
#include <chrono>
#include <variant>

#include "base/clock.h"
#include "base/interrupt.h"
#include "kernel/prepared_program.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

void append(std::vector<RowOps::Convert>& list, const std::vector<RowOps::Convert>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

PartialOutput as_partial(const UnitView& unit) { return {unit.parts[0], as_stats(unit.parts[1])}; }

}  // namespace

ProgramRun::ProgramRun(const ProgramChoice& choice, const RunMemory& memory, const RunTerms& terms,
                       const RankTools& tools, const RecordedStep& step)
    : choice_(choice),
      program_(choice.program()),
      tools_(tools),
      step_(step),
      rows_(tools.kernel.row_ops()),
      views_(choice.shape, choice.round, program_, choice.direction, memory.inputs, memory.buffer),
      arrays_(program_.lists == nullptr ? std::vector<TensorView>{} : views_.arrays()),
      conversion_(memory.buffer + program_.conversion_offset),
      lists_(memory.buffer + program_.lists_offset),
      params_(kernel_params(choice.shape, choice.round.round->head_groups)),
      places_(terms.plan, *choice.round.round) {
  if (terms.terms.has_any()) {
    params_.terms = &terms.terms;
    params_.dtable_HB = terms.dtable_HB;
  }
  if (program_.lists != nullptr) program_.lists->begin(arrays_, lists_);
}

void ProgramRun::run_until(std::size_t end) {
  end_ = end;
  for (; next_instruction_ < end; ++next_instruction_) {
    check_interrupt();
    const Instruction& instruction = program_.program->instructions[next_instruction_];
    RecordedStep step = step_;
    step.op = op_name(instruction);
    step.instruction = static_cast<std::int64_t>(next_instruction_);
    step.launch = std::get_if<LaunchOp>(&instruction);
    tools_.recorder.step(step,
                         [&] { std::visit([this](const auto& op) { execute(op); }, instruction); });
  }
}

// ------------------------------------------------------------------------------- attention

void ProgramRun::execute(const AttentionOp& op) {
  const auto start = Clock::now();
  if (program_.lists != nullptr) {
    program_.lists->run(next_attention_++, arrays_, lists_);
  } else {
    attend(op);
  }
  stats_.attention_s += seconds_since(start);
}

void ProgramRun::attend(const AttentionOp& op) {
  if (choice_.direction == Direction::kForward) {
    std::vector<ForwardTile> tiles = views_.forward_tiles(op, choice_.mask, next_tile_);
    place_tiles(op, tiles);
    tools_.kernel.forward(params_, tiles);
  } else {
    std::vector<BackwardTile> tiles = views_.backward_tiles(op, choice_.mask, next_tile_);
    place_tiles(op, tiles);
    tools_.kernel.backward(params_, tiles);
  }
  next_tile_ += op.tiles.size();
}

template <typename Tile>
void ProgramRun::place_tiles(const AttentionOp& op, std::vector<Tile>& tiles) {
  if (params_.terms == nullptr) return;
  auto next = tiles.begin();
  for (const TileOp& tile : op.tiles) {
    const std::int32_t parts = choice_.round.round->parts_of(tile.q_block);
    for (std::int32_t part = 0; part < parts; ++part) (next++)->places = places_.of(tile, part);
  }
}

// -------------------------------------------------------------------------- reduce and copy

// Reductions that do not depend on each other run with the first of them.
void ProgramRun::execute(const ReduceOp& /*op*/) {
  if (next_instruction_ < end_of_batch_) return;
  end_of_batch_ = std::min(program_.batch_end[next_instruction_], end_);
  std::vector<RowOps::Merge> merges;
  std::vector<RowOps::Sum> sums;
  for (std::size_t i = next_instruction_; i < end_of_batch_; ++i) {
    add_reduction(std::get<ReduceOp>(program_.program->instructions[i]), merges, sums);
  }
  rows_.merge_all(merges);
  rows_.sum_all(sums);
}

void ProgramRun::add_reduction(const ReduceOp& op, std::vector<RowOps::Merge>& merges,
                               std::vector<RowOps::Sum>& sums) const {
  const UnitView dst = unit(op.kind, op.block, op.group, op.dst);
  std::vector<UnitView> srcs;
  for (const SlotId src : op.srcs) srcs.push_back(unit(op.kind, op.block, op.group, src));
  if (op.kind == Kind::kO) {
    RowOps::Merge& merge = merges.emplace_back(RowOps::Merge{as_partial(dst), {}});
    for (const UnitView& src : srcs) merge.srcs.push_back(as_partial(src));
    return;
  }
  for (std::size_t p = 0; p < dst.num_parts; ++p) {
    RowOps::Sum& sum = sums.emplace_back(RowOps::Sum{dst.parts[p], {}});
    for (const UnitView& src : srcs) sum.srcs.push_back(src.parts[p]);
  }
}

void ProgramRun::execute(const CopyOp& op) {
  const UnitView dst = unit(op.kind, op.block, op.group, op.dst);
  const UnitView src = unit(op.kind, op.block, op.group, op.src);
  std::vector<RowOps::Convert> list;
  for (std::size_t p = 0; p < dst.num_parts; ++p) list.push_back({dst.parts[p], src.parts[p]});
  rows_.convert_all(list);
}

// -------------------------------------------------------------------------- launch and wait

// One message for each peer, in the order of first appearance; its units in listed order.
std::vector<Message> ProgramRun::messages(const std::vector<TransferEnd>& ends,
                                          const std::vector<std::int64_t>& packed_at) const {
  std::vector<Message> messages;
  std::map<Rank, std::size_t> message_of_peer;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const TransferEnd& end = ends[i];
    const auto [at, is_new] = message_of_peer.try_emplace(end.peer, messages.size());
    if (is_new) messages.push_back({end.peer, {}});
    std::vector<Segment>& segments = messages[at->second].segments;
    if (packed_at[i] < 0) {
      append_segments(unit_of(end), segments);
      continue;
    }
    const std::int64_t bytes =
        unit_bytes(end.kind, choice_.round.round->blocks.num_tokens(end.block), choice_.shape,
                   choice_.round.round->groups_of(end.block), end.wire);
    segments.push_back({conversion_ + packed_at[i], bytes, 1, bytes});
  }
  return messages;
}

void ProgramRun::execute(const LaunchOp& op) {
  const std::vector<std::int64_t>& send_at = program_.conversion.send_offset_bytes.at(op.id);
  const std::vector<std::int64_t>& recv_at = program_.conversion.recv_offset_bytes.at(op.id);
  std::vector<RowOps::Convert> list;
  for (std::size_t i = 0; i < op.sends.size(); ++i) {
    if (send_at[i] < 0) continue;
    append(list, packing(unit_of(op.sends[i]), op.sends[i].wire, conversion_ + send_at[i]));
  }
  rows_.convert_all(list);
  const std::vector<Message> sends = messages(op.sends, send_at);
  const std::vector<Message> recvs = messages(op.recvs, recv_at);
  const std::int64_t ticket = tools_.transport.launch(sends, recvs);
  tools_.recorder.note_ticket(ticket);
  launched_[op.id] = {&op, ticket};
  for (const Message& message : sends) stats_.sent_bytes += message.size_bytes();
  for (const Message& message : recvs) stats_.received_bytes += message.size_bytes();
}

void ProgramRun::execute(const WaitOp& op) {
  const LaunchedOp& launched = launched_.at(op.id);
  tools_.recorder.note_ticket(launched.ticket);
  const auto start = Clock::now();
  tools_.transport.wait(launched.ticket);
  stats_.exposed_s += seconds_since(start);
  const std::vector<std::int64_t>& recv_at = program_.conversion.recv_offset_bytes.at(op.id);
  std::vector<RowOps::Convert> list;
  for (std::size_t i = 0; i < launched.op->recvs.size(); ++i) {
    if (recv_at[i] < 0) continue;
    const TransferEnd& recv = launched.op->recvs[i];
    append(list, unpacking(unit_of(recv), recv.wire, conversion_ + recv_at[i]));
  }
  rows_.convert_all(list);
  launched_.erase(op.id);
}

}  // namespace contextile

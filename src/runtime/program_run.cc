#include "runtime/program_run.h"

#include <chrono>

#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr std::size_t index_of(Kind kind) { return static_cast<std::size_t>(kind); }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TensorView array_view(std::byte* data, const PartShape& part, std::int64_t rows) {
  return contiguous(data, part.dtype, rows, part.heads, part.dim);
}

PartialOutput as_partial(const UnitView& unit) { return {unit.parts[0], as_stats(unit.parts[1])}; }

}  // namespace

ProgramRun::ProgramRun(const PreparedPlan& plan, const LocalRound& round, const LocalMask& mask,
                       Direction direction, const OwnedInputs& inputs, std::byte* buffer,
                       Transport& transport, const AttentionKernel& kernel,
                       FlightRecorder& recorder, const RecordedStep& step)
    : shape_(plan.plan->shape),
      round_(round),
      mask_(mask),
      program_(*mask.programs[static_cast<std::size_t>(direction)]),
      direction_(direction),
      inputs_(inputs),
      transport_(transport),
      kernel_(kernel),
      recorder_(recorder),
      step_(step),
      rows_(kernel.row_ops()),
      conversion_(buffer + program_.conversion_offset) {
  const std::int32_t groups = round.round->head_groups;
  for (std::size_t k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    if (!occurs_in(kind, direction)) continue;
    const UnitShape staged = unit_shape(kind, shape_, groups);
    const UnitShape owned = unit_shape(kind, shape_, 1);
    for (std::size_t p = 0; p < staged.num_parts; ++p) {
      arenas_[k][p] = array_view(buffer + program_.staging_offset[k][p], staged.parts[p],
                                 program_.program->arena_tokens(kind));
      if (!is_result(kind)) continue;
      accumulators_[k][p] = array_view(buffer + program_.accumulator_offset[k][p], owned.parts[p],
                                       round.accumulator_rows[k]);
    }
  }
  params_ = kernel_params(shape_, groups);
}

void ProgramRun::run_until(std::size_t end) {
  for (; next_instruction_ < end; ++next_instruction_) {
    const Instruction& instruction = program_.program->instructions[next_instruction_];
    RecordedStep step = step_;
    step.op = op_name(instruction);
    step.instruction = static_cast<std::int64_t>(next_instruction_);
    step.launch = std::get_if<LaunchOp>(&instruction);
    recorder_.step(step, [&] { std::visit([this](const auto& op) { execute(op); }, instruction); });
  }
}

UnitView ProgramRun::unit(Kind kind, BlockId block, GroupId group, SlotId slot) const {
  const std::size_t k = index_of(kind);
  const std::int32_t groups = round_.round->head_groups;
  const UnitShape shape = unit_shape(kind, shape_, groups);
  const std::int64_t tokens = round_.round->blocks.num_tokens(block);
  const std::size_t owned = round_.blocks.size() * static_cast<std::size_t>(groups);
  UnitView view{kind, shape.num_parts, {}};
  for (std::size_t p = 0; p < shape.num_parts; ++p) {
    const std::int32_t heads = shape.parts[p].heads;
    if (slot.index() >= owned) {
      const StagingSlot& staged = program_.program->staging[k][slot.index() - owned];
      view.parts[p] = slice(arenas_[k][p], staged.offset_tokens, tokens, 0, heads);
      continue;
    }
    const auto position = static_cast<std::size_t>(slot.value / groups);
    const std::int64_t row =
        is_result(kind) ? round_.accumulator_row[k][position] : round_.row[position];
    const TensorView& base = is_result(kind) ? accumulators_[k][p] : inputs_[k][p];
    view.parts[p] = slice(base, row, tokens, group.value * heads, heads);
  }
  return view;
}

UnitView ProgramRun::owned_result(Kind kind, std::size_t position) const {
  const std::size_t k = index_of(kind);
  const UnitShape shape = unit_shape(kind, shape_, 1);
  const std::int64_t tokens = round_.round->blocks.num_tokens(round_.blocks[position]);
  UnitView view{kind, shape.num_parts, {}};
  for (std::size_t p = 0; p < shape.num_parts; ++p) {
    view.parts[p] = slice(accumulators_[k][p], round_.accumulator_row[k][position], tokens, 0,
                          shape.parts[p].heads);
  }
  return view;
}

// ------------------------------------------------------------------------------- attention

std::span<const LocalBand> ProgramRun::bands_of(const BandSpan& span) const {
  return std::span<const LocalBand>(mask_.bands).subspan(span.first, span.count);
}

void ProgramRun::execute(const AttentionOp& op) {
  if (direction_ == Direction::kForward) {
    run_forward(op);
  } else {
    run_backward(op);
  }
}

void ProgramRun::run_forward(const AttentionOp& op) {
  std::vector<ForwardTile> tiles;
  tiles.reserve(op.tiles.size());
  for (const TileOp& tile : op.tiles) {
    const UnitView q = unit(Kind::kQ, tile.q_block, tile.group, tile.q);
    const UnitView kv = unit(Kind::kKv, tile.kv_block, tile.group, tile.kv);
    const UnitView o = unit(Kind::kO, tile.q_block, tile.group, tile.result);
    const BandSpan& bands = program_.tile_bands[next_tile_++];
    tiles.push_back({q.parts[0], kv.parts[0], kv.parts[1], o.parts[0], as_stats(o.parts[1]),
                     bands_of(bands), tile.init_result, bands.prepared});
  }
  const auto start = std::chrono::steady_clock::now();
  kernel_.forward(params_, tiles);
  stats_.attention_s += seconds_since(start);
}

void ProgramRun::run_backward(const AttentionOp& op) {
  std::vector<BackwardTile> tiles;
  tiles.reserve(op.tiles.size());
  for (const TileOp& tile : op.tiles) {
    const UnitView q = unit(Kind::kQ, tile.q_block, tile.group, tile.q);
    const UnitView kv = unit(Kind::kKv, tile.kv_block, tile.group, tile.kv);
    const UnitView d_o = unit(Kind::kDo, tile.q_block, tile.group, tile.d_o);
    const UnitView dq = unit(Kind::kDq, tile.q_block, tile.group, tile.result);
    const UnitView dkv = unit(Kind::kDkv, tile.kv_block, tile.group, tile.dkv);
    const BandSpan& bands = program_.tile_bands[next_tile_++];
    tiles.push_back({q.parts[0], kv.parts[0], kv.parts[1], d_o.parts[0], as_stats(d_o.parts[1]),
                     as_stats(d_o.parts[2]), dq.parts[0], dkv.parts[0], dkv.parts[1],
                     bands_of(bands), tile.init_result, tile.init_dkv, bands.prepared});
  }
  const auto start = std::chrono::steady_clock::now();
  kernel_.backward(params_, tiles);
  stats_.attention_s += seconds_since(start);
}

// -------------------------------------------------------------------------- reduce and copy

void ProgramRun::execute(const ReduceOp& op) {
  const UnitView dst = unit(op.kind, op.block, op.group, op.dst);
  std::vector<UnitView> srcs;
  for (const SlotId src : op.srcs) srcs.push_back(unit(op.kind, op.block, op.group, src));
  if (op.kind == Kind::kO) {
    std::vector<PartialOutput> partials;
    partials.reserve(srcs.size());
    for (const UnitView& src : srcs) partials.push_back(as_partial(src));
    rows_.merge(as_partial(dst), partials);
    return;
  }
  for (std::size_t p = 0; p < dst.num_parts; ++p) {
    std::vector<TensorView> parts;
    parts.reserve(srcs.size());
    for (const UnitView& src : srcs) parts.push_back(src.parts[p]);
    rows_.sum(dst.parts[p], parts);
  }
}

void ProgramRun::execute(const CopyOp& op) {
  const UnitView dst = unit(op.kind, op.block, op.group, op.dst);
  const UnitView src = unit(op.kind, op.block, op.group, op.src);
  for (std::size_t p = 0; p < dst.num_parts; ++p) rows_.convert(dst.parts[p], src.parts[p]);
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
    const std::int64_t bytes = unit_bytes(end.kind, round_.round->blocks.num_tokens(end.block),
                                          shape_, round_.round->head_groups, end.wire);
    segments.push_back({conversion_ + packed_at[i], bytes, 1, bytes});
  }
  return messages;
}

void ProgramRun::execute(const LaunchOp& op) {
  const std::vector<std::int64_t>& send_at = program_.conversion.send_offset_bytes.at(op.id);
  const std::vector<std::int64_t>& recv_at = program_.conversion.recv_offset_bytes.at(op.id);
  for (std::size_t i = 0; i < op.sends.size(); ++i) {
    if (send_at[i] < 0) continue;
    pack_unit(rows_, unit_of(op.sends[i]), op.sends[i].wire, conversion_ + send_at[i]);
  }
  const std::vector<Message> sends = messages(op.sends, send_at);
  const std::vector<Message> recvs = messages(op.recvs, recv_at);
  const std::int64_t ticket = transport_.launch(sends, recvs);
  recorder_.note_ticket(ticket);
  launched_[op.id] = {&op, ticket};
  for (const Message& message : sends) stats_.sent_bytes += message.size_bytes();
  for (const Message& message : recvs) stats_.received_bytes += message.size_bytes();
}

void ProgramRun::execute(const WaitOp& op) {
  const LaunchedOp& launched = launched_.at(op.id);
  recorder_.note_ticket(launched.ticket);
  const auto start = std::chrono::steady_clock::now();
  transport_.wait(launched.ticket);
  stats_.exposed_s += seconds_since(start);
  const std::vector<std::int64_t>& recv_at = program_.conversion.recv_offset_bytes.at(op.id);
  for (std::size_t i = 0; i < launched.op->recvs.size(); ++i) {
    if (recv_at[i] < 0) continue;
    const TransferEnd& recv = launched.op->recvs[i];
    unpack_unit(rows_, unit_of(recv), recv.wire, conversion_ + recv_at[i]);
  }
  launched_.erase(op.id);
}

}  // namespace contextile

#include "runtime/executor/executor_call.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "contextile/plan_file.h"
#include "kernel/tensor.h"
#include "runtime/executor/begin_cut.h"
#include "runtime/executor/check_tensors.h"
#include "runtime/executor/check_terms.h"

namespace contextile {
namespace {

constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

// Measures the time between its construction and destruction.
class Stopwatch {
 public:
  explicit Stopwatch(double& total_s) : total_s_(total_s), start_(Clock::now()) {}
  ~Stopwatch() { total_s_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& total_s_;
  Clock::time_point start_;
};

void check_stats(std::string_view where, std::string_view name, const RowStats& found,
                 std::int64_t tokens) {
  CONTEXTILE_CHECK(found.data != nullptr || tokens == 0, "{}: expected data of {}, found none",
                   where, name);
}

void check_saved(std::string_view where, std::size_t found, std::int64_t expected) {
  CONTEXTILE_CHECK(found == 0 || std::cmp_equal(found, expected),
                   "{}: expected room for the {} bytes that forward saves, or none, found {}",
                   where, expected, found);
}

// The rows of a unit's part as a tight array in saved bytes; moves `at` past them.
TensorView saved_rows(const TensorView& part, std::byte*& at) {
  const TensorView rows = contiguous(at, part.dtype, part.tokens, part.heads, part.dim);
  at += part.tokens * part.heads * part.dim * bytes_per_element(part.dtype);
  return rows;
}

}  // namespace

std::int64_t forward_retained_bytes(const PreparedPlan& plan, std::size_t mask) {
  std::int64_t bytes = 0;
  for (const LocalRound& round : plan.rounds) {
    const auto& forward = round.masks[mask].programs[static_cast<std::size_t>(Direction::kForward)];
    if (forward) bytes += forward->memory.retained_bytes;
  }
  return bytes;
}

std::unique_ptr<Saved::Buffers> nothing_saved(const PreparedPlan& plan, std::size_t mask) {
  auto saved = std::make_unique<Saved::Buffers>();
  saved->digest = plan.plan->digest;
  saved->mask = mask;
  saved->rounds = std::make_shared<const Saved::Buffers::Rounds>(plan.rounds.size());
  return saved;
}

Executor::Handle::Call::Call(std::shared_ptr<const PreparedPlan> plan, std::size_t mask,
                             const ForwardTensors& tensors)
    : plan_(std::move(plan)), mask_(mask), direction_(Direction::kForward), forward_(tensors) {
  check_call(mask);
  check_forward();
  saved_.resize(num_rounds());
}

Executor::Handle::Call::Call(std::shared_ptr<const PreparedPlan> plan, std::size_t mask,
                             const BackwardTensors& tensors, const Saved::Buffers* saved)
    : plan_(std::move(plan)), mask_(mask), direction_(Direction::kBackward), backward_(tensors) {
  check_call(mask);
  check_backward(saved);
  if (saved != nullptr) restored_ = saved->rounds;
}

Executor::Handle::Call::~Call() {
  if (under_way_) tools_->transport.abort("a handle was dropped before it was finished");
}

// --------------------------------------------------------------------------------- contract

void Executor::Handle::Call::check_call(std::size_t mask) const {
  if (num_rounds() == 0) return;
  const std::size_t num_masks = plan_->rounds[0].masks.size();
  CONTEXTILE_CHECK(mask < num_masks, "rank {}, {}: expected a mask below {}, found {}",
                   plan_->rank.value, to_string(direction_), num_masks, mask);
  for (const LocalRound& round : plan_->rounds) {
    CONTEXTILE_CHECK(round.masks[mask].programs[static_cast<std::size_t>(direction_)].has_value(),
                     "rank {}: expected a plan with a {} program for mask {}, found none",
                     plan_->rank.value, to_string(direction_), mask);
  }
}

void Executor::Handle::Call::check_forward() const {
  const AttentionShape& shape = plan_->plan->shape;
  const std::string where = fmt::format("rank {}, forward", plan_->rank.value);
  const std::int64_t rows = plan_->local_rows;
  const ForwardTensors& t = forward_;
  check_inputs(where, shape, rows, t.q_THD, t.k_THD, t.v_THD, t.sink_H);
  check_tensor(where, "out", t.out_THD, rows, shape.q_heads, shape.value_dim, shape.dtype);
  check_stats(where, "lse", t.lse_TH, rows);
  check_saved(where, t.saved.size(), retained_bytes());
  check_terms(where, *plan_->plan, t.terms);
}

std::int64_t Executor::Handle::Call::retained_bytes() const {
  return forward_retained_bytes(*plan_, mask_);
}

void Executor::Handle::Call::check_backward(const Saved::Buffers* saved) const {
  const AttentionShape& shape = plan_->plan->shape;
  const std::string where = fmt::format("rank {}, backward", plan_->rank.value);
  const std::int64_t rows = plan_->local_rows;
  const BackwardTensors& t = backward_;
  check_inputs(where, shape, rows, t.q_THD, t.k_THD, t.v_THD, t.sink_H);
  check_tensor(where, "out", t.out_THD, rows, shape.q_heads, shape.value_dim, shape.dtype);
  check_stats(where, "lse", t.lse_TH, rows);
  check_tensor(where, "dout", t.dout_THD, rows, shape.q_heads, shape.value_dim, shape.dtype);
  check_tensor(where, "dq", t.dq_THD, rows, shape.q_heads, shape.head_dim, shape.dtype);
  check_tensor(where, "dk", t.dk_THD, rows, shape.kv_heads, shape.head_dim, shape.dtype);
  check_tensor(where, "dv", t.dv_THD, rows, shape.kv_heads, shape.value_dim, shape.dtype);
  check_sink(where, "dsink", t.dsink_H.size(), shape);
  check_terms(where, *plan_->plan, t.terms);
  CONTEXTILE_CHECK(t.dtable_HB.empty() || t.dtable_HB.size() == t.terms.table_HB.size(),
                   "{}: expected {} values of dtable, as in the table, or none, found {}", where,
                   t.terms.table_HB.size(), t.dtable_HB.size());
  const std::int64_t retained = retained_bytes();
  check_saved(where, t.saved.size(), retained);
  if (retained == 0 || !t.saved.empty()) return;
  CONTEXTILE_CHECK(saved != nullptr && saved->digest == plan_->plan->digest &&
                       saved->mask == mask_ && saved->size_bytes == retained,
                   "{}: expected the {} bytes that forward of mask {} of this plan saved, found {}",
                   where, retained, mask_,
                   saved == nullptr
                       ? std::string("none")
                       : fmt::format("{} bytes of mask {} of plan {}", saved->size_bytes,
                                     saved->mask, digest_text(saved->digest)));
}

// ----------------------------------------------------------------------------- begin, finish

const LocalProgram& Executor::Handle::Call::program() const {
  return *round().masks[mask_].programs[static_cast<std::size_t>(direction_)];
}

RecordedStep Executor::Handle::Call::step(std::string_view op) const {
  return {.op = op,
          .call = static_cast<std::int64_t>(begin_ticket_) + 1,
          .direction = direction_,
          .mask = mask_,
          .round = round_};
}

RowStats Executor::Handle::Call::delta() const {
  return {buffer_->delta(), plan_->plan->shape.q_heads, 1};
}

std::span<double> Executor::Handle::Call::dsink_sums() const {
  return buffer_->sums(backward_.sink_H.size());
}

void Executor::Handle::Call::begin(std::unique_ptr<CallBuffer> buffer, const RankTools& tools,
                                   std::size_t begin_ticket, bool poison) {
  buffer_ = std::move(buffer);
  tools_.emplace(tools);
  begin_ticket_ = begin_ticket;
  poison_ = poison;
  under_way_ = true;
  guarded([this] {
    const Stopwatch stopwatch(stats_.total_s);
    if (!dsink_sums().empty()) {
      // The sums are doubles: two fp32 zeros each.
      const auto words = static_cast<std::int32_t>(2 * dsink_sums().size());
      tools_->kernel.row_ops().fill(contiguous(dsink_sums().data(), Dtype::kF32, words, 1, 1), 0);
    }
    dtable_sums_.assign(backward_.dtable_HB.size(), 0);
    if (num_rounds() == 0) return;
    tools_->recorder.step(step("rows"), [this] { start_round(); });
    // A rank with a slice knows only the exchanged cuts; with a whole plan it computes its own.
    const BeginCuts& known = plan_->begin_cuts;
    run_->run_until(known.empty() ? begin_cut(*round().round, mask_, direction_, plan_->rank)
                                  : known[mask_][static_cast<std::size_t>(direction_)]);
  });
}

template <typename Work>
void Executor::Handle::Call::guarded(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    // Ranks in different calls send messages of different sizes, which the transport refuses first.
    const std::optional<std::string> difference =
        check_ == nullptr ? std::nullopt : check_->difference();
    tools_->transport.abort(difference ? std::string_view(*difference) : error.what());
    under_way_ = false;
    if (difference) throw InvalidArgument(*difference);
    throw;
  }
}

void Executor::Handle::Call::await_check() {
  if (check_ == nullptr) return;
  tools_->recorder.step(step("exchange"), [this] { check_->wait(); });
  check_.reset();
}

bool Executor::Handle::Call::next_round() {
  run_->run_to_end();
  tools_->recorder.step(step("rows"), [this] { finish_round(); });
  if (++round_ == num_rounds()) return false;
  tools_->recorder.step(step("barrier"), [this] { barrier(tools_->transport); });
  tools_->recorder.step(step("rows"), [this] { start_round(); });
  return true;
}

std::size_t Executor::Handle::Call::launches_end() const {
  const std::vector<Instruction>& instructions = program().program->instructions;
  std::size_t end = instructions.size();
  while (end > 0 && !std::holds_alternative<LaunchOp>(instructions[end - 1])) --end;
  return end;
}

void Executor::Handle::Call::advance() {
  guarded([this] {
    const Stopwatch stopwatch(stats_.total_s);
    await_check();
    if (num_rounds() == 0) return;
    while (round_ + 1 < num_rounds()) next_round();
    run_->run_until(launches_end());
  });
}

void Executor::Handle::Call::run_remaining() {
  const Stopwatch stopwatch(stats_.total_s);
  await_check();
  while (round_ < num_rounds() && next_round()) {
  }
  if (!dsink_sums().empty()) tools_->kernel.row_ops().round_sums(dsink_sums(), backward_.dsink_H);
  std::ranges::transform(dtable_sums_, backward_.dtable_HB.begin(),
                         [](double sum) { return static_cast<float>(sum); });
}

std::unique_ptr<Saved::Buffers> Executor::Handle::Call::finish() {
  guarded([this] { run_remaining(); });
  run_.reset();
  under_way_ = false;
  if (direction_ == Direction::kBackward) return nullptr;
  auto saved = std::make_unique<Saved::Buffers>();
  saved->digest = plan_->plan->digest;
  saved->mask = mask_;
  for (const RowBuffer& bytes : saved_) saved->size_bytes += bytes.size_bytes();
  saved->rounds = std::make_shared<const Saved::Buffers::Rounds>(std::move(saved_));
  return saved;
}

// ----------------------------------------------------------------------------------- rounds

void Executor::Handle::Call::start_round() {
  const AttentionShape& shape = plan_->plan->shape;
  const std::int64_t first = round().first_row;
  const std::int64_t rows = round().num_rows;
  const bool is_forward = direction_ == Direction::kForward;
  const TensorView& q_THD = is_forward ? forward_.q_THD : backward_.q_THD;
  const TensorView& k_THD = is_forward ? forward_.k_THD : backward_.k_THD;
  const TensorView& v_THD = is_forward ? forward_.v_THD : backward_.v_THD;
  inputs_[index_of(Kind::kQ)][0] = slice(q_THD, first, rows, 0, shape.q_heads);
  inputs_[index_of(Kind::kKv)][0] = slice(k_THD, first, rows, 0, shape.kv_heads);
  inputs_[index_of(Kind::kKv)][1] = slice(v_THD, first, rows, 0, shape.kv_heads);
  if (!is_forward) {
    // Backward also reads dO, the final LSE and delta, which is computed here from dO and O.
    const TensorView lse = as_tensor(backward_.lse_TH, plan_->local_rows, shape.q_heads);
    const TensorView deltas = as_tensor(delta(), plan_->local_rows, shape.q_heads);
    inputs_[index_of(Kind::kDo)] = {slice(backward_.dout_THD, first, rows, 0, shape.q_heads),
                                    slice(lse, first, rows, 0, shape.q_heads),
                                    slice(deltas, first, rows, 0, shape.q_heads)};
    std::vector<RowOps::Delta> list;
    for (std::size_t position = 0; position < round().blocks.size(); ++position) {
      const BlockId block = round().blocks[position];
      if (!role_has(round().round->blocks.role(block), Kind::kDo)) continue;
      const std::int64_t row = first + round().row[position];
      const std::int64_t tokens = round().round->blocks.num_tokens(block);
      list.push_back({slice(backward_.dout_THD, row, tokens, 0, shape.q_heads),
                      slice(backward_.out_THD, row, tokens, 0, shape.q_heads),
                      as_stats(slice(deltas, row, tokens, 0, shape.q_heads))});
    }
    tools_->kernel.row_ops().delta_all(list);
  }
  if (poison_ && program().total_bytes > 0) {
    tools_->kernel.memory().poison(buffer_->data(), program().total_bytes);
  }
  run_.emplace(ProgramChoice{shape, round(), round().masks[mask_], direction_},
               RunMemory{inputs_, buffer_->data()}, RunTerms{*plan_->plan, terms(), dtable_sums_},
               *tools_, step({}));
  fill_unwritten();
  restore_retained();
}

void Executor::Handle::Call::finish_round() {
  if (direction_ == Direction::kForward) {
    save_retained();
    finish_forward_rows();
  } else {
    finish_backward_rows();
  }
  const ExecutionStats& run = run_->stats();
  stats_.sent_bytes += run.sent_bytes;
  stats_.received_bytes += run.received_bytes;
  stats_.attention_s += run.attention_s;
  stats_.exposed_s += run.exposed_s;
}

void Executor::Handle::Call::fill_unwritten() {
  const std::int32_t groups = round().round->head_groups;
  std::vector<RowOps::Fill> list;
  for (const auto& [kind, slot] : program().unwritten) {
    const BlockId block = round().blocks[static_cast<std::size_t>(slot.value / groups)];
    const UnitView unit = run_->unit(kind, block, GroupId{slot.value % groups}, slot);
    for (std::size_t p = 0; p < unit.num_parts; ++p) {
      list.push_back({unit.parts[p], is_stat(kind, p) ? kEmptyLse : 0.0F});
    }
  }
  tools_->kernel.row_ops().fill_all(list);
}

void Executor::Handle::Call::save_retained() {
  const std::int64_t num_bytes = program().memory.retained_bytes;
  std::byte* bytes = forward_.saved.data() + saved_at_;
  if (forward_.saved.empty()) {
    saved_[round_] = RowBuffer(tools_->kernel.memory(), num_bytes);
    bytes = saved_[round_].data();
  }
  saved_at_ += num_bytes;
  std::vector<RowOps::Convert> list;
  for (const RetainedSlot& retained : program().retained) {
    const UnitView unit = run_->unit(retained.kind, retained.block, retained.group, retained.slot);
    std::byte* to = bytes + retained.offset_bytes;
    for (std::size_t p = 0; p < unit.num_parts; ++p) {
      list.push_back({saved_rows(unit.parts[p], to), unit.parts[p]});
    }
  }
  tools_->kernel.row_ops().convert_all(list);
}

void Executor::Handle::Call::restore_retained() {
  if (direction_ == Direction::kForward) return;
  if (restored_ == nullptr && backward_.saved.empty()) return;
  const auto& forward =
      round().masks[mask_].programs[static_cast<std::size_t>(Direction::kForward)];
  if (!forward) return;
  // TensorView has no const variant; nothing writes these bytes.
  auto* bytes = const_cast<std::byte*>(backward_.saved.data()) + saved_at_;
  if (backward_.saved.empty()) bytes = (*restored_)[round_].data();
  saved_at_ += forward->memory.retained_bytes;
  std::vector<RowOps::Convert> list;
  for (const RetainedSlot& retained : forward->retained) {
    const UnitView unit =
        run_->unit(retained.kind, retained.block, retained.group, retained.backward_slot);
    std::byte* from = bytes + retained.offset_bytes;
    for (std::size_t p = 0; p < unit.num_parts; ++p) {
      list.push_back({unit.parts[p], saved_rows(unit.parts[p], from)});
    }
  }
  tools_->kernel.row_ops().convert_all(list);
}

// Fills the rows of tokens that attend nothing as RowOps::finish would: O = 0, L = sink or -inf.
void Executor::Handle::Call::add_empty_rows(const TensorView& out, const TensorView& lse,
                                            std::vector<RowOps::Fill>& fills,
                                            std::vector<RowOps::Convert>& copies) const {
  fills.push_back({out, 0});
  if (forward_.sink_H.empty()) {
    fills.push_back({lse, kEmptyLse});
    return;
  }
  // The same row for every token. TensorView has no const variant; nothing writes the sinks.
  const TensorView sinks = {
      const_cast<float*>(forward_.sink_H.data()), Dtype::kF32, lse.tokens, lse.heads, 1, 0, 1};
  copies.push_back({lse, sinks});
}

void Executor::Handle::Call::finish_forward_rows() {
  const AttentionShape& shape = plan_->plan->shape;
  const TensorView all_lse = as_tensor(forward_.lse_TH, plan_->local_rows, shape.q_heads);
  std::vector<RowOps::Finish> finished;
  std::vector<RowOps::Fill> fills;
  std::vector<RowOps::Convert> copies;
  for (std::size_t position = 0; position < round().blocks.size(); ++position) {
    const BlockId block = round().blocks[position];
    const std::int64_t row = round().first_row + round().row[position];
    const std::int64_t tokens = round().round->blocks.num_tokens(block);
    const TensorView out = slice(forward_.out_THD, row, tokens, 0, shape.q_heads);
    const TensorView lse = slice(all_lse, row, tokens, 0, shape.q_heads);
    if (!role_has(round().round->blocks.role(block), Kind::kO)) {
      add_empty_rows(out, lse, fills, copies);
      continue;
    }
    const UnitView o = run_->owned_result(Kind::kO, position);
    finished.push_back({{o.parts[0], as_stats(o.parts[1])}, out, as_stats(lse)});
  }
  const RowOps& rows = tools_->kernel.row_ops();
  rows.finish_all(finished, forward_.sink_H);
  rows.fill_all(fills);
  rows.convert_all(copies);
}

void Executor::Handle::Call::finish_backward_rows() {
  const AttentionShape& shape = plan_->plan->shape;
  const TensorView all_lse = as_tensor(backward_.lse_TH, plan_->local_rows, shape.q_heads);
  const TensorView all_delta = as_tensor(delta(), plan_->local_rows, shape.q_heads);
  std::vector<RowOps::Convert> rounded;
  std::vector<RowOps::Fill> fills;
  std::vector<RowOps::SinkRows> sinks;
  for (std::size_t position = 0; position < round().blocks.size(); ++position) {
    const BlockId block = round().blocks[position];
    const Role role = round().round->blocks.role(block);
    const std::int64_t row = round().first_row + round().row[position];
    const std::int64_t tokens = round().round->blocks.num_tokens(block);
    const TensorView dq = slice(backward_.dq_THD, row, tokens, 0, shape.q_heads);
    const TensorView dk = slice(backward_.dk_THD, row, tokens, 0, shape.kv_heads);
    const TensorView dv = slice(backward_.dv_THD, row, tokens, 0, shape.kv_heads);
    if (role_has(role, Kind::kDq)) {
      rounded.push_back({dq, run_->owned_result(Kind::kDq, position).parts[0]});
      sinks.push_back({as_stats(slice(all_lse, row, tokens, 0, shape.q_heads)),
                       as_stats(slice(all_delta, row, tokens, 0, shape.q_heads)), tokens});
    } else {
      fills.push_back({dq, 0});
    }
    if (role_has(role, Kind::kDkv)) {
      const UnitView dkv = run_->owned_result(Kind::kDkv, position);
      rounded.push_back({dk, dkv.parts[0]});
      rounded.push_back({dv, dkv.parts[1]});
    } else {
      fills.push_back({dk, 0});
      fills.push_back({dv, 0});
    }
  }
  const RowOps& rows = tools_->kernel.row_ops();
  rows.convert_all(rounded);
  rows.fill_all(fills);
  if (!dsink_sums().empty()) rows.sink_gradient_all(backward_.sink_H, sinks, dsink_sums());
}

}  // namespace contextile

// One forward or backward of a whole plan (all its rounds) on this rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "contextile/advanced/executor.h"
#include "kernel/row_memory.h"
#include "kernel/row_ops.h"
#include "runtime/executor/call_buffer.h"
#include "runtime/executor/call_check.h"
#include "runtime/executor/prepared_plan.h"
#include "runtime/executor/program_run.h"
#include "runtime/flight_recorder.h"

namespace contextile {

// The data that forward hands to backward: the retained units of every round, one after another.
struct Saved::Buffers {
  using Rounds = std::vector<RowBuffer>;

  std::uint64_t digest = 0;
  std::size_t mask = 0;
  std::shared_ptr<const Rounds> rounds;
  std::int64_t size_bytes = 0;
};

// Bytes that forward of a mask keeps for backward, all rounds of this rank.
[[nodiscard]] std::int64_t forward_retained_bytes(const PreparedPlan& plan, std::size_t mask);

// The result of a forward that put everything it keeps into memory of the caller's.
[[nodiscard]] std::unique_ptr<Saved::Buffers> nothing_saved(const PreparedPlan& plan,
                                                            std::size_t mask);

struct Executor::Handle::Call {
 public:
  Call(std::shared_ptr<const PreparedPlan> plan, std::size_t mask, const ForwardTensors& tensors);
  Call(std::shared_ptr<const PreparedPlan> plan, std::size_t mask, const BackwardTensors& tensors,
       const Saved::Buffers* saved);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Takes its buffer and runs up to the cut; afterwards a call that is destroyed unfinished aborts
  // the group, because transfers may still read and write its buffer.
  void begin(std::unique_ptr<CallBuffer> buffer, const RankTools& tools, std::size_t begin_ticket,
             bool poison);
  // Has the call wait for the check of its ranks before it goes on from the cut.
  void check_with(std::unique_ptr<CallCheck> check) { check_ = std::move(check); }
  // Runs up to the last launch.
  void advance();
  // Returns forward's retained units; null after backward.
  std::unique_ptr<Saved::Buffers> finish();

  [[nodiscard]] std::unique_ptr<CallBuffer> release_buffer() { return std::move(buffer_); }
  [[nodiscard]] const ExecutionStats& stats() const { return stats_; }
  [[nodiscard]] std::size_t begin_ticket() const { return begin_ticket_; }

 private:
  [[nodiscard]] std::size_t num_rounds() const { return plan_->rounds.size(); }
  [[nodiscard]] const LocalRound& round() const { return plan_->rounds[round_]; }
  [[nodiscard]] const LocalProgram& program() const;
  // A step of this call, in the current round.
  [[nodiscard]] RecordedStep step(std::string_view op) const;
  [[nodiscard]] RowStats delta() const;
  // The gradient of the sinks, summed over the rows of this call so far.
  [[nodiscard]] std::span<double> dsink_sums() const;
  void check_call(std::size_t mask) const;
  void check_forward() const;
  // Bytes that forward of this call's mask keeps for backward, all rounds.
  [[nodiscard]] std::int64_t retained_bytes() const;
  void check_backward(const Saved::Buffers* saved) const;
  [[nodiscard]] const ScoreTerms& terms() const {
    return direction_ == Direction::kForward ? forward_.terms : backward_.terms;
  }
  // An exception of `work` ends the call: peers are notified, and transfers no longer touch the
  // buffer.
  template <typename Work>
  void guarded(const Work& work);
  // Waits for the check of the call, if it has one.
  void await_check();
  void run_remaining();
  // Finishes the current round and starts the next one. Returns false if it was the last.
  bool next_round();
  // Number of the current program's instructions up to its last launch.
  [[nodiscard]] std::size_t launches_end() const;
  void start_round();
  void finish_round();
  void add_empty_rows(const TensorView& out, const TensorView& lse,
                      std::vector<RowOps::Fill>& fills, std::vector<RowOps::Convert>& copies) const;
  void fill_unwritten();
  void restore_retained();
  void save_retained();
  void finish_forward_rows();
  void finish_backward_rows();

  const std::shared_ptr<const PreparedPlan> plan_;
  const std::size_t mask_;
  const Direction direction_;
  ForwardTensors forward_;
  BackwardTensors backward_;
  std::shared_ptr<const Saved::Buffers::Rounds> restored_;  // backward's input
  Saved::Buffers::Rounds saved_;                            // forward's output
  std::int64_t saved_at_ = 0;  // where the current round's part of the caller's `saved` begins

  std::unique_ptr<CallBuffer> buffer_;
  std::optional<RankTools> tools_;  // once begun
  std::size_t begin_ticket_ = 0;
  bool poison_ = false;
  bool under_way_ = false;
  std::size_t round_ = 0;
  OwnedInputs inputs_{};  // of the current round
  // The gradient of the bias table over the tiles of this call so far.
  std::vector<double> dtable_sums_;
  std::unique_ptr<CallCheck> check_;
  std::optional<ProgramRun> run_;
  ExecutionStats stats_;
};

}  // namespace contextile

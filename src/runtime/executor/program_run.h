// The run of one program of one rank: interprets its instructions over a transport with a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"
#include "kernel/row_ops.h"
#include "runtime/executor/prepared_plan.h"
#include "runtime/executor/program_views.h"
#include "runtime/executor/token_places.h"
#include "runtime/executor/unit_view.h"
#include "runtime/flight_recorder.h"

namespace contextile {

// Everything a rank needs to execute programs; the same for all programs of a call.
struct RankTools {
  Transport& transport;
  const AttentionKernel& kernel;
  FlightRecorder& recorder;  // notes every instruction
};

// Selects one program of a prepared plan.
struct ProgramChoice {
  const AttentionShape& shape;
  const LocalRound& round;
  const LocalMask& mask;  // one of the round's
  Direction direction = Direction::kForward;

  [[nodiscard]] const LocalProgram& program() const {
    return *mask.programs[static_cast<std::size_t>(direction)];
  }
};

// Memory of one run: the caller's tensors, and a buffer of program.total_bytes bytes, 64-byte
// aligned.
struct RunMemory {
  const OwnedInputs& inputs;
  std::byte* buffer = nullptr;
};

// Bias and dropout of a call, and where backward sums the gradient of a bias table.
struct RunTerms {
  const Plan& plan;
  const ScoreTerms& terms;
  std::span<double> dtable_HB = {};
};

class ProgramRun {
 public:
  // Copies `memory.inputs`; everything else must outlive the run. `step` names the call and the
  // round in the recorder.
  ProgramRun(const ProgramChoice& choice, const RunMemory& memory, const RunTerms& terms,
             const RankTools& tools, const RecordedStep& step);

  // Runs instructions up to `end` (exclusive).
  void run_until(std::size_t end);
  void run_to_end() { run_until(program_.program->instructions.size()); }

  // The unit's parts in their place: the caller's tensors, an accumulator or an arena.
  [[nodiscard]] UnitView unit(Kind kind, BlockId block, GroupId group, SlotId slot) const {
    return views_.unit(kind, block, group, slot);
  }
  // All heads of an owned result.
  [[nodiscard]] UnitView owned_result(Kind kind, std::size_t position) const {
    return views_.owned_result(kind, position);
  }

  [[nodiscard]] const ExecutionStats& stats() const { return stats_; }

 private:
  void execute(const AttentionOp& op);
  void execute(const ReduceOp& op);
  void execute(const CopyOp& op);
  void execute(const LaunchOp& op);
  void execute(const WaitOp& op);
  void attend(const AttentionOp& op);
  // Gives tiles their places if the call has terms.
  template <typename Tile>
  void place_tiles(const AttentionOp& op, std::vector<Tile>& tiles);
  // Adds a reduction to the lists of a batch.
  void add_reduction(const ReduceOp& op, std::vector<RowOps::Merge>& merges,
                     std::vector<RowOps::Sum>& sums) const;
  [[nodiscard]] std::vector<Message> messages(const std::vector<TransferEnd>& ends,
                                              const std::vector<std::int64_t>& packed_at) const;
  [[nodiscard]] UnitView unit_of(const TransferEnd& end) const {
    return unit(end.kind, end.block, end.group, end.slot);
  }

  struct LaunchedOp {
    const LaunchOp* op = nullptr;
    std::int64_t ticket = 0;
  };

  const ProgramChoice choice_;
  const LocalProgram& program_;
  const RankTools tools_;
  const RecordedStep step_;
  const RowOps& rows_;  // the kernel's
  const ProgramViews views_;
  const std::vector<TensorView> arrays_;  // of the views, if the kernel has lists
  std::byte* const conversion_;
  std::byte* const lists_;  // memory of this call for the kernel's lists
  KernelParams params_;
  TokenPlaces places_;
  std::size_t next_instruction_ = 0;
  std::size_t end_ = 0;             // of the instructions that may run now
  std::size_t end_of_batch_ = 0;    // up to which reductions have run
  std::size_t next_attention_ = 0;  // in program order
  std::size_t next_tile_ = 0;       // in program order
  std::map<std::int32_t, LaunchedOp> launched_;
  ExecutionStats stats_;
};

}  // namespace contextile

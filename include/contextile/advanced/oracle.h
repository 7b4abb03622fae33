// Checks plans: attention in double precision, and whole runs of a plan compared with it.
//
//   const auto plan = std::make_shared<const Plan>(load_plan("batch.plan"));
//   if (!run_plan(plan).ok()) return 1;  // an error is beyond its bound
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/extend/transport.h"
#include "contextile/mask.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

// The tensors of a whole batch in fp64, on one machine. Dense per row; for checking.
struct BatchTensors {
  std::int64_t tokens = 0;
  std::vector<double> q, k, v,
      dout;                  // [T, H, D] as the shape says, values representable in its dtype
  std::vector<double> sink;  // [q_heads] or empty
};
enum class Passes { kForward, kForwardBackward };
struct OracleResult {
  std::vector<double> out, lse, dq, dk, dv, dsink;
};
// Returns random normal inputs rounded to the shape's dtype.
[[nodiscard]] BatchTensors random_batch(const Workload& workload, std::uint64_t seed);
// Computes exact attention under one mask; threads over heads. FLOPs: forward_flops +
// backward_flops.
[[nodiscard]] OracleResult oracle(const BatchTensors& batch, const AttentionShape& shape,
                                  const Mask& mask, Passes passes);
// Returns the cost of the oracle for every mask of a plan together, FLOPs of all heads.
[[nodiscard]] double oracle_flops(const Plan& plan);
[[nodiscard]] double oracle_flops(const Workload& workload, Passes passes);

// ---------------------------------------------------------------------------------- whole runs

struct RunOptions {
  std::string kernel;        // empty: the preferred one for the dtype
  std::uint64_t seed = 0;    // of the inputs
  bool compare = true;       // against the oracle and against one device with the same kernel
  std::int32_t repeats = 1;  // timed repetitions
  InprocOptions transport;
  // Host that the ranks of this process run on, each with its own kernel; `kernel` is the one of
  // the single device for comparison. Null: the ranks run with `kernel` in this process's memory.
  RankHost* host = nullptr;
  // One rank of a group of processes, all of which make the same call with the same plan, kernel,
  // seed and repeats (otherwise all throw InvalidArgument naming the rank). The report of rank 0 is
  // complete; those of others have no errors and no bits. Null: all ranks are threads of this
  // process.
  Transport* rank = nullptr;
  ExecutorOptions executor;
};

// max|x - ref| / max|ref| of one array, with the error of a single device for comparison.
struct RunError {
  std::string array;  // "out", "lse", "dq", "dk", "dv", "dsink"
  double error = 0;
  double single_device_error = 0;
  double bound = 0;  // bound for the dtype and wire (docs/runtime.md)
};
// One rank in one repetition.
struct RankRun {
  ExecutionStats forward;
  ExecutionStats backward;
};
struct MaskRun {
  std::string mask;
  std::vector<RunError> errors;  // empty without compare
  // All times are NaN if the host emulates a GPU (RankHost::is_emulated).
  double forward_s = 0;  // slowest rank, fastest repeat
  double backward_s = 0;
  double exposed_s = 0;
  std::vector<std::vector<RankRun>> repeats;  // [repetition][rank]
  std::int64_t sent_bytes_forward = 0;        // all ranks
  std::int64_t sent_bytes_backward = 0;
  std::int64_t predicted_bytes_forward = 0;  // plan statistics
  std::int64_t predicted_bytes_backward = 0;
  // XXH3-64 of the results in memory (out, lse, dq, dk, dv, dsink; of the last repetition). It is
  // the same for the same plan, inputs and kernel over any transport.
  std::uint64_t result_bits = 0;
};
struct RunReport {
  bool is_emulated = false;  // no time was measured
  std::vector<MaskRun> masks;
  ExecutorMemory memory;  // of the rank with the most
  std::int64_t predicted_memory_bytes = 0;
  [[nodiscard]] bool ok() const;  // every error within its bound, bytes as predicted
};
// Executes every mask of a plan, forward and backward, on in-process ranks with random data.
[[nodiscard]] RunReport run_plan(std::shared_ptr<const Plan> plan, const RunOptions& options = {});

// The data that every run of one batch is compared with, whatever the plan: the inputs, the
// oracle's results and those of one device. The oracle costs far more than the runs it judges, so a
// comparison of plans makes this once. The masks are the workload's, not a plan's, so a plan that
// attends other pairs is detected.
struct RunReference {
  struct OfMask {
    OracleResult truth;
    OracleResult single_device;  // with the options' kernel
  };
  Workload workload;
  BatchTensors batch;
  std::vector<OfMask> masks;
};
// Makes a reference. Only the seed and the kernel of `options` count. Gradients are computed if
// `passes` includes backward.
[[nodiscard]] RunReference make_run_reference(const Workload& workload, const RunOptions& options,
                                              Passes passes);
// Runs a plan against a reference with the same seed and kernel, and with backward if the plan has
// it. Throws InvalidArgument when the plan is for other sequences, another shape or other masks.
[[nodiscard]] RunReport run_plan(std::shared_ptr<const Plan> plan, const RunOptions& options,
                                 const RunReference& reference);

// Throws InvalidArgument when run_plan on this machine would need more memory than it has.
void check_run_memory(const Plan& plan, const PlanStats& statistics);

}  // namespace contextile

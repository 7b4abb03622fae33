// Executes a plan: exact distributed attention, forward and backward.
//
//   const auto plan = std::make_shared<const Plan>(load_plan("batch.plan"));
//   run_inproc(plan->num_devices(), [&](Transport& transport) {
//     Executor executor(transport, find_kernel("", plan->shape.dtype));
//     executor.prepare(plan);
//     ForwardTensors tensors;  // views of this rank's rows
//     const Saved saved = executor.forward(find_mask(*plan, ""), tensors);
//   });
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/flight_record.h"
#include "contextile/base.h"
#include "contextile/execution.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"
#include "contextile/plan.h"
#include "contextile/tensor.h"
#include "contextile/workload.h"

namespace contextile {

// Tensors of one rank in the plan's local order (local_blocks of every round in sequence, a block's
// ranges in listed order), token-major [local tokens, heads, dim]. Owned by the caller.
struct ForwardTensors {
  TensorView q_THD;               // [T, q_heads, D]
  TensorView k_THD;               // [T, kv_heads, D]
  TensorView v_THD;               // [T, kv_heads, Dv]
  std::span<const float> sink_H;  // [q_heads], empty unless shape.sink
  TensorView out_THD;             // written, activation dtype [T, q_heads, Dv]
  RowStats lse_TH;                // written, fp32 [T, q_heads], natural log, sink included
  // Buffer for the data that forward keeps for backward: Executor::saved_bytes bytes, written.
  // Empty: the data goes into the Saved that is returned.
  std::span<std::byte> saved = {};
  // Bias and dropout of the call, the same on every rank. Positions are the plan's.
  ScoreTerms terms = {};
};

struct BackwardTensors {
  TensorView q_THD;
  TensorView k_THD;
  TensorView v_THD;
  TensorView out_THD;  // as forward returned it
  RowStats lse_TH;     // as forward returned it
  TensorView dout_THD;
  std::span<const float> sink_H;
  TensorView dq_THD;         // written, activation dtype
  TensorView dk_THD;         // written
  TensorView dv_THD;         // written
  std::span<float> dsink_H;  // written: this rank's share; the caller sums over ranks
  // The data that forward wrote to ForwardTensors::saved; empty: the data is in the Saved.
  std::span<const std::byte> saved = {};
  ScoreTerms terms = {};  // as in forward
  // Written: this rank's share of the gradient of terms.table_HB, which the caller sums over ranks;
  // empty: not computed.
  std::span<float> dtable_HB = {};
};

struct ExecutorMemory {
  std::int64_t staging_bytes = 0;
  std::int64_t accumulator_bytes = 0;
  std::int64_t conversion_bytes = 0;
  std::int64_t workspace_bytes = 0;  // in addition to the plan's memory: delta, bands of tiles
};

struct ExecutorOptions {
  // Folder to which a rank writes its flight record (advanced/flight_record.h) when a prepare or a
  // call fails. Empty: no record is written. Ranks may share the folder. An existing record of this
  // rank is removed.
  std::string flight_folder;
};

// The kernels and transports of a plan's ranks when one process drives all of them, one thread
// each, and tensors are not in its own memory: one kernel and one transport for each rank.
class RankHost {
 public:
  virtual ~RankHost() = default;
  // Makes a new group of `num_ranks` ranks, and sets the kernel that each rank has from then on.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Transport>> make_group(
      std::int32_t num_ranks) = 0;
  [[nodiscard]] virtual const AttentionKernel& kernel(Rank rank) const = 0;
  // Returns true if the results are real and the time that they take says nothing.
  [[nodiscard]] virtual bool is_emulated() const { return false; }
};

// A call that ranks are about to make together, for check_same_call to compare.
struct SharedCall {
  Direction direction = Direction::kForward;
  std::size_t mask = 0;
  // The caller's number of the forward, which its backward repeats; 0: unknown, matches any.
  std::int64_t number = 0;
  ScoreTerms terms = {};
  std::span<const float> sink_H = {};  // not compared in a GPU's memory
};

// For engines that run plans by other means than Executor: the agreements of its ranks.

// Returns true if any rank has only a slice of the plan. Throws InvalidPlan, the same on every
// rank, naming the ranks and both digests, versions or numbers of ranks where these differ, and
// InvalidArgument if a neighbour is in a call. Collective.
[[nodiscard]] bool agree_on_plan(Transport& transport, const Plan& plan);

class CallCheck;

// The comparison of Executor::check_same_call, whose sending and waiting are apart.
class CallAgreement {
 public:
  // Sends this rank's call to its neighbour, and returns at once. The transport must outlive it.
  CallAgreement(Transport& transport, const Plan& plan, const SharedCall& call);
  ~CallAgreement();
  CallAgreement(CallAgreement&&) noexcept;
  CallAgreement& operator=(CallAgreement&&) noexcept;

  // Waits for the neighbour's call. Throws InvalidArgument naming both ranks and their calls if
  // they differ.
  void wait();
  // Returns the text of that error if the neighbour's call has come and differs.
  [[nodiscard]] std::optional<std::string> difference() const;

 private:
  std::unique_ptr<CallCheck> check_;
};

// Returns the index of the mask of that name; "" names the mask of a plan that has only one. Throws
// InvalidArgument with the available names.
[[nodiscard]] std::size_t find_mask(const Plan& plan, std::string_view name);

// Runs one rank's programs of a plan over a transport with a kernel. It holds buffers and no
// activations: one executor serves all layers and micro-batches, and is prepared again for every
// batch. Threads use it one after the other: a call while another thread is in one, on this
// executor or another of the same transport, throws InvalidArgument and does nothing else.
class Executor {
 public:
  Executor(Transport& transport, const AttentionKernel& kernel,
           const ExecutorOptions& options = {});
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  // Allocates buffers (reusing any that fit), classifies tiles, and checks that every rank holds
  // the same plan. Throws InvalidPlan naming the ranks and both digests on a mismatch, or when the
  // plan is for another number of ranks, or when a rank has another version of the library.
  // Collective.
  void prepare(std::shared_ptr<const Plan> plan);

  // Checks that all ranks are about to make the same call of the same plan. Only their sizes
  // distinguish the messages of plans, so ranks in different calls would mix up their data. The
  // check is useful if ranks are processes that order their calls themselves. Throws
  // InvalidArgument naming two ranks and their calls if neighbours differ, and ends the group:
  // every other rank gets a TransportError with the same text. Collective; one message of 64 bytes
  // per rank.
  void check_same_call(const SharedCall& call);

  // Run attention under one mask. Collective over all ranks; `mask` indexes the plan's masks
  // (find_mask). They throw InvalidArgument on tensors of the wrong shape, and TransportError if a
  // peer fails.
  Saved forward(std::size_t mask, const ForwardTensors& tensors);
  // Returns the bytes that forward under that mask keeps for backward on this rank. Throws
  // InvalidArgument if there is no plan or the plan has no such mask.
  [[nodiscard]] std::int64_t saved_bytes(std::size_t mask) const;
  void backward(std::size_t mask, const BackwardTensors& tensors, const Saved& saved);

  // Two calls may be in flight on one executor (ping-pong), or on executors of one transport. Each
  // begin_* issues the program up to its first wait and takes buffers of its own; finish runs the
  // rest. Every rank must finish handles in the order in which they began. With a number, ranks
  // compare their calls as check_same_call does, but wait for each other only later, in advance or
  // finish.
  class Handle;
  [[nodiscard]] Handle begin_forward(std::size_t mask, const ForwardTensors& tensors,
                                     std::optional<std::int64_t> number = std::nullopt);
  [[nodiscard]] Handle begin_backward(std::size_t mask, const BackwardTensors& tensors,
                                      const Saved& saved,
                                      std::optional<std::int64_t> number = std::nullopt);
  // Runs a call up to its last launch, so that finish only waits for results and adds them up while
  // other work may hide their way. Optional; ranks call it in the same order among their calls.
  void advance(Handle& handle);
  Saved finish(Handle handle);

  [[nodiscard]] ExecutionStats last_stats() const;
  [[nodiscard]] ExecutorMemory memory() const;

  // Returns the last steps of this rank and the messages it still waits for, with the error that
  // ended it.
  [[nodiscard]] FlightRecord flight_record(const std::exception& error) const;
  // Writes that record to the options' folder, as a failing call does; for failures around calls.
  // Only the first failure is recorded, and none without a folder. Never throws.
  void write_flight_record(const std::exception& error) const noexcept;

 private:
  friend struct ExecutorTesting;
  friend class PlanRanks;
  // Runs messages that do not belong to the executor, as a step of the record in which ranks wait.
  void record_exchange(const std::function<void()>& messages);
  struct State;
  std::unique_ptr<State> state_;
};

class Executor::Handle {
 public:
  Handle(Handle&&) noexcept;
  Handle& operator=(Handle&&) noexcept;
  ~Handle();

 private:
  friend class Executor;
  struct Call;
  explicit Handle(std::unique_ptr<Call> call);
  std::unique_ptr<Call> call_;
};

// ----------------------------------------------------------------------------------------- scatter
//
// Conversion of a batch's tensors to the order of every rank, and back.
//
// Legend of suffixes: T tokens of the batch, N tokens of a rank, H heads, D elements of a row.

// A tensor of the batch is [T, heads, dim], row t for token t (Plan::num_tokens of them). A rank's
// tensor is [N, heads, dim], row n for token local_tokens(plan, rank)[n], N = num_local_tokens: the
// local order, in which an Executor takes and returns its tensors. Any data with one row per token
// can be moved (hidden states: [T, 1, hidden]), because rows are copied bit by bit. Strides may be
// arbitrary.
//
// All of them throw InvalidArgument when shapes or dtypes do not fit, naming the rank, and
// InvalidPlan when the plan's tables are inconsistent. They do not verify the plan.

// local := the rank's rows of batch. O(N · heads · dim). Ranks own different tokens, so calls for
// several ranks may run concurrently, here and in gather.
void scatter(const Plan& plan, Rank rank, const TensorView& batch_THD, const TensorView& local_NHD);
// The rank's rows of batch := local. Other rows are left unchanged.
void gather(const Plan& plan, Rank rank, const TensorView& local_NHD, const TensorView& batch_THD);

// The same for all ranks at once: scatter returns one tensor per rank, and gather takes as many. A
// rank that owns no tokens has a tensor without rows; a row that no rank owns is NaN.
[[nodiscard]] std::vector<HostTensor> scatter(const Plan& plan, const TensorView& batch_THD);
[[nodiscard]] HostTensor gather(const Plan& plan, std::span<const HostTensor> local_NHD);

}  // namespace contextile

// Executing a plan: exact distributed attention, forward and backward.
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
#include "contextile/extend/kernel.h"
#include "contextile/extend/tensor.h"
#include "contextile/extend/transport.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

// Received inputs forward keeps for backward: opaque, one per layer and micro-batch.
class Saved {
 public:
  Saved();
  ~Saved();
  Saved(Saved&&) noexcept;
  Saved& operator=(Saved&&) noexcept;
  [[nodiscard]] std::int64_t size_bytes() const;

  struct Buffers;

 private:
  friend class Executor;
  std::unique_ptr<Buffers> buffers_;
};

// Tensors of one rank in the plan's local order (local_blocks of every round one after another, a
// block's ranges in listed order), token-major [local tokens, heads, dim]. Owned by the caller.
struct ForwardTensors {
  TensorView q_THD;               // [T, q_heads, D]
  TensorView k_THD;               // [T, kv_heads, D]
  TensorView v_THD;               // [T, kv_heads, Dv]
  std::span<const float> sink_H;  // [q_heads], empty unless shape.sink
  TensorView out_THD;             // written, activation dtype [T, q_heads, Dv]
  RowStats lse_TH;                // written, fp32 [T, q_heads], natural log, sink included
  // Where what forward keeps for backward goes: Executor::saved_bytes of them, written. Empty: into
  // the Saved that is returned.
  std::span<std::byte> saved = {};
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
  std::span<float> dsink_H;  // written: this rank's share, the caller sums over ranks
  // What forward wrote where ForwardTensors::saved said so; empty: it is in the Saved.
  std::span<const std::byte> saved = {};
};

// How one call went on this rank.
struct ExecutionStats {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  double total_s = 0;
  double attention_s = 0;  // inside the kernel
  double exposed_s = 0;    // blocked in waits
};

struct ExecutorMemory {
  std::int64_t staging_bytes = 0;
  std::int64_t accumulator_bytes = 0;
  std::int64_t conversion_bytes = 0;
  std::int64_t workspace_bytes = 0;  // beside the plan's memory: delta, bands of tiles
};

struct ExecutorOptions {
  // Where a rank leaves its flight record (advanced/flight_record.h) when a prepare or a call fails; empty:
  // nowhere. Ranks may share it. A record of this rank that is there already is removed.
  std::string flight_folder;
};

// What the ranks of a plan run on when one process drives all of them, a thread each, and not by
// its own memory: a kernel and a transport for each.
class RankHost {
 public:
  virtual ~RankHost() = default;
  // A new group of so many ranks, and what kernel a rank has from then on.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Transport>> make_group(
      std::int32_t num_ranks) = 0;
  [[nodiscard]] virtual const AttentionKernel& kernel(Rank rank) const = 0;
};

// A call that ranks are about to make together, as check_same_call compares it.
struct SharedCall {
  Direction direction = Direction::kForward;
  std::size_t mask = 0;
  // The caller's number of the forward, which its backward repeats; 0: not known, matches any.
  std::int64_t number = 0;
};

// The index of the mask of that name; "" is the mask of a plan that has only one. Throws
// InvalidArgument with the names there are.
[[nodiscard]] std::size_t find_mask(const Plan& plan, std::string_view name);

// Runs one rank's programs of a plan over a transport with a kernel. Holds buffers, no activations:
// one executor serves all layers and micro-batches and is prepared anew for every batch. Not thread
// safe.
class Executor {
 public:
  Executor(Transport& transport, const AttentionKernel& kernel,
           const ExecutorOptions& options = {});
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  // Allocates buffers (reusing what fits), classifies tiles, and checks that every rank holds the
  // same plan: throws InvalidPlan naming the ranks and both digests on a mismatch, or when the plan
  // is for another number of ranks, or a rank has another version of the library. Collective.
  void prepare(std::shared_ptr<const Plan> plan);

  // Makes sure that all ranks are about to make the same call of the same plan: messages of plans
  // are told apart by their sizes alone, so that ranks in different calls would mix up their data.
  // Worth it where ranks are processes that order their calls themselves. Throws InvalidArgument
  // naming two ranks and their calls where neighbours differ, and ends the group: every other rank
  // gets a TransportError with the same words. Collective; one message of 32 bytes per rank.
  void check_same_call(const SharedCall& call);

  // Collective over all ranks; `mask` indexes the plan's masks (find_mask). Throws InvalidArgument
  // on tensors of the wrong shape, TransportError if a peer fails.
  Saved forward(std::size_t mask, const ForwardTensors& tensors);
  // What forward under that mask keeps for backward on this rank, bytes. Throws InvalidArgument
  // without a plan and where the plan has no such mask.
  [[nodiscard]] std::int64_t saved_bytes(std::size_t mask) const;
  void backward(std::size_t mask, const BackwardTensors& tensors, const Saved& saved);

  // Two calls may be in flight on one executor (ping-pong): each begin_* issues the program up to
  // its first wait and takes buffers of its own; finish runs the rest. Handles are finished in the
  // order they began on every rank alike.
  class Handle;
  [[nodiscard]] Handle begin_forward(std::size_t mask, const ForwardTensors& tensors);
  [[nodiscard]] Handle begin_backward(std::size_t mask, const BackwardTensors& tensors,
                                      const Saved& saved);
  Saved finish(Handle handle);

  [[nodiscard]] ExecutionStats last_stats() const;
  [[nodiscard]] ExecutorMemory memory() const;

  // What this rank did last and what it still waits for, with the error that ended it.
  [[nodiscard]] FlightRecord flight_record(const std::exception& error) const;
  // Leaves it in the options' folder, as a call that fails does, for failures around calls. Only
  // the first failure is recorded; without a folder nothing is. Never throws.
  void write_flight_record(const std::exception& error) const noexcept;

 private:
  friend struct ExecutorTesting;
  friend class PlanRanks;
  // Runs messages that are not the executor's as a step of the record in which ranks wait.
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
// A batch's tensors in the order of every rank, and back.
//
// Legend of suffixes: T tokens of the batch, N tokens of a rank, H heads, D elements of a row.

// A tensor of the batch is [T, heads, dim], row t for token t (Plan::num_tokens of them); a rank's
// is [N, heads, dim], row n for token local_tokens(plan, rank)[n], N = num_local_tokens: the local
// order, in which an Executor takes and returns its tensors. Whatever there is one row a token of
// can be moved (hidden states: [T, 1, hidden]), for rows are copied bit by bit. Strides are free.
//
// All of them throw InvalidArgument when shapes or dtypes do not fit, naming the rank, and
// InvalidPlan when the plan's tables do not hold together. They do not verify the plan.

// local := the rank's rows of batch. O(N · heads · dim). Ranks own different tokens, so calls for
// several may run side by side, here and in gather.
void scatter(const Plan& plan, Rank rank, const TensorView& batch_THD, const TensorView& local_NHD);
// The rank's rows of batch := local. Other rows are left alone.
void gather(const Plan& plan, Rank rank, const TensorView& local_NHD, const TensorView& batch_THD);

// The same for all ranks at once: by rank, and from as many. A rank that owns no tokens has a
// tensor without rows; a row that no rank owns is NaN.
[[nodiscard]] std::vector<HostTensor> scatter(const Plan& plan, const TensorView& batch_THD);
[[nodiscard]] HostTensor gather(const Plan& plan, std::span<const HostTensor> local_NHD);

}  // namespace contextile

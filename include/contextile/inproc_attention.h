// Exact attention on tensors of your own: a plan executed by threads of this process.
//
//   #include "contextile/inproc_attention.h"
//
//   const AttentionInputs inputs = {view_of(q, tokens, 32, 128), view_of(k, tokens, 8, 128),
//                                   view_of(v, tokens, 8, 128)};
//   InprocAttention attention(planned.plan);
//   const AttentionOutput output = attention.forward(inputs);
//   const AttentionGradients gradients = attention.backward(inputs, output, dout);
//
// Legend of suffixes: T tokens of the batch, H heads, D head dim.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/execution.h"
#include "contextile/plan.h"
#include "contextile/tensor.h"

namespace contextile {

// The inputs of one layer for the whole batch, in the order of the batch (not a rank's): row t is
// token t. Read only; strides may be arbitrary. dtype and dims are those of the plan's shape.
struct AttentionInputs {
  TensorView q_THD;                    // [T, q_heads, head_dim]
  TensorView k_THD;                    // [T, kv_heads, head_dim]
  TensorView v_THD;                    // [T, kv_heads, value_dim]
  std::span<const float> sink_H = {};  // [q_heads], empty unless shape.sink
};

// The results of forward, which backward needs again.
struct AttentionOutput {
  std::string mask;           // name of the mask in the plan
  HostTensor out_THD;         // [T, q_heads, value_dim], the inputs' dtype
  std::vector<float> lse_TH;  // [T, q_heads], natural log, sink included; a row that attends
                              // nothing: -inf (its sink, if there is one), and its out is 0
  std::vector<Saved> saved;   // by rank: inputs that forward has moved, so that backward does not
};

struct AttentionGradients {
  HostTensor dq_THD;           // [T, q_heads, head_dim], the inputs' dtype
  HostTensor dk_THD;           // [T, kv_heads, head_dim]
  HostTensor dv_THD;           // [T, kv_heads, value_dim]
  std::vector<float> dsink_H;  // [q_heads], empty unless shape.sink
};

class PlanRanks;  // the engine, not for users

struct InprocAttentionOptions {
  std::string kernel = {};  // by name (extend/kernel.h); empty: the preferred one for the dtype
  std::chrono::milliseconds timeout{60'000};  // without a byte moving between any two ranks
};

// Runs every rank of a plan in this process: one executor each, over one in-process group. A call
// scatters the inputs, runs every rank on a thread of its own, and gathers the results. The same
// plan, inputs and kernel give the same bits. It holds buffers and no activations: one object
// serves all layers and calls of a batch, and outputs may be kept as long as needed. Not thread
// safe.
class InprocAttention {
 public:
  // Proves the plan (verify), which costs little compared with attention, and prepares every rank.
  // Throws InvalidPlan with the first violation when the plan does not verify, and InvalidArgument
  // on an unknown kernel or when this machine has less memory than a call needs.
  explicit InprocAttention(std::shared_ptr<const Plan> plan,
                           const InprocAttentionOptions& options = {});
  ~InprocAttention();
  InprocAttention(InprocAttention&&) noexcept;
  InprocAttention& operator=(InprocAttention&&) noexcept;

  // out = softmax(scale · q kᵀ under the mask) v, with softcap and sink as the plan's shape says.
  // `mask` is the name of one of the plan's masks; "" names the mask of a plan that has only one.
  // Throws InvalidArgument when there is no such mask, the plan has no forward for it, or a tensor
  // has another shape or dtype than the plan's; throws TransportError when nothing moves for the
  // timeout. FLOPs: forward_flops of the mask's pairs.
  [[nodiscard]] AttentionOutput forward(const AttentionInputs& inputs, std::string_view mask = "");

  // Returns the gradients for dout [T, q_heads, value_dim], from the inputs and the output of a
  // forward under output.mask. For a plan without a forward, an output made by hand with an empty
  // `saved` is enough. Throws as forward does, and InvalidArgument when `saved` is not of this plan
  // and mask. FLOPs: backward_flops.
  [[nodiscard]] AttentionGradients backward(const AttentionInputs& inputs,
                                            const AttentionOutput& output,
                                            const TensorView& dout_THD);

  // Returns the statistics of the last call, by rank: bytes, seconds in the kernel and seconds
  // waiting. Scattering and gathering are not counted. Zeros before the first call.
  [[nodiscard]] std::vector<ExecutionStats> last_stats() const;

 private:
  std::unique_ptr<PlanRanks> ranks_;
};

}  // namespace contextile

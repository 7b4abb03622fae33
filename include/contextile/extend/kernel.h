// Attention on tiles, and the work on rows around it. A kernel never sees a plan.
//
// Legend of suffixes: T tokens, H heads, D head dim, N query rows, M key rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/tensor.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// A partial result of some rows, fp32: what attention to a part of the keys gives. L (lse) is the
// natural log of the sum of exp(scores), O the average of the values under those weights. A row
// that has seen no key is empty: L = -inf, and its O is never read, whatever stands there (0·NaN
// would leak it).
struct PartialOutput {
  TensorView o_NHD;
  RowStats lse_NH;  // of the rows of `o_NHD`
};

// What is done to rows between the calls of a kernel, bound by memory: merging, summing, rounding,
// delta. Every implementation gives the same bits (of NaN only that it is one), so that plans run
// by different kernels differ by their attention alone. Tensors of one call have one shape. Calls
// of several threads may run side by side.
class RowOps {
 public:
  virtual ~RowOps() = default;

  // Names the instruction set: "avx512".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // dst := the merge of srcs (at least one) in the listed order, computed in fp64 and rounded once.
  // dst may be among srcs. The merge of two rows is
  //   L = logaddexp(La, Lb),  O = exp(La - L)·Oa + exp(Lb - L)·Ob;
  // empty rows weigh nothing, and a row whose sources are all empty becomes O = 0, L = -inf.
  virtual void merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const = 0;
  // dst := the sum of srcs (at least one) in the listed order, computed in fp64 and rounded once.
  // fp32; dst may be among srcs.
  virtual void sum(const TensorView& dst, std::span<const TensorView> srcs) const = 0;
  // delta := rowsum(dO ∘ O), summed in fp64.
  virtual void delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                     const RowStats& delta_NH) const = 0;
  // Copies; rounds to nearest even where dst is narrower. dst may be src when the dtypes are the
  // same.
  virtual void convert(const TensorView& dst, const TensorView& src) const = 0;
  // Rounds accumulated outputs once into `out`, the sink logits of these heads applied:
  // L' = logaddexp(L, sink), O·exp(L - L') in fp64. An empty row: O = 0, L' = sink (-inf without).
  // `sink_H` is empty when the layer has none.
  virtual void finish(const PartialOutput& accumulated, std::span<const float> sink_H,
                      const TensorView& out_NHD, const RowStats& lse_NH) const = 0;
  // Every element of every row := value.
  virtual void fill(const TensorView& dst, float value) const;
  // sums_H[h] -= Σ_n exp(sink - L)·delta in fp64, L the final LSE of `tokens` rows: token n in sum
  // n modulo 32, the sums halved until one is left.
  virtual void sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                             const RowStats& delta_NH, std::int64_t tokens,
                             std::span<double> sums_H) const;
  // dst_H := sums_H, rounded.
  virtual void round_sums(std::span<const double> sums_H, std::span<float> dst_H) const;

  // Lists of such calls, in which no call touches what another writes, whatever their shapes: the
  // bits of the calls one after another. Unless overridden they are made so.
  struct Merge {
    PartialOutput dst;
    std::vector<PartialOutput> srcs;
  };
  struct Sum {
    TensorView dst;
    std::vector<TensorView> srcs;
  };
  struct Delta {
    TensorView dout_NHD;
    TensorView out_NHD;
    RowStats delta_NH;
  };
  struct Convert {
    TensorView dst;
    TensorView src;
  };
  struct Finish {
    PartialOutput accumulated;
    TensorView out_NHD;
    RowStats lse_NH;
  };
  struct Fill {
    TensorView dst;
    float value = 0;
  };
  struct SinkRows {
    RowStats lse_NH;
    RowStats delta_NH;
    std::int64_t tokens = 0;
  };
  virtual void merge_all(std::span<const Merge> list) const;
  virtual void sum_all(std::span<const Sum> list) const;
  virtual void delta_all(std::span<const Delta> list) const;
  virtual void convert_all(std::span<const Convert> list) const;
  virtual void finish_all(std::span<const Finish> list, std::span<const float> sink_H) const;
  virtual void fill_all(std::span<const Fill> list) const;
  // sums_H takes the shares in listed order.
  virtual void sink_gradient_all(std::span<const float> sink_H, std::span<const SinkRows> list,
                                 std::span<double> sums_H) const;
};

// Memory that a kernel's tensors lie in, where whoever runs it puts results and what it stages.
class RowMemory {
 public:
  virtual ~RowMemory() = default;
  // Aligned to 64 bytes at least. Throws std::bad_alloc.
  [[nodiscard]] virtual std::byte* allocate(std::int64_t bytes) const = 0;
  virtual void free(std::byte* memory) const noexcept = 0;
  // From and to this process's memory, in the order of calls. `read` waits for what comes before.
  virtual void write(std::byte* to, std::span<const std::byte> from) const = 0;
  virtual void read(std::span<std::byte> to, const std::byte* from) const = 0;
  // Until everything that was asked of the kernel so far is done.
  virtual void wait() const = 0;
  // All bits ones: NaN in every dtype.
  virtual void poison(std::byte* memory, std::int64_t bytes) const = 0;
};
// That of this process.
[[nodiscard]] const RowMemory& host_memory();

// Owns some of it.
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(const RowMemory& memory, std::int64_t bytes)
      : data_(bytes > 0 ? memory.allocate(bytes) : nullptr, Free(&memory)), size_bytes_(bytes) {}

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    Free() : memory(nullptr) {}
    explicit Free(const RowMemory* of) : memory(of) {}
    void operator()(std::byte* data) const { memory->free(data); }

    const RowMemory* memory;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t size_bytes_ = 0;
};

struct KernelParams {
  std::int32_t q_heads = 1;   // of the head group
  std::int32_t kv_heads = 1;  // of the head group; divides q_heads
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;
  float scale = 1;
  float softcap = 0;  // 0: none
};

// What a kernel worked out about the bands of one tile, once per plan: prepare_bands.
class PreparedBands {
 public:
  virtual ~PreparedBands() = default;
  [[nodiscard]] virtual std::int64_t size_bytes() const = 0;
};

// One tile of a forward call. Bands are over local rows (q rows 0 … N-1, key rows 0 … M-1),
// disjoint. init: every row of o and lse is overwritten (rows without a pair become O = 0, LSE =
// -inf); otherwise the tile's result is merged into what they hold. LSE is the natural log.
struct ForwardTile {
  TensorView q_NHD;
  TensorView k_MHD;
  TensorView v_MHD;
  TensorView o_NHD;  // fp32
  RowStats lse_NH;
  std::span<const LocalBand> bands;
  bool init = false;
  const PreparedBands* prepared = nullptr;  // of these bands by this kernel; null: worked out anew
};

// One tile of a backward call. lse is the final one (-inf on a row that attends nothing: its
// gradients are 0), delta = rowsum(dO ∘ O). init overwrites the whole accumulator, otherwise the
// tile adds to it.
struct BackwardTile {
  TensorView q_NHD;
  TensorView k_MHD;
  TensorView v_MHD;
  TensorView do_NHD;
  RowStats lse_NH;
  RowStats delta_NH;
  TensorView dq_NHD;  // fp32
  TensorView dk_MHD;  // fp32
  TensorView dv_MHD;  // fp32
  std::span<const LocalBand> bands;
  bool init_dq = false;
  bool init_dkv = false;
  const PreparedBands* prepared = nullptr;  // as in ForwardTile
};

// What a kernel has made of all calls of forward, or of backward, in a program of a plan, once for
// all times that the program runs: the lists of tiles stay, the arrays that tiles are rows of may
// be elsewhere every time.
class PreparedProgram {
 public:
  virtual ~PreparedProgram() = default;
  // What it holds, wherever that lies.
  [[nodiscard]] virtual std::int64_t size_bytes() const = 0;
  // What each run under way takes of the kernel's memory.
  [[nodiscard]] virtual std::int64_t call_bytes() const = 0;
  // Begins a run. `arrays` are those that it was prepared with, where they are now, with strides of
  // their own; `call` holds call_bytes().
  virtual void begin(std::span<const TensorView> arrays, std::byte* call) const = 0;
  // What forward or backward does with the tiles of a list. Arrays and memory are those of `begin`.
  virtual void run(std::size_t list, std::span<const TensorView> arrays, std::byte* call) const = 0;
};

class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // The precision of weights for inputs of a dtype: what P, and dS of backward, are rounded to
  // (nearest even) before they are multiplied with V, dO, K or Q. Products, sums and the
  // log-sum-exp stay fp32 or wider. kF32 (unless overridden): nothing is lost.
  [[nodiscard]] virtual Dtype weight_dtype(Dtype inputs) const;
  // Tiles act in listed order: the same call gives the same bits whatever the number of threads.
  // Inputs have one dtype; no input aliases an output.
  // Tiles that write one slot name it by the same data pointer; slots do not overlap otherwise.
  virtual void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const = 0;
  virtual void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const = 0;
  // Classifies the bands of a tile of num_rows x num_keys for calls with these params, to be given
  // back with every such tile. Null: this kernel gains nothing by it.
  [[nodiscard]] virtual std::unique_ptr<const PreparedBands> prepare_bands(
      const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
      std::span<const LocalBand> bands) const;
  // Whether it prepares programs. Unless overridden it does not: tiles come with every call.
  [[nodiscard]] virtual bool makes_lists() const;
  // Every list is the tiles of one call. `arrays` and the tiles' tensors are at addresses where
  // nothing is; arrays are contiguous, and every tensor is tokens and heads of one of them. Bands
  // and what was prepared of them are needed no longer. Throws where makes_lists is false.
  [[nodiscard]] virtual std::unique_ptr<const PreparedProgram> prepare_forward(
      const KernelParams& params, std::span<const TensorView> arrays,
      std::span<const std::vector<ForwardTile>> lists) const;
  [[nodiscard]] virtual std::unique_ptr<const PreparedProgram> prepare_backward(
      const KernelParams& params, std::span<const TensorView> arrays,
      std::span<const std::vector<BackwardTile>> lists) const;
  // Throws InvalidArgument where it can not attend tensors of that shape. Unless overridden it can.
  virtual void check_shape(const AttentionShape& shape) const;
  // What merges, sums and rounds around this kernel's tiles: those who run plans with a kernel use
  // its row operations and no others. Unless overridden, ones that run on any machine.
  [[nodiscard]] virtual const RowOps& row_ops() const;
  // Where the tensors of calls are. Unless overridden, in this process's memory; what is elsewhere
  // only this kernel and its row operations touch.
  [[nodiscard]] virtual const RowMemory& memory() const;
};

// What weights of a precision may make of the error of a result, relative to the largest output,
// the rounding of the output included: 2^-7 for bf16, 2^-10 for f16, 0 for f32. docs/kernels.md
// derives it, and says what counts as the largest output of each array.
[[nodiscard]] double weight_rounding(Dtype weights);

// All kernels built in that this CPU can run; for f32 and f16 inputs the preferred one first.
[[nodiscard]] std::span<const AttentionKernel* const> kernels();
// The fastest of them for inputs of a dtype. CPUs of one kind agree on it, so ranks on equal
// machines do. The one for bf16 may round weights (weight_dtype).
[[nodiscard]] const AttentionKernel& preferred_kernel(Dtype inputs);
// By name, for inputs of a dtype: "simd" is the preferred of those whose name begins with it, ""
// the preferred of all. Throws InvalidArgument with the list of names.
[[nodiscard]] const AttentionKernel& find_kernel(std::string_view name, Dtype inputs = Dtype::kF32);

}  // namespace contextile

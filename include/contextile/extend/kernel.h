// Kernels: attention on tiles. A kernel never sees a plan.
//
//   const AttentionKernel& kernel = find_kernel("simd", Dtype::kBf16);
//   const bool rounds_weights = kernel.weight_dtype(Dtype::kBf16) != Dtype::kF32;
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
#include "contextile/mask.h"
#include "contextile/tensor.h"
#include "contextile/workload.h"

namespace contextile {

class RowOps;           // kernel/row_ops.h
class RowMemory;        // kernel/row_memory.h
class PreparedProgram;  // kernel/prepared_program.h

// A partial result of some rows, fp32: the attention of the rows to a part of the keys. L (lse) is
// the natural log of the sum of exp(scores), O the average of the values under those weights. A row
// that has seen no key is empty: L = -inf, and its O is never read, whatever its memory holds
// (0·NaN would leak it).
struct PartialOutput {
  TensorView o_NHD;
  RowStats lse_NH;  // for the rows of `o_NHD`
};

// Terms of a call beyond the shape's, of all query heads of the layer. A score becomes
//   softcap(scale · q·k) + slopes[h] · d + table[h, bucket(d)],  d = position of key - of query,
// with bucket(d) = buckets[clip(d - first_offset, 0, buckets.size() - 1)]. With dropout, every
// weight P of the result is multiplied by dropout_factor(…) (kernel/cpu/dropout.h); the log-sum-exp
// stays that of all weights.
struct ScoreTerms {
  std::span<const float> slopes_H;        // ALiBi; empty: none
  std::span<const float> table_HB;        // relative bias; empty: none
  std::int32_t num_buckets = 0;           // B
  std::span<const std::int32_t> buckets;  // 0 … B-1, by offset from first_offset on
  std::int32_t first_offset = 0;
  double dropout = 0;  // probability of a weight to be dropped, below 1
  std::uint64_t dropout_seed = 0;

  [[nodiscard]] bool has_bias() const { return !slopes_H.empty() || !table_HB.empty(); }
  [[nodiscard]] bool has_any() const { return has_bias() || dropout != 0; }
};

// A token of a tile: its index in the batch, for dropout, and its position, for a bias.
struct TokenPlace {
  std::int32_t token = 0;
  std::int32_t position = 0;
};

// Whatever a tile's terms depend on beyond its rows.
struct TilePlaces {
  std::int32_t first_head = 0;  // the tile's first query head among those of the layer
  std::span<const TokenPlace> q_N;
  std::span<const TokenPlace> k_M;
};

struct KernelParams {
  std::int32_t q_heads = 1;   // of the head group
  std::int32_t kv_heads = 1;  // of the head group; divides q_heads
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;
  float scale = 1;
  float softcap = 0;                  // 0: none
  const ScoreTerms* terms = nullptr;  // null: none; otherwise tiles have places
  std::span<double> dtable_HB = {};   // backward adds the gradient of terms->table_HB; empty: none
};

// A kernel's classification of the bands of one tile, made once per plan by prepare_bands.
class PreparedBands {
 public:
  virtual ~PreparedBands() = default;
  [[nodiscard]] virtual std::int64_t size_bytes() const = 0;
};

// One tile of a forward call. Bands are over local rows (q rows 0 … N-1, key rows 0 … M-1) and
// disjoint. With init, every row of o and lse is overwritten (rows without a pair become O = 0, LSE
// = -inf); otherwise the tile's result is merged into their contents. LSE is the natural log.
struct ForwardTile {
  TensorView q_NHD;
  TensorView k_MHD;
  TensorView v_MHD;
  TensorView o_NHD;  // fp32
  RowStats lse_NH;
  std::span<const LocalBand> bands;
  bool init = false;
  const PreparedBands* prepared = nullptr;  // of these bands by this kernel; null: classified in
                                            // the call
  TilePlaces places = {};                   // with terms
};

// One tile of a backward call. lse is the final one (-inf on a row that attends nothing: its
// gradients are 0), delta = rowsum(dO ∘ O). With init the tile overwrites the whole accumulator,
// otherwise it adds to it.
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
  TilePlaces places = {};
};

class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // Returns the precision of weights for inputs of a dtype: P, and dS of backward, are rounded to
  // it (nearest even) before they are multiplied with V, dO, K or Q. Products, sums and the
  // log-sum-exp stay fp32 or wider. kF32 (unless overridden): nothing is lost.
  [[nodiscard]] virtual Dtype weight_dtype(Dtype inputs) const;
  // Run the tiles of one call. Tiles act in listed order: the same call gives the same bits
  // whatever the number of threads. Inputs have one dtype; no input aliases an output. Tiles that
  // write one slot name it by the same data pointer; slots do not overlap otherwise.
  virtual void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const = 0;
  virtual void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const = 0;
  // Classifies the bands of a tile of num_rows x num_keys for calls with these params. The result
  // is passed with every such tile. Null: this kernel gains nothing by it.
  [[nodiscard]] virtual std::unique_ptr<const PreparedBands> prepare_bands(
      const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
      std::span<const LocalBand> bands) const;
  // Returns true if it prepares programs. Unless overridden it does not: tiles are passed with
  // every call.
  [[nodiscard]] virtual bool makes_lists() const;
  // Prepare the calls of a program. Every list holds the tiles of one call. `arrays` and the tiles'
  // tensors are at addresses where no memory is; arrays are contiguous, and every tensor consists
  // of tokens and heads of one of them, its tokens equally far apart. Bands and their preparations
  // are no longer needed afterwards. They throw if makes_lists is false.
  [[nodiscard]] virtual std::unique_ptr<const PreparedProgram> prepare_forward(
      const KernelParams& params, std::span<const TensorView> arrays,
      std::span<const std::vector<ForwardTile>> lists) const;
  [[nodiscard]] virtual std::unique_ptr<const PreparedProgram> prepare_backward(
      const KernelParams& params, std::span<const TensorView> arrays,
      std::span<const std::vector<BackwardTile>> lists) const;
  // Throws InvalidArgument if it cannot attend tensors of that shape. Unless overridden, it can
  // attend any.
  virtual void check_shape(const AttentionShape& shape) const;
  // Returns true if its calls may have ScoreTerms. Unless overridden they may not.
  [[nodiscard]] virtual bool has_terms() const;
  // Returns the operations that merge, sum and round rows around this kernel's tiles. Code that
  // runs plans with a kernel uses its row operations and no others. Unless overridden, they run on
  // any machine.
  [[nodiscard]] virtual const RowOps& row_ops() const;
  // Returns the memory where the tensors of calls are. Unless overridden, it is this process's
  // memory. Only this kernel and its row operations touch tensors elsewhere.
  [[nodiscard]] virtual const RowMemory& memory() const;
};

// Returns the error that weights of a precision may add to a result, relative to the largest
// output, the rounding of the output included: 2^-7 for bf16, 2^-10 for f16, 0 for f32.
// docs/kernels.md derives it, and defines the largest output of each array.
[[nodiscard]] double weight_rounding(Dtype weights);

// All built-in kernels that this CPU can run, the preferred one for f32 and f16 inputs first.
[[nodiscard]] std::span<const AttentionKernel* const> kernels();
// Returns the fastest built-in kernel for inputs of a dtype. CPUs of one kind agree on it, so ranks
// on equal machines do. The one for bf16 may round weights (weight_dtype).
[[nodiscard]] const AttentionKernel& preferred_kernel(Dtype inputs);
// Finds a kernel by name, for inputs of a dtype: "simd" is the preferred one of those whose name
// begins with it, "" the preferred one of all. Throws InvalidArgument with the list of names.
[[nodiscard]] const AttentionKernel& find_kernel(std::string_view name, Dtype inputs = Dtype::kF32);

}  // namespace contextile

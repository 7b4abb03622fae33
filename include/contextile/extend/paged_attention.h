// Attention of few queries to many keys that lie in pages, as in a step of decoding. Its speed is
// bound by the memory that keys and values are read from.
//
//   const PagedKernel& kernel = find_paged_kernel();
//   const std::vector<PageId> table = {PageId(7), PageId(2)};  // 32 tokens
//   const Range keys = {0, 20};
//   const PagedRequest request = {.table = table, .keys = {&keys, 1}};
//
// Legend of suffixes: N query rows, H heads, D dim.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/kernel.h"
#include "contextile/tensor.h"

namespace contextile {

// The dtype of cached keys and values. kFp8 is e4m3 without infinities (OCP, "FP8 formats for deep
// learning"). Elements of kFp8 and kInt8 are multiplied by a scale per head.
enum class KvDtype : std::uint8_t { kF32, kBf16, kF16, kFp8, kInt8 };

[[nodiscard]] std::string_view to_string(KvDtype dtype);      // "f32", "bf16", "f16", "fp8", "int8"
[[nodiscard]] KvDtype parse_kv_dtype(std::string_view text);  // throws InvalidArgument
[[nodiscard]] constexpr std::int64_t bytes_per_element(KvDtype dtype) {
  return dtype == KvDtype::kF32 ? 4 : dtype == KvDtype::kBf16 || dtype == KvDtype::kF16 ? 2 : 1;
}

// Keys, or values, of one layer on one rank, in the caller's memory. Element d of head h of token t
// of page p is at p·page_stride + t·token_stride + h·head_stride + d.
struct PagedTensor {
  const void* data = nullptr;
  std::int64_t page_stride = 0;   // elements
  std::int64_t token_stride = 0;  // elements
  std::int64_t head_stride = 0;   // elements
  std::int32_t dim = 0;
  std::span<const float> scale_H = {};  // factors of the elements, by head; empty: 1
};

// Keys and values of one layer on one rank. Values may be the first elements of keys (MLA).
struct PagedKv {
  PagedTensor k;
  PagedTensor v;
  KvDtype dtype = KvDtype::kF32;
  std::int32_t kv_heads = 1;
  std::int32_t page_size = 16;  // tokens
};

// One request's queries and the keys that each of them sees. Keys are counted as the rank holds
// them: key i lies in page table[i / page_size]. Keys that no query sees are not read, nor are
// their pages.
struct PagedRequest {
  std::int64_t first_row = 0;  // of q and out
  std::int64_t num_rows = 1;
  std::span<const PageId> table;
  // Ranges of keys, ascending and disjoint for each row: row i has [row_splits[i], row_splits[i +
  // 1]) of them. Without row_splits every row has one range, empty if the row sees no key.
  std::span<const Range> keys;
  std::span<const std::int32_t> row_splits = {};
};

struct PagedParams {
  float scale = 1;
  float softcap = 0;  // c in c·tanh(s/c); 0: none
};

// A kernel of paged attention. There is one for every instruction set.
class PagedKernel {
 public:
  virtual ~PagedKernel() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;  // "avx512"
  // Returns the dtype that it rounds weights to before they are multiplied with values, for queries
  // of a dtype.
  [[nodiscard]] virtual Dtype weight_dtype(Dtype /*queries*/) const { return Dtype::kF32; }
  // Computes O and LSE (natural log) of every row of every request over the given keys, on oneTBB's
  // threads. A row that sees no key has O = 0, LSE = -inf. The same call gives the same bits on any
  // number of threads: the keys of a request are cut into runs of kKeysOfTask, whose results are
  // merged in order. A kernel for a device (docs/gpu.md) takes tensors in its memory, returns
  // before they are computed, and cuts keys in its own way. Throws InvalidArgument if shapes do not
  // fit, if a range leaves the table, or if a row belongs to no request or to two.
  //
  // q [rows, q_heads, head_dim] of f32, bf16 or f16, q_heads a multiple of kv_heads; out fp32
  // [rows, q_heads, value_dim].
  void run(const PagedParams& params, const PagedKv& kv, const TensorView& q_NHD,
           std::span<const PagedRequest> requests, const PartialOutput& out) const;

  static constexpr std::int64_t kKeysOfTask = 2048;

 protected:
  // Implements `run`; the arguments fit.
  virtual void attend(const PagedParams& params, const PagedKv& kv, const TensorView& q_NHD,
                      std::span<const PagedRequest> requests, const PartialOutput& out) const = 0;
};

// The kernels that this CPU can run, the fastest first.
[[nodiscard]] std::span<const PagedKernel* const> paged_kernels();
// Finds a kernel by name; "" is the fastest. Throws InvalidArgument with the list of names.
[[nodiscard]] const PagedKernel& find_paged_kernel(std::string_view name = "");

}  // namespace contextile

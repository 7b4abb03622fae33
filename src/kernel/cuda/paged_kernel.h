// Attention to keys in pages on a rank's compute stream.
#pragma once

#include <span>
#include <string_view>

#include "contextile/extend/paged_attention.h"
#include "gpu/driver.h"

namespace contextile::cuda {

// The kernel cuda:paged. Calls put launches on the stream and return. Queries, results, keys and
// values are in device memory. Tables, ranges and scales of heads are in the memory of this process
// and are read before a call returns.
//
// Queries are bf16 or f16; caches have the same dtype, or fp8 or int8. Head and value dims are
// multiples of 8 (fp8 and int8: of 16) up to 256, or up to 576 and 512 if values are the first
// columns of keys. Rows begin at multiples of 16 bytes. Other calls throw InvalidArgument. Weights
// are rounded to the queries' dtype. A key that one row of a request sees must be finite even if
// another row does not see it.
class DevicePagedKernel : public PagedKernel {
 public:
  // `streams` must outlive the kernel.
  explicit DevicePagedKernel(const RankStreams& streams) : streams_(streams) {}

  [[nodiscard]] std::string_view name() const override { return "cuda:paged"; }
  [[nodiscard]] Dtype weight_dtype(Dtype queries) const override { return queries; }

 protected:
  void attend(const PagedParams& params, const PagedKv& kv, const TensorView& q_NHD,
              std::span<const PagedRequest> requests, const PartialOutput& out) const override;

 private:
  const RankStreams& streams_;
};

}  // namespace contextile::cuda

// Attention to keys in pages on a rank's compute stream.
#pragma once

#include <span>
#include <string_view>

#include "contextile/extend/paged_attention.h"
#include "gpu/driver.h"

namespace contextile::cuda {

// cuda:paged. Calls put launches on the stream and return. Queries, results, keys and values are in
// device memory; tables, ranges and scales of heads in this process', read before a call returns.
//
// Queries bf16 or f16; caches of their dtype, fp8 or int8. Head and value dims are multiples of 8
// (fp8 and int8: of 16) up to 256, or up to 576 and 512 where values are the beginnings of keys;
// rows begin at multiples of 16 bytes (else InvalidArgument). Weights are rounded to the queries'
// dtype, and what a row of a request does not see must be finite where another row sees it.
class DevicePagedKernel : public PagedKernel {
 public:
  // `streams` must outlive it.
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

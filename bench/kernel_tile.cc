#include "kernel_tile.h"

#include <algorithm>

#include "base/rng.h"
#include "kernel/cpu/reference_kernel.h"
#include "kernel/cpu/simd_kernel.h"
#include "kernel/tensor.h"
#include "runtime/check/run_error.h"
#include "runtime/executor/unit_view.h"

namespace contextile {

BenchTile::BenchTile(const AttentionKernel& kernel, const AttentionShape& shape,
                     const std::string& mask, std::int64_t tokens)
    : kernel_(kernel), shape_(shape), params_(kernel_params(shape, 1)) {
  const MaskUse use = parse_mask_use(mask);
  const std::vector<std::int64_t> lengths = {tokens};
  bands_ = make_workload(lengths, shape, {&use, 1}).masks[0].mask.bands;
  prepared_ = kernel.prepare_bands(params_, tokens, tokens, bands_);
  Rng rng(1);
  q_ = normal_tensor(rng, shape.dtype, tokens, shape.q_heads, shape.head_dim);
  k_ = normal_tensor(rng, shape.dtype, tokens, shape.kv_heads, shape.head_dim);
  v_ = normal_tensor(rng, shape.dtype, tokens, shape.kv_heads, shape.value_dim);
  dout_ = normal_tensor(rng, shape.dtype, tokens, shape.q_heads, shape.value_dim);
  delta_ = HostTensor(Dtype::kF32, tokens, shape.q_heads, 1);
  fill_tensor(delta_.view(), 0.25F);
  o_ = HostTensor(Dtype::kF32, tokens, shape.q_heads, shape.value_dim);
  lse_ = HostTensor(Dtype::kF32, tokens, shape.q_heads, 1);
  dq_ = HostTensor(Dtype::kF32, tokens, shape.q_heads, shape.head_dim);
  dk_ = HostTensor(Dtype::kF32, tokens, shape.kv_heads, shape.head_dim);
  dv_ = HostTensor(Dtype::kF32, tokens, shape.kv_heads, shape.value_dim);
}

void BenchTile::forward() {
  const ForwardTile tile{q_.view(),    k_.view(), v_.view(), o_.view(),
                         lse_.stats(), bands_,    true,      prepared_.get()};
  kernel_.forward(params_, {&tile, 1});
}

void BenchTile::backward() {
  const BackwardTile tile{q_.view(),      k_.view(),  v_.view(),      dout_.view(), lse_.stats(),
                          delta_.stats(), dq_.view(), dk_.view(),     dv_.view(),   bands_,
                          true,           true,       prepared_.get()};
  kernel_.backward(params_, {&tile, 1});
}

double BenchTile::forward_flops() const {
  return contextile::forward_flops(Mask{bands_}.num_pairs(), shape_.q_heads, shape_);
}

double BenchTile::backward_flops() const {
  return contextile::backward_flops(Mask{bands_}.num_pairs(), shape_.q_heads, shape_);
}

double BenchTile::error_against(BenchTile& other) {
  double largest = 0;
  for (HostTensor BenchTile::*array :
       {&BenchTile::o_, &BenchTile::lse_, &BenchTile::dq_, &BenchTile::dk_, &BenchTile::dv_}) {
    largest =
        std::max(largest, relative_error(doubles_of(this->*array), doubles_of(other.*array), 1e-3));
  }
  return largest;
}

AttentionShape bench_shape(std::int32_t q_heads, std::int32_t kv_heads, std::int32_t dim,
                           Dtype dtype) {
  return {
      .q_heads = q_heads, .kv_heads = kv_heads, .head_dim = dim, .value_dim = dim, .dtype = dtype};
}

TileError verify_tile(const AttentionKernel& kernel, AttentionShape shape, const std::string& mask,
                      std::int64_t tokens) {
  shape.q_heads = shape.q_heads / shape.kv_heads;
  shape.kv_heads = 1;
  BenchTile found(kernel, shape, mask, tokens);
  BenchTile expected(reference_kernel(), shape, mask, tokens);
  for (BenchTile* tile : {&found, &expected}) {
    tile->forward();
    tile->backward();
  }
  const double rounding = weight_rounding(kernel.weight_dtype(shape.dtype));
  return {found.error_against(expected), 1e-5 + 4 * rounding};
}

}  // namespace contextile

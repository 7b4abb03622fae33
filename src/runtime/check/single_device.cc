#include "runtime/check/single_device.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "kernel/host_tensor.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/executor/unit_view.h"

namespace contextile {
namespace {

void run_forward(LayerTensors& layer, const AttentionShape& shape, const Mask& mask,
                 const AttentionKernel& kernel) {
  const auto rows = static_cast<std::int64_t>(layer.tokens.size());
  HostTensor o(Dtype::kF32, rows, shape.q_heads, shape.value_dim);
  HostTensor lse(Dtype::kF32, rows, shape.q_heads, 1);
  const ForwardTile tile{
      layer.q.view(), layer.k.view(), layer.v.view(), o.view(), lse.stats(), mask.bands, true};
  kernel.forward(kernel_params(shape, 1), {&tile, 1});
  kernel.row_ops().finish({o.view(), lse.stats()}, layer.sink, layer.out.view(), layer.lse.stats());
}

void run_backward(LayerTensors& layer, const AttentionShape& shape, const Mask& mask,
                  const AttentionKernel& kernel, std::vector<double>& dsink) {
  const auto rows = static_cast<std::int64_t>(layer.tokens.size());
  HostTensor delta(Dtype::kF32, rows, shape.q_heads, 1);
  HostTensor dq(Dtype::kF32, rows, shape.q_heads, shape.head_dim);
  HostTensor dk(Dtype::kF32, rows, shape.kv_heads, shape.head_dim);
  HostTensor dv(Dtype::kF32, rows, shape.kv_heads, shape.value_dim);
  kernel.row_ops().delta(layer.dout.view(), layer.out.view(), delta.stats());
  const BackwardTile tile{layer.q.view(),    layer.k.view(), layer.v.view(), layer.dout.view(),
                          layer.lse.stats(), delta.stats(),  dq.view(),      dk.view(),
                          dv.view(),         mask.bands,     true,           true};
  kernel.backward(kernel_params(shape, 1), {&tile, 1});
  kernel.row_ops().convert(layer.dq.view(), dq.view());
  kernel.row_ops().convert(layer.dk.view(), dk.view());
  kernel.row_ops().convert(layer.dv.view(), dv.view());
  if (!layer.sink.empty()) {
    kernel.row_ops().sink_gradient(layer.sink, layer.lse.stats(), delta.stats(), rows, dsink);
  }
}

}  // namespace

OracleResult run_single_device(const BatchTensors& batch, const AttentionShape& shape,
                               const Mask& mask, const AttentionKernel& kernel, Passes passes) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(batch.tokens));
  std::iota(tokens.begin(), tokens.end(), std::int64_t{0});
  LayerTensors layer(batch, shape, std::move(tokens));
  OracleResult result = empty_result(batch.tokens, shape);
  run_forward(layer, shape, mask, kernel);
  layer.put_forward(result);
  if (passes == Passes::kForwardBackward) {
    run_backward(layer, shape, mask, kernel, result.dsink);
    layer.put_backward(result);
  }
  return result;
}

}  // namespace contextile

#include "runtime/check/layer_tensors.h"

#include <limits>
#include <span>
#include <utility>

#include "contextile/advanced/oracle.h"

namespace contextile {
namespace {

std::vector<float> as_floats(std::span<const double> values) {
  std::vector<float> floats;
  for (const double value : values) floats.push_back(static_cast<float>(value));
  return floats;
}

}  // namespace

LayerTensors::LayerTensors(const BatchTensors& batch, const AttentionShape& shape,
                           std::vector<std::int64_t> local_tokens)
    : tokens(std::move(local_tokens)), sink(as_floats(batch.sink)), dsink(sink.size()) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const auto make = [&](Dtype dtype, std::int32_t heads, std::int32_t dim) {
    return HostTensor(dtype, rows, heads, dim);
  };
  q = make(shape.dtype, shape.q_heads, shape.head_dim);
  k = make(shape.dtype, shape.kv_heads, shape.head_dim);
  v = make(shape.dtype, shape.kv_heads, shape.value_dim);
  dout = make(shape.dtype, shape.q_heads, shape.value_dim);
  out = make(shape.dtype, shape.q_heads, shape.value_dim);
  lse = make(Dtype::kF32, shape.q_heads, 1);
  dq = make(shape.dtype, shape.q_heads, shape.head_dim);
  dk = make(shape.dtype, shape.kv_heads, shape.head_dim);
  dv = make(shape.dtype, shape.kv_heads, shape.value_dim);
  take_rows(q.view(), batch.q, tokens);
  take_rows(k.view(), batch.k, tokens);
  take_rows(v.view(), batch.v, tokens);
  take_rows(dout.view(), batch.dout, tokens);
}

void LayerTensors::poison_outputs() {
  for (HostTensor* tensor : {&out, &lse, &dq, &dk, &dv}) tensor->poison();
  dsink.assign(dsink.size(), std::numeric_limits<float>::quiet_NaN());
}

ForwardTensors LayerTensors::forward() {
  return {q.view(), k.view(), v.view(), sink, out.view(), lse.stats()};
}

BackwardTensors LayerTensors::backward() {
  return {q.view(), k.view(),  v.view(),  out.view(), lse.stats(), dout.view(),
          sink,     dq.view(), dk.view(), dv.view(),  dsink};
}

void LayerTensors::put_forward(OracleResult& result) {
  put_rows(out.view(), result.out, tokens);
  put_rows(lse.view(), result.lse, tokens);
}

void LayerTensors::put_backward(OracleResult& result) {
  put_rows(dq.view(), result.dq, tokens);
  put_rows(dk.view(), result.dk, tokens);
  put_rows(dv.view(), result.dv, tokens);
}

OracleResult empty_result(std::int64_t tokens, const AttentionShape& shape) {
  const auto rows = [&](std::int32_t heads, std::int32_t dim) {
    return std::vector<double>(static_cast<std::size_t>(tokens * heads * dim),
                               std::numeric_limits<double>::quiet_NaN());
  };
  OracleResult result;
  result.out = rows(shape.q_heads, shape.value_dim);
  result.lse = rows(shape.q_heads, 1);
  result.dq = rows(shape.q_heads, shape.head_dim);
  result.dk = rows(shape.kv_heads, shape.head_dim);
  result.dv = rows(shape.kv_heads, shape.value_dim);
  result.dsink.assign(static_cast<std::size_t>(shape.sink ? shape.q_heads : 0), 0.0);
  return result;
}

}  // namespace contextile

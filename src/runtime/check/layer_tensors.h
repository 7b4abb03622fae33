// All tensors of one layer on one rank, for checking runs.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "kernel/host_tensor.h"

namespace contextile {

// All tensors of one layer on one device, for the tokens given in local order.
struct LayerTensors {
  LayerTensors(const BatchTensors& batch, const AttentionShape& shape,
               std::vector<std::int64_t> local_tokens);

  // Outputs become NaN.
  void poison_outputs();
  [[nodiscard]] ForwardTensors forward();
  [[nodiscard]] BackwardTensors backward();
  // Copies the rows of the results to their tokens in arrays of the whole batch.
  void put_forward(OracleResult& result);
  void put_backward(OracleResult& result);

  std::vector<std::int64_t> tokens;
  HostTensor q, k, v, dout, out, lse, dq, dk, dv;
  std::vector<float> sink, dsink;
};

// Arrays of the shape of the oracle's result, NaN until scattered into (dsink 0).
[[nodiscard]] OracleResult empty_result(std::int64_t tokens, const AttentionShape& shape);

}  // namespace contextile

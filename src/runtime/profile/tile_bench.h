// Calls of a kernel as plans make them, to be timed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/kernel.h"
#include "contextile/workload.h"
#include "kernel/host_tensor.h"

namespace contextile {

inline Band full_band(std::int64_t rows, std::int64_t keys) { return {{0, rows}, {0, keys}}; }
inline Band causal_band(std::int64_t rows) { return {{0, rows}, {0, rows}, -kUnbounded, 0}; }

// The tensors that belong to the queries of some tiles, or to their keys.
struct QueryTensors {
  QueryTensors(Rng& rng, const AttentionShape& shape, std::int64_t rows)
      : q(normal_tensor(rng, shape.dtype, rows, shape.q_heads, shape.head_dim)),
        dout(normal_tensor(rng, shape.dtype, rows, shape.q_heads, shape.value_dim)),
        delta(normal_tensor(rng, Dtype::kF32, rows, shape.q_heads, 1)),
        o(Dtype::kF32, rows, shape.q_heads, shape.value_dim),
        lse(Dtype::kF32, rows, shape.q_heads, 1),
        dq(Dtype::kF32, rows, shape.q_heads, shape.head_dim) {}
  HostTensor q, dout, delta, o, lse, dq;
};
struct KeyTensors {
  KeyTensors(Rng& rng, const AttentionShape& shape, std::int64_t keys)
      : k(normal_tensor(rng, shape.dtype, keys, shape.kv_heads, shape.head_dim)),
        v(normal_tensor(rng, shape.dtype, keys, shape.kv_heads, shape.value_dim)),
        dk(Dtype::kF32, keys, shape.kv_heads, shape.head_dim),
        dv(Dtype::kF32, keys, shape.kv_heads, shape.value_dim) {}
  HostTensor k, v, dk, dv;
};

// Calls of the kernel on some tiles, as plans make them: several query blocks with one key block,
// the same band in each. (Several key blocks of a query block are one run of the cost model.)
class TileBench {
 public:
  TileBench(const AttentionKernel& kernel, const AttentionShape& shape, const Band& band,
            std::int64_t num_tiles)
      : kernel_(kernel),
        band_(band),
        params_{.q_heads = shape.q_heads,
                .kv_heads = shape.kv_heads,
                .head_dim = shape.head_dim,
                .value_dim = shape.value_dim,
                .scale = static_cast<float>(shape.effective_scale()),
                .softcap = static_cast<float>(shape.softcap)},
        rng_(1),
        keys_(rng_, shape, band.k.end) {
    for (std::int64_t i = 0; i < num_tiles; ++i) queries_.emplace_back(rng_, shape, band.q.end);
    forward();  // backward needs the LSE
  }

  void forward();
  void backward();

 private:
  const AttentionKernel& kernel_;
  Band band_;
  KernelParams params_;
  Rng rng_;
  KeyTensors keys_;
  std::vector<QueryTensors> queries_;
};

}  // namespace contextile

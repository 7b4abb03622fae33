// One tile with its tensors, for the kernel benchmarks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextile/extend/kernel.h"
#include "contextile/workload.h"
#include "kernel/host_tensor.h"

namespace contextile {

// A mask rule over one sequence, forward and backward as one tile of a kernel, with random normal
// inputs.
class BenchTile {
 public:
  BenchTile(const AttentionKernel& kernel, const AttentionShape& shape, const std::string& mask,
            std::int64_t tokens);

  void forward();
  void backward();  // with the LSE of the last forward
  [[nodiscard]] double forward_flops() const;
  [[nodiscard]] double backward_flops() const;

  // Largest error of O, LSE, dQ, dK and dV against another kernel's, each relative to its largest
  // element.
  [[nodiscard]] double error_against(BenchTile& other);

 private:
  const AttentionKernel& kernel_;
  const AttentionShape shape_;
  const KernelParams params_;
  std::vector<LocalBand> bands_;
  std::unique_ptr<const PreparedBands> prepared_;
  HostTensor q_, k_, v_, dout_, delta_, o_, lse_, dq_, dk_, dv_;
};

[[nodiscard]] AttentionShape bench_shape(std::int32_t q_heads, std::int32_t kv_heads,
                                         std::int32_t dim, Dtype dtype);

// The error of a kernel against the reference on a small batch of that mask, one KV head, and its
// bound.
struct TileError {
  double found = 0;
  double bound = 0;
};
[[nodiscard]] TileError verify_tile(const AttentionKernel& kernel, AttentionShape shape,
                                    const std::string& mask, std::int64_t tokens);

}  // namespace contextile

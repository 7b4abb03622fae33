// Plans on a GPU of this machine, every rank of them: streams of their own, transfers as copies in
// device memory.
//
//   const std::unique_ptr<Gpu> gpu = open_gpu();
//   RunOptions options;
//   options.host = gpu.get();
//   const RunReport report = run_plan(plan, options);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "contextile/executor.h"
#include "contextile/transport.h"

namespace contextile {

struct GpuOptions {
  std::int32_t ordinal = 0;
  // Where `cmake --build BUILD --target contextile_cuda` has left the compiled kernels. Empty:
  // $CONTEXTILE_CUDA_KERNELS, else the folder cuda beside the program, or lib/contextile/cuda
  // beside its folder.
  std::string kernels;
  // The driver's library; empty: libcuda.so.1 of the system.
  std::string library;
};

// What plans run on. Must outlive them and what their forwards have saved.
class Gpu : public RankHost {
 public:
  // "NVIDIA H200".
  [[nodiscard]] virtual std::string_view name() const = 0;
};

// bf16 and f16, head dims that are multiples of 8 up to 128 (docs/gpu.md). Throws InvalidArgument
// where there is no driver, no such device or no kernels, saying where they were looked for;
// DeviceError where the driver reports an error.
[[nodiscard]] std::unique_ptr<Gpu> open_gpu(const GpuOptions& options = {},
                                            const InprocOptions& transport = {});

}  // namespace contextile

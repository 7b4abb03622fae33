// Plans on GPUs: all ranks of one on a GPU of this machine, with streams of their own and copies in
// device memory as transfers; or one rank, whose transfers go by NCCL.
//
//   const std::unique_ptr<Gpu> gpu = open_gpu();
//   RunOptions options;
//   options.host = gpu.get();
//   const RunReport report = run_plan(plan, options);
//
// As one rank of a group of processes that has a transport already, for words (gloo, MPI):
//
//   const std::unique_ptr<Transport> rank = gpu->join(*group);
//   options.rank = rank.get();
//
// For tensors that another library's stream writes and reads (PyTorch's current one), without a
// thread that waits for the device:
//
//   Executor executor(*rank, gpu->kernel(rank->rank()));
//   executor.prepare(plan);
//   gpu->begin_behind(rank->rank(), stream);
//   executor.forward(mask, tensors);
//   gpu->end_before(rank->rank(), stream);
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "contextile/executor.h"
#include "contextile/extend/paged_attention.h"
#include "contextile/extend/transport.h"

namespace contextile {

// Whether calls of an executor are captured as CUDA graphs and replayed: those that come again with
// the same tensors, from the second time on; all, from the first time on; none.
enum class Graphs : std::uint8_t { kAuto, kOn, kOff };

// By name: auto, on, off. Throws InvalidArgument.
[[nodiscard]] Graphs parse_graphs(std::string_view name);

struct GpuOptions {
  std::int32_t ordinal = 0;
  // Where `cmake --build BUILD --target contextile_cuda` has left the compiled kernels. Empty:
  // $CONTEXTILE_CUDA_KERNELS, else the folder cuda beside the program (or beside the shared library
  // that this is part of), or lib/contextile/cuda beside its folder.
  std::string kernels = {};
  // "cuda:wgmma" (compute capability 9.0), "cuda:mma", or empty: the former where the device and
  // the compiled kernels have it.
  std::string kernel = {};
  // The driver's library and NCCL's; empty: libcuda.so.1 and libnccl.so.2 of the system.
  std::string library = {};
  std::string nccl_library = {};
  // For ranks that share the GPU (make_group); those of a group by NCCL are not captured.
  Graphs graphs = Graphs::kAuto;
};

// What plans run on. Must outlive them and what their forwards have saved.
class Gpu : public RankHost {
 public:
  // "NVIDIA H200".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Its number on this machine.
  [[nodiscard]] virtual std::int32_t ordinal() const = 0;
  // "cuda:wgmma" or "cuda:mma".
  [[nodiscard]] virtual std::string_view kernel_name() const = 0;
  // Attention to keys in pages on the rank's stream (docs/gpu.md). The rank has joined a group.
  [[nodiscard]] virtual const PagedKernel& paged_kernel(Rank rank) const = 0;
  // What the rank is given from here on begins behind all that a stream of the caller holds
  // (CUstream or cudaStream_t of this device; null: the default one). The rank has joined a group.
  virtual void begin_behind(Rank rank, void* stream) = 0;
  // What the stream is given from here on begins behind all that the rank was given: tensors of
  // calls before may then be read, written or freed in the order of that stream.
  virtual void end_before(Rank rank, void* stream) = 0;
  // Rank control.rank() of a group of as many processes, each with a GPU of its own. Plans whose
  // grouped launches do not deadlock (verify) do not there. Collective; once. `control` and the GPU
  // must outlive it. Throws InvalidArgument where there is no NCCL, DeviceError where it fails.
  [[nodiscard]] virtual std::unique_ptr<Transport> join(
      Transport& control, std::chrono::milliseconds timeout = std::chrono::minutes(1)) = 0;
};
// How many this machine has. Throws InvalidArgument where there is no driver.
[[nodiscard]] std::int32_t num_gpus(const GpuOptions& options = {});

// bf16 and f16, head dims that are multiples of 8 up to 256 (docs/gpu.md). Throws InvalidArgument
// where there is no driver, no such device, no kernels (saying where they were looked for) or not
// the one that is named; DeviceError where the driver reports an error.
[[nodiscard]] std::unique_ptr<Gpu> open_gpu(const GpuOptions& options = {},
                                            const InprocOptions& transport = {});

}  // namespace contextile

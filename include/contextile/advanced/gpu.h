// Runs plans on GPUs: all ranks of a plan on one GPU of this machine, with streams of their own and
// copies in device memory as transfers; or one rank, whose transfers go over NCCL.
//
//   const std::unique_ptr<Gpu> gpu = open_gpu();  // open_gpu("emulated") needs no GPU
//   RunOptions options;
//   options.host = gpu.get();
//   const RunReport report = run_plan(plan, options);
//
// As one rank of a group of processes that already has a transport for control messages (gloo,
// MPI):
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
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "contextile/advanced/executor.h"
#include "contextile/extend/paged_attention.h"
#include "contextile/extend/transport.h"

namespace contextile {

// Selects the calls of an executor that are captured as CUDA graphs and replayed. kAuto: calls that
// repeat with the same tensors, from the second time on; kOn: all, from the first time on; kOff:
// none.
enum class Graphs : std::uint8_t { kAuto, kOn, kOff };

// Parses auto, on or off. Throws InvalidArgument.
[[nodiscard]] Graphs parse_graphs(std::string_view name);

struct GpuOptions {
  std::int32_t ordinal = 0;
  // No GPU: an emulated one, which interprets the PTX of the kernels on the CPU. `ordinal` is 0 and
  // the libraries are empty.
  bool is_emulated = false;
  // Folder where `cmake --build BUILD --target contextile_cuda` has put the compiled kernels.
  // Empty: $CONTEXTILE_CUDA_KERNELS, otherwise the first folder that has kernels for the device:
  // cuda next to the shared library that contains this code, cuda next to the program, or
  // lib/contextile/cuda next to the program's folder. PTX counts if there is no machine code.
  std::string kernels = {};
  // Name of the kernel: "cuda:wgmma" (compute capability 9.0), "cuda:mma", or empty: the former if
  // the device and the compiled kernels have it.
  std::string kernel = {};
  // Paths of the driver's library and of NCCL's. Empty: libcuda.so.1 of the system; and
  // $CONTEXTILE_NCCL, otherwise libnccl.so.2 of the system, or of the wheel that is installed next
  // to the Python package.
  std::string library = {};
  std::string nccl_library = {};
  // Applies to ranks that share the GPU (make_group); ranks of a group over NCCL are not captured.
  Graphs graphs = Graphs::kAuto;
};

// A GPU that plans run on, or an emulated one. It must outlive them and the data that their
// forwards have saved.
class Gpu : public RankHost {
 public:
  // The name of the device, such as "NVIDIA H200" or "emulated GPU".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Its number on this machine.
  [[nodiscard]] virtual std::int32_t ordinal() const = 0;
  // Returns "cuda:wgmma" or "cuda:mma".
  [[nodiscard]] virtual std::string_view kernel_name() const = 0;
  // The kernel of attention to keys in pages, which runs on the rank's stream (docs/gpu.md). The
  // rank must have joined a group.
  [[nodiscard]] virtual const PagedKernel& paged_kernel(Rank rank) const = 0;
  // Makes memory of this process memory of an emulated GPU while the result lives, so that tensors
  // in it can be passed to executors. Throws InvalidArgument for another GPU.
  [[nodiscard]] virtual std::shared_ptr<void> lend(std::span<const std::byte> memory) = 0;
  // Makes the rank's work submitted from here on begin after all work that a stream of the caller
  // holds (CUstream or cudaStream_t of this device; null: the default one). The rank must have
  // joined a group.
  virtual void begin_behind(Rank rank, void* stream) = 0;
  // Makes work submitted to the stream from here on begin after all work that the rank was given.
  // Tensors of earlier calls may then be read, written or freed in the order of that stream.
  virtual void end_before(Rank rank, void* stream) = 0;
  // Returns rank control.rank() of a group of as many processes, each with a GPU of its own. Plans
  // whose grouped launches do not deadlock (verify) do not deadlock there. Collective; call it
  // once. `control` and the GPU must outlive the result. Throws InvalidArgument on all ranks if one
  // of them finds no NCCL or if two have the same GPU; InvalidArgument if the GPU is emulated; and
  // DeviceError if NCCL fails.
  [[nodiscard]] virtual std::unique_ptr<Transport> join(
      Transport& control, std::chrono::milliseconds timeout = std::chrono::minutes(1)) = 0;
};
// Returns the number of GPUs of this machine. Throws InvalidArgument if there is no driver.
[[nodiscard]] std::int32_t num_gpus(const GpuOptions& options = {});

// Opens a GPU for bf16 and f16 and head dims that are multiples of 8 up to 256 (docs/gpu.md).
// Throws InvalidArgument if there is no driver, no such device, no kernels (naming the folders that
// were searched) or not the one that is named; DeviceError if the driver reports an error.
[[nodiscard]] std::unique_ptr<Gpu> open_gpu(const GpuOptions& options = {},
                                            const InprocOptions& transport = {});
// Opens the GPU with a number, such as "0", or an "emulated" one. The latter needs no driver and no
// GPU, only the kernels' PTX. It computes what the kernels' instructions say and checks them for
// races, missing waits and foreign memory. It is slow, and its times mean nothing. Ranks wait for
// each other for a day unless `transport` has another timeout.
[[nodiscard]] std::unique_ptr<Gpu> open_gpu(std::string_view device, GpuOptions options = {},
                                            InprocOptions transport = {});

}  // namespace contextile

// Attention on a rank's compute stream: the kernel that an executor on a GPU runs.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"
#include "kernel/cuda/device_row_ops.h"
#include "kernel/cuda/passes.h"
#include "kernel/prepared_program.h"
#include "kernel/row_memory.h"
#include "kernel/row_ops.h"

namespace contextile::cuda {

// Memory for work on the compute stream. Nothing waits when it is allocated or freed.
class DeviceRowMemory : public RowMemory {
 public:
  explicit DeviceRowMemory(const RankStreams& streams) : streams_(streams) {}

  [[nodiscard]] std::byte* allocate(std::int64_t bytes) const override;
  void free(std::byte* memory) const noexcept override;
  void write(std::byte* to, std::span<const std::byte> from) const override;
  void read(std::span<std::byte> to, const std::byte* from) const override;
  void wait() const override;
  void poison(std::byte* memory, std::int64_t bytes) const override;

 private:
  const RankStreams& streams_;
};

// The kernel cuda:mma or cuda:wgmma. Calls put launches on the stream and return; tensors are in
// device memory. It takes bf16 and f16 and head dims that are multiples of 8 up to 256 (otherwise
// InvalidArgument). Calls that cuda:wgmma does not take, because of their dims or the query heads
// per KV head, run as those of cuda:mma.
class DeviceKernel : public AttentionKernel {
 public:
  // `streams` must outlive the kernel; its driver must have the program's module.
  explicit DeviceKernel(const RankStreams& streams, Program program = Program::kMma)
      : streams_(streams), program_(program), rows_(streams), memory_(streams) {}

  [[nodiscard]] std::string_view name() const override { return name_of(program_); }
  [[nodiscard]] Dtype weight_dtype(Dtype inputs) const override { return inputs; }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override;
  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override;
  [[nodiscard]] std::unique_ptr<const PreparedBands> prepare_bands(
      const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
      std::span<const LocalBand> bands) const override;
  [[nodiscard]] bool makes_lists() const override { return true; }
  [[nodiscard]] std::unique_ptr<const PreparedProgram> prepare_forward(
      const KernelParams& params, std::span<const TensorView> arrays,
      std::span<const std::vector<ForwardTile>> lists) const override;
  [[nodiscard]] std::unique_ptr<const PreparedProgram> prepare_backward(
      const KernelParams& params, std::span<const TensorView> arrays,
      std::span<const std::vector<BackwardTile>> lists) const override;
  void check_shape(const AttentionShape& shape) const override;
  [[nodiscard]] const RowOps& row_ops() const override { return rows_; }
  [[nodiscard]] const RowMemory& memory() const override { return memory_; }

 private:
  const RankStreams& streams_;
  const Program program_;
  DeviceRowOps rows_;
  DeviceRowMemory memory_;
};

}  // namespace contextile::cuda

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/extend/kernel.h"
#include "kernel/cpu/reference_kernel.h"
#include "kernel/cpu/simd_kernel.h"
#include "kernel/cpu/simd_row_ops.h"
#include "kernel/prepared_program.h"
#include "kernel/row_memory.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"

namespace contextile {

Dtype AttentionKernel::weight_dtype(Dtype /*inputs*/) const { return Dtype::kF32; }

void AttentionKernel::check_shape(const AttentionShape& /*shape*/) const {}

bool AttentionKernel::has_terms() const { return false; }

std::unique_ptr<const PreparedBands> AttentionKernel::prepare_bands(
    const KernelParams& /*params*/, std::int64_t /*num_rows*/, std::int64_t /*num_keys*/,
    std::span<const LocalBand> /*bands*/) const {
  return nullptr;
}

bool AttentionKernel::makes_lists() const { return false; }

std::unique_ptr<const PreparedProgram> AttentionKernel::prepare_forward(
    const KernelParams& /*params*/, std::span<const TensorView> /*arrays*/,
    std::span<const std::vector<ForwardTile>> /*lists*/) const {
  fail_argument("{}: expected a kernel that prepares programs, found one that does not", name());
}

std::unique_ptr<const PreparedProgram> AttentionKernel::prepare_backward(
    const KernelParams& /*params*/, std::span<const TensorView> /*arrays*/,
    std::span<const std::vector<BackwardTile>> /*lists*/) const {
  fail_argument("{}: expected a kernel that prepares programs, found one that does not", name());
}

const RowOps& AttentionKernel::row_ops() const {
  static const SimdRowOps kPortable(*row_target_portable());
  return kPortable;
}

const RowMemory& AttentionKernel::memory() const { return host_memory(); }

const RowMemory& host_memory() {
  constexpr std::size_t kAlignment = 64;
  class HostMemory : public RowMemory {
   public:
    [[nodiscard]] std::byte* allocate(std::int64_t bytes) const override {
      return static_cast<std::byte*>(
          ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kAlignment}));
    }
    void free(std::byte* memory) const noexcept override {
      ::operator delete (memory, std::align_val_t{kAlignment});
    }
    void write(std::byte* to, std::span<const std::byte> from) const override {
      std::ranges::copy(from, to);
    }
    void read(std::span<std::byte> to, const std::byte* from) const override {
      std::copy_n(from, to.size(), to.data());
    }
    void wait() const override {}
    void poison(std::byte* memory, std::int64_t bytes) const override {
      std::memset(memory, 0xff, static_cast<std::size_t>(bytes));
    }
  };
  static const HostMemory kMemory;
  return kMemory;
}

double weight_rounding(Dtype weights) { return 2 * rounding_step(weights); }

std::span<const AttentionKernel* const> kernels() {
  static const std::vector<const AttentionKernel*> kAll = [] {
    const auto simd = simd_kernels();
    std::vector<const AttentionKernel*> list(simd.begin(), simd.end());
    list.push_back(&reference_kernel());
    return list;
  }();
  return kAll;
}

const AttentionKernel& preferred_kernel(Dtype inputs) { return preferred_simd_kernel(inputs); }

const AttentionKernel& find_kernel(std::string_view name, Dtype inputs) {
  if (name.empty() || name == "simd") return preferred_kernel(inputs);
  std::vector<std::string> names = {"simd"};
  for (const AttentionKernel* kernel : kernels()) {
    if (kernel->name() == name) return *kernel;
    names.emplace_back(kernel->name());
  }
  fail_argument("kernel: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

}  // namespace contextile

#include "contextile/advanced/gpu.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "gpu/emulated/device.h"
#include "gpu/emulated/find_function.h"
#include "gpu/libcuda.h"
#include "runtime/cuda/device_ranks.h"
#include "runtime/cuda/gpu_driver.h"
#include "transport/cuda/nccl.h"
#include "transport/cuda/nccl_group.h"

namespace contextile::cuda {
namespace {

std::filesystem::path program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

// The folder of the shared library that contains this code, such as a Python module; empty if the
// program contains it.
std::filesystem::path library_folder() {
  static constexpr char kHere = 0;
  Dl_info found = {};
  const bool is_known =
      dladdr(&kHere, &found) != 0 && found.dli_fname != nullptr && *found.dli_fname == '/';
  if (!is_known) return {};
  std::filesystem::path folder = std::filesystem::path(found.dli_fname).parent_path();
  return folder == program_folder() ? std::filesystem::path() : folder;
}

// The folders where kernels may be, the likeliest first.
std::vector<std::string> places_of_kernels(const GpuOptions& options) {
  if (!options.kernels.empty()) return {options.kernels};
  if (const char* named = std::getenv("CONTEXTILE_CUDA_KERNELS")) return {named};
  const std::filesystem::path folder = program_folder();
  std::vector<std::string> places = {folder / "cuda", folder.parent_path() / "lib/contextile/cuda"};
  if (const std::filesystem::path own = library_folder(); !own.empty()) {
    places.insert(places.begin(), own / "cuda");
  }
  return places;
}

// The files where NCCL's library may be, the likeliest first.
std::vector<std::string> places_of_nccl(const std::string& given) {
  if (!given.empty()) return {given};
  if (const char* named = std::getenv("CONTEXTILE_NCCL")) return {named};
  std::vector<std::string> places = {kNcclLibrary};
  // The wheel of NCCL next to this package, which PyTorch's depends on.
  if (const std::filesystem::path own = library_folder(); !own.empty()) {
    places.push_back(own.parent_path() / "nvidia/nccl/lib" / kNcclLibrary);
  }
  return places;
}

}  // namespace

std::unique_ptr<Driver> open_gpu_driver(const GpuOptions& options) {
  DeviceOptions device;
  device.ordinal = options.ordinal;
  device.folders = places_of_kernels(options);
  device.modules = {std::string(module_of(Program::kMma)), "paged", "rows"};
  device.optional_modules = {std::string(module_of(Program::kWgmma))};
  device.library = options.library;
  if (options.is_emulated) {
    CONTEXTILE_CHECK(options.ordinal == 0, "emulated GPU: expected number 0, found {}",
                     options.ordinal);
    CONTEXTILE_CHECK(options.library.empty() && options.nccl_library.empty(),
                     "emulated GPU: expected no library, found {}",
                     quote(options.library + options.nccl_library));
    device.library = emulated::kLibrary;
  }
  return open_device(device);
}

Program program_of(const GpuOptions& options, const Driver& driver) {
  const bool has_wgmma = driver.has_module(module_of(Program::kWgmma));
  if (options.kernel.empty()) return has_wgmma ? Program::kWgmma : Program::kMma;
  if (options.kernel == name_of(Program::kMma)) return Program::kMma;
  CONTEXTILE_CHECK(options.kernel == name_of(Program::kWgmma),
                   "gpu kernel: expected {} or {}, found {}", name_of(Program::kWgmma),
                   name_of(Program::kMma), quote(options.kernel));
  CONTEXTILE_CHECK(
      has_wgmma,
      "gpu kernel: expected a device of compute capability 9.0 and "
      "{} among its kernels for {}, found {} without",
      options.is_emulated ? "wgmma.compute_90a.ptx" : "wgmma.sm_90a.cubin or wgmma.compute_90a.ptx",
      options.kernel, driver.device_name());
  return Program::kWgmma;
}

}  // namespace contextile::cuda

namespace contextile {
namespace {

class OpenGpu : public Gpu {
 public:
  OpenGpu(const GpuOptions& options, const InprocOptions& transport)
      : ordinal_(options.ordinal),
        is_emulated_(options.is_emulated),
        nccl_library_(options.nccl_library),
        driver_(cuda::open_gpu_driver(options)),
        program_(cuda::program_of(options, *driver_)),
        ranks_(*driver_, transport, program_, options.graphs) {}

  [[nodiscard]] std::string_view name() const override { return driver_->device_name(); }
  [[nodiscard]] std::int32_t ordinal() const override { return ordinal_; }
  [[nodiscard]] std::string_view kernel_name() const override { return cuda::name_of(program_); }
  [[nodiscard]] bool is_emulated() const override { return is_emulated_; }
  [[nodiscard]] std::shared_ptr<void> lend(std::span<const std::byte> memory) override {
    CONTEXTILE_CHECK(is_emulated_, "gpu: expected an emulated one, to lend memory to, found {}",
                     name());
    return std::make_shared<emulated::LentMemory>(memory);
  }
  void begin_behind(Rank rank, void* stream) override { ranks_.begin_behind(rank, stream); }
  void end_before(Rank rank, void* stream) override { ranks_.end_before(rank, stream); }
  [[nodiscard]] std::vector<std::unique_ptr<Transport>> make_group(
      std::int32_t num_ranks) override {
    return ranks_.make_group(num_ranks);
  }
  [[nodiscard]] const AttentionKernel& kernel(Rank rank) const override {
    return ranks_.kernel(rank);
  }
  [[nodiscard]] const PagedKernel& paged_kernel(Rank rank) const override {
    return ranks_.paged_kernel(rank);
  }
  [[nodiscard]] std::unique_ptr<Transport> join(Transport& control,
                                                std::chrono::milliseconds timeout) override {
    CONTEXTILE_CHECK(!is_emulated_,
                     "emulated GPU: expected ranks of one process (inproc), which share it, found "
                     "a group of {} over {}",
                     control.size(), control.name());
    return cuda::make_nccl_group(ranks_.streams_of(control.rank()), control,
                                 {.timeout = timeout,
                                  .ordinal = ordinal_,
                                  .libraries = cuda::places_of_nccl(nccl_library_)});
  }

 private:
  const std::int32_t ordinal_;
  const bool is_emulated_;
  const std::string nccl_library_;
  const std::unique_ptr<cuda::Driver> driver_;
  const cuda::Program program_;
  cuda::DeviceRanks ranks_;
};

}  // namespace

Graphs parse_graphs(std::string_view name) {
  if (name == "auto") return Graphs::kAuto;
  if (name == "on") return Graphs::kOn;
  if (name == "off") return Graphs::kOff;
  fail_argument("graphs: expected auto, on or off, found {}", quote(name));
}

std::int32_t num_gpus(const GpuOptions& options) { return cuda::count_devices(options.library); }

std::unique_ptr<Gpu> open_gpu(const GpuOptions& options, const InprocOptions& transport) {
  return std::make_unique<OpenGpu>(options, transport);
}

std::unique_ptr<Gpu> open_gpu(std::string_view device, GpuOptions options,
                              InprocOptions transport) {
  options.is_emulated = device == "emulated";
  if (options.is_emulated) {
    if (transport.timeout == InprocOptions().timeout) transport.timeout = std::chrono::hours(24);
    return open_gpu(options, transport);
  }
  const char* const end = device.data() + device.size();
  const auto [rest, error] = std::from_chars(device.data(), end, options.ordinal);
  CONTEXTILE_CHECK(error == std::errc() && rest == end && options.ordinal >= 0,
                   "gpu: expected a number or emulated, found {}", quote(device));
  return open_gpu(options, transport);
}

}  // namespace contextile

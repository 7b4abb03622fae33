#include "gpu/module_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "base/check.h"
#include "base/quote.h"
#include "gpu/emulated/find_function.h"

namespace contextile::cuda {
namespace {

std::string file_name(std::string_view module, std::string_view architecture) {
  return fmt::format("{}.{}.{}", module, architecture,
                     architecture.starts_with("sm_") ? "cubin" : "ptx");
}

// Returns the module's file in a folder, for the first architecture that has one.
std::optional<std::string> find_module(const std::string& folder, std::string_view module,
                                       const std::vector<std::string_view>& architectures) {
  std::error_code error;
  for (const std::string_view architecture : architectures) {
    std::string file = fmt::format("{}/{}", folder, file_name(module, architecture));
    if (std::filesystem::exists(file, error)) return file;
  }
  return std::nullopt;
}

// Says what a folder lacks.
std::string lacking(const DeviceOptions& options, const std::string& folder,
                    const std::vector<std::string_view>& architectures) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return fmt::format("no folder {}", without_orders(folder));
  }
  std::vector<std::string> modules;
  for (const std::string& module : options.modules) {
    if (!find_module(folder, module, architectures)) modules.push_back(module);
  }
  return fmt::format("no {} in {}", fmt::join(modules, ", "), without_orders(folder));
}

}  // namespace

std::vector<std::string_view> architectures_for(std::int32_t major, std::int32_t minor) {
  // PTX of compute_80 runs on every device since 8.0, PTX of compute_90a only on 9.0.
  if (major == 8) return {"sm_80", "compute_80"};
  if (major == 9 && minor == 0) return {"sm_90a", "compute_90a", "compute_80"};
  if (major == 10) return {"sm_100", "compute_80"};
  if (major > 8) return {"compute_80"};
  fail_argument("cuda: expected a device of compute capability 8.0 or higher, found {}.{}", major,
                minor);
}

std::vector<std::string_view> emulated_architectures() { return {"compute_90a", "compute_80"}; }

ModuleFiles find_modules(const DeviceOptions& options,
                         const std::vector<std::string_view>& architectures,
                         std::string_view device) {
  std::vector<std::string> looked;
  for (const std::string& folder : options.folders) {
    ModuleFiles files;
    for (const std::string& module : options.modules) {
      if (const auto file = find_module(folder, module, architectures)) files[module] = *file;
    }
    if (files.size() < options.modules.size()) {
      looked.push_back(lacking(options, folder, architectures));
      continue;
    }
    for (const std::string& module : options.optional_modules) {
      if (const auto file = find_module(folder, module, architectures)) files[module] = *file;
    }
    return files;
  }
  std::vector<std::string> names;
  names.reserve(architectures.size());
  for (const std::string_view architecture : architectures) {
    names.push_back(file_name("MODULE", architecture));
  }
  const bool is_emulated = options.library == emulated::kLibrary;
  fail_argument(
      "{}, each as {} in one folder, found {}; cmake --build … --target {}; "
      "CONTEXTILE_CUDA_KERNELS names another folder",
      is_emulated ? "emulated GPU: expected the PTX of the kernels"
                  : fmt::format("cuda: expected kernels for {}", device),
      fmt::join(names, " or "), fmt::join(looked, ", "),
      is_emulated ? "contextile_ptx makes it with nvcc, which scripts/install-nvcc installs"
                  : "contextile_cuda compiles them");
}

}  // namespace contextile::cuda

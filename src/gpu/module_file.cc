#include "gpu/module_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "gpu/emulated/find_function.h"

namespace contextile::cuda {

std::string module_file(const DeviceOptions& options, std::string_view module,
                        std::string_view architecture) {
  if (options.library != emulated::kLibrary) {
    return fmt::format("{}/{}.{}.{}", options.folder, module, architecture,
                       architecture.starts_with("sm_") ? "cubin" : "ptx");
  }
  const std::string newest = fmt::format("{}/{}.compute_90a.ptx", options.folder, module);
  std::error_code error;
  if (std::filesystem::exists(newest, error)) return newest;
  return fmt::format("{}/{}.compute_80.ptx", options.folder, module);
}

}  // namespace contextile::cuda

#include "gpu/loaded_modules.h"

#include <fmt/format.h>

#include <span>
#include <string_view>

#include "base/check.h"
#include "base/file_bytes.h"
#include "contextile/base.h"

namespace contextile::cuda {
namespace {

// Errors of modules that the driver does not know.
constexpr Result kInvalidImage = 200;
constexpr Result kUnsupportedPtx = 222;
constexpr const char* kNeedsDriver =
    ", which needs a driver of the major version of the CUDA toolkit that compiled it, or newer";

}  // namespace

void LoadedModules::load(const std::string& name, const std::string& file) {
  const FileBytes image(file, [](std::span<const std::uint8_t> first, std::string_view where) {
    constexpr std::string_view kElf =
        "\x7f"
        "ELF";
    const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
    CONTEXTILE_CHECK(
        text.starts_with(kElf) || text.starts_with("//") || text.starts_with(".version"),
        "{}: expected a compiled CUDA module (ELF, or PTX), found something else", where);
    return kMaxTextBytes;
  });
  // PTX is text that ends with a zero byte.
  const std::string with_end(reinterpret_cast<const char*>(image.bytes().data()),
                             image.bytes().size());
  void* module = nullptr;
  const Result result = cuda_.load_module(&module, with_end.c_str());
  // PTX of a version that the driver does not know is another error than PTX with a mistake.
  const bool is_unknown =
      result == kUnsupportedPtx || (result == kInvalidImage && file.ends_with(".cubin"));
  check_(is_unknown ? file + kNeedsDriver : file, result);
  modules_[name] = module;
  load_functions(module);
}

void LoadedModules::load_functions(void* module) {
  if (cuda_.count_functions == nullptr || cuda_.list_functions == nullptr ||
      cuda_.load_function == nullptr) {
    return;
  }
  unsigned count = 0;
  check_("cuModuleGetFunctionCount", cuda_.count_functions(&count, module));
  std::vector<void*> functions(count);
  check_("cuModuleEnumerateFunctions", cuda_.list_functions(functions.data(), count, module));
  for (void* function : functions) check_("cuFuncLoad", cuda_.load_function(function));
}

std::size_t LoadedModules::argument_bytes(void* function) const {
  std::size_t offset = 0;
  std::size_t bytes = 0;
  const bool is_known = cuda_.parameter_info != nullptr &&
                        cuda_.parameter_info(function, 0, &offset, &bytes) == kSuccess;
  return is_known ? bytes : 0;
}

void* LoadedModules::function(const Grid& grid, std::size_t argument_bytes) {
  CONTEXTILE_CHECK(grid.shared_bytes <= max_shared_bytes_,
                   "cuda: expected at most {} bytes of shared memory in a block, as this GPU has, "
                   "found {} for {} in {}",
                   max_shared_bytes_, grid.shared_bytes, grid.kernel, grid.module);
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = functions_.try_emplace(std::string(grid.kernel));
  Function& found = at->second;
  if (found.handle == nullptr) {
    const auto module = modules_.find(grid.module);
    CONTEXTILE_CHECK(module != modules_.end(), "cuda: expected a module {} for {}, found none",
                     grid.module, grid.kernel);
    const Result result = cuda_.get_function(&found.handle, module->second, at->first.c_str());
    if (result != kSuccess) found.handle = nullptr;
    CONTEXTILE_CHECK(result != kNotFound, "cuda: expected a kernel {} in {}, found none",
                     grid.kernel, grid.module);
    check_(grid.kernel, result);
    found.argument_bytes = this->argument_bytes(found.handle);
  }
  CONTEXTILE_CHECK(found.argument_bytes == 0 || found.argument_bytes == argument_bytes,
                   "cuda: expected {} in {} to take {} bytes, as this library passes, found a "
                   "kernel of {} (compiled from other sources)",
                   grid.kernel, grid.module, argument_bytes, found.argument_bytes);
  if (grid.shared_bytes > found.shared_bytes) {
    check_("cuFuncSetAttribute",
           cuda_.set_function(found.handle, kDynamicShared, grid.shared_bytes));
    found.shared_bytes = grid.shared_bytes;
  }
  return found.handle;
}

}  // namespace contextile::cuda

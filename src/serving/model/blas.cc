#include "serving/model/blas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "contextile/base.h"

namespace contextile {
namespace {

// By the name that its users load, then where it was when this was built.
constexpr const char* kLibraries[] = {"libopenblas.so.0", CONTEXTILE_OPENBLAS};

template <typename Function>
Function found(void* library, const char* name) {
  void* const function = ::dlsym(library, name);
  if (function == nullptr) {
    throw DeviceError(fmt::format("OpenBLAS: expected the function {}, found none", name));
  }
  return reinterpret_cast<Function>(function);
}

Blas load() {
  std::string reason;
  for (const char* path : kLibraries) {
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reason = ::dlerror();
      continue;
    }
    found<decltype(&openblas_set_num_threads)>(library, "openblas_set_num_threads")(1);
    return {.sgemm = found<decltype(&cblas_sgemm)>(library, "cblas_sgemm"),
            .sgemv = found<decltype(&cblas_sgemv)>(library, "cblas_sgemv")};
  }
  throw DeviceError(
      fmt::format("OpenBLAS: expected {} or {}, found: {}", kLibraries[0], kLibraries[1], reason));
}

}  // namespace

const Blas& blas() {
  static const Blas kLoaded = load();
  return kLoaded;
}

}  // namespace contextile

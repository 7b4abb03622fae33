// Lets numeric tests run as on another CPU (scripts/test-numerics). It is linked in place of
// src/kernel/cpu/cpu_features_in_use.cc.
//
// The environment variable CONTEXTILE_TEST_CPU names the instruction sets that kernels then use:
// portable, avx2, avx512, avx512_bf16 (as on AMD, where bf16 inputs prefer it) or amx_bf16. Each
// includes those before it. Without the variable they use all that the CPU has.
#include "kernel/cpu/cpu_features.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace contextile {
namespace {

constexpr int kSkipped = 77;  // exit status, as ctest's of a test that cannot run
constexpr int kWrong = 2;

CpuFeatures limited(const CpuFeatures& found, std::string_view level) {
  const struct {
    std::string_view name;
    CpuFeatures features;
  } levels[] = {
      {"portable", {}},
      {"avx2", {.avx2 = true}},
      {"avx512", {.avx2 = true, .avx512 = true}},
      {"avx512_bf16", {.avx2 = true, .avx512 = true, .avx512_bf16 = true, .fast_bf16 = true}},
      {"amx_bf16", {.avx2 = true, .avx512 = true, .avx512_bf16 = true, .amx_bf16 = true}},
  };
  for (const auto& [name, features] : levels) {
    if (name != level) continue;
    if (features.avx2 > found.avx2 || features.avx512 > found.avx512 ||
        features.avx512_bf16 > found.avx512_bf16 || features.amx_bf16 > found.amx_bf16) {
      std::fprintf(stderr, "CONTEXTILE_TEST_CPU: this CPU has no %s\n", name.data());
      std::_Exit(kSkipped);
    }
    std::fprintf(stderr, "CONTEXTILE_TEST_CPU: kernels as with %s\n", name.data());
    return features;
  }
  std::fprintf(stderr,
               "CONTEXTILE_TEST_CPU: expected portable, avx2, avx512, avx512_bf16 or amx_bf16\n");
  std::_Exit(kWrong);
}

// So that every test says at its start what it runs as.
[[maybe_unused]] const CpuFeatures& said = cpu_features();

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures kInUse = [] {
    const char* const level = std::getenv("CONTEXTILE_TEST_CPU");
    return level == nullptr ? found_cpu_features() : limited(found_cpu_features(), level);
  }();
  return kInUse;
}

}  // namespace contextile

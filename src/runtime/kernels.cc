#include <array>
#include <string>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/kernel.h"
#include "runtime/reference_kernel.h"

namespace contextile {

std::span<const AttentionKernel* const> kernels() {
  static const std::array<const AttentionKernel*, 1> all = {&reference_kernel()};
  return all;
}

const AttentionKernel& find_kernel(std::string_view name) {
  std::vector<std::string> names;
  for (const AttentionKernel* kernel : kernels()) {
    if (kernel->name() == name) return *kernel;
    names.emplace_back(kernel->name());
  }
  fail_argument("kernel: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

}  // namespace contextile

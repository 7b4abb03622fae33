// Binary length files: any bytes are positive lengths or an InvalidArgument.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "contextile/data.h"

namespace {

template <typename Parse>
void check(Parse parse) {
  try {
    for (const std::int64_t length : parse()) {
      if (length <= 0) std::abort();
    }
  } catch (const contextile::InvalidArgument&) {  // the only way to refuse
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  check([&] { return contextile::parse_lengths_idx(bytes, "fuzz"); });
  check([&] { return contextile::parse_lengths_npy(bytes, "fuzz"); });
  return 0;
}

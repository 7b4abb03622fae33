// Text length files: any text is positive lengths or an InvalidArgument, and lengths survive being
// written out one per line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/data.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<std::int64_t> lengths =
        contextile::parse_lengths_text(text, "length", "fuzz");
    if (lengths.empty()) std::abort();
    std::string lines;
    for (const std::int64_t length : lengths) {
      if (length <= 0) std::abort();
      lines += std::to_string(length) + "\n";
    }
    if (contextile::parse_lengths_text(lines, "length", "fuzz") != lengths) std::abort();
  } catch (const contextile::InvalidArgument&) {  // the only way to refuse
  }
  return 0;
}

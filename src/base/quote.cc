#include "base/quote.h"

#include <fmt/format.h>

#include <cstddef>

namespace contextile {

std::string quote(std::string_view text) {
  constexpr std::size_t kMaxBytes = 40;
  std::string result = "'";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", byte);
    }
  }
  result += text.size() > kMaxBytes ? "...'" : "'";
  return result;
}

}  // namespace contextile

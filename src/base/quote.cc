#include "base/quote.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/utf8.h"

namespace contextile {
namespace {

constexpr std::size_t kMaxPrintableBytes = 80;

// Marks, embeddings and isolates of right-to-left text, which show the text behind them in another
// order.
bool turns_text(std::string_view character) {
  constexpr std::string_view kTurning[] = {"\u200e", "\u200f", "\u202a", "\u202b",
                                           "\u202c", "\u202d", "\u202e", "\u2066",
                                           "\u2067", "\u2068", "\u2069"};
  return std::ranges::find(kTurning, character) != std::end(kTurning);
}

// Number of bytes of the printable character that `text` begins with; 0 if it begins with none. C1
// control codes (U+0080 to U+009F) are commands to terminals, too.
std::size_t printable_bytes(std::string_view text) {
  const std::size_t bytes = utf8_bytes(text);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (bytes == 1) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  if (bytes == 2 && byte(0) == 0xc2 && byte(1) < 0xa0) return 0;
  return turns_text(text.substr(0, bytes)) ? 0 : bytes;
}

}  // namespace

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

std::string without_orders(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = printable_bytes(text.substr(at));
    if (size > 0) {
      result += text.substr(at, size);
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    }
    at += std::max<std::size_t>(size, 1);
  }
  return result;
}

std::string with_escaped_controls(std::string_view json) {
  std::string result;
  result.reserve(json.size());
  for (std::size_t at = 0; at < json.size(); ++at) {
    const auto byte = static_cast<unsigned char>(json[at]);
    const auto next = static_cast<unsigned char>(at + 1 < json.size() ? json[at + 1] : 0);
    const bool is_c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    if (byte == 0x7f || is_c1) {
      result += fmt::format("\\u{:04x}", is_c1 ? next : byte);
      at += is_c1 ? 1 : 0;
    } else {
      result += json[at];
    }
  }
  return result;
}

std::string printable(std::string_view text) {
  std::size_t size = std::min(text.size(), kMaxPrintableBytes);
  // No character is cut in two.
  while (size < text.size() && size > 0 &&
         (static_cast<unsigned char>(text[size]) & 0xc0U) == 0x80U) {
    --size;
  }
  const std::string result = without_orders(text.substr(0, size));
  return size < text.size() ? result + "..." : result;
}

}  // namespace contextile

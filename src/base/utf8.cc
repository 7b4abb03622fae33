#include "base/utf8.h"

namespace contextile {

std::size_t utf8_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (size == 0 || first > 0xf4 || size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Rejects longer forms of shorter characters, surrogates, and anything beyond U+10FFFF.
  const unsigned second = byte(1);
  const bool valid = first == 0xe0   ? second >= 0xa0
                     : first == 0xed ? second < 0xa0
                     : first == 0xf0 ? second >= 0x90
                     : first == 0xf4 ? second < 0x90
                                     : true;
  return valid ? size : 0;
}

}  // namespace contextile

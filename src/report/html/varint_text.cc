#include "report/html/varint_text.h"

#include <algorithm>
#include <cmath>

namespace contextile {

void VarintText::add(std::int64_t number) {
  auto rest = static_cast<std::uint64_t>(number);
  while (rest >= 0x80) {
    bytes_.push_back(static_cast<char>(rest | 0x80));
    rest >>= 7;
  }
  bytes_.push_back(static_cast<char>(rest));
}

void VarintText::add_signed(std::int64_t number) {
  add(number < 0 ? -2 * (number + 1) + 1 : 2 * number);
}

void VarintText::add_fraction(double of_one) {
  add(std::llround(100 * std::clamp(of_one, 0.0, 1.0)));
}

std::string VarintText::base64() const {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes_.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes_.size(); i += 3) {
    unsigned group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      const bool there = i + k < bytes_.size();
      group = group << 8 | (there ? static_cast<unsigned char>(bytes_[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      const bool there = k == 0 || i + k - 1 < bytes_.size();
      text.push_back(there ? kDigits[group >> (18 - 6 * k) & 63] : '=');
    }
  }
  return text;
}

}  // namespace contextile

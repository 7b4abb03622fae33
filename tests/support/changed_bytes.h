// Bytes that have been damaged; their readers must refuse them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace contextile {

// Calls see(first) with the first 0, 1, … of the bytes, without the whole.
template <typename See>
void for_every_cut(const std::vector<std::uint8_t>& bytes, const See& see) {
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    see(std::vector<std::uint8_t>(bytes.begin(),
                                  bytes.begin() + static_cast<std::ptrdiff_t>(size)));
  }
}

// Calls see(changed, i) with every single bit of the bytes turned over; it is in byte i.
template <typename See>
void for_every_flipped_bit(std::vector<std::uint8_t> bytes, const See& see) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= static_cast<std::uint8_t>(1U << bit);
      see(bytes, i);
      bytes[i] ^= static_cast<std::uint8_t>(1U << bit);
    }
  }
}

// Calls see(changed) with each byte replaced by values that break sizes, counts and ids.
template <typename See>
void for_every_changed_byte(const std::vector<std::uint8_t>& bytes, const See& see) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int value : {0x00, 0x01, 0x02, 0x7f, 0x80, 0xff, bytes[i] ^ 1}) {
      std::vector<std::uint8_t> changed = bytes;
      changed[i] = static_cast<std::uint8_t>(value);
      see(changed);
    }
  }
}

}  // namespace contextile

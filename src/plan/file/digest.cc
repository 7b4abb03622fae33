#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstring>

#include "base/check.h"
#include "contextile/plan_file.h"
#include "plan/file/plan_file.h"

namespace contextile {
namespace {

constexpr std::size_t kChecksumAt = 32;

std::array<std::uint8_t, 8> little_endian(std::uint64_t value) {
  std::array<std::uint8_t, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
  return bytes;
}

}  // namespace

ContentId identify(std::span<const std::uint8_t> content) {
  return {content.size(), XXH3_64bits(content.data(), content.size())};
}

std::uint64_t digest_of(std::span<const ContentId> sections) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const ContentId& section : sections) {
    for (const std::uint64_t value : {section.bytes, section.hash}) {
      const auto bytes = little_endian(value);
      XXH3_64bits_update(&state, bytes.data(), bytes.size());
    }
  }
  return XXH3_64bits_digest(&state);
}

std::uint64_t checksum_of(std::span<const std::uint8_t> file) {
  constexpr std::array<std::uint8_t, 8> kZero{};
  constexpr std::size_t kEnd = kChecksumAt + kZero.size();
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, file.data(), kChecksumAt);
  XXH3_64bits_update(&state, kZero.data(), kZero.size());
  XXH3_64bits_update(&state, file.data() + kEnd, file.size() - kEnd);
  return XXH3_64bits_digest(&state);
}

void put_checksum(std::span<std::uint8_t> file, std::uint64_t checksum) {
  const auto bytes = little_endian(checksum);
  std::memcpy(file.data() + kChecksumAt, bytes.data(), bytes.size());
}

std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace contextile

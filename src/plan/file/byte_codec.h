// Varint byte streams of plan files, and where in a file a reader stands.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/base.h"
#include "contextile/plan.h"

namespace contextile {

inline constexpr int kNumDtypes = 3;

// A place in a plan file, for error messages. Members that do not apply stay -1 or empty.
struct FilePlace {
  std::string_view file;
  std::string_view section = {};  // "manifest", "device section"
  std::int64_t rank = -1;
  std::int64_t round = -1;
  std::int64_t mask = -1;
  std::string_view direction = {};
  std::string_view stream = {};  // "staging", "code", …
  std::int64_t element = -1;     // instruction, block, band, …

  [[nodiscard]] std::string text() const {
    std::string out(file);
    if (!section.empty()) out += fmt::format(": {}", section);
    if (rank >= 0) out += fmt::format(" of rank {}", rank);
    if (round >= 0) out += fmt::format(", round {}", round);
    if (mask >= 0) out += fmt::format(", mask {}", mask);
    if (!direction.empty()) out += fmt::format(", {}", direction);
    if (!stream.empty()) out += fmt::format(", {}", stream);
    if (element >= 0) out += fmt::format(" {}", element);
    return out;
  }
};

// Little-endian base-128 varints, seven bits a byte, low bits first; signed values zigzag-coded.
class ByteWriter {
 public:
  void byte(std::uint8_t value) { bytes_.push_back(value); }
  void varint(std::uint64_t value) {
    while (value >= 0x80U) {
      bytes_.push_back(static_cast<std::uint8_t>(value | 0x80U));
      value >>= 7;
    }
    bytes_.push_back(static_cast<std::uint8_t>(value));
  }
  void zigzag(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    varint((bits << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0));
  }
  // value - base, modulo 2^64.
  void delta(std::int64_t value, std::int64_t base) {
    zigzag(static_cast<std::int64_t>(static_cast<std::uint64_t>(value) -
                                     static_cast<std::uint64_t>(base)));
  }

  [[nodiscard]] const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

// Reads what ByteWriter wrote. Everything throws InvalidPlan with the place on bytes that do not
// fit.
class ByteReader {
 public:
  ByteReader(std::span<const std::uint8_t> bytes, FilePlace place) : rest_(bytes), place_(place) {}

  // The element the reader stands at, for messages.
  void at_element(std::int64_t element) { place_.element = element; }
  [[nodiscard]] bool done() const { return rest_.empty(); }

  std::uint8_t byte() {
    if (rest_.empty()) fail("expected more bytes, found the end");
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      const std::uint64_t bits = next & 0x7fU;
      // The shortest form only: one value, one encoding.
      if ((shift > 0 && next == 0) || (shift == 63 && next > 1)) break;
      value |= bits << shift;
      if (next < 0x80U) return value;
    }
    fail("expected a varint of at most 64 bits in its shortest form, found another");
  }
  std::int64_t zigzag() {
    const std::uint64_t bits = varint();
    return static_cast<std::int64_t>((bits >> 1) ^ (~(bits & 1U) + 1U));
  }
  std::int64_t delta(std::int64_t base) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(zigzag()) +
                                     static_cast<std::uint64_t>(base));
  }

  // A number of elements that follow, each of at least one byte.
  std::int64_t count(std::string_view what) {
    const std::uint64_t value = varint();
    if (value > rest_.size()) {
      fail("expected at most {} {} (bytes that are left), found a count of {}", rest_.size(), what,
           value);
    }
    return static_cast<std::int64_t>(value);
  }

  // Passes `value` on if it is in [low, high).
  std::int64_t in_range(std::int64_t value, std::int64_t low, std::int64_t high,
                        std::string_view what) const {
    if (value < low || value >= high) {
      fail("expected {} in [{}, {}), found {}", what, low, high, value);
    }
    return value;
  }
  std::int32_t delta32(std::int32_t base, std::int64_t low, std::int64_t high,
                       std::string_view what) {
    return static_cast<std::int32_t>(in_range(delta(base), low, high, what));
  }

  void expect_end() const {
    if (!rest_.empty()) fail("expected the end, found {} more bytes", rest_.size());
  }

  // Throws InvalidPlan: the place, then the message.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InvalidPlan(place_.text() + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::span<const std::uint8_t> rest_;
  FilePlace place_;
};

}  // namespace contextile

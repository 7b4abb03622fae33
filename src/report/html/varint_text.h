// Numbers in few bytes for a page's pictures: LEB128 varints in base64, which page/base.js reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace contextile {

class VarintText {
 public:
  // Any number up to 2^53, what a page can hold exactly: one byte below 128, two below 16384, …
  void add(std::int64_t number);         // not negative
  void add_signed(std::int64_t number);  // zigzag
  void add_fraction(double of_one);      // in steps of 1/100
  void append(const VarintText& numbers) { bytes_ += numbers.bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::string base64() const;

 private:
  std::string bytes_;
};

}  // namespace contextile

// A small, fast generator for annealing: quality matters little, speed much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace contextile {

class FastRandom {
 public:
  explicit FastRandom(std::uint64_t seed)
      : state_(seed * 0x9e3779b97f4a7c15ULL + 0x632be59bd9b4e019ULL) {
    if (state_ == 0) state_ = 1;
  }
  std::uint32_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  // Uniform in [0, n); n > 0.
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(
        (static_cast<std::uint64_t>(next()) * static_cast<std::uint32_t>(n)) >> 32);
  }
  // An entry of a list that is not empty, by value.
  template <typename List>
  auto pick(const List& list) {
    return list[static_cast<std::size_t>(below(static_cast<std::int32_t>(list.size())))];
  }
  // Fisher-Yates shuffle, from the back.
  template <typename List>
  void shuffle(List& list) {
    for (std::size_t i = list.size(); i > 1; --i) {
      std::swap(list[i - 1], list[static_cast<std::size_t>(below(static_cast<std::int32_t>(i)))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace contextile

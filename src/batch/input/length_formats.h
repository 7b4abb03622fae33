// The readers behind read_lengths: checks they share, and the JSON ones.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "contextile/mask.h"

namespace contextile {

// No document is longer than the largest batch.
inline constexpr std::int64_t kMaxLength = kMaxTokens;

// First bytes of a .npy file and of Megatron-LM's .idx (including the zeros).
inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
inline constexpr std::string_view kIdxMagic = std::string_view("MMIDIDX\0\0", 9);

[[nodiscard]] inline std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns the value as a length. If it is none, `unit` and `number` say in the message which value
// it is ("line 3", "index 7").
template <typename Integer>
[[nodiscard]] std::int64_t checked_length(Integer value, std::string_view where,
                                          std::string_view unit, std::size_t number) {
  CONTEXTILE_CHECK(std::cmp_greater(value, 0) && std::cmp_less_equal(value, kMaxLength),
                   "{}: {} {}: expected a length of 1 to {} tokens, found {}", where, unit, number,
                   kMaxLength, value);
  return static_cast<std::int64_t>(value);
}

// A JSON array of integers, read without building a tree.
[[nodiscard]] std::vector<std::int64_t> parse_lengths_json_array(std::string_view text,
                                                                 std::string_view where);
// The integer under key `field` of one line of JSONL. Lines count from 1.
[[nodiscard]] std::int64_t parse_length_json_object(std::string_view line, std::string_view field,
                                                    std::string_view where,
                                                    std::size_t line_number);

}  // namespace contextile

// Numbers that users write.
#pragma once

#include <cstdint>
#include <string_view>

namespace contextile {

// A whole number with an optional suffix K, M or G (1024, 1024², 1024³). Throws InvalidArgument
// when it is no number, below `minimum`, or beyond 64 bits.
[[nodiscard]] std::int64_t parse_size(std::string_view option, std::string_view text,
                                      std::int64_t minimum);
// A finite decimal number. Throws InvalidArgument.
[[nodiscard]] double parse_number(std::string_view option, std::string_view text);

}  // namespace contextile

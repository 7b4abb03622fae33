// UTF-8, character by character.
#pragma once

#include <cstddef>
#include <string_view>

namespace contextile {

// Number of bytes of the UTF-8 character that `text`, which is not empty, begins with; 0 if it
// begins with none.
[[nodiscard]] std::size_t utf8_bytes(std::string_view text);

}  // namespace contextile

// Unicode's normalization form C: characters that can be written as one or as several become one.
#pragma once

#include <string>
#include <string_view>

namespace contextile {

// Returns the text in form C (Unicode Standard Annex 15). `text` must be UTF-8. Takes time
// linear in the text, marks sorted, and returns quickly if all of it is ASCII.
[[nodiscard]] std::string to_nfc(std::string_view text);

}  // namespace contextile

// Foreign text inside error messages.
#pragma once

#include <string>
#include <string_view>

namespace contextile {

// 'text' in quotes, cut after 40 bytes, bytes outside printable ASCII as \xNN: safe in a one-line
// message.
[[nodiscard]] std::string quote(std::string_view text);

}  // namespace contextile

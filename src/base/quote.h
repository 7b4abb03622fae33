// Foreign text inside error messages.
#pragma once

#include <string>
#include <string_view>

namespace contextile {

// 'text' in quotes, cut after 40 bytes, bytes outside printable ASCII as \xNN: safe in a one-line
// message.
[[nodiscard]] std::string quote(std::string_view text);

// A name from outside for a table or a page of text: control bytes and bytes that are no UTF-8 as
// \xNN, cut after 80 bytes. It stays on its line and gives no commands to a terminal.
[[nodiscard]] std::string printable(std::string_view text);
// The same, not cut: for fields that a program reads.
[[nodiscard]] std::string without_orders(std::string_view text);

// JSON with DEL and the C1 control codes (U+0080 to U+009F) as \u00NN; they occur in its strings
// only. Terminals take them as commands, like those below U+0020, which JSON escapes anyway.
[[nodiscard]] std::string with_escaped_controls(std::string_view json);

}  // namespace contextile

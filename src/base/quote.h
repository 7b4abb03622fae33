// Foreign text inside error messages.
#pragma once

#include <string>
#include <string_view>

namespace contextile {

// 'text' in quotes, cut after 40 bytes, bytes outside printable ASCII as \xNN: safe in a one-line
// message.
[[nodiscard]] std::string quote(std::string_view text);

// A name from outside for a table or a page of text: control bytes and bytes that are no UTF-8 as
// \xNN, cut after 80 bytes. It stays on its line and gives no orders to a terminal.
[[nodiscard]] std::string printable(std::string_view text);
// The same, not cut: for fields that a program reads.
[[nodiscard]] std::string without_orders(std::string_view text);

}  // namespace contextile

// Results on stdout, errors on stderr.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "report/table.h"

namespace contextile {

// `text` with control bytes as \xNN, except line ends, tabs and the `allowed` sequences: no file
// that was read can give commands to a terminal.
[[nodiscard]] std::string without_controls(std::string_view text,
                                           std::span<const std::string_view> allowed = {});
// Prints to stdout, without control bytes except the colours of tables.
void print(std::string_view text);
void print_json(const Json& document);
// Prints to stderr. Text that cannot be written, because stderr is full or closed, is lost.
void print_to_stderr(std::string_view text) noexcept;
// "NAME: error: …" on stderr, one line whatever a library put into the message.
void print_error(std::string message);
// "NAME: check failed: …" on stderr, as it is.
void print_check_failed(std::string_view failure);
// Sets the NAME of print_error and the first word of all messages; "contextile" unless set. `name`
// is a string literal.
void set_error_prefix(const char* name);
[[nodiscard]] bool stdout_is_terminal();
// True if it is a terminal whose user has not set NO_COLOR (no-color.org).
[[nodiscard]] bool stdout_shows_colour();
inline constexpr const char* kStdoutFailure =
    "stdout: expected to write all results, but a write failed";
// Gives stdin, stdout and stderr a descriptor that fails where the process was started without one.
// Otherwise a file that is opened later would get its number, and errors would be written into it.
void hold_standard_streams();
// Throws OutputError with the reason if stdout could not take everything printed so far.
void check_stdout();

}  // namespace contextile

#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "base/quote.h"
#include "base/replaced_file.h"
#include "cli/progress.h"
#include "report/json.h"

namespace contextile {

namespace {

const char* prefix = "contextile";  // set once, before anything is printed

// The colours of the program's own tables.
constexpr std::string_view kColours[] = {"\x1b[0m", "\x1b[31m", "\x1b[32m"};

// Number of bytes of the allowed sequence that `text` begins with; 0 if it begins with none.
std::size_t allowed_bytes(std::string_view text, std::span<const std::string_view> allowed) {
  for (const std::string_view sequence : allowed) {
    if (text.starts_with(sequence)) return sequence.size();
  }
  return 0;
}

}  // namespace

std::string without_controls(std::string_view text, std::span<const std::string_view> allowed) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const std::size_t colour = byte == '\x1b' ? allowed_bytes(text.substr(at), allowed) : 0;
    const auto next = static_cast<unsigned char>(at + 1 < text.size() ? text[at + 1] : 0);
    const bool is_c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f || is_c1;
    if (control && colour == 0) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += text.substr(at, std::max<std::size_t>(colour, 1));
    }
    at += std::max<std::size_t>(colour, 1);
  }
  return result;
}

void print(std::string_view text) {
  clear_progress();
  const std::string safe = without_controls(text, kColours);
  std::fwrite(safe.data(), 1, safe.size(), stdout);
}

void print_json(const Json& document) {
  // Names and paths come from outside: bytes that are no UTF-8 are replaced, not fatal.
  print(with_escaped_controls(document.dump(2, ' ', false, Json::error_handler_t::replace)) + '\n');
}

void print_to_stderr(std::string_view text) noexcept {
  // fmt::print would throw, and errors are printed where nothing catches.
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

void print_error(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  while (!message.empty() && message.back() == ' ') message.pop_back();
  print_to_stderr(fmt::format("{}: error: {}\n", prefix, without_controls(message)));
}

void print_check_failed(std::string_view failure) {
  print_to_stderr(fmt::format("{}: check failed: {}\n", prefix, failure));
}

void set_error_prefix(const char* name) { prefix = name; }

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

bool stdout_shows_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  return stdout_is_terminal() && (no_colour == nullptr || *no_colour == '\0');
}

void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one. The wrong direction makes its use fail.
    static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

void check_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw OutputError(kStdoutFailure);
  }
}

}  // namespace contextile

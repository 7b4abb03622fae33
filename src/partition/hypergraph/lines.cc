#include "partition/hypergraph/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::string_view kBlank = " \t\r";

}  // namespace

bool NumberLines::next_line() {
  while (!text_.empty()) {
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    line_ = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    ++number_;
    skip_blanks();
    if (!line_.empty() && (comment_ == '\0' || line_.front() != comment_)) return true;
  }
  line_ = {};
  return false;
}

void NumberLines::skip_blanks() {
  line_.remove_prefix(std::min(line_.find_first_not_of(kBlank), line_.size()));
}

bool NumberLines::line_is_done() {
  skip_blanks();
  return line_.empty();
}

std::int64_t NumberLines::next_number(std::string_view what, std::int64_t least,
                                      std::int64_t most) {
  skip_blanks();
  const std::string_view word = line_.substr(0, line_.find_first_of(kBlank));
  std::int64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (word.empty() || error != std::errc{} || stop != end || value < least || value > most) {
    fail(fmt::format("{} from {} to {}", what, least, most), word.empty() ? "none" : quote(word));
  }
  line_.remove_prefix(word.size());
  return value;
}

void NumberLines::expect_line_done(std::string_view what) {
  if (line_is_done()) return;
  fail(fmt::format("{} and nothing more", what), quote(line_));
}

void NumberLines::fail(std::string_view expected, std::string_view found) const {
  fail_argument("{}: line {}: expected {}, found {}", where_, number_, expected, found);
}

}  // namespace contextile

#include "base/parse_number.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

std::int64_t suffix_factor(std::string_view suffix) {
  constexpr std::int64_t kKibi = 1024;
  if (suffix.empty()) return 1;
  if (suffix == "K" || suffix == "k") return kKibi;
  if (suffix == "M" || suffix == "m") return kKibi * kKibi;
  if (suffix == "G" || suffix == "g") return kKibi * kKibi * kKibi;
  return 0;
}

}  // namespace

std::int64_t parse_size(std::string_view option, std::string_view text, std::int64_t minimum) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  const std::int64_t factor = suffix_factor({stop, static_cast<std::size_t>(end - stop)});
  const bool fits = factor != 0 && code == std::errc() &&
                    std::abs(value) <= std::numeric_limits<std::int64_t>::max() / factor;
  if (!fits || value * factor < minimum) {
    fail_argument(
        "{}: expected a whole number of at least {} (suffixes K, M, G: 1024, ...), found {}",
        option, minimum, quote(text));
  }
  return value * factor;
}

double parse_number(std::string_view option, std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || !std::isfinite(value)) {
    fail_argument("{}: expected a number, found {}", option, quote(text));
  }
  return value;
}

}  // namespace contextile

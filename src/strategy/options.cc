#include "strategy/options.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/suggest.h"

namespace contextile {

std::int64_t parse_integer_option(std::string_view name, std::string_view text, std::int64_t low,
                                  std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CONTEXTILE_CHECK(
      error == std::errc{} && end == text.data() + text.size() && value >= low && value <= high,
      "strategy option {}: expected an integer from {} to {}, found '{}'", name, low, high, text);
  return value;
}

double parse_real_option(std::string_view name, std::string_view text, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CONTEXTILE_CHECK(
      error == std::errc{} && end == text.data() + text.size() && value >= low && value <= high,
      "strategy option {}: expected a number from {} to {}, found '{}'", name, low, high, text);
  return value;
}

std::size_t parse_choice_option(std::string_view name, std::string_view text,
                                const std::vector<std::string>& choices) {
  const auto it = std::find(choices.begin(), choices.end(), text);
  CONTEXTILE_CHECK(it != choices.end(), "strategy option {}: expected one of {}, found '{}'{}",
                   name, fmt::join(choices, ", "), text, did_you_mean(text, choices));
  return static_cast<std::size_t>(it - choices.begin());
}

void check_option_keys(std::string_view strategy, const std::map<std::string, std::string>& given,
                       const std::vector<OptionSpec>& specs) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs) names.push_back(spec.name);
  for (const auto& [key, value] : given) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    CONTEXTILE_CHECK(!names.empty(), "strategy {}: expected no options, found '{}'", strategy, key);
    fail_argument("strategy {}: expected an option among {}, found '{}'{}", strategy,
                  fmt::join(names, ", "), key, did_you_mean(key, names));
  }
}

}  // namespace contextile

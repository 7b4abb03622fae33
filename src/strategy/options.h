// Typed options of a strategy, defined once: parsing, defaults, help and printing come from one
// table.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/strategy.h"

namespace contextile {

// Returns the integer in `text`. Throws InvalidArgument that names the option unless it is in [low,
// high].
[[nodiscard]] std::int64_t parse_integer_option(std::string_view name, std::string_view text,
                                                std::int64_t low, std::int64_t high);
// Returns the same for a finite number.
[[nodiscard]] double parse_real_option(std::string_view name, std::string_view text, double low,
                                       double high);
// Returns the index of `text` among `choices`. Throws InvalidArgument that lists them.
[[nodiscard]] std::size_t parse_choice_option(std::string_view name, std::string_view text,
                                              const std::vector<std::string>& choices);
// Throws InvalidArgument (listing the known keys) for the first key of `given` that no spec has.
void check_option_keys(std::string_view strategy, const std::map<std::string, std::string>& given,
                       const std::vector<OptionSpec>& specs);

// The options of one strategy as an aggregate with defaults, and the parsers of its fields.
template <typename Options>
class OptionTable {
 public:
  // Adds an integer in [low, high].
  template <typename Int>
  OptionTable& integer(std::string name, Int Options::*field, std::int64_t low, std::int64_t high,
                       std::string help) {
    return add(
        name, std::move(help),
        [=](Options& options, std::string_view text) {
          options.*field = static_cast<Int>(parse_integer_option(name, text, low, high));
        },
        [=](const Options& options) { return fmt::format("{}", options.*field); });
  }
  // Adds an integer in [low, high] or the word, which means the value 0.
  template <typename Int>
  OptionTable& integer_or(std::string word, std::string name, Int Options::*field, std::int64_t low,
                          std::int64_t high, std::string help) {
    const std::string described = fmt::format("{} (a number or {})", name, word);
    return add(
        name, std::move(help),
        [=](Options& options, std::string_view text) {
          options.*field = text == word
                               ? Int{0}
                               : static_cast<Int>(parse_integer_option(described, text, low, high));
        },
        [=](const Options& options) {
          return options.*field == 0 ? word : fmt::format("{}", options.*field);
        });
  }
  // Adds a number in [low, high].
  OptionTable& real(std::string name, double Options::*field, double low, double high,
                    std::string help) {
    return add(
        name, std::move(help),
        [=](Options& options, std::string_view text) {
          options.*field = parse_real_option(name, text, low, high);
        },
        [=](const Options& options) { return fmt::format("{}", options.*field); });
  }
  // Adds a switch with the values off and on.
  OptionTable& on_off(std::string name, bool Options::*field, std::string help) {
    return add(
        name, std::move(help),
        [=](Options& options, std::string_view text) {
          options.*field = parse_choice_option(name, text, {"off", "on"}) == 1;
        },
        [=](const Options& options) { return options.*field ? "on" : "off"; }, {"off", "on"});
  }
  // Adds an enum whose values 0, 1, … have the given names.
  template <typename Enum>
  OptionTable& choice(std::string name, Enum Options::*field, std::vector<std::string> choices,
                      std::string help) {
    return add(
        name, std::move(help),
        [=](Options& options, std::string_view text) {
          options.*field = static_cast<Enum>(parse_choice_option(name, text, choices));
        },
        [=](const Options& options) { return choices[static_cast<std::size_t>(options.*field)]; },
        choices);
  }

  // Adds an option of any other form: `parse` sets fields or throws InvalidArgument, `print` is its
  // inverse.
  OptionTable& custom(std::string name, std::function<void(Options&, std::string_view)> parse,
                      std::function<std::string(const Options&)> print, std::string help) {
    return add(std::move(name), std::move(help), std::move(parse), std::move(print));
  }

  [[nodiscard]] std::vector<OptionSpec> specs() const {
    std::vector<OptionSpec> result;
    for (const Entry& entry : entries_) {
      result.push_back({entry.name, entry.print(Options{}), entry.help, entry.values});
    }
    return result;
  }
  // Returns the defaults, overwritten by the given values. Throws InvalidArgument.
  [[nodiscard]] Options parse(std::string_view strategy,
                              const std::map<std::string, std::string>& given) const {
    check_option_keys(strategy, given, specs());
    Options options;
    for (const Entry& entry : entries_) {
      const auto it = given.find(entry.name);
      if (it != given.end()) entry.parse(options, it->second);
    }
    return options;
  }
  [[nodiscard]] std::map<std::string, std::string> print(const Options& options) const {
    std::map<std::string, std::string> result;
    for (const Entry& entry : entries_) result[entry.name] = entry.print(options);
    return result;
  }
  // Leaves out the options that have their default.
  [[nodiscard]] std::map<std::string, std::string> print_changed(const Options& options) const {
    std::map<std::string, std::string> result = print(options);
    for (const Entry& entry : entries_) {
      if (result[entry.name] == entry.print(Options{})) result.erase(entry.name);
    }
    return result;
  }

 private:
  struct Entry {
    std::string name;
    std::string help;
    std::function<void(Options&, std::string_view)> parse;
    std::function<std::string(const Options&)> print;
    std::vector<std::string> values;
  };
  OptionTable& add(std::string name, std::string help,
                   std::function<void(Options&, std::string_view)> parse,
                   std::function<std::string(const Options&)> print,
                   std::vector<std::string> values = {}) {
    entries_.push_back(
        {std::move(name), std::move(help), std::move(parse), std::move(print), std::move(values)});
    return *this;
  }
  std::vector<Entry> entries_;
};

}  // namespace contextile

// Typed command-line options: every value is parsed here, so every mistake reads the same way
// ("--tokens: expected a whole number of at least 1, found 'x'").
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/parse_number.h"

namespace contextile {

// What `--help` shows of an option.
struct OptionHelp {
  std::string value;  // placeholder, e.g. "N"
  std::string text;   // meaning and unit
  std::string unset;  // the default; empty: none is shown
};

// `take` gets the value when the option is given; it throws InvalidArgument on a bad one.
CLI::Option* add_value(CLI::App& app, const std::string& name, const OptionHelp& help,
                       std::function<void(const std::string&)> take);
// The same for an option that may be given several times, one value each.
CLI::Option* add_repeatable(CLI::App& app, const std::string& name, const OptionHelp& help,
                            std::function<void(const std::string&)> take);
CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& target, OptionHelp help);
CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& target,
                        const std::string& text);

// A whole number of at least `minimum`, into any integer (or optional integer) that can hold it.
template <typename Integer, typename Target>
CLI::Option* add_size_as(CLI::App& app, const std::string& name, Target& target, Integer minimum,
                         const OptionHelp& help) {
  return add_value(app, name, help, [name, minimum, &target](const std::string& text) {
    target =
        checked_cast<Integer>(parse_size(name, text, static_cast<std::int64_t>(minimum)), name);
  });
}
template <typename Integer>
CLI::Option* add_size(CLI::App& app, const std::string& name, Integer& target, Integer minimum,
                      OptionHelp help) {
  help.unset = std::to_string(target);
  return add_size_as<Integer>(app, name, target, minimum, help);
}

}  // namespace contextile

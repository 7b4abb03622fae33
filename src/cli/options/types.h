// Typed command-line options: every value is parsed here, so every mistake reads the same way
// ("--tokens: expected a whole number of at least 1, found 'x'"). An option's OptionHelp holds all
// there is to say about it: --help, docs/cli.md and shell completion are made from it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parse_number.h"
#include "cli/app.h"

namespace contextile {

// An option as its users see it. `value` is the placeholder: alternatives are separated by '|',
// those in lower case are literal ("on|off", "N|auto"), and FILE or PLAN is a path.
struct OptionHelp {
  std::string value;
  std::string text;   // meaning and unit; "{}" stands for the list of `values`
  std::string unset;  // the default; empty: none is shown
  // The allowed values, parameters in upper case ("lambda:SINK,WINDOW"); empty: any text.
  std::vector<std::string> values = {};
};

// The values that a shell can offer for an option.
struct ValueHints {
  std::vector<std::string> words;  // as in OptionHelp::values, and the placeholder's own
  bool file = false;               // paths, too
};
[[nodiscard]] ValueHints value_hints(const CLI::Option& option);
// True if the option may be given several times, as those of add_repeatable.
[[nodiscard]] bool repeatable(const CLI::Option& option);

// `take` gets the value when the option is given; it throws InvalidArgument on a bad one.
void add_value(CLI::App& app, const std::string& name, const OptionHelp& help,
               std::function<void(const std::string&)> take);
// add_value for an option whose value may be left out: `take` then gets `implied`.
void add_value_or(CLI::App& app, const std::string& name, const std::string& implied,
                  const OptionHelp& help, std::function<void(const std::string&)> take);
// add_value for an option or argument that must be given.
void add_required(CLI::App& app, const std::string& name, const OptionHelp& help,
                  std::function<void(const std::string&)> take);
// add_value for an option that may be given several times, one value each.
void add_repeatable(CLI::App& app, const std::string& name, const OptionHelp& help,
                    std::function<void(const std::string&)> take);
// All remaining arguments, at least one; options among them come behind "--".
void add_words(CLI::App& app, const std::string& name, std::vector<std::string>& target,
               const OptionHelp& help);
// The default that is shown is what `target` holds.
void add_text(CLI::App& app, const std::string& name, std::string& target, OptionHelp help);
void add_switch(CLI::App& app, const std::string& name, bool& target, const std::string& text);
// The same for switches that no bool holds: `take` is called when the switch is given.
void add_switch(CLI::App& app, const std::string& name, std::function<void()> take,
                const std::string& text);
// "--NAME" and "--no-NAME"; `unset` describes the case that neither is given.
void add_toggle(CLI::App& app, const std::string& name, const std::string& text,
                const std::string& unset, std::function<void(bool)> take);

// A whole number of at least `minimum`, into any integer (or optional integer) that can hold it.
template <typename Integer, typename Target>
void add_size_as(CLI::App& app, const std::string& name, Target& target, Integer minimum,
                 const OptionHelp& help) {
  add_value(app, name, help, [name, minimum, &target](const std::string& text) {
    target =
        checked_cast<Integer>(parse_size(name, text, static_cast<std::int64_t>(minimum)), name);
  });
}
template <typename Integer>
void add_size(CLI::App& app, const std::string& name, Integer& target, Integer minimum,
              OptionHelp help) {
  help.unset = std::to_string(target);
  add_size_as<Integer>(app, name, target, minimum, help);
}

// Comma-separated whole numbers of at least 1.
template <typename Integer>
void add_sizes(CLI::App& app, const std::string& name, std::vector<Integer>& target,
               const OptionHelp& help) {
  add_value(app, name, help, [name, &target](const std::string& text) {
    target.clear();
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      target.push_back(
          checked_cast<Integer>(parse_size(name, text.substr(begin, end - begin), 1), name));
      begin = end + 1;
    }
  });
}
void add_number(CLI::App& app, const std::string& name, std::optional<double>& target,
                const OptionHelp& help);

}  // namespace contextile

#include "cli/options/types.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstddef>

namespace contextile {
namespace {

// Between the words in a type's name, where CLI11 keeps what kind of value an option takes.
constexpr char kBetweenWords = '|';

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(kBetweenWords), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

bool is_literal(const std::string& alternative) {
  return std::ranges::none_of(
      alternative, [](unsigned char c) { return std::isupper(c) != 0 || c == '[' || c == ':'; });
}

std::string with_list(std::string text, const std::vector<std::string>& values) {
  const std::size_t place = text.find("{}");
  if (place != std::string::npos)
    text.replace(place, 2, fmt::format("{}", fmt::join(values, ", ")));
  return text;
}

CLI::Option* describe(CLI::Option* option, const OptionHelp& help) {
  std::vector<std::string> words = help.values;
  for (std::string& alternative : split_words(help.value)) {
    if (is_literal(alternative)) words.push_back(std::move(alternative));
  }
  option->option_text(help.value);
  option->type_name(fmt::format("{}", fmt::join(words, std::string(1, kBetweenWords))));
  option->default_str(help.unset);
  return option->description(with_list(help.text, help.values));
}

// "-o,--output" is --output in messages.
std::string message_name(const std::string& name) {
  const std::size_t comma = name.rfind(',');
  return comma == std::string::npos ? name : name.substr(comma + 1);
}

CLI::Option* add_described(CLI::App& app, const std::string& name, const OptionHelp& help,
                           std::function<void(const std::string&)> take) {
  return describe(
      app.add_option_function<std::string>(
          name,
          [option = message_name(name), take = std::move(take)](const std::string& text) {
            if (text.empty()) fail_argument("{}: expected a value, found ''", option);
            take(text);
          }),
      help);
}

}  // namespace

ValueHints value_hints(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};  // a switch takes no value
  // A positional has no placeholder but its name.
  const std::string shape = option.get_positional() ? option.get_name(true, false)  //
                                                    : option.get_option_text();
  const bool file =
      shape.find("FILE") != std::string::npos || shape.find("PLAN") != std::string::npos;
  return {.words = split_words(option.get_type_name()), .file = file};
}

bool repeatable(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

void add_value(CLI::App& app, const std::string& name, const OptionHelp& help,
               std::function<void(const std::string&)> take) {
  add_described(app, name, help, std::move(take));
}

void add_value_or(CLI::App& app, const std::string& name, const std::string& implied,
                  const OptionHelp& help, std::function<void(const std::string&)> take) {
  CLI::Option* option = app.add_option_function<std::string>(
      name, [implied, take = std::move(take)](const std::string& text) {
        take(text.empty() ? implied : text);
      });
  describe(option->expected(0, 1), help);
}

void add_required(CLI::App& app, const std::string& name, const OptionHelp& help,
                  std::function<void(const std::string&)> take) {
  add_described(app, name, help, std::move(take))->required();
}

void add_repeatable(CLI::App& app, const std::string& name, const OptionHelp& help,
                    std::function<void(const std::string&)> take) {
  CLI::Option* option = app.add_option_function<std::vector<std::string>>(
      name, [option = message_name(name),
             take = std::move(take)](const std::vector<std::string>& values) {
        for (const std::string& value : values) {
          if (value.empty()) fail_argument("{}: expected a value, found ''", option);
          take(value);
        }
      });
  describe(option->allow_extra_args(false), help);
}

void add_words(CLI::App& app, const std::string& name, std::vector<std::string>& target,
               const OptionHelp& help) {
  describe(app.add_option(name, target)->required()->expected(-1), help);
}

void add_text(CLI::App& app, const std::string& name, std::string& target, OptionHelp help) {
  help.unset = target;
  add_value(app, name, help, [&target](const std::string& text) { target = text; });
}

void add_number(CLI::App& app, const std::string& name, std::optional<double>& target,
                const OptionHelp& help) {
  add_value(app, name, help,
            [name, &target](const std::string& text) { target = parse_number(name, text); });
}

void add_switch(CLI::App& app, const std::string& name, bool& target, const std::string& text) {
  app.add_flag(name, target, text);
}

void add_switch(CLI::App& app, const std::string& name, std::function<void()> take,
                const std::string& text) {
  app.add_flag_callback(name, std::move(take), text);
}

void add_toggle(CLI::App& app, const std::string& name, const std::string& text,
                const std::string& unset, std::function<void(bool)> take) {
  app.add_flag_function(
         fmt::format("--{0},!--no-{0}", name),
         [take = std::move(take)](std::int64_t times) { take(times > 0); }, text)
      ->default_str(unset);
}

}  // namespace contextile

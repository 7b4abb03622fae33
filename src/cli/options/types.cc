#include "cli/options/types.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::size_t kHelpColumns = 50;  // of 80, beside the option names

std::int64_t suffix_factor(std::string_view suffix) {
  constexpr std::int64_t kKibi = 1024;
  if (suffix.empty()) return 1;
  if (suffix == "K" || suffix == "k") return kKibi;
  if (suffix == "M" || suffix == "m") return kKibi * kKibi;
  if (suffix == "G" || suffix == "g") return kKibi * kKibi * kKibi;
  return 0;
}

CLI::Option* describe(CLI::Option* option, const OptionHelp& help) {
  std::string text = help.text;
  if (!help.unset.empty()) text += fmt::format(" [default: {}]", help.unset);
  return option->option_text(help.value)->description(wrap(text, kHelpColumns));
}

// "-o,--output" is --output in messages.
std::string message_name(const std::string& name) {
  const std::size_t comma = name.rfind(',');
  return comma == std::string::npos ? name : name.substr(comma + 1);
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

std::string wrap(std::string_view text, std::size_t columns) {
  std::string out;
  std::size_t line = 0;  // characters on the current line
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (line > 0 && line + 1 + word.size() > columns) {
      out += '\n';
      line = 0;
    } else if (line > 0) {
      out += ' ';
      ++line;
    }
    out += word;
    line += word.size();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

CLI::Option* add_value(CLI::App& app, const std::string& name, const OptionHelp& help,
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

CLI::Option* add_repeatable(CLI::App& app, const std::string& name, const OptionHelp& help,
                            std::function<void(const std::string&)> take) {
  CLI::Option* option = app.add_option_function<std::vector<std::string>>(
      name, [option = message_name(name),
             take = std::move(take)](const std::vector<std::string>& values) {
        for (const std::string& value : values) {
          if (value.empty()) fail_argument("{}: expected a value, found ''", option);
          take(value);
        }
      });
  return describe(option->allow_extra_args(false), help);
}

CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& target,
                      OptionHelp help) {
  help.unset = target;
  return add_value(app, name, help, [&target](const std::string& text) { target = text; });
}

CLI::Option* add_switch(CLI::App& app, const std::string& name, bool& target,
                        const std::string& text) {
  return app.add_flag(name, target, wrap(text, kHelpColumns));
}

}  // namespace contextile

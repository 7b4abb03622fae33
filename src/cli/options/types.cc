#include "cli/options/types.h"

#include "report/table.h"

namespace contextile {
namespace {

constexpr std::size_t kHelpColumns = 50;  // of 80, beside the option names

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

#include "cli/command_line.h"

#include <fmt/format.h>

#include <memory>

#include "base/quote.h"
#include "base/suggest.h"
#include "cli/help_formatter.h"
#include "contextile/base.h"
#include "report/table.h"

namespace contextile {
namespace {

std::string description(const CommandProgram& program) {
  std::vector<std::string> exits;
  for (const ExitCode& exit : kExitCodes)
    exits.push_back(fmt::format("{} {}", exit.code, exit.name));
  return program.summary +
         ('\n' + wrap(fmt::format("Exit codes: {}.", fmt::join(exits, ", ")), kTextColumns));
}

// The first argument no option took: its option's name was misspelt, or there is one too many.
std::string unexpected_argument(const CLI::App& command, const std::string& argument) {
  if (!argument.starts_with("-")) {
    return fmt::format("expected no more arguments, found {}", quote(argument));
  }
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
  }
  return fmt::format("expected a known option, found {}{}", quote(name), did_you_mean(name, names));
}

// CLI11's own complaints, in the words of all other messages.
std::string reworded(const CLI::ParseError& error) {
  std::string text = error.what();
  const std::string option = text.substr(0, text.find_first_of(": "));
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return fmt::format("expected {}, found none", option);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return text.ends_with("missing") ? fmt::format("{}: expected a value, found none", option)
                                     : fmt::format("{}: expected once, found again", option);
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    // "Could not convert: --json = maybe": only switches convert by themselves.
    const std::size_t name = text.find("--");
    const std::size_t value = text.find(" = ");
    if (name != std::string::npos && value != std::string::npos) {
      return fmt::format("{}: expected no value, found {}", text.substr(name, value - name),
                         quote(text.substr(value + 3)));
    }
  }
  return text;
}

}  // namespace

CommandLine::CommandLine(const CommandProgram& program) : app_(description(program), program.name) {
  app_.set_version_flag("--version", fmt::format("{} {}", program.name, version()));
  app_.require_subcommand(1);
  app_.formatter(std::make_shared<HelpFormatter>());  // subcommands inherit it
  for (const Command& command : program.commands) {
    CLI::App* added = app_.add_subcommand(command.name, command.summary);
    added->group(command.group);
    actions_[added] = command.add(*added);
  }
}

const Action& CommandLine::chosen() const { return actions_.at(app_.get_subcommands().front()); }

std::vector<std::string> command_names(const CommandProgram& program) {
  std::vector<std::string> names;
  for (const Command& command : program.commands) names.emplace_back(command.name);
  return names;
}

std::string problem_text(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const std::vector<std::string> unexpected = command.remaining();
  const std::string problem =
      unexpected.empty() ? reworded(error) : unexpected_argument(command, unexpected.front());
  if (chosen.empty()) return fmt::format("{} (see {} --help)", problem, app.get_name());
  return fmt::format("{0}: {1} (see {2} {0} --help)", command.get_name(), problem, app.get_name());
}

}  // namespace contextile

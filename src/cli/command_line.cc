#include "cli/command_line.h"

#include <fmt/format.h>

#include <memory>

#include "cli/help_formatter.h"
#include "contextile/version.h"
#include "report/table.h"

namespace contextile {
namespace {

std::string description() {
  std::vector<std::string> exits;
  for (const ExitCode& exit : kExitCodes)
    exits.push_back(fmt::format("{} {}", exit.code, exit.name));
  return "Context parallelism by tiles: exact distributed attention by verified plans.\n" +
         wrap(fmt::format("Exit codes: {}.", fmt::join(exits, ", ")), kTextColumns);
}

}  // namespace

CommandLine::CommandLine() : app_(description(), "contextile") {
  app_.set_version_flag("--version", "contextile " + std::string(version()));
  app_.require_subcommand(1);
  app_.formatter(std::make_shared<HelpFormatter>());  // subcommands inherit it
  for (const Command& command : kCommands) {
    CLI::App* added = app_.add_subcommand(command.name, command.summary);
    actions_[added] = command.add(*added);
  }
}

const Action& CommandLine::chosen() const { return actions_.at(app_.get_subcommands().front()); }

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  return names;
}

}  // namespace contextile

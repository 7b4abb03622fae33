// A program's commands with their options, as CLI11 parses them.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "cli/command_program.h"
#include "cli/commands/command.h"

namespace contextile {

class CommandLine {
 public:
  explicit CommandLine(const CommandProgram& program);

  [[nodiscard]] CLI::App& app() { return app_; }
  // The action of the command that was parsed.
  [[nodiscard]] const Action& chosen() const;

 private:
  CLI::App app_;
  std::map<const CLI::App*, Action> actions_;
};

// The reason why CLI11 refuses a command line, in the words of all other messages.
[[nodiscard]] std::string problem_text(const CLI::App& app, const CLI::ParseError& error);

}  // namespace contextile

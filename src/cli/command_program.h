// A program of commands: picks the command, runs it, and turns every failure into one line and an
// exit code.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/commands/command.h"

namespace contextile {

struct CommandProgram {
  const char* name;     // as users type it
  const char* summary;  // the first line of its help
  std::span<const Command> commands;
};

// The names of its commands, in the order its help lists them.
[[nodiscard]] std::vector<std::string> command_names(const CommandProgram& program);

// The one place where failures become exit codes. To be called once, by main.
[[nodiscard]] int run_program(const CommandProgram& program, int argc, char** argv);

}  // namespace contextile

// The commands of the program `contextile-labs`.
#pragma once

#include "cli/command_program.h"
#include "cli/commands/command.h"

namespace contextile {

[[nodiscard]] Action add_table_command(CLI::App& app);

inline constexpr Command kLabsCommands[] = {
    {"table", "Commands", "Make a table or figure of a paper again from verified plans.",
     add_table_command},
};
inline constexpr CommandProgram kLabsProgram{
    "contextile-labs", "Make the tables and figures of papers again with Contextile.",
    kLabsCommands};

}  // namespace contextile

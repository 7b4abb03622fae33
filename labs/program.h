// The commands of the program `contextile-labs`.
#pragma once

#include "cli/command_program.h"
#include "cli/commands/command.h"

namespace contextile {

[[nodiscard]] Action add_table_command(CLI::App& app);

inline constexpr Command kLabsCommands[] = {
    {"table", "a paper's table or figure, made again from verified plans", add_table_command},
};
inline constexpr CommandProgram kLabsProgram{
    "contextile-labs", "The tables and figures of papers, made again by Contextile.",
    kLabsCommands};

}  // namespace contextile

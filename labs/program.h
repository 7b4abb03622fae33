// The commands of the program `contextile-labs`.
#pragma once

#include "cli/command_program.h"
#include "cli/commands/command.h"

namespace contextile {

[[nodiscard]] Action add_table_command(CLI::App& app);
[[nodiscard]] Action add_search_command(CLI::App& app);
[[nodiscard]] Action add_network_command(CLI::App& app);

inline constexpr Command kLabsCommands[] = {
    {"table", "Commands", "Make a table or figure of a paper again from verified plans.",
     add_table_command},
    {"search", "Commands", "Plan with auto, without some phases of its search.",
     add_search_command},
    {"network", "Commands", "Hold the simulator against a second model of the network.",
     add_network_command},
};
inline constexpr CommandProgram kLabsProgram{
    "contextile-labs",
    "Make papers' tables again with Contextile, and study its search and its simulator.",
    kLabsCommands};

}  // namespace contextile

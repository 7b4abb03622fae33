// The examples of --help, and the reference of docs/cli.md, made of the commands' own options.
#pragma once

#include <string>
#include <vector>

#include "cli/app.h"

namespace contextile {

// Command lines that --help shows: the first one below the opening sentence, the others at the end.
// Each works as it is if those before it have run in the same folder. The files that they begin
// with are "lengths.txt", "graph.hgr" and "rows.csv".
void add_examples(CLI::App& command, const std::vector<std::string>& lines);
// Lets --help of a command with many options list `names` alone ("--tokens"), and --help-all list
// every option. To be called when all options have been added.
void show_first(CLI::App& command, const std::vector<std::string>& names);
[[nodiscard]] std::vector<std::string> examples_of(const CLI::App& command);

// The part of docs/cli.md that scripts/update-cli-docs keeps: commands, exit codes, and every
// command's options with defaults and examples, as Markdown between marker lines. Nothing in it
// depends on the machine. `command` is any command of the program.
[[nodiscard]] std::string reference_markdown(const CLI::App& command);

}  // namespace contextile

// Options that name files to write: no command writes over what it reads.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/options/types.h"

namespace contextile {

// add_value and add_required for the path of a file that the command writes.
void add_output(CLI::App& app, const std::string& name, const OptionHelp& help,
                std::function<void(const std::string&)> take);
void add_required_output(CLI::App& app, const std::string& name, const OptionHelp& help,
                         std::function<void(const std::string&)> take);

// Before a parsed command does anything: throws InvalidArgument when the path of an output names
// the same file as any other value on the command line.
void check_outputs(const CLI::App& command);

// The same for a path that is not on the command line: throws when `path`, of `option`, is one of
// the files that are read (those that are empty or missing are none).
void check_no_input(const std::string& option, const std::string& path,
                    const std::vector<std::string>& inputs);

// The path of a result: `given`, or else a path in the input's folder, with its name and the
// ending. Throws InvalidArgument if neither is a name: the input is kStandardStream.
[[nodiscard]] std::string output_beside(const std::string& input, const std::string& ending,
                                        const std::string& given);

// Throws InvalidArgument if --output is kStandardStream and --json or --csv print to standard
// output, too.
void check_results_elsewhere(const std::string& path, bool json_or_csv);

}  // namespace contextile

// Tests that call the program from bash, as users do.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/program.h"

namespace contextile {

class ShellTest : public ProgramTest {
 protected:
  // A script for bash, run in the test's folder; the command contextile is the built program.
  [[nodiscard]] Outcome bash(std::string_view script) const {
    const std::string setup =
        fmt::format("cd '{}'\ncontextile() {{ '{}' \"$@\"; }}\n", path(""), CONTEXTILE_PROGRAM);
    const std::string command =
        fmt::format("bash '{}' >'{}' 2>'{}'", file("script.sh", setup + std::string(script)),
                    path("stdout"), path("stderr"));
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("stdout")),
            read(path("stderr"))};
  }
  // The program's output; expects exit code 0.
  [[nodiscard]] std::string output(const std::vector<std::string>& arguments) const {
    const Outcome outcome = contextile(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }
};

[[nodiscard]] inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace contextile

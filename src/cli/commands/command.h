// The type of a program's commands, and the meaning of exit codes.
#pragma once

#include <functional>
#include <string_view>

#include "cli/app.h"

namespace contextile {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitEnvironment = 3;

struct ExitCode {
  int code;
  std::string_view name;
  std::string_view causes;
};
inline constexpr ExitCode kExitCodes[] = {
    {kExitOk, "ok", "everything asked for was done"},
    {kExitCheckFailed, "a check failed", "a plan is invalid, a result is wrong, nothing fits"},
    {kExitBadInput, "bad usage or input", "an option, a file or a value is not what it should be"},
    {kExitEnvironment, "the environment failed",
     "a rank stalled, an output could not be written, memory ran out"},
};

// Runs once the command line is parsed; returns the exit code.
using Action = std::function<int()>;

// A command of a program: `add` adds its options and examples to `app` and returns its action.
struct Command {
  const char* name;
  const char* group;    // the heading that the program's help lists it under
  const char* summary;  // one sentence, which begins the command's help
  Action (*add)(CLI::App& app);
};
}  // namespace contextile

// Programs started next to each other, and ended together.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

namespace contextile {

// A path that starts this very program again; "contextile" if the system does not say.
[[nodiscard]] std::string own_program();

// The way in which one of them ended.
struct EndedProcess {
  int exit_code = 0;            // of the program; -1: a signal ended it
  int signal = 0;               // which
  int passed_on = 0;            // signal passed on while it ran and none had failed; 0: none
  bool was_ended_here = false;  // by SIGTERM or SIGKILL, because the grace had passed

  // True if the signal that was passed on to it ended it.
  [[nodiscard]] bool ended_by_passed_on() const {
    return signal != 0 && signal == passed_on && !was_ended_here;
  }
};

// Starts a process for each command line (program first, found as a shell finds it), with this
// process's input, output and error streams, and returns when all have ended. SIGINT, SIGTERM and
// SIGHUP that arrive meanwhile go to all of them, unless they are ignored. When one fails, or
// such a signal arrives, the others have `grace` to end by themselves, then get SIGTERM, a second
// later SIGKILL. Throws IoError when one cannot be started, after ending those that were.
[[nodiscard]] std::vector<EndedProcess> run_processes(
    std::span<const std::vector<std::string>> commands, std::chrono::milliseconds grace);

}  // namespace contextile

#include "cli/command_program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/out_of_memory.h"
#include "base/quote.h"
#include "base/replaced_file.h"
#include "base/suggest.h"
#include "cli/command_line.h"
#include "cli/completion_words.h"
#include "cli/options/outputs.h"
#include "cli/options/transport_option.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/base.h"
#include "report/table.h"

namespace contextile {
namespace {

int fail(int exit_code, const std::string& message) {
  print_error(message);
  return exit_code;
}

int fail_thread(std::string_view found) {
  return fail(kExitEnvironment,
              fmt::format("expected to start a thread (ulimit -u, ulimit -v), found: {}", found));
}

int unknown_command(const CommandProgram& program, const char* found) {
  std::vector<std::string> names = command_names(program);
  names.emplace_back("help");
  return fail(kExitBadInput,
              fmt::format("expected a command ({}), found {}{}", fmt::join(names, ", "),
                          quote(found), did_you_mean(found, names)));
}

// Removes unfinished files, then ends the process as the signal would have.
void end_by_signal(int signal) {
  remove_unfinished_files();
  clear_progress();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Replaces "contextile help COMMAND" by "contextile COMMAND --help", and no word by "--help".
std::vector<const char*> spelled_out(int argc, char** argv) {
  std::vector<const char*> words(argv, argv + argc);
  if (argc == 1) words.push_back("--help");
  if (argc < 2 || std::string_view(argv[1]) != "help") return words;
  words.erase(words.begin() + 1);
  words.insert(words.begin() + std::min(argc - 1, 2), "--help");
  return words;
}

int dispatch(const CommandProgram& program, std::span<const char* const> argv) {
  const std::vector<std::string> names = command_names(program);
  const char* first = argv.size() > 1 ? argv[1] : nullptr;
  CommandLine line(program);
  if (first != nullptr && first == kCompleteArgument) {
    const std::vector<std::string> words(argv.begin() + 2, argv.end());
    print(answer_text(candidates_for(line.app(), words)));
    return kExitOk;
  }
  const bool is_option = first != nullptr && first[0] == '-';
  if (first != nullptr && !is_option &&
      std::find(names.begin(), names.end(), first) == names.end()) {
    return unknown_command(program, first);
  }
  try {
    line.app().parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::Success& help_or_version) {
    const int exit_code = line.app().exit(help_or_version);
    if (!std::cout.flush()) throw OutputError(kStdoutFailure);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return fail(kExitBadInput, problem_text(line.app(), error));
  }
  check_outputs(*line.app().get_subcommands().front());
  const int exit_code = line.chosen()();
  check_stdout();
  return exit_code;
}

int run(const CommandProgram& program, int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow makes the write fail
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal, SIG_IGN) != SIG_IGN) std::signal(signal, end_by_signal);
  }
  try {
    return dispatch(program, spelled_out(argc, argv));
  } catch (const SaidByRank0&) {
    return kExitBadInput;
  } catch (const TransportError& error) {
    return fail(kExitEnvironment, error.what());
  } catch (const DeviceError& error) {
    return fail(kExitEnvironment, error.what());
  } catch (const OutputError& error) {
    return fail(kExitEnvironment, error.what());
  } catch (const InvalidArgument& error) {
    return fail(kExitBadInput, error.what());
  } catch (const InvalidPlan& error) {
    return fail(kExitBadInput, error.what());
  } catch (const IoError& error) {
    return fail(kExitBadInput, error.what());
  } catch (const OutOfMemory& error) {
    return fail(kExitEnvironment,
                fmt::format("out of memory: expected a smaller batch or a larger machine, found no "
                            "room for {}",
                            error.what()));
  } catch (const std::bad_alloc&) {
    return fail(kExitEnvironment, "out of memory: expected a smaller batch or a larger machine");
  } catch (const std::system_error& error) {
    const bool is_thread = error.code() == std::errc::resource_unavailable_try_again;
    return is_thread ? fail_thread(error.what()) : fail(kExitEnvironment, error.what());
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    if (text.find("pthread_create has failed") != std::string_view::npos) {
      return fail_thread(text);  // oneTBB has no class of its own for this
    }
    return fail(kExitEnvironment, fmt::format("internal error: {}", text));
  }
}

}  // namespace

int run_program(const CommandProgram& program, int argc, char** argv) {
  hold_standard_streams();
  set_error_prefix(program.name);
  try {
    return run(program, argc, argv);
  } catch (const std::bad_alloc&) {  // no room for a message
    print_to_stderr(program.name);
    print_to_stderr(": error: out of memory: expected a smaller batch or a larger machine\n");
    return kExitEnvironment;
  }
}

}  // namespace contextile

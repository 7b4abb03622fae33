#include "cli/processes.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "base/check.h"

namespace contextile {
namespace {

using Clock = std::chrono::steady_clock;

// NOTE: global because signals are. The signal that arrived, to be passed on.
volatile std::sig_atomic_t arrived = 0;
void remember(int signal) { arrived = signal; }

// While one lives, SIGINT, SIGTERM and SIGHUP are remembered.
class RememberSignals {
 public:
  RememberSignals() {
    arrived = 0;
    struct sigaction action = {};
    action.sa_handler = remember;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], &action, &before_[i]);
      // Under nohup it stays ignored.
      if (before_[i].sa_handler == SIG_IGN) ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  ~RememberSignals() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  RememberSignals(const RememberSignals&) = delete;
  RememberSignals& operator=(const RememberSignals&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[3] = {};
};

// Each process is a group of its own: a terminal sends Ctrl-C to the launcher alone, which passes
// it on once. A process that got it twice would take the second one for an order to end at once.
pid_t start(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t process = 0;
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  const int error =
      ::posix_spawnp(&process, arguments.front(), nullptr, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    fail_io("{}: cannot start: {}", command.front(), std::generic_category().message(error));
  }
  return process;
}

class Processes {
 public:
  explicit Processes(std::span<const std::vector<std::string>> commands) {
    try {
      for (const std::vector<std::string>& command : commands) running_.push_back(start(command));
    } catch (...) {
      signal_all(SIGKILL);
      for (const pid_t process : running_) ::waitpid(process, nullptr, 0);
      throw;
    }
    ended_.resize(running_.size());
  }

  std::vector<EndedProcess> wait(std::chrono::milliseconds grace) {
    constexpr auto kPoll = std::chrono::milliseconds(10);
    while (std::ranges::any_of(running_, [](pid_t process) { return process != 0; })) {
      if (arrived != 0) pass_on();
      collect();
      if (ending_since_) insist(*ending_since_ + grace);
      std::this_thread::sleep_for(kPoll);
    }
    return ended_;
  }

 private:
  // All have the grace, from now on, to end by themselves.
  void pass_on() {
    const int signal = arrived;
    arrived = 0;
    if (!has_failed_) passed_on_ = signal;
    signal_all(signal);
    ending_since_ = Clock::now();
  }

  void collect() {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      int status = 0;
      if (running_[i] == 0 || ::waitpid(running_[i], &status, WNOHANG) != running_[i]) continue;
      running_[i] = 0;
      ended_[i].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      ended_[i].exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      ended_[i].passed_on = passed_on_;
      ended_[i].was_ended_here = ended_[i].signal != 0 && asked_;
      if (ended_[i].exit_code == 0 || ending_since_) continue;
      has_failed_ = true;
      ending_since_ = Clock::now();
    }
  }

  // Sends SIGTERM once at that time, and SIGKILL a second later.
  void insist(Clock::time_point since) {
    const Clock::time_point now = Clock::now();
    if (now >= since && !asked_) {
      signal_all(SIGTERM);
      signal_all(SIGCONT);  // a stopped process hears nothing else
      asked_ = true;
    }
    if (now >= since + std::chrono::seconds(1)) signal_all(SIGKILL);
  }

  void signal_all(int signal) {
    for (const pid_t process : running_) {
      if (process != 0) ::kill(process, signal);
    }
  }

  std::vector<pid_t> running_;  // 0: ended
  std::vector<EndedProcess> ended_;
  std::optional<Clock::time_point> ending_since_;  // one failed, or a signal was passed on
  bool has_failed_ = false;                        // before a signal was passed on
  int passed_on_ = 0;
  bool asked_ = false;  // by SIGTERM, after the grace
};

}  // namespace

std::string own_program() {
  std::error_code unknown;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", unknown);
  return unknown ? "contextile" : path.string();
}

std::vector<EndedProcess> run_processes(std::span<const std::vector<std::string>> commands,
                                        std::chrono::milliseconds grace) {
  const RememberSignals signals;
  return Processes(commands).wait(grace);
}

}  // namespace contextile

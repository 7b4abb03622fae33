#include "cli/commands/stop_on_signal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

#include "base/check.h"
#include "cli/commands/command.h"
#include "cli/output.h"

namespace contextile {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};
constexpr std::chrono::seconds kMostTime{8};  // from the signal to the end of the process

// NOTE: global because signals are. A handler writes a byte here for each signal that arrived.
int signal_pipe = -1;
void pass_on(int) {
  const char byte = 1;
  static_cast<void>(!::write(signal_pipe, &byte, 1));
}

volatile std::sig_atomic_t has_come = 0;
void note(int) { has_come = 1; }

void handle_first_signals(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (const int signal : kSignals) ::sigaction(signal, &action, nullptr);
}

}  // namespace

void note_first_signals() { handle_first_signals(note); }
bool first_signal_has_come() { return has_come != 0; }

StopOnSignal::StopOnSignal(CompletionServer& server) : server_(&server) {
  if (::pipe2(ends_, O_CLOEXEC) != 0) {
    fail_io("serve: cannot open a pipe: {}", std::generic_category().message(errno));
  }
  signal_pipe = ends_[1];
  handle_first_signals(pass_on);
  waiter_ = std::thread([this] { wait_for_signal(); });
}
void StopOnSignal::wait_for_signal() {
  char byte = 0;
  while (::read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
  }
  if (byte == 0) return;
  has_come_ = true;
  std::unique_lock lock(mutex_);
  if (server_ != nullptr) server_->stop("the server was stopped by a signal");
  if (ended_.wait_for(lock, kMostTime, [this] { return has_ended_; })) return;
  print_error(fmt::format(
      "serve: expected its work to end within {} s of the signal, found some still under way",
      kMostTime.count()));
  ::_exit(kExitEnvironment);
}
void StopOnSignal::forget_server() {
  const std::lock_guard lock(mutex_);
  server_ = nullptr;
}
StopOnSignal::~StopOnSignal() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    ended_.notify_all();
  }
  note_first_signals();
  ::close(ends_[1]);
  waiter_.join();
  ::close(ends_[0]);
}

}  // namespace contextile

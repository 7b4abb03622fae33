#include "cli/commands/stop_on_signal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

#include "base/check.h"

namespace contextile {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

// NOTE: global because signals are. A handler writes a byte here for each signal that arrived.
int signal_pipe = -1;
void pass_on(int) {
  const char byte = 1;
  static_cast<void>(!::write(signal_pipe, &byte, 1));
}
void ignore(int) {}

void handle_first_signals(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (const int signal : kSignals) ::sigaction(signal, &action, nullptr);
}

}  // namespace

void ignore_first_signals() { handle_first_signals(ignore); }

StopOnSignal::StopOnSignal(CompletionServer& server) {
  if (::pipe2(ends_, O_CLOEXEC) != 0) {
    fail_io("serve: cannot open a pipe: {}", std::generic_category().message(errno));
  }
  signal_pipe = ends_[1];
  handle_first_signals(pass_on);
  waiter_ = std::thread([this, &server] {
    char byte = 0;
    while (::read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
    }
    if (byte != 0) server.stop("the server was stopped by a signal");
  });
}
StopOnSignal::~StopOnSignal() {
  handle_first_signals(ignore);
  ::close(ends_[1]);
  waiter_.join();
  ::close(ends_[0]);
}

}  // namespace contextile

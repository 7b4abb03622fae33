// Children of a test, made by fork.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace contextile {

// Runs `body` in a child, side by side with this process.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<int()>& body) : process_(::fork()) {
    if (process_ != 0) return;
    ::alarm(60);  // a child that hangs ends by this signal
    ::_exit(body());
  }
  // Waits for its end. Returns its exit status, or -1 if it did not end by itself.
  [[nodiscard]] int status() const {
    int status = 0;
    if (process_ < 0 || ::waitpid(process_, &status, 0) != process_) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  const pid_t process_;
};

}  // namespace contextile

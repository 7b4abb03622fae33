// The process that made an object. Threads do not survive a fork, so that in a child an object with
// threads has none that works for it, and its locks may be held for ever.
#pragma once

#include <unistd.h>

#include <string_view>

#include "base/check.h"

namespace contextile {

class ProcessOwner {
 public:
  // Written out, because Clang default-initializes no const member of a class without one.
  ProcessOwner() : process_(::getpid()) {}

  // Returns true in a child that inherited the object by fork. There the object is left alone: its
  // threads are not joined, its locks not taken.
  [[nodiscard]] bool is_forked() const { return ::getpid() != process_; }

  // Throws InvalidArgument in such a child. `what` names the object: "this group of ranks".
  void check(std::string_view what) const {
    CONTEXTILE_CHECK(!is_forked(),
                     "{}: expected the process that made it, {}, found {}, forked from it: make it "
                     "in the child, or start the child with 'spawn'",
                     what, process_, ::getpid());
  }

 private:
  pid_t process_;
};

}  // namespace contextile

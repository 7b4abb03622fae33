// Warpgroups of a CTA that take turns: threads of which one runs at a time, until it waits for what
// another one does. The next one is drawn at random, the same for the same seed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "base/rng.h"

namespace contextile::cuda {

class GroupTurns {
 public:
  GroupTurns(int num_groups, std::uint64_t seed);

  // Calls work(group) for all groups and returns when all have ended. Throws what a group throws,
  // and InvalidArgument if all remaining groups wait.
  void run(const std::function<void(int group)>& work);
  // For the group whose turn it is: returns in a later turn of it, when `ready` says so. Only
  // groups in their turns change the state that `ready` looks at.
  void wait_until(int group, std::function<bool()> ready);

 private:
  struct Stopped {};  // another group has thrown

  // Passes the turn on. Needs the lock.
  void pass_on();
  void stop(std::exception_ptr error);

  const int num_groups_;
  Rng rng_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<bool()>> ready_;  // null: it has ended
  int current_ = -1;
  std::exception_ptr error_;
};

}  // namespace contextile::cuda

#include "support/group_turns.h"

#include <cstddef>
#include <thread>
#include <utility>

#include "contextile/base.h"

namespace contextile::cuda {

GroupTurns::GroupTurns(int num_groups, std::uint64_t seed)
    : num_groups_(num_groups),
      rng_(seed),
      ready_(static_cast<std::size_t>(num_groups), [] { return true; }) {}

void GroupTurns::run(const std::function<void(int group)>& work) {
  const auto turns_of = [&](int group) {
    try {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return current_ == group || error_ != nullptr; });
        if (error_ != nullptr) return;
      }
      work(group);
      const std::lock_guard lock(mutex_);
      ready_[static_cast<std::size_t>(group)] = nullptr;
      pass_on();
    } catch (const Stopped&) {
    } catch (...) {
      const std::lock_guard lock(mutex_);
      stop(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int group = 0; group < num_groups_; ++group) threads.emplace_back(turns_of, group);
    const std::lock_guard lock(mutex_);
    pass_on();
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void GroupTurns::wait_until(int group, std::function<bool()> ready) {
  std::unique_lock lock(mutex_);
  ready_[static_cast<std::size_t>(group)] = std::move(ready);
  pass_on();
  changed_.wait(lock, [&] { return current_ == group || error_ != nullptr; });
  if (error_ != nullptr) throw Stopped();
}

void GroupTurns::pass_on() {
  std::vector<int> able;
  bool is_over = true;
  for (int group = 0; group < num_groups_; ++group) {
    const auto& ready = ready_[static_cast<std::size_t>(group)];
    is_over = is_over && ready == nullptr;
    if (ready != nullptr && ready()) able.push_back(group);
  }
  if (able.empty() && !is_over) {
    stop(std::make_exception_ptr(
        InvalidArgument("expected a group that can go on, found all waiting for each other")));
    return;
  }
  current_ = is_over ? -1 : able[rng_.next() % able.size()];
  changed_.notify_all();
}

void GroupTurns::stop(std::exception_ptr error) {
  if (error_ == nullptr) error_ = std::move(error);
  changed_.notify_all();
}

}  // namespace contextile::cuda

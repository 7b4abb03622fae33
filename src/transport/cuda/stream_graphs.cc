#include "transport/cuda/stream_graphs.h"

#include <algorithm>

namespace contextile::cuda {

GroupGraphs::GroupGraphs(std::span<RankStreams* const> ranks)
    : driver_(ranks.front()->driver),
      stream_(driver_.create_stream()),
      begun_(driver_.create_event()) {
  for (const RankStreams* rank : ranks) {
    for (const Stream stream : {rank->compute, rank->moves}) {
      streams_.push_back(stream);
      ended_.push_back(driver_.create_event());
    }
  }
}

GroupGraphs::~GroupGraphs() {
  for (const auto& [number, kept] : kept_) driver_.free_graph(kept.graph);
}

void GroupGraphs::spread() {
  driver_.record(begun_, stream_);
  for (const Stream stream : streams_) driver_.wait(stream, begun_);
}

void GroupGraphs::gather() {
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    driver_.record(ended_[s], streams_[s]);
    driver_.wait(stream_, ended_[s]);
  }
}

void GroupGraphs::begin() {
  const std::lock_guard lock(mutex_);
  driver_.begin_capture(stream_);
  is_open_ = true;
  takes_part_.assign(streams_.size() / 2, true);
  spread();
}

std::int64_t GroupGraphs::end() {
  const std::lock_guard lock(mutex_);
  gather();
  is_open_ = false;
  capture_is_over_.notify_all();
  kept_[++last_number_] = {driver_.end_capture(stream_), streams_.size() / 2};
  return last_number_;
}

void GroupGraphs::launch(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  gather();
  driver_.launch_graph(stream_, kept_.at(number).graph);
  spread();
}

void GroupGraphs::forget(std::int64_t number) noexcept {
  const std::lock_guard lock(mutex_);
  const auto at = kept_.find(number);
  if (at == kept_.end() || --at->second.num_ranks > 0) return;
  driver_.free_graph(at->second.graph);
  kept_.erase(at);
}

void GroupGraphs::leave(Rank rank) noexcept {
  std::unique_lock lock(mutex_);
  if (!is_open_) return;
  takes_part_[rank.index()] = false;
  if (std::ranges::find(takes_part_, true) == takes_part_.end()) {
    driver_.drop_capture(stream_);
    is_open_ = false;
    capture_is_over_.notify_all();
  }
  capture_is_over_.wait(lock, [this] { return !is_open_; });
}

template <typename Work>
void RankGraphs::alone(const Work& work) {
  barrier(control_);
  if (control_.rank() == Rank{0}) work();
  barrier(control_);
}

void RankGraphs::begin_capture() {
  alone([this] { group_->begin(); });
}

std::int64_t RankGraphs::end_capture() {
  alone([this] { group_->launch(group_->end()); });
  return group_->last_number();
}

void RankGraphs::replay(std::int64_t number) {
  alone([&] { group_->launch(number); });
}

}  // namespace contextile::cuda

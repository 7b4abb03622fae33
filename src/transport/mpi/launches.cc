#include "transport/mpi/launches.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "transport/failure_text.h"
#include "transport/mpi/session.h"

namespace contextile {
namespace {

// How often a waiting thread looks for SIGTERM, because a signal handler cannot wake it.
constexpr std::chrono::milliseconds kSignalPeriod{20};

}  // namespace

MpiLaunches::MpiLaunches(Rank rank, std::int32_t num_ranks, std::chrono::milliseconds timeout)
    : rank_(rank),
      timeout_(timeout),
      pairs_(static_cast<std::size_t>(num_ranks)),
      last_moved_(Clock::now()) {}

std::int64_t MpiLaunches::launch(std::span<const Message> sends, std::span<const Message> recvs) {
  auto launch = std::make_shared<MpiLaunch>();
  launch->ends = make_ends(rank_, static_cast<std::int32_t>(pairs_.size()), sends, recvs);
  launch->num_open = static_cast<std::int64_t>(launch->ends.size());
  Lock lock(mutex_);
  launch->ticket = next_ticket_++;
  if (failed_) throw_failure(fmt::format("launch {}", launch->ticket));
  for (PostedEnd& end : launch->ends) {
    MpiDeparture& posted = pairs_[end.peer.index()].posted;
    end.number = end.is_send ? posted.num_sent++ : posted.num_expected++;
  }
  launches_.emplace(launch->ticket, launch);
  if (!launch->ends.empty()) {
    posted_.push_back(launch);
    has_orders_ = true;
    ordered_.notify_one();
  }
  return launch->ticket;
}

void MpiLaunches::wait(std::int64_t ticket) {
  Lock lock(mutex_);
  const auto found = launches_.find(ticket);
  CONTEXTILE_CHECK(found != launches_.end(),
                   "rank {}, wait: expected a launch under way, found ticket {}", rank_.value,
                   ticket);
  const std::shared_ptr<MpiLaunch> launch = found->second;
  const std::string operation = fmt::format("wait for launch {}", ticket);
  const Clock::time_point start = Clock::now();
  while (launch->num_open > 0) {
    if (failed_) throw_failure(fmt::format("{}, {}", operation, open_ends(launch->ends)));
    std::string text;
    const Clock::time_point deadline = std::max(last_moved_, start) + timeout_;
    if (const PostedEnd* end = abandoned_end(*launch)) {
      text = fmt::format("rank {}, {}: rank {} left the group; open: {}", rank_.value, operation,
                         end->peer.value, open_ends(launch->ends));
    } else if (Clock::now() >= deadline) {
      text = fmt::format("rank {}, {}: nothing moved to or from this rank for {} ms; open: {}",
                         rank_.value, operation, timeout_.count(), open_ends(launch->ends));
    } else if (SigtermWatch::has_come()) {
      text = fmt::format(
          "rank {}, {}: received SIGTERM, as launchers send it when a process of the job has "
          "died; open: {}",
          rank_.value, operation, open_ends(launch->ends));
    }
    if (!text.empty()) {
      announcement_ = text;
      set_failure(text);
      throw TransportError(text);
    }
    try {
      wait_a_while(moved_, lock, std::min(deadline, Clock::now() + kSignalPeriod));
    } catch (...) {
      announcement_ = fmt::format("rank {} gave up: {}", rank_.value, interrupt_text());
      set_failure(announcement_);
      throw;
    }
  }
  launches_.erase(ticket);
}

// Returns an end that can never move because its peer is gone without having posted its side, or
// null.
const PostedEnd* MpiLaunches::abandoned_end(const MpiLaunch& launch) const {
  for (const PostedEnd& end : launch.ends) {
    const Pair& pair = pairs_[end.peer.index()];
    const std::int64_t posted = end.is_send ? pair.theirs.num_expected : pair.theirs.num_sent;
    if (pair.left && !end.moved && end.number >= posted) return &end;
  }
  return nullptr;
}

void MpiLaunches::abort(std::string_view reason) {
  Lock lock(mutex_);
  if (failed_) return;
  announcement_ = gave_up_text(rank_, reason);
  set_failure(gave_up_text(rank_, reason));
}

void MpiLaunches::close() {
  Lock lock(mutex_);
  if (!launches_.empty() && !failed_) {
    const auto text = [&] {
      return failure_text("rank {} left the group without waiting for launch {}", rank_.value,
                          launches_.begin()->first);
    };
    announcement_ = text();
    set_failure(text());
  }
  closing_ = true;
  has_orders_ = true;
  ordered_.notify_one();
}

void MpiLaunches::set_failure(std::string text) {
  if (failed_) return;
  failed_ = true;
  failure_ = std::move(text);
  {
    const std::lock_guard<std::mutex> memory_lock(memory_mutex_);
    memory_closed_ = true;
  }
  has_orders_ = true;
  moved_.notify_all();
  ordered_.notify_one();
}

void MpiLaunches::throw_failure(const std::string& operation) const {
  throw TransportError(fmt::format("rank {}, {}: {}", rank_.value, operation, failure_));
}

std::vector<OpenTransfer> MpiLaunches::open_transfers() const {
  const Lock lock(mutex_);
  std::vector<OpenTransfer> open;
  for (const auto& [ticket, launch] : launches_) {
    append_open_transfers(ticket, launch->ends, open);
  }
  return open;
}

std::int64_t MpiLaunches::sent_bytes() const {
  const Lock lock(mutex_);
  return sent_bytes_;
}

std::int64_t MpiLaunches::received_bytes() const {
  const Lock lock(mutex_);
  return received_bytes_;
}

// --------------------------------------------------------------------------- the progress thread

MpiOrders MpiLaunches::take() {
  const Lock lock(mutex_);
  has_orders_ = false;
  return {std::exchange(posted_, {}), std::exchange(announcement_, {}), failed_, closing_};
}

void MpiLaunches::pause(std::chrono::microseconds at_most) {
  Lock lock(mutex_);
  ordered_.wait_for(lock, at_most, [this] { return has_orders_; });
}

void MpiLaunches::finish(MpiLaunch& launch, std::size_t end) {
  const Lock lock(mutex_);
  PostedEnd& moved = launch.ends[end];
  moved.moved = true;
  (moved.is_send ? sent_bytes_ : received_bytes_) += moved.size_bytes;
  if (--launch.num_open == 0) moved_.notify_all();
}

void MpiLaunches::note_progress() {
  const Lock lock(mutex_);
  last_moved_ = Clock::now();
}

void MpiLaunches::fail(std::string text) {
  const Lock lock(mutex_);
  if (failed_) return;
  announcement_ = failure_text("{}", text);
  set_failure(std::move(text));
}

void MpiLaunches::fail_by_peer(std::string text) {
  const Lock lock(mutex_);
  set_failure(std::move(text));
}

void MpiLaunches::depart(Rank peer, MpiDeparture departure) {
  const Lock lock(mutex_);
  Pair& pair = pairs_[peer.index()];
  pair.theirs = departure;
  pair.left = true;
  moved_.notify_all();
}

MpiDeparture MpiLaunches::departure_for(Rank peer) const {
  const Lock lock(mutex_);
  return pairs_[peer.index()].posted;
}

}  // namespace contextile

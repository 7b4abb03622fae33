#include "transport/inproc_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "transport/failure_text.h"
#include "transport/strided_copy.h"

namespace contextile {

InprocGroup::InprocGroup(std::int32_t num_ranks, const InprocOptions& options,
                         std::unique_ptr<SegmentMover> mover)
    : options_(options),
      mover_(std::move(mover)),
      last_moved_(Clock::now()),
      delay_rng_(options.delay_seed) {
  CONTEXTILE_CHECK(num_ranks >= 1, "in-process group: expected at least 1 rank, found {}",
                   num_ranks);
  CONTEXTILE_CHECK(options.timeout.count() > 0,
                   "in-process group: expected a positive timeout, found {} ms",
                   options.timeout.count());
  CONTEXTILE_CHECK(options.max_delay_us >= 0,
                   "in-process group: expected a delay of at least 0 us, found {}",
                   options.max_delay_us);
  const auto size = static_cast<std::size_t>(num_ranks);
  for (std::size_t r = 0; r < size; ++r) ranks_.push_back(std::make_unique<RankState>());
  channels_.resize(size * size);
  // Without delays the posting threads copy everything.
  if (options_.max_delay_us > 0) delay_thread_ = std::thread([this] { run_delayed(); });
}

InprocGroup::~InprocGroup() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    delayed_changed_.notify_all();
  }
  if (delay_thread_.joinable()) delay_thread_.join();
}

// Posts all ends of the launch under one lock, then copies the messages that are complete without
// it. A copy is counted before the lock is released, so that a rank which gives up in the meantime
// waits for it.
std::int64_t InprocGroup::launch(Rank rank, std::span<const Message> sends,
                                 std::span<const Message> recvs) {
  auto launch = std::make_shared<Launch>();
  launch->rank = rank;
  launch->ends = make_ends(rank, size(), sends, recvs);
  launch->num_open = static_cast<std::int64_t>(launch->ends.size());
  launch->moved.resize(launch->ends.size());
  if (mover_ != nullptr) launch->ready = mover_->ready(rank, launch->num_open);

  std::vector<Transfer> ready;
  {
    Lock lock(mutex_);
    launch->ticket = state(rank).next_ticket++;
    const std::string operation = fmt::format("launch {}", launch->ticket);
    if (failed_) throw_failure(lock, rank, operation);
    for (std::size_t i = 0; i < launch->ends.size(); ++i) {
      post({launch, i}, ready);
      // An end that does not fit makes the group fail before any copy of this launch has begun.
      if (failed_) throw_failure(lock, rank, operation);
    }
    state(rank).launches.emplace(launch->ticket, launch);
    for (const Transfer& transfer : ready) begin_copy(transfer);
  }
  try {
    copy_all(ready);
  } catch (const std::exception&) {
    Lock lock(mutex_);
    drain(lock, rank);
    throw;
  }
  return launch->ticket;
}

// Matches the posted end with the oldest waiting one of the other side, or queues it. Needs the
// lock.
void InprocGroup::post(const EndOfLaunch& posted, std::vector<Transfer>& ready) {
  const bool is_send = posted.end().is_send;
  const Rank rank = posted.launch->rank;
  const Rank src = is_send ? rank : posted.end().peer;
  const Rank dst = is_send ? posted.end().peer : rank;
  // The n-th send of a pair meets its n-th receive: both sides must launch in the same order.
  Channel& pair = channel(src, dst);
  std::deque<EndOfLaunch>& others = is_send ? pair.recvs : pair.sends;
  if (others.empty()) {
    (is_send ? pair.sends : pair.recvs).push_back(posted);
    return;
  }
  const EndOfLaunch other = std::move(others.front());
  others.pop_front();
  const std::int64_t number = pair.num_matched++;
  const Transfer transfer = is_send ? Transfer{posted, other} : Transfer{other, posted};
  // Sizes are compared only here, because neither side knows the other's before.
  const std::int64_t sent = transfer.send.end().size_bytes;
  const std::int64_t expected = transfer.recv.end().size_bytes;
  if (sent != expected) {
    set_failure(rank,
                fmt::format("message {} from rank {} to rank {} does not fit: rank {} sends {} "
                            "bytes, rank {} expects {} bytes",
                            number, src.value, dst.value, src.value, sent, dst.value, expected));
    return;
  }
  posted.end().matched = true;
  other.end().matched = true;
  if (options_.max_delay_us == 0) {
    ready.push_back(transfer);
    return;
  }
  // A delayed transfer is not yet counted as a copy. It is dropped if the group fails before it is
  // due.
  const auto range = static_cast<std::uint64_t>(options_.max_delay_us) + 1;
  const auto delay =
      std::chrono::microseconds(static_cast<std::int64_t>(delay_rng_.next() % range));
  delayed_.push({Clock::now() + delay, next_order_++, transfer});
  delayed_changed_.notify_one();
}

// Counts a copy for both ranks, since it touches the memory of both. Needs the lock.
void InprocGroup::begin_copy(const Transfer& transfer) {
  ++state(transfer.send.launch->rank).num_copies;
  ++state(transfer.recv.launch->rank).num_copies;
}

std::int64_t InprocGroup::copy(const Transfer& transfer) {
  const auto& [send, recv] = transfer;
  if (mover_ != nullptr) {
    return mover_->move(send.end(), send.launch->ready, recv.launch->rank, recv.end(),
                        recv.launch->ready);
  }
  copy_segments(send.end().segments, recv.end().segments);
  return 0;
}

void InprocGroup::copy_all(std::span<const Transfer> ready) {
  for (std::size_t i = 0; i < ready.size(); ++i) {
    std::int64_t moved = 0;
    try {
      moved = copy(ready[i]);
    } catch (const std::exception& error) {
      const Lock lock(mutex_);
      // The transfers behind the one that failed will not be copied either.
      for (const Transfer& transfer : ready.subspan(i)) drop_copy(transfer);
      set_failure(ready[i].send.launch->rank,
                  fmt::format("a message was not moved: {}", error.what()));
      throw;
    }
    const Lock lock(mutex_);
    finish_copy(ready[i], moved);
  }
}

void InprocGroup::drop_copy(const Transfer& transfer) {
  for (const EndOfLaunch* side : {&transfer.send, &transfer.recv}) {
    RankState& rank = state(side->launch->rank);
    --rank.num_copies;
    rank.changed.notify_all();  // it may be draining
  }
}

void InprocGroup::finish_copy(const Transfer& transfer, std::int64_t moved) {
  // Every message extends the deadline of all waits: a rank may wait long for peers that make
  // progress.
  last_moved_ = Clock::now();
  state(transfer.send.launch->rank).sent_bytes += transfer.send.end().size_bytes;
  state(transfer.recv.launch->rank).received_bytes += transfer.recv.end().size_bytes;
  for (const EndOfLaunch* side : {&transfer.send, &transfer.recv}) {
    side->end().moved = true;
    side->moved() = moved;
    --side->launch->num_open;
    --state(side->launch->rank).num_copies;
    state(side->launch->rank).changed.notify_all();
  }
}

// Copies delayed transfers when they are due, the earliest first, without the lock. A new transfer
// wakes the thread, because it may be due earlier than the one that the thread waits for.
void InprocGroup::run_delayed() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (failed_) delayed_ = {};
    if (delayed_.empty()) {
      delayed_changed_.wait(lock);
      continue;
    }
    const Clock::time_point due = delayed_.top().due;
    if (Clock::now() < due) {
      delayed_changed_.wait_until(lock, due);
      continue;
    }
    const Transfer transfer = delayed_.top().transfer;
    delayed_.pop();
    begin_copy(transfer);
    lock.unlock();
    try {
      copy_all({&transfer, 1});
    } catch (const std::exception&) {  // the group has failed, which all ranks hear of
    }
    lock.lock();
  }
}

void InprocGroup::wait(Rank rank, std::int64_t ticket) {
  Lock lock(mutex_);
  RankState& mine = state(rank);
  const auto found = mine.launches.find(ticket);
  CONTEXTILE_CHECK(found != mine.launches.end(),
                   "rank {}, wait: expected a launch under way, found ticket {}", rank.value,
                   ticket);
  const std::shared_ptr<Launch> launch = found->second;
  const std::string operation = fmt::format("wait for launch {}", ticket);
  const Clock::time_point start = Clock::now();
  // A launch whose messages have all moved ends well, even if the group has failed since. Otherwise
  // the group's failure comes first, then a peer that is gone, then the deadline.
  while (launch->num_open > 0) {
    if (failed_)
      throw_failure(lock, rank, fmt::format("{}, {}", operation, open_ends(launch->ends)));
    if (const PostedEnd* end = abandoned_end(*launch)) {
      const std::string text =
          fmt::format("rank {}, {}: rank {} left the group; open: {}", rank.value, operation,
                      end->peer.value, open_ends(launch->ends));
      set_failure(rank, text);
      drain(lock, rank);
      throw TransportError(text);
    }
    // The time counts from the latest movement in the group or from the begin of this wait.
    const Clock::time_point deadline = std::max(last_moved_, start) + options_.timeout;
    if (Clock::now() >= deadline) {
      const std::string text =
          fmt::format("rank {}, {}: nothing moved in the group for {} ms; open: {}", rank.value,
                      operation, options_.timeout.count(), open_ends(launch->ends));
      set_failure(rank, text);
      drain(lock, rank);
      throw TransportError(text);
    }
    try {
      wait_a_while(mine.changed, lock, deadline);
    } catch (...) {
      set_failure(rank, fmt::format("rank {} gave up: {}", rank.value, interrupt_text()));
      drain(lock, rank);
      throw;
    }
  }
  mine.launches.erase(ticket);
  // Movers are called without the lock, here as in `copy`.
  lock.unlock();
  if (mover_ == nullptr) return;
  try {
    for (const std::int64_t moved : launch->moved) mover_->wait(rank, moved);
  } catch (const std::exception& error) {
    lock.lock();
    set_failure(rank, fmt::format("rank {}, {}: {}", rank.value, operation, error.what()));
    drain(lock, rank);
    throw;
  }
}

// Returns an end that can never move because its peer is gone and has not posted its side, or null.
const PostedEnd* InprocGroup::abandoned_end(const Launch& launch) const {
  for (const PostedEnd& end : launch.ends) {
    if (!end.matched && ranks_[end.peer.index()]->left) return &end;
  }
  return nullptr;
}

// Keeps the first failure only: later ones are mostly its consequences. Wakes all waiting ranks.
void InprocGroup::set_failure(Rank rank, std::string text) {
  if (failed_) return;
  failed_ = true;
  failed_rank_ = rank;
  failure_ = std::move(text);
  for (const auto& other : ranks_) other->changed.notify_all();
  delayed_changed_.notify_all();
}

// Waits until no copy touches this rank's memory. A failed group begins no further copies, so the
// number only falls.
void InprocGroup::drain(Lock& lock, Rank rank) {
  RankState& mine = state(rank);
  mine.changed.wait(lock, [&] { return mine.num_copies == 0; });
}

// The rank that caused the failure throws TransportError, and all others throw GroupFailed.
void InprocGroup::throw_failure(Lock& lock, Rank rank, const std::string& operation) {
  drain(lock, rank);
  const std::string text = fmt::format("rank {}, {}: {}", rank.value, operation, failure_);
  if (rank == failed_rank_) throw TransportError(text);
  throw GroupFailed(text);
}

void InprocGroup::fail(Rank rank, std::string_view reason) {
  Lock lock(mutex_);
  set_failure(rank, gave_up_text(rank, reason));
  drain(lock, rank);
}

// A rank that has left posts no further ends, so all waits look again for ends that need one.
void InprocGroup::leave(Rank rank) {
  Lock lock(mutex_);
  RankState& mine = state(rank);
  if (!mine.launches.empty()) {
    set_failure(rank, failure_text("rank {} left the group without waiting for launch {}",
                                   rank.value, mine.launches.begin()->first));
  }
  drain(lock, rank);
  mine.left = true;
  for (const auto& other : ranks_) other->changed.notify_all();
}

std::vector<OpenTransfer> InprocGroup::open_transfers(Rank rank) const {
  const Lock lock(mutex_);
  std::vector<OpenTransfer> open;
  for (const auto& [ticket, launch] : ranks_[rank.index()]->launches) {
    append_open_transfers(ticket, launch->ends, open);
  }
  return open;
}

std::int64_t InprocGroup::sent_bytes(Rank rank) const {
  const Lock lock(mutex_);
  return ranks_[rank.index()]->sent_bytes;
}

std::int64_t InprocGroup::received_bytes(Rank rank) const {
  const Lock lock(mutex_);
  return ranks_[rank.index()]->received_bytes;
}

}  // namespace contextile

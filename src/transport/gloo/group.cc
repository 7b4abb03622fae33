#include "transport/gloo/group.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "transport/failure_text.h"
#include "transport/gloo/rendezvous.h"

namespace contextile {
namespace {

// Longest time that a leaving rank waits for its peers, in a working group and in a failed one.
constexpr std::chrono::milliseconds kMostForLeaving{5'000};
constexpr std::chrono::milliseconds kMostForFailing{1'000};
constexpr std::int32_t kMostUnanswered = 3;  // pings that a running process leaves unanswered

}  // namespace

// ----------------------------------------------------------------------------- coming and leaving

GlooGroup::GlooGroup(const GlooOptions& options, std::unique_ptr<GlooMesh> mesh,
                     const std::vector<HostAndPort>& members)
    : options_(options),
      ping_interval_(std::clamp(options.timeout / 8, std::chrono::milliseconds(1),
                                std::chrono::milliseconds(200))),
      mesh_(std::move(mesh)),
      last_moved_(Clock::now()) {
  try {
    start(members);
  } catch (...) {
    {
      const Lock lock(mutex_);
      set_failure(interrupt_text());
    }
    leave();
    throw;
  }
}

void GlooGroup::start(const std::vector<HostAndPort>& members) {
  const Clock::time_point deadline = Clock::now() + options_.connect_timeout;
  for (std::int32_t r = 0; r < size(); ++r) {
    peers_.push_back(r == rank().value ? nullptr : std::make_unique<Peer>());
    if (r != rank().value) peers_.back()->rank = Rank{r};
  }
  // Connects to all peers, then starts two threads for each.
  if (mesh_) mesh_->connect(members, deadline);
  for (const auto& peer : peers_) {
    if (peer) peer->link = mesh_->link(peer->rank);
  }
  Lock lock(mutex_);
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->controls.push_back({FrameKind::kHello, rank().value, size(), ""});
    peer->last_heard = Clock::now();
    peer->is_sending = true;
    peer->sender = std::thread([this, &peer = *peer] { run_sender(peer); });
    peer->receiver = std::thread([this, &peer = *peer] { run_receiver(peer); });
  }
  // Waits until every peer has said hello.
  std::vector<std::int32_t> missing;
  bool lost = false;
  const auto all_here = [&] {
    missing.clear();
    for (const auto& peer : peers_) {
      if (!peer || peer->greeted) continue;
      missing.push_back(peer->rank.value);
      lost = lost || peer->gone;
    }
    return missing.empty();
  };
  while (!all_here()) {
    // A peer that has heard of all ranks may give up at once. Then the complete group has failed,
    // which the first launch reports.
    if (failed_gathering_ || lost) throw_failure(lock, "rendezvous");
    wait_a_while(changed_, lock, deadline);
    if (Clock::now() >= deadline && !all_here()) {
      throw TransportError(fmt::format("rank {}, rendezvous: no word of {} in {} ms", rank().value,
                                       list_of_ranks(missing, size()),
                                       options_.connect_timeout.count()));
    }
  }
  gathering_ = false;
}

GlooGroup::~GlooGroup() {
  {
    Lock lock(mutex_);
    if (!launches_.empty()) {
      set_failure(fmt::format("rank {} left the group without waiting for launch {}", rank().value,
                              launches_.begin()->first));
    }
    drain(lock);
  }
  leave();
}

// Leaves the group. Connections are closed only when the peers have read how this rank's part
// ended, because data on its way would be lost with them.
void GlooGroup::leave() {
  Lock lock(mutex_);
  for (const auto& peer : peers_) {
    if (!peer || failed_) continue;
    peer->controls.push_back({FrameKind::kLeave});
    peer->work.notify_all();
  }
  const auto limit = failed_ ? kMostForFailing : kMostForLeaving;
  const Clock::time_point deadline =
      Clock::now() + std::min<std::chrono::milliseconds>(limit, options_.timeout);
  const auto wait_for_peers = [&](const auto& is_done) {
    changed_.wait_until(lock, deadline, [&] {
      return std::all_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
        return !peer || !peer->is_sending || peer->gone || is_done(*peer) ||
               (failed_ && peer->num_unanswered >= kMostUnanswered);
      });
    });
  };
  wait_for_peers([](const Peer& peer) { return peer.has_seen; });
  closing_ = true;
  for (const auto& peer : peers_) {
    if (peer) peer->work.notify_all();
  }
  // Only answers are left to send. Gloo does not report when it drops one with its connection.
  wait_for_peers([](const Peer&) { return false; });
  lock.unlock();
  stop_threads();
}

void GlooGroup::stop_threads() {
  for (const auto& peer : peers_) {
    if (!peer || !peer->link) continue;
    peer->link->stop_sending();
    peer->link->stop_receiving();
  }
  for (const auto& peer : peers_) {
    if (!peer) continue;
    if (peer->sender.joinable()) peer->sender.join();
    if (peer->receiver.joinable()) peer->receiver.join();
  }
}

// ------------------------------------------------------------------------------ launching, waiting

std::int64_t GlooGroup::launch(std::span<const Message> sends, std::span<const Message> recvs) {
  const auto launch = std::make_shared<Launch>();
  launch->ends = make_ends(rank(), size(), sends, recvs);
  launch->num_open = static_cast<std::int64_t>(launch->ends.size());
  for (const PostedEnd& end : launch->ends) {
    launch->progress.push_back({SegmentCursor(end.segments)});
  }
  Lock lock(mutex_);
  launch->ticket = next_ticket_++;
  const std::string operation = fmt::format("launch {}", launch->ticket);
  if (failed_) throw_failure(lock, operation);
  // A send waits until the peer has announced its receive; a receive is announced to the peer.
  for (std::size_t i = 0; i < launch->ends.size(); ++i) {
    const PostedEnd& end = launch->ends[i];
    Peer& peer = *peers_[end.peer.index()];
    if (end.is_send) {
      peer.sends.push_back({launch, i});
      meet(peer);
      if (failed_) throw_failure(lock, operation);
    } else {
      peer.recvs.push_back({launch, i});
      peer.controls.push_back({FrameKind::kPosted, peer.num_recvs_posted++, end.size_bytes, ""});
    }
    peer.work.notify_all();
  }
  launches_.emplace(launch->ticket, launch);
  return launch->ticket;
}

// Queues the sends whose receive the peer has announced for its sender thread. Needs the lock.
void GlooGroup::meet(Peer& peer) {
  while (!failed_ && !peer.sends.empty() && !peer.announced.empty()) {
    const EndOfLaunch sent = std::move(peer.sends.front());
    const std::int64_t expected_bytes = peer.announced.front();
    peer.sends.pop_front();
    peer.announced.pop_front();
    const std::int64_t number = peer.num_sends_met++;
    if (sent.end().size_bytes != expected_bytes) {
      set_failure(
          fmt::format("message {} from rank {} to rank {} does not fit: rank {} sends {} "
                      "bytes, rank {} expects {} bytes",
                      number, rank().value, peer.rank.value, rank().value, sent.end().size_bytes,
                      peer.rank.value, expected_bytes));
      return;
    }
    peer.outgoing.push_back(sent);
  }
}

// Notes that a piece of a message has moved. Returns true if it was the last one.
bool GlooGroup::advance(const EndOfLaunch& moved, std::int64_t bytes) {
  ++num_moved_;
  last_moved_ = Clock::now();
  PostedEnd& end = moved.end();
  moved.progress().moved_bytes += bytes;
  if (moved.progress().moved_bytes < end.size_bytes) return false;
  end.moved = true;
  --moved.launch->num_open;
  (end.is_send ? sent_bytes_ : received_bytes_) += end.size_bytes;
  return true;
}

void GlooGroup::wait(std::int64_t ticket) {
  Lock lock(mutex_);
  const auto found = launches_.find(ticket);
  CONTEXTILE_CHECK(found != launches_.end(),
                   "rank {}, wait: expected a launch under way, found ticket {}", rank().value,
                   ticket);
  const std::shared_ptr<Launch> launch = found->second;
  const std::string operation = fmt::format("wait for launch {}", ticket);
  const Clock::time_point start = Clock::now();
  Clock::time_point next_ping = start + ping_interval_;
  while (launch->num_open > 0) {
    if (failed_) throw_failure(lock, fmt::format("{}, {}", operation, open_ends(launch->ends)));
    if (const PostedEnd* end = abandoned_end(*launch)) {
      fail_wait(lock, fmt::format("rank {}, {}: rank {} left the group; open: {}", rank().value,
                                  operation, end->peer.value, open_ends(launch->ends)));
    }
    const Clock::time_point now = Clock::now();
    const Clock::time_point deadline = std::max(last_moved_, start) + options_.timeout;
    if (now >= deadline) {
      fail_wait(lock, fmt::format("rank {}, {}: nothing moved in the group for {} ms; open: {}{}",
                                  rank().value, operation, options_.timeout.count(),
                                  open_ends(launch->ends), silent_peers()));
    }
    if (now >= next_ping) {
      ping_peers();
      next_ping = now + ping_interval_;
    }
    try {
      wait_a_while(changed_, lock, std::min(deadline, next_ping));
    } catch (...) {
      set_failure(fmt::format("rank {} gave up: {}", rank().value, interrupt_text()));
      drain(lock);
      throw;
    }
  }
  launches_.erase(ticket);
}

// Pings all peers. Their answers show which peers live, which have died silently, and whether bytes
// move elsewhere.
void GlooGroup::ping_peers() {
  for (const auto& peer : peers_) {
    if (!peer || peer->left || peer->gone) continue;
    ++peer->num_unanswered;
    // A ping that is not sent yet says as much as two.
    if (!peer->controls.empty() && peer->controls.back().kind == FrameKind::kPing) continue;
    peer->controls.push_back({FrameKind::kPing});
    peer->work.notify_all();
  }
}

// Returns an end that can never move because its peer has left the group, or null.
const PostedEnd* GlooGroup::abandoned_end(const Launch& launch) const {
  for (const PostedEnd& end : launch.ends) {
    if (!end.moved && peers_[end.peer.index()]->left) return &end;
  }
  return nullptr;
}

bool GlooGroup::is_silent(const Peer& peer) {
  return !peer.left && peer.num_unanswered >= kMostUnanswered;
}

std::string GlooGroup::silent_peers() const {
  std::string text;
  for (const auto& peer : peers_) {
    if (!peer || !is_silent(*peer)) continue;
    const auto silent =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - peer->last_heard);
    text +=
        fmt::format("; no sign of life from rank {} for {} ms", peer->rank.value, silent.count());
  }
  return text;
}

// ---------------------------------------------------------------------------------------- failing

// Every rank passes on the first failure that it hears of: the rank that reported it may be gone
// before the others hear.
void GlooGroup::set_failure(std::string text, bool while_gathering) {
  if (failed_) return;
  failed_ = true;
  failed_gathering_ = while_gathering;
  failure_ = std::move(text);
  for (const auto& peer : peers_) {
    if (!peer) continue;
    std::erase_if(peer->controls, [](const Control& c) { return c.kind != FrameKind::kHello; });
    try {
      peer->controls.push_back({FrameKind::kAbort, while_gathering ? 1 : 0, 0, failure_});
    } catch (const std::bad_alloc&) {
      // The peer learns it when the connection closes.
    }
    peer->work.notify_all();
  }
  changed_.notify_all();
}

void GlooGroup::drain(Lock& lock) {
  changed_.wait(lock, [&] { return num_copies_ == 0; });
}

void GlooGroup::fail_wait(Lock& lock, const std::string& text) {
  set_failure(text);
  drain(lock);
  throw TransportError(text);
}

void GlooGroup::throw_failure(Lock& lock, const std::string& operation) {
  drain(lock);
  throw TransportError(fmt::format("rank {}, {}: {}", rank().value, operation, failure_));
}

void GlooGroup::fail(std::string_view reason) {
  Lock lock(mutex_);
  set_failure(gave_up_text(rank(), reason));
  drain(lock);
}

std::vector<Rank> GlooGroup::silent_ranks() const {
  const Lock lock(mutex_);
  std::vector<Rank> silent;
  for (const auto& peer : peers_) {
    if (peer && is_silent(*peer)) silent.push_back(peer->rank);
  }
  return silent;
}

std::vector<OpenTransfer> GlooGroup::open_transfers() const {
  const Lock lock(mutex_);
  std::vector<OpenTransfer> open;
  for (const auto& [ticket, launch] : launches_) {
    append_open_transfers(ticket, launch->ends, open);
  }
  return open;
}

std::int64_t GlooGroup::sent_bytes() const {
  const Lock lock(mutex_);
  return sent_bytes_;
}

std::int64_t GlooGroup::received_bytes() const {
  const Lock lock(mutex_);
  return received_bytes_;
}

}  // namespace contextile

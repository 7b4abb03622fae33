// The launches of one rank of an MPI job. The thread that drives the rank posts them and waits for
// them; its progress thread moves them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/extend/transport.h"
#include "transport/posted_end.h"

namespace contextile {

struct MpiLaunch {
  std::int64_t ticket = 0;
  std::int64_t num_open = 0;    // ends that have not moved
  std::vector<PostedEnd> ends;  // the progress thread changes only their `moved`, by `finish`
};

// The work that the progress thread has to do next.
struct MpiOrders {
  std::vector<std::shared_ptr<MpiLaunch>> posted;
  std::string announcement;  // a failure of this rank that the peers have to hear of, once
  bool failed = false;
  bool closing = false;
};

// Numbers of messages that one rank had posted to and from another when it left.
struct MpiDeparture {
  std::int64_t num_sent = 0;
  std::int64_t num_expected = 0;
};

// The launches of one rank, which its two threads share.
//
// Invariant: the progress thread touches no memory of the caller's once `abort`, `close` or a
// throwing `launch` or `wait` has returned. It copies only through `with_memory`, which a failure
// ends. Nothing waits for that thread itself: some MPIs do not return from a call when a peer has
// died.
class MpiLaunches {
 public:
  MpiLaunches(Rank rank, std::int32_t num_ranks, std::chrono::milliseconds timeout);

  // ---- the thread that drives the rank
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs);
  void wait(std::int64_t ticket);
  void abort(std::string_view reason);
  // Says that the rank will not be heard of again. If it never waited for a launch, that is a
  // failure.
  void close();
  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const;
  [[nodiscard]] std::int64_t sent_bytes() const;
  [[nodiscard]] std::int64_t received_bytes() const;

  // ---- the progress thread
  [[nodiscard]] MpiOrders take();
  // Returns when there is something to take, or after that time.
  void pause(std::chrono::microseconds at_most);
  void finish(MpiLaunch& launch, std::size_t end);
  void note_progress();  // a piece has moved
  // The first failure of a group is the one that all ranks hear of.
  void fail(std::string text);          // noticed here: the peers must hear of it
  void fail_by_peer(std::string text);  // reported by a peer
  void depart(Rank peer, MpiDeparture departure);
  [[nodiscard]] MpiDeparture departure_for(Rank peer) const;
  // Runs copy() unless the group has failed; returns true if it ran. copy() must not call this
  // object.
  template <typename Copy>
  bool with_memory(const Copy& copy) {
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    if (memory_closed_) return false;
    copy();
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Pair {           // with one peer
    MpiDeparture posted;  // by this rank
    MpiDeparture theirs;  // by the peer, once it has left
    bool left = false;
  };

  void set_failure(std::string text);
  [[noreturn]] void throw_failure(const std::string& operation) const;
  [[nodiscard]] const PostedEnd* abandoned_end(const MpiLaunch& launch) const;

  const Rank rank_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable moved_;    // for the thread that drives the rank
  std::condition_variable ordered_;  // for the progress thread
  std::vector<Pair> pairs_;
  std::map<std::int64_t, std::shared_ptr<MpiLaunch>> launches_;  // not yet waited, by ticket
  std::vector<std::shared_ptr<MpiLaunch>> posted_;               // not yet taken
  std::int64_t next_ticket_ = 0;
  std::int64_t sent_bytes_ = 0;
  std::int64_t received_bytes_ = 0;
  Clock::time_point last_moved_;
  std::string failure_;
  std::string announcement_;
  bool failed_ = false;
  bool closing_ = false;
  bool has_orders_ = false;

  std::mutex memory_mutex_;  // held while the caller's memory is touched; taken after mutex_
  bool memory_closed_ = false;
};

}  // namespace contextile

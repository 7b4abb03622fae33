// The state that the ranks of one in-process group share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/transport.h"
#include "transport/posted_end.h"

namespace contextile {

// Thrown on every rank that did not cause the failure itself, so that a caller who joins all ranks
// can tell the cause from its echoes.
class GroupFailed : public TransportError {
 public:
  using TransportError::TransportError;
};

// Moves bytes from one rank's memory to another's: at once, or by work on devices that the ranks
// order among themselves. Tokens are the mover's own.
class SegmentMover {
 public:
  virtual ~SegmentMover() = default;
  // Called when a rank launches `num_ends` messages. Returns a token for the work after which the
  // rank's memory is ready.
  virtual std::int64_t ready(Rank rank, std::int64_t num_ends) = 0;
  // Called once both ends are posted, without the group's lock, on the thread of either end or
  // another one. Returns a token for the work after which the bytes have moved.
  virtual std::int64_t move(const PostedEnd& send, std::int64_t send_ready, Rank receiver,
                            const PostedEnd& recv, std::int64_t recv_ready) = 0;
  // Called when a rank waits for a launch, once for each of its ends. The rank's next work runs
  // after `moved`.
  virtual void wait(Rank rank, std::int64_t moved) = 0;
};

// The group. Messages wait in one FIFO per ordered pair of ranks until both ends are posted. Then
// the thread that posted the second end copies, or the delay thread does later.
//
// Invariant: no copy that touches a rank's memory is under way or will start once `fail`, `leave`,
// or a throwing `launch` or `wait` of that rank has returned. A rank may then free its buffers.
class InprocGroup {
 public:
  // Copies in this process's memory unless another mover is given.
  InprocGroup(std::int32_t num_ranks, const InprocOptions& options,
              std::unique_ptr<SegmentMover> mover = nullptr);
  ~InprocGroup();
  InprocGroup(const InprocGroup&) = delete;
  InprocGroup& operator=(const InprocGroup&) = delete;

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ranks_.size()); }
  std::int64_t launch(Rank rank, std::span<const Message> sends, std::span<const Message> recvs);
  void wait(Rank rank, std::int64_t ticket);
  // Makes `rank` give up. The first failure of a group is the one that all ranks hear of.
  void fail(Rank rank, std::string_view reason);
  // Says that `rank` will not be heard of again. If it never waited for a launch, that is a
  // failure.
  void leave(Rank rank);
  [[nodiscard]] std::vector<OpenTransfer> open_transfers(Rank rank) const;
  [[nodiscard]] std::int64_t sent_bytes(Rank rank) const;
  [[nodiscard]] std::int64_t received_bytes(Rank rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Launch {
    Rank rank;
    std::int64_t ticket = 0;
    std::int64_t ready = 0;     // the mover's token
    std::int64_t num_open = 0;  // ends that have not moved
    std::vector<PostedEnd> ends;
    std::vector<std::int64_t> moved;  // the mover's token of every end
  };
  struct EndOfLaunch {
    std::shared_ptr<Launch> launch;
    std::size_t index = 0;
    [[nodiscard]] PostedEnd& end() const { return launch->ends[index]; }
    [[nodiscard]] std::int64_t& moved() const { return launch->moved[index]; }
  };
  struct Transfer {
    EndOfLaunch send;
    EndOfLaunch recv;
  };
  struct DelayedTransfer {
    Clock::time_point due;
    std::uint64_t order = 0;
    Transfer transfer;
    friend bool operator<(const DelayedTransfer& a, const DelayedTransfer& b) {
      return a.due != b.due ? a.due > b.due : a.order > b.order;  // the queue pops the largest
    }
  };
  struct Channel {  // of one ordered pair; at most one side is non-empty
    std::deque<EndOfLaunch> sends;
    std::deque<EndOfLaunch> recvs;
    std::int64_t num_matched = 0;
  };
  struct RankState {
    std::map<std::int64_t, std::shared_ptr<Launch>> launches;  // not yet waited, by ticket
    std::int64_t next_ticket = 0;
    std::int64_t sent_bytes = 0;
    std::int64_t received_bytes = 0;
    std::int32_t num_copies = 0;  // under way that touch this rank's memory
    bool left = false;
    mutable std::condition_variable changed;
  };

  RankState& state(Rank rank) { return *ranks_[rank.index()]; }
  Channel& channel(Rank src, Rank dst) {
    return channels_[src.index() * ranks_.size() + dst.index()];
  }
  void post(const EndOfLaunch& posted, std::vector<Transfer>& ready);
  void begin_copy(const Transfer& transfer);
  std::int64_t copy(const Transfer& transfer);
  void finish_copy(const Transfer& transfer, std::int64_t moved);
  void drop_copy(const Transfer& transfer);  // one that was begun and failed
  // Copies transfers that were begun; without the lock. If one fails, the group fails with it, and
  // its error is thrown.
  void copy_all(std::span<const Transfer> ready);
  void run_delayed();
  void set_failure(Rank rank, std::string text);
  void drain(Lock& lock, Rank rank);
  [[noreturn]] void throw_failure(Lock& lock, Rank rank, const std::string& operation);
  [[nodiscard]] const PostedEnd* abandoned_end(const Launch& launch) const;

  const InprocOptions options_;
  const std::unique_ptr<SegmentMover> mover_;  // null: copies in memory
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::vector<Channel> channels_;  // [src][dst]
  Clock::time_point last_moved_;
  bool failed_ = false;
  Rank failed_rank_;
  std::string failure_;

  // State of the delay thread; unused without delays.
  Rng delay_rng_;
  std::priority_queue<DelayedTransfer> delayed_;
  std::uint64_t next_order_ = 0;
  std::condition_variable delayed_changed_;
  bool stopping_ = false;
  std::thread delay_thread_;
};

}  // namespace contextile

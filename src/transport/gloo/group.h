// One rank's end of a gloo group: the messages that have met, and the threads that move them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "contextile/extend/transport.h"
#include "transport/gloo/frame.h"
#include "transport/gloo/link.h"
#include "transport/posted_end.h"
#include "transport/strided_copy.h"

namespace contextile {

// One rank's end of a gloo group. A message is sent only after its receiver has announced its end
// (kPosted). So data never waits for a launch, and frames that tell of failures are never stuck
// behind data. Each peer has one thread that fills frames and one that reads them.
//
// Invariant: no copy that touches the caller's memory is under way or will start once `fail`,
// `leave`, or a throwing `launch` or `wait` has returned.
class GlooGroup {
 public:
  // Connects to the peers at their addresses, by rank, and returns when all have said hello.
  GlooGroup(const GlooOptions& options, std::unique_ptr<GlooMesh> mesh,
            const std::vector<HostAndPort>& members);
  // Leaves the group. If a launch was never waited for, that is a failure.
  ~GlooGroup();
  GlooGroup(const GlooGroup&) = delete;
  GlooGroup& operator=(const GlooGroup&) = delete;

  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs);
  void wait(std::int64_t ticket);
  // Makes this rank give up. The first failure of a group is the one that all ranks hear of.
  void fail(std::string_view reason);
  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const;
  [[nodiscard]] std::vector<Rank> silent_ranks() const;
  [[nodiscard]] std::int64_t sent_bytes() const;
  [[nodiscard]] std::int64_t received_bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Progress {        // of a message that moves piece by piece
    SegmentCursor cursor;  // at the next piece
    std::int64_t moved_bytes = 0;
  };
  struct Launch {
    std::int64_t ticket = 0;
    std::int64_t num_open = 0;  // ends that have not moved
    std::vector<PostedEnd> ends;
    std::vector<Progress> progress;  // by end
  };
  struct EndOfLaunch {
    std::shared_ptr<Launch> launch;
    std::size_t index = 0;
    [[nodiscard]] PostedEnd& end() const { return launch->ends[index]; }
    [[nodiscard]] Progress& progress() const { return launch->progress[index]; }
  };
  struct Control {  // a frame without data
    FrameKind kind{};
    std::int64_t number = 0;
    std::int64_t message_bytes = 0;
    std::string text{};
  };
  struct Peer {
    Rank rank;
    std::unique_ptr<GlooLink> link;
    std::deque<EndOfLaunch> sends;       // launched, not yet announced by the peer
    std::deque<std::int64_t> announced;  // sizes of its receives that no send has met
    std::deque<EndOfLaunch> outgoing;    // launched and announced, to be sent
    std::deque<EndOfLaunch> recvs;       // launched, not all there
    std::deque<Control> controls;        // go before data
    std::int64_t num_sends_met = 0;
    std::int64_t num_recvs_posted = 0;
    std::int64_t num_moved = 0;       // of the last frame of the peer
    std::int32_t num_unanswered = 0;  // pings since the last frame of the peer
    Clock::time_point last_heard;
    bool greeted = false;     // has said hello
    bool left = false;        // will send no more
    bool has_seen = false;    // has read how this rank's part ended
    bool gone = false;        // has no connection any more
    bool is_sending = false;  // its sender thread has not ended
    std::condition_variable work;
    std::thread sender;
    std::thread receiver;
  };

  [[nodiscard]] std::int32_t size() const { return options_.size; }
  [[nodiscard]] Rank rank() const { return options_.rank; }

  // group.cc: launches and waits.
  void meet(Peer& peer);
  [[nodiscard]] bool advance(const EndOfLaunch& moved, std::int64_t bytes);
  void set_failure(std::string text, bool while_gathering);
  void set_failure(std::string text) { set_failure(std::move(text), gathering_); }
  void drain(Lock& lock);
  [[noreturn]] void fail_wait(Lock& lock, const std::string& text);
  [[noreturn]] void throw_failure(Lock& lock, const std::string& operation);
  void ping_peers();
  [[nodiscard]] const PostedEnd* abandoned_end(const Launch& launch) const;
  [[nodiscard]] static bool is_silent(const Peer& peer);
  [[nodiscard]] std::string silent_peers() const;
  void start(const std::vector<HostAndPort>& members);
  void leave();
  void stop_threads();

  // group_threads.cc: what the threads of a peer do.
  void run_sender(Peer& peer) noexcept;
  void run_receiver(Peer& peer) noexcept;
  [[nodiscard]] std::size_t fill(Peer& peer, std::span<std::byte> frame);
  [[nodiscard]] std::size_t fill_data(Lock& lock, Peer& peer, std::span<std::byte> frame);
  void read(Peer& peer, const FrameHeader& header, std::span<const std::byte> payload);
  void read_data(Lock& lock, Peer& peer, std::span<const std::byte> payload);
  void read_hello(Peer& peer, const FrameHeader& header);
  void lose(Peer& peer, std::string_view why);

  const GlooOptions options_;
  const std::chrono::milliseconds ping_interval_;
  std::unique_ptr<GlooMesh> mesh_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Peer>> peers_;                  // by rank; none for this one
  std::map<std::int64_t, std::shared_ptr<Launch>> launches_;  // not yet waited, by ticket
  std::int64_t next_ticket_ = 0;
  std::int64_t sent_bytes_ = 0;
  std::int64_t received_bytes_ = 0;
  std::int64_t num_moved_ = 0;    // pieces sent and received
  std::int32_t num_copies_ = 0;   // under way that touch the caller's memory
  Clock::time_point last_moved_;  // time when a piece last moved, anywhere as far as is known
  bool gathering_ = true;         // not all have said hello
  bool failed_ = false;
  bool failed_gathering_ = false;  // it failed before all had said hello
  bool closing_ = false;
  std::string failure_;
};

}  // namespace contextile

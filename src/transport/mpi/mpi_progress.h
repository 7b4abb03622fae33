// The thread that moves the messages of one rank of an MPI job.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/mpi/launches.h"
#include "transport/mpi/wire.h"
#include "transport/strided_copy.h"

namespace contextile {

// One message on its way, in pieces.
struct MpiParcel {
  MpiParcel(std::shared_ptr<MpiLaunch> owner, std::size_t index, std::int64_t piece_bytes);
  [[nodiscard]] PostedEnd& end() const { return launch->ends[end_index]; }

  std::shared_ptr<MpiLaunch> launch;
  std::size_t end_index = 0;
  SegmentCursor cursor;
  std::int64_t num_unstarted = 0;  // pieces; at least one, so that an empty message is heard of
  std::int64_t num_unmoved = 0;
  std::int64_t started_bytes = 0;
  std::int64_t moved_bytes = 0;
};

// Moves the messages of one rank. MPI moves large messages only inside MPI calls; this thread makes
// them while kernels compute. It shares only the launches with other threads.
//
// Every message is sent as one or more pieces. The header of a piece names the message, its size
// and the place of the piece in it. Pieces are packed into and unpacked from memory of this thread.
//
// At the end every rank tells its peers what it sent, takes what is still on its way to it, and
// leaves the communicator empty. After a failure that may be impossible; then the communicator
// stays.
class MpiProgress {
 public:
  MpiProgress(std::unique_ptr<MpiWire> wire, std::shared_ptr<MpiLaunches> launches,
              std::int64_t piece_bytes);

  // Runs for the thread's whole life. After MpiLaunches::close it ends when all peers have left, or
  // a short time later if they do not.
  void run() noexcept;
  // Waits for that end. Returns false if it does not come because MPI does not return.
  [[nodiscard]] bool has_ended();

 private:
  using Clock = std::chrono::steady_clock;

  struct Peer {
    std::deque<std::shared_ptr<MpiParcel>> sends;     // with pieces to start
    std::deque<std::shared_ptr<MpiParcel>> receives;  // the same
    std::deque<std::shared_ptr<MpiPiece>> arriving;   // posted receives, oldest first
    std::int64_t num_sending = 0;                     // pieces
    std::int64_t num_sent = 0;
    std::int64_t num_arrived = 0;
    std::int64_t num_expected = 0;  // pieces, once it has left
    bool left = false;
  };

  bool turn();  // returns true if anything moved
  bool hear_notes();
  void accept(const std::vector<std::shared_ptr<MpiLaunch>>& posted);
  void start_pieces(Rank rank, Peer& peer);
  void start_send(Rank rank, Peer& peer);
  void start_receive(Rank rank, Peer& peer, std::shared_ptr<MpiParcel> parcel);
  bool complete_pieces();
  void complete_send(Peer& peer, MpiPiece& piece);
  void complete_arrived(Rank rank, Peer& peer);
  bool unpack(Rank rank, MpiPiece& piece);  // returns false if the group has failed
  void move_piece(MpiParcel& parcel);
  void stop();
  void tell_all(const MpiNote& note);
  void close_turn();
  void leave();
  void take_rest(Rank rank, Peer& peer);
  void pause(bool moved);
  [[nodiscard]] std::unique_ptr<std::byte[]> take_memory();

  const std::unique_ptr<MpiWire> wire_;
  const std::shared_ptr<MpiLaunches> launches_;
  const std::int64_t piece_bytes_;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<std::byte[]>> free_memory_;
  std::int64_t num_still_turns_ = 0;  // number of calls of turn() since anything moved
  bool stopped_ = false;              // the group has failed: nothing touches the caller's memory
  bool deaf_ = false;                 // MPI fails: no more notes
  bool leaving_ = false;
  bool done_ = false;
  Clock::time_point leave_deadline_;

  std::mutex end_mutex_;
  std::condition_variable end_changed_;
  bool ended_ = false;
};

}  // namespace contextile

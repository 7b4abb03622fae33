// The traffic over MPI between one rank and its peers: pieces of messages, and short notes.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contextile/base.h"

namespace contextile {

struct MpiParcel;

// One MPI message under way.
struct MpiPiece {
  enum class Kind : std::uint8_t { kSend, kReceive, kNote };
  Kind kind = Kind::kSend;
  Rank peer;
  std::unique_ptr<std::byte[]> memory;
  std::int64_t size_bytes = 0;        // of a receive: room at first, then what has come
  std::shared_ptr<MpiParcel> parcel;  // the message that it is part of; none: it is dropped
  bool completed = false;
  bool cancelled = false;
  std::string error;  // empty: none
};

struct MpiNote {
  enum class Kind : std::int32_t { kAbort, kLeave };
  Kind kind = Kind::kAbort;
  Rank peer;
  std::int64_t num_sent = 0;      // kLeave: messages the peer posted to this rank,
  std::int64_t num_expected = 0;  // those it expected of it,
  std::int64_t num_pieces = 0;    // and the pieces it sent
  std::string text;               // kAbort: why
};

// A communicator of its own, and the requests under way on it. MPI only ever holds the memory of
// pieces, never the caller's, because a request whose peer is dead or stopped can neither be
// finished nor cancelled. Not thread-safe.
class MpiWire {
 public:
  // Collective over MPI_COMM_WORLD. Throws TransportError if a rank does not come within the
  // timeout, InvalidArgument if the ranks' piece_bytes differ.
  MpiWire(std::chrono::milliseconds timeout, std::int64_t piece_bytes);
  // Requests still open, and the memory they hold, stay for the rest of the process.
  ~MpiWire();
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] std::int32_t size() const { return size_; }
  [[nodiscard]] bool idle() const { return requests_.empty(); }

  // Starts to send or receive a piece. The pieces of one peer arrive in the order in which they are
  // sent, and fill the receives in the order in which these are started.
  void start(const std::shared_ptr<MpiPiece>& piece);
  void start_note(const MpiNote& note);
  // Asks MPI to cancel a receive that nothing will meet. It completes as cancelled.
  void cancel(const MpiPiece& piece);
  // Returns the pieces that have completed since the last call, with their errors.
  [[nodiscard]] std::vector<std::shared_ptr<MpiPiece>> take_completed();
  // Returns a note that has come, if there is one. If MPI reports dead ranks, throws a
  // TransportError that names them.
  [[nodiscard]] std::optional<MpiNote> take_note();
  // Frees the communicator. Nothing may be under way, and every peer must have left.
  void free();

 private:
  void join(std::chrono::milliseconds timeout);
  void check_agreement(std::chrono::milliseconds timeout, std::int64_t piece_bytes);
  // Tests a collective's request until it is done.
  void finish_joining(MPI_Request& request, std::chrono::milliseconds timeout) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  Rank rank_;
  std::int32_t size_ = 0;
  std::vector<MPI_Request> requests_;  // parallel to pieces_
  std::vector<std::shared_ptr<MpiPiece>> pieces_;
  std::vector<int> indices_;          // scratch of take_completed
  std::vector<MPI_Status> statuses_;  // the same
};

}  // namespace contextile

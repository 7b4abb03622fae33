#include "transport/mpi/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "transport/mpi/mpi_call.h"
#include "transport/mpi/session.h"

namespace contextile {
namespace {

constexpr int kPieceTag = 1;
constexpr int kNoteTag = 2;
constexpr std::size_t kMostNoteText = 2000;  // well below what MPIs send at once

struct NoteHeader {
  std::int64_t kind = 0;
  std::int64_t num_sent = 0;
  std::int64_t num_expected = 0;
  std::int64_t num_pieces = 0;
};

int count_of(std::int64_t bytes) { return checked_cast<int>(bytes, "bytes of an MPI message"); }

}  // namespace

MpiWire::MpiWire(std::chrono::milliseconds timeout, std::int64_t piece_bytes) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  rank_ = Rank{rank};
  join(timeout);
  check_agreement(timeout, piece_bytes);
}

MpiWire::~MpiWire() {
  // NOTE: this memory is leaked on purpose, because MPI may still write there.
  for (const std::shared_ptr<MpiPiece>& piece : pieces_) {
    static_cast<void>(piece->memory.release());
  }
}

// Does not use MPI_Comm_dup, which would wait for a missing rank forever.
void MpiWire::join(std::chrono::milliseconds timeout) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request), "MPI_Comm_idup");
  finish_joining(request, timeout);
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

void MpiWire::check_agreement(std::chrono::milliseconds timeout, std::int64_t piece_bytes) {
  const std::array<std::int64_t, 2> mine = {piece_bytes, -piece_bytes};
  std::array<std::int64_t, 2> least{};
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallreduce(mine.data(), least.data(), 2, MPI_INT64_T, MPI_MIN, comm_, &request),
            "MPI_Iallreduce");
  finish_joining(request, timeout);
  CONTEXTILE_CHECK(least[0] == -least[1],
                   "rank {}, joining: expected one piece_bytes on all ranks, found {} to {}",
                   rank_.value, least[0], -least[1]);
}

void MpiWire::finish_joining(MPI_Request& request, std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (std::int64_t turn = 0;; ++turn) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    const bool ended = SigtermWatch::has_come();
    if (ended || std::chrono::steady_clock::now() >= deadline) {
      note_lost_peer();  // a rank that did not come will not come there, either
      throw TransportError(
          fmt::format("rank {} of {}, joining the group: {}", rank_.value, size_,
                      ended ? std::string("received SIGTERM before every rank had come")
                            : fmt::format("not every rank came within {} ms", timeout.count())));
    }
    if (turn < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

void MpiWire::start(const std::shared_ptr<MpiPiece>& piece) {
  const int count = count_of(piece->size_bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  // Makes room first: a request that has begun must not be lost.
  requests_.reserve(requests_.size() + 1);
  pieces_.reserve(pieces_.size() + 1);
  if (piece->kind == MpiPiece::Kind::kReceive) {
    check_mpi(MPI_Irecv(piece->memory.get(), count, MPI_BYTE, piece->peer.value, kPieceTag, comm_,
                        &request),
              fmt::format("MPI_Irecv from rank {}", piece->peer.value));
  } else {
    const int tag = piece->kind == MpiPiece::Kind::kNote ? kNoteTag : kPieceTag;
    check_mpi(
        MPI_Isend(piece->memory.get(), count, MPI_BYTE, piece->peer.value, tag, comm_, &request),
        fmt::format("MPI_Isend to rank {}", piece->peer.value));
  }
  requests_.push_back(request);
  pieces_.push_back(piece);
}

void MpiWire::start_note(const MpiNote& note) {
  const NoteHeader header{static_cast<std::int64_t>(note.kind), note.num_sent, note.num_expected,
                          note.num_pieces};
  const std::size_t text_bytes = std::min(note.text.size(), kMostNoteText);
  auto piece = std::make_shared<MpiPiece>();
  piece->kind = MpiPiece::Kind::kNote;
  piece->peer = note.peer;
  piece->memory = std::make_unique<std::byte[]>(sizeof(header) + text_bytes);
  piece->size_bytes = static_cast<std::int64_t>(sizeof(header) + text_bytes);
  std::memcpy(piece->memory.get(), &header, sizeof(header));
  std::memcpy(piece->memory.get() + sizeof(header), note.text.data(), text_bytes);
  start(piece);
}

void MpiWire::cancel(const MpiPiece& piece) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].get() == &piece) check_mpi(MPI_Cancel(&requests_[i]), "MPI_Cancel");
  }
}

std::vector<std::shared_ptr<MpiPiece>> MpiWire::take_completed() {
  if (requests_.empty()) return {};
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int num_completed = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(),
                                &num_completed, indices_.data(), statuses_.data());
  // The status of each request says whether it went wrong.
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, "MPI_Testsome");
  std::vector<std::shared_ptr<MpiPiece>> completed;
  for (int i = 0; i < num_completed; ++i) {
    const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    MpiPiece& piece = *pieces_[at];
    piece.completed = true;
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
      piece.error = mpi_error_text(status.MPI_ERROR);
    } else if (piece.kind == MpiPiece::Kind::kReceive) {
      int cancelled = 0;
      int count = 0;
      check_mpi(MPI_Test_cancelled(&status, &cancelled), "MPI_Test_cancelled");
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
      piece.cancelled = cancelled != 0;
      piece.size_bytes = count;
    }
    completed.push_back(std::move(pieces_[at]));
  }
  std::size_t num_kept = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i] == nullptr) continue;
    requests_[num_kept] = requests_[i];
    pieces_[num_kept++] = std::move(pieces_[i]);
  }
  requests_.resize(num_kept);
  pieces_.resize(num_kept);
  return completed;
}

std::optional<MpiNote> MpiWire::take_note() {
  int found = 0;
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, kNoteTag, comm_, &found, &status);
  if (code != MPI_SUCCESS) {
    const std::string dead = dead_ranks_text(comm_);
    if (!dead.empty()) throw TransportError(dead);
  }
  check_mpi(code, "MPI_Iprobe");
  if (found == 0) return std::nullopt;
  int count = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  std::vector<char> bytes(static_cast<std::size_t>(count));
  // The note has come already, so this does not wait.
  check_mpi(MPI_Recv(bytes.data(), count, MPI_BYTE, status.MPI_SOURCE, kNoteTag, comm_,
                     MPI_STATUS_IGNORE),
            "MPI_Recv");
  NoteHeader header;
  if (bytes.size() < sizeof(header)) {
    throw TransportError(fmt::format("a note of rank {}: expected {} bytes or more, found {}",
                                     status.MPI_SOURCE, sizeof(header), bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  MpiNote note;
  note.kind = static_cast<MpiNote::Kind>(header.kind);
  note.peer = Rank{status.MPI_SOURCE};
  note.num_sent = header.num_sent;
  note.num_expected = header.num_expected;
  note.num_pieces = header.num_pieces;
  note.text.assign(bytes.begin() + sizeof(header), bytes.end());
  return note;
}

void MpiWire::free() { check_mpi(MPI_Comm_free(&comm_), "MPI_Comm_free"); }

}  // namespace contextile

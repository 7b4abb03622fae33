#include "transport/mpi/mpi_progress.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "transport/failure_text.h"
#include "transport/mpi/session.h"

namespace contextile {
namespace {

// Most pieces under way to a peer, and from it. While one moves, the next is packed.
constexpr std::int64_t kPiecesUnderWay = 2;
// How long a rank that leaves waits for peers to do the same.
constexpr std::chrono::milliseconds kLinger{1000};
// The same once SIGTERM has come. SIGKILL follows within the second, and the error must be printed
// before.
constexpr std::chrono::milliseconds kSignalLinger{200};

struct PieceHeader {
  std::int64_t message = 0;  // number in its pair
  std::int64_t message_bytes = 0;
  std::int64_t offset_bytes = 0;
};
constexpr auto kHeaderBytes = static_cast<std::int64_t>(sizeof(PieceHeader));

std::int64_t num_pieces(std::int64_t bytes, std::int64_t piece_bytes) {
  return std::max<std::int64_t>(1, (bytes + piece_bytes - 1) / piece_bytes);
}

}  // namespace

MpiParcel::MpiParcel(std::shared_ptr<MpiLaunch> owner, std::size_t index, std::int64_t piece_bytes)
    : launch(std::move(owner)),
      end_index(index),
      cursor(end().segments),
      num_unstarted(num_pieces(end().size_bytes, piece_bytes)),
      num_unmoved(num_unstarted) {}

MpiProgress::MpiProgress(std::unique_ptr<MpiWire> wire, std::shared_ptr<MpiLaunches> launches,
                         std::int64_t piece_bytes)
    : wire_(std::move(wire)),
      launches_(std::move(launches)),
      piece_bytes_(piece_bytes),
      peers_(static_cast<std::size_t>(wire_->size())) {
  peers_[wire_->rank().index()].left = true;  // nothing goes to the rank itself
}

bool MpiProgress::has_ended() {
  const Clock::time_point start = Clock::now();
  std::unique_lock<std::mutex> lock(end_mutex_);
  while (!ended_) {
    const auto most = SigtermWatch::has_come() ? kSignalLinger : kLinger + kSignalLinger;
    if (Clock::now() >= start + most) return false;
    end_changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  return true;
}

void MpiProgress::run() noexcept {
  enter_progress_thread();
  const auto fail = [this](const char* error) {
    // An MPI that fails once may fail in every call, so from now on nothing depends on it.
    deaf_ = true;
    launches_->fail(failure_text("rank {}: {}", wire_->rank().value, error));
    if (!stopped_) stop();
  };
  while (!done_) {
    bool moved = false;
    try {
      moved = turn();
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("an exception of unknown type");
    }
    pause(moved);
  }
  const std::lock_guard<std::mutex> lock(end_mutex_);
  ended_ = true;
  end_changed_.notify_all();
}

bool MpiProgress::turn() {
  if (SigtermWatch::has_come()) {
    launches_->fail(fmt::format(
        "rank {} received SIGTERM, as launchers send it when a process of the job has died",
        wire_->rank().value));
  }
  bool moved = hear_notes();
  const MpiOrders orders = launches_->take();
  if (orders.failed && !stopped_) stop();
  if (!orders.announcement.empty()) {
    tell_all({MpiNote::Kind::kAbort, {}, 0, 0, 0, orders.announcement});
  }
  if (!stopped_) accept(orders.posted);
  moved = complete_pieces() || moved;
  if (!stopped_) {
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      start_pieces(Rank{static_cast<std::int32_t>(r)}, peers_[r]);
    }
  }
  if (orders.closing) close_turn();
  return moved || !orders.posted.empty();
}

bool MpiProgress::hear_notes() {
  bool heard = false;
  while (!deaf_) {
    const std::optional<MpiNote> note = wire_->take_note();
    if (!note) break;
    heard = true;
    if (note->kind == MpiNote::Kind::kAbort) {
      launches_->fail_by_peer(without_orders(note->text));
    } else {
      Peer& peer = peers_[note->peer.index()];
      peer.left = true;
      peer.num_expected = note->num_pieces;
      launches_->depart(note->peer, {note->num_sent, note->num_expected});
    }
  }
  return heard;
}

void MpiProgress::accept(const std::vector<std::shared_ptr<MpiLaunch>>& posted) {
  for (const std::shared_ptr<MpiLaunch>& launch : posted) {
    for (std::size_t i = 0; i < launch->ends.size(); ++i) {
      const PostedEnd& end = launch->ends[i];
      Peer& peer = peers_[end.peer.index()];
      (end.is_send ? peer.sends : peer.receives)
          .push_back(std::make_shared<MpiParcel>(launch, i, piece_bytes_));
    }
  }
}

// --------------------------------------------------------------------------------------- pieces

void MpiProgress::start_pieces(Rank rank, Peer& peer) {
  while (!peer.receives.empty() &&
         static_cast<std::int64_t>(peer.arriving.size()) < kPiecesUnderWay) {
    const std::shared_ptr<MpiParcel> parcel = peer.receives.front();
    start_receive(rank, peer, parcel);
    if (--parcel->num_unstarted == 0) peer.receives.pop_front();
  }
  while (!peer.sends.empty() && peer.num_sending < kPiecesUnderWay) start_send(rank, peer);
}

void MpiProgress::start_send(Rank rank, Peer& peer) {
  const std::shared_ptr<MpiParcel> parcel = peer.sends.front();
  const PostedEnd& end = parcel->end();
  const PieceHeader header{end.number, end.size_bytes, parcel->started_bytes};
  const std::int64_t bytes = std::min(piece_bytes_, end.size_bytes - parcel->started_bytes);
  auto piece = std::make_shared<MpiPiece>();
  piece->kind = MpiPiece::Kind::kSend;
  piece->peer = rank;
  piece->memory = take_memory();
  piece->size_bytes = kHeaderBytes + bytes;
  piece->parcel = parcel;
  std::memcpy(piece->memory.get(), &header, sizeof(header));
  const bool packed = launches_->with_memory(
      [&] { parcel->cursor.read(piece->memory.get() + kHeaderBytes, bytes); });
  if (!packed) return stop();
  parcel->started_bytes += bytes;
  wire_->start(piece);
  ++peer.num_sending;
  ++peer.num_sent;
  if (--parcel->num_unstarted == 0) peer.sends.pop_front();
}

// Posts a receive with room for a whole piece, so that a piece of a larger message than expected
// can be named.
void MpiProgress::start_receive(Rank rank, Peer& peer, std::shared_ptr<MpiParcel> parcel) {
  auto piece = std::make_shared<MpiPiece>();
  piece->kind = MpiPiece::Kind::kReceive;
  piece->peer = rank;
  piece->memory = take_memory();
  piece->size_bytes = kHeaderBytes + piece_bytes_;
  piece->parcel = std::move(parcel);
  wire_->start(piece);
  peer.arriving.push_back(std::move(piece));
}

bool MpiProgress::complete_pieces() {
  const std::vector<std::shared_ptr<MpiPiece>> completed = wire_->take_completed();
  std::string error;
  bool moved = false;
  for (const std::shared_ptr<MpiPiece>& piece : completed) {
    Peer& peer = peers_[piece->peer.index()];
    moved = moved || piece->kind != MpiPiece::Kind::kNote;
    if (!piece->error.empty() && error.empty()) {
      error = fmt::format("{} rank {}: {}",
                          piece->kind == MpiPiece::Kind::kReceive ? "receive from" : "send to",
                          piece->peer.value, piece->error);
    }
    if (piece->kind == MpiPiece::Kind::kSend) complete_send(peer, *piece);
    if (piece->kind == MpiPiece::Kind::kReceive) complete_arrived(piece->peer, peer);
  }
  if (moved) launches_->note_progress();
  if (!error.empty() && !stopped_) throw TransportError(error);  // later errors say nothing new
  return moved;
}

void MpiProgress::complete_send(Peer& peer, MpiPiece& piece) {
  --peer.num_sending;
  if (!stopped_ && piece.error.empty()) move_piece(*piece.parcel);
  free_memory_.push_back(std::move(piece.memory));
}

// Pieces may complete in another order than they were sent in. They are unpacked in the order of
// sending.
void MpiProgress::complete_arrived(Rank rank, Peer& peer) {
  while (!peer.arriving.empty() && peer.arriving.front()->completed) {
    const std::shared_ptr<MpiPiece> piece = std::move(peer.arriving.front());
    peer.arriving.pop_front();
    if (!piece->cancelled) ++peer.num_arrived;
    const bool whole = !stopped_ && piece->error.empty() && !piece->cancelled;
    if (whole && piece->parcel != nullptr && unpack(rank, *piece)) move_piece(*piece->parcel);
    free_memory_.push_back(std::move(piece->memory));
  }
}

bool MpiProgress::unpack(Rank rank, MpiPiece& piece) {
  MpiParcel& parcel = *piece.parcel;
  const PostedEnd& end = parcel.end();
  const std::int64_t bytes = piece.size_bytes - kHeaderBytes;
  PieceHeader header{-1, -1, -1};
  if (bytes >= 0) std::memcpy(&header, piece.memory.get(), sizeof(header));
  const std::int32_t own = wire_->rank().value;
  if (header.message == end.number && header.message_bytes != end.size_bytes) {
    launches_->fail(fmt::format(
        "message {} from rank {} to rank {} does not fit: rank {} sends {} bytes, rank {} expects "
        "{} bytes",
        end.number, rank.value, own, rank.value, header.message_bytes, own, end.size_bytes));
    stop();
    return false;
  }
  const std::int64_t expected = std::min(piece_bytes_, end.size_bytes - parcel.moved_bytes);
  if (header.message != end.number || header.offset_bytes != parcel.moved_bytes ||
      bytes != expected) {
    throw TransportError(fmt::format(
        "receive from rank {}: expected message {} at byte {} with {} bytes, found message {} at "
        "byte {} with {} bytes",
        rank.value, end.number, parcel.moved_bytes, expected, header.message, header.offset_bytes,
        bytes));
  }
  parcel.moved_bytes += bytes;
  return launches_->with_memory(
      [&] { parcel.cursor.write(piece.memory.get() + kHeaderBytes, bytes); });
}

void MpiProgress::move_piece(MpiParcel& parcel) {
  if (--parcel.num_unmoved == 0) launches_->finish(*parcel.launch, parcel.end_index);
}

std::unique_ptr<std::byte[]> MpiProgress::take_memory() {
  if (free_memory_.empty()) {
    return std::make_unique_for_overwrite<std::byte[]>(
        static_cast<std::size_t>(kHeaderBytes + piece_bytes_));
  }
  std::unique_ptr<std::byte[]> memory = std::move(free_memory_.back());
  free_memory_.pop_back();
  return memory;
}

// ------------------------------------------------------------------------- failures and the end

// Forgets all messages because the group has failed. Their pieces under way stay with MPI, and are
// dropped when they complete.
void MpiProgress::stop() {
  stopped_ = true;
  for (Peer& peer : peers_) {
    peer.sends.clear();
    peer.receives.clear();
  }
}

// Sends a note to every peer. A peer that cannot be reached does not keep the others from hearing.
void MpiProgress::tell_all(const MpiNote& note) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    MpiNote mine = note;
    mine.peer = Rank{static_cast<std::int32_t>(r)};
    if (mine.peer == wire_->rank()) continue;
    if (note.kind == MpiNote::Kind::kLeave) {
      const MpiDeparture departure = launches_->departure_for(mine.peer);
      mine.num_sent = departure.num_sent;
      mine.num_expected = departure.num_expected;
      mine.num_pieces = peers_[r].num_sent;
    }
    try {
      wire_->start_note(mine);
    } catch (const TransportError&) {
      deaf_ = true;
    }
  }
}

// Leaves the group: tells all peers once, then waits until they have left, too, or for a short
// time.
void MpiProgress::close_turn() {
  if (!leaving_) {
    leaving_ = true;
    leave_deadline_ = Clock::now() + kLinger;
    tell_all({MpiNote::Kind::kLeave, {}, 0, 0, 0, {}});
  }
  bool all_left = true;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r].left) take_rest(Rank{static_cast<std::int32_t>(r)}, peers_[r]);
    all_left = all_left && peers_[r].left;
  }
  if (all_left && wire_->idle()) {
    if (!deaf_) wire_->free();
    done_ = true;
  } else if (Clock::now() >= leave_deadline_ || SigtermWatch::has_come()) {
    if (stopped_) note_lost_peer();
    done_ = true;
  }
}

// Receives what the peer sent before it left, and cancels receives that nothing will meet.
void MpiProgress::take_rest(Rank rank, Peer& peer) {
  if (deaf_) return;
  const std::int64_t missing = peer.num_expected - peer.num_arrived;
  while (static_cast<std::int64_t>(peer.arriving.size()) < std::min(missing, kPiecesUnderWay)) {
    start_receive(rank, peer, nullptr);
  }
  for (std::size_t i = static_cast<std::size_t>(missing); i < peer.arriving.size(); ++i) {
    MpiPiece& surplus = *peer.arriving[i];
    if (!surplus.completed && !std::exchange(surplus.cancelled, true)) wire_->cancel(surplus);
  }
}

void MpiProgress::pause(bool moved) {
  constexpr std::int64_t kEagerTurns = 20;
  num_still_turns_ = moved ? 0 : num_still_turns_ + 1;
  if (num_still_turns_ < kEagerTurns) {
    std::this_thread::yield();
    return;
  }
  // If nothing is under way, this thread only listens for peers that fail.
  const std::int64_t longest_us = wire_->idle() ? 2000 : 200;
  const std::int64_t doublings = std::min<std::int64_t>((num_still_turns_ - kEagerTurns) / 4, 8);
  launches_->pause(std::chrono::microseconds(std::min(longest_us, std::int64_t{10} << doublings)));
}

}  // namespace contextile

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "transport/failure_text.h"
#include "transport/gloo/group.h"

namespace contextile {
namespace {

constexpr std::size_t kMostAnnounced = std::size_t{1} << 20;  // receives without a send
constexpr std::size_t kMostTextBytes = std::size_t{1} << 16;

void write_header(const FrameHeader& header, std::span<std::byte> frame) {
  std::memcpy(frame.data(), &header, sizeof(header));
}

std::string_view text_of(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

}  // namespace

// ---------------------------------------------------------------------------------------- sending

void GlooGroup::run_sender(Peer& peer) noexcept {
  try {
    while (true) {
      {
        Lock lock(mutex_);
        const auto has_work = [&] {
          return !peer.controls.empty() || (!failed_ && !peer.outgoing.empty());
        };
        peer.work.wait(lock, [&] { return has_work() || closing_; });
        if (!has_work()) break;
      }
      const std::span<std::byte> frame = peer.link->next_frame();
      if (frame.empty()) break;
      const std::size_t bytes = fill(peer, frame);
      if (bytes > 0) peer.link->send(bytes);
    }
    peer.link->flush();
  } catch (const std::exception& error) {
    lose(peer, error.what());
  }
  const Lock lock(mutex_);
  peer.is_sending = false;
  changed_.notify_all();
}

// Fills a frame with the next work. Returns its bytes, 0 if the work is gone by now.
std::size_t GlooGroup::fill(Peer& peer, std::span<std::byte> frame) {
  Lock lock(mutex_);
  if (peer.controls.empty()) return fill_data(lock, peer, frame);
  const Control control = std::move(peer.controls.front());
  peer.controls.pop_front();
  const std::size_t text_bytes = std::min(control.text.size(), kMostTextBytes);
  write_header({control.kind, static_cast<std::uint32_t>(text_bytes), control.number,
                control.message_bytes, num_moved_},
               frame);
  std::memcpy(frame.data() + sizeof(FrameHeader), control.text.data(), text_bytes);
  return sizeof(FrameHeader) + text_bytes;
}

std::size_t GlooGroup::fill_data(Lock& lock, Peer& peer, std::span<std::byte> frame) {
  if (failed_ || peer.outgoing.empty()) return 0;
  const EndOfLaunch sent = peer.outgoing.front();
  const std::int64_t size_bytes = sent.end().size_bytes;
  const std::int64_t bytes = std::min(size_bytes - sent.progress().moved_bytes, kPieceBytes);
  write_header({FrameKind::kData, static_cast<std::uint32_t>(bytes), 0, size_bytes, num_moved_},
               frame);
  ++num_copies_;
  lock.unlock();
  sent.progress().cursor.read(frame.data() + sizeof(FrameHeader), bytes);
  lock.lock();
  --num_copies_;
  if (advance(sent, bytes)) peer.outgoing.pop_front();
  changed_.notify_all();
  return sizeof(FrameHeader) + static_cast<std::size_t>(bytes);
}

// -------------------------------------------------------------------------------------- receiving

void GlooGroup::run_receiver(Peer& peer) noexcept {
  try {
    while (true) {
      const std::span<const std::byte> frame = peer.link->receive();
      if (frame.empty()) return;
      FrameHeader header;
      std::memcpy(&header, frame.data(), sizeof(header));
      const std::size_t payload_bytes =
          std::min<std::size_t>(header.payload_bytes, frame.size() - sizeof(header));
      read(peer, header, frame.subspan(sizeof(header), payload_bytes));
      peer.link->release();
    }
  } catch (const std::exception& error) {
    lose(peer, error.what());
  }
}

void GlooGroup::read(Peer& peer, const FrameHeader& header, std::span<const std::byte> payload) {
  Lock lock(mutex_);
  peer.last_heard = Clock::now();
  peer.num_unanswered = 0;
  if (std::exchange(peer.num_moved, header.num_moved) != header.num_moved) {
    last_moved_ = peer.last_heard;
  }
  const bool is_known = header.kind >= FrameKind::kHello && header.kind <= FrameKind::kSeen;
  if (!is_known ||
      (!peer.greeted && header.kind != FrameKind::kHello && header.kind != FrameKind::kAbort)) {
    set_failure(fmt::format("rank {} speaks another protocol", peer.rank.value));
    return;
  }
  switch (header.kind) {
    case FrameKind::kHello:
      read_hello(peer, header);
      break;
    case FrameKind::kPosted:
      if (peer.announced.size() == kMostAnnounced) {
        set_failure(fmt::format("rank {} announced {} messages that rank {} does not send",
                                peer.rank.value, kMostAnnounced, rank().value));
        break;
      }
      peer.announced.push_back(header.message_bytes);
      meet(peer);
      break;
    case FrameKind::kData:
      read_data(lock, peer, payload);
      break;
    case FrameKind::kPing:
      // A pong that waits to be sent answers all pings so far.
      if (peer.controls.empty() || peer.controls.back().kind != FrameKind::kPong) {
        peer.controls.push_back({FrameKind::kPong});
      }
      break;
    case FrameKind::kPong:
      break;
    case FrameKind::kAbort:
      set_failure(without_orders(text_of(payload).substr(0, kMostWordsOfPeers)),
                  header.number != 0);
      peer.controls.push_back({FrameKind::kSeen});
      break;
    case FrameKind::kLeave:
      peer.left = true;
      peer.controls.push_back({FrameKind::kSeen});
      break;
    case FrameKind::kSeen:
      peer.has_seen = true;
      break;
  }
  peer.work.notify_all();
  changed_.notify_all();
}

void GlooGroup::read_hello(Peer& peer, const FrameHeader& header) {
  if (header.number == peer.rank.value && header.message_bytes == size()) {
    peer.greeted = true;
    return;
  }
  set_failure(fmt::format(
      "rank {} is connected to another group: expected rank {} of {}, found rank {} of {}",
      rank().value, peer.rank.value, size(), header.number, header.message_bytes));
}

void GlooGroup::read_data(Lock& lock, Peer& peer, std::span<const std::byte> payload) {
  if (failed_) return;
  const auto bytes = static_cast<std::int64_t>(payload.size());
  const auto open_bytes = [](const EndOfLaunch& recv) {
    return recv.end().size_bytes - recv.progress().moved_bytes;
  };
  if (peer.recvs.empty() || bytes > open_bytes(peer.recvs.front())) {
    set_failure(fmt::format("rank {} sent {} bytes that rank {} does not expect", peer.rank.value,
                            bytes, rank().value));
    return;
  }
  const EndOfLaunch received = peer.recvs.front();
  ++num_copies_;
  lock.unlock();
  received.progress().cursor.write(payload.data(), bytes);
  lock.lock();
  --num_copies_;
  if (advance(received, bytes)) peer.recvs.pop_front();
}

// Notes that nothing more comes from the peer.
void GlooGroup::lose(Peer& peer, std::string_view why) {
  const Lock lock(mutex_);
  peer.gone = true;
  // While this rank leaves the group, its peers disappear one by one; in a failed group they do,
  // too.
  if (!peer.left && !closing_) {
    set_failure(failure_text("rank {} died: its connection to rank {} broke: {}", peer.rank.value,
                             rank().value, why));
  }
  peer.work.notify_all();
  changed_.notify_all();
}

}  // namespace contextile

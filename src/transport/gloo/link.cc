#include "transport/gloo/link.h"

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <csignal>
#include <ctime>
#include <exception>
#include <string_view>
#include <utility>

#include "transport/gloo/frame.h"

namespace contextile {
namespace {

constexpr std::size_t kFrameBytes = sizeof(FrameHeader) + kPieceBytes;
constexpr std::size_t kFramesOfARing = 4;
constexpr std::uint64_t kSlot = 1;
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

sigset_t sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

std::string reason_of(const std::exception& error) {
  std::string_view text = error.what();
  if (text.starts_with('[')) {
    const std::size_t end = text.find("] ");
    if (end != std::string_view::npos) text.remove_prefix(end + 2);
  }
  return std::string(text);
}

// -------------------------------------------------------------------------------------- a link

struct GlooLink::Frame {
  // Not initialized: pages that are never written take no memory.
  std::unique_ptr<std::byte[]> bytes{new std::byte[kFrameBytes]};
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool under_way = false;  // gloo has it
  std::string refusal;     // why it could not be handed to gloo
};

GlooLink::GlooLink(gloo::transport::Context& context, Rank peer) : peer_(peer.value) {
  for (std::vector<Frame>* ring : {&outgoing_, &incoming_}) {
    ring->resize(kFramesOfARing);
    for (Frame& frame : *ring) {
      frame.buffer = context.createUnboundBuffer(frame.bytes.get(), kFrameBytes);
    }
  }
  for (Frame& frame : incoming_) post_receive(frame);
}

GlooLink::~GlooLink() = default;

bool GlooLink::wait_sent(Frame& frame) {
  try {
    while (frame.under_way) {
      if (sending_stopped_) return false;  // an abort wakes one wait only
      frame.under_way = !frame.buffer->waitSend(kForever);
    }
  } catch (const std::exception& error) {
    throw LinkClosed(reason_of(error));
  }
  return !sending_stopped_;
}

std::span<std::byte> GlooLink::next_frame() {
  Frame& frame = outgoing_[next_outgoing_];
  if (!wait_sent(frame)) return {};
  return {frame.bytes.get(), kFrameBytes};
}

void GlooLink::send(std::size_t frame_bytes) {
  Frame& frame = outgoing_[next_outgoing_];
  next_outgoing_ = (next_outgoing_ + 1) % outgoing_.size();
  frame.under_way = true;
  try {
    frame.buffer->send(peer_, kSlot, 0, frame_bytes);
  } catch (const std::exception& error) {
    throw LinkClosed(reason_of(error));
  }
}

void GlooLink::flush() {
  for (Frame& frame : outgoing_) {
    if (!wait_sent(frame)) return;
  }
}

// Posts a receive. A peer that is gone refuses it; the refusal waits until everything the peer sent
// before has been read.
void GlooLink::post_receive(Frame& frame) {
  frame.under_way = true;
  try {
    frame.buffer->recv(peer_, kSlot, 0, kFrameBytes);
  } catch (const std::exception& error) {
    frame.under_way = false;
    frame.refusal = reason_of(error);
  }
}

std::span<const std::byte> GlooLink::receive() {
  Frame& frame = incoming_[next_incoming_];
  if (!frame.under_way) throw LinkClosed(frame.refusal);
  try {
    do {
      if (receiving_stopped_) return {};
    } while (!frame.buffer->waitRecv(kForever));
  } catch (const std::exception& error) {
    throw LinkClosed(reason_of(error));
  }
  return {frame.bytes.get(), kFrameBytes};
}

void GlooLink::release() {
  post_receive(incoming_[next_incoming_]);
  next_incoming_ = (next_incoming_ + 1) % incoming_.size();
}

void GlooLink::stop_sending() {
  sending_stopped_ = true;
  for (Frame& frame : outgoing_) frame.buffer->abortWaitSend();
}

void GlooLink::stop_receiving() {
  receiving_stopped_ = true;
  for (Frame& frame : incoming_) frame.buffer->abortWaitRecv();
}

// ----------------------------------------------------------------------------------- the signal

SigpipeBlock::SigpipeBlock() {
  const sigset_t set = sigpipe();
  sigset_t before;
  sigset_t pending;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &set, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

SigpipeBlock::~SigpipeBlock() {
  if (was_blocked_) return;
  const sigset_t set = sigpipe();
  if (!was_pending_) {  // takes the signal that this object caused
    const timespec now{};
    while (sigtimedwait(&set, nullptr, &now) == -1 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace contextile

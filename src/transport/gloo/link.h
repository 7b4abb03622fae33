// A connected pair of gloo as a stream of frames.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contextile/extend/transport.h"
#include "transport/gloo/greeting.h"
#include "transport/gloo/socket.h"

namespace gloo::transport {
class Context;
class UnboundBuffer;
namespace tcp {
class Device;
}  // namespace tcp
}  // namespace gloo::transport

namespace contextile {

// The peer's end is gone; everything it sent before has been received.
class LinkClosed : public TransportError {
 public:
  using TransportError::TransportError;
};

// Returns gloo's text without the place in gloo's source that it begins with.
[[nodiscard]] std::string reason_of(const std::exception& error);

// A link to one peer. One thread at a time sends, one receives. Each direction has a ring of
// frames: gloo's own thread moves some while the callers fill or read others.
//
// NOTE: gloo ends the process when more data arrives than a receive has room for, and closes every
// connection of a process when one wait runs into its timeout. So every receive has room for the
// largest frame, and waits have no timeout but are woken by `stop_*`.
class GlooLink {
 public:
  GlooLink(gloo::transport::Context& context, Rank peer);
  ~GlooLink();
  GlooLink(const GlooLink&) = delete;
  GlooLink& operator=(const GlooLink&) = delete;

  // Returns the next frame to fill, once gloo has sent its previous content; empty when stopped.
  // Returns the same frame until `send`.
  [[nodiscard]] std::span<std::byte> next_frame();
  void send(std::size_t frame_bytes);
  // Waits until everything is on its way or sending is stopped.
  void flush();

  // Waits for the next frame and returns it (its header says how much of it counts); empty when
  // stopped.
  [[nodiscard]] std::span<const std::byte> receive();
  // Lets gloo reuse the frame that has been read.
  void release();

  // May be called from any thread. Waits return at once, now and later.
  void stop_sending();
  void stop_receiving();

 private:
  struct Frame;

  [[nodiscard]] bool wait_sent(Frame& frame);
  void post_receive(Frame& frame);

  const int peer_;
  std::vector<Frame> outgoing_;
  std::vector<Frame> incoming_;
  std::size_t next_outgoing_ = 0;
  std::size_t next_incoming_ = 0;
  std::atomic<bool> sending_stopped_ = false;
  std::atomic<bool> receiving_stopped_ = false;
};

// Gloo's device with its thread, and a connection to every peer. Gloo's own listeners take the
// first connection that comes for the peer's, and end the process if it does not speak gloo. So
// connections are made and greeted here, and then given to gloo.
class GlooMesh {
 public:
  // Listens for the peers. Throws InvalidArgument if the machine has no such network.
  GlooMesh(const GlooOptions& options, const Member& member, const std::string& hostname);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Returns the address at which the peers find this rank.
  [[nodiscard]] const HostAndPort& address() const { return address_; }
  // Connects to all peers, whose addresses are `members` by rank, and listens no more. Throws
  // TransportError that names a peer.
  void connect(const std::vector<HostAndPort>& members, Clock::time_point deadline);
  [[nodiscard]] std::unique_ptr<GlooLink> link(Rank peer);

 private:
  void call(Rank peer, const HostAndPort& address, Clock::time_point deadline);
  void welcome_callers(Clock::time_point deadline);
  void give(Rank peer, Socket socket, Clock::time_point deadline);
  [[nodiscard]] bool is_linked(Rank peer) const;

  const Member member_;
  Socket listener_;
  HostAndPort address_;
  std::shared_ptr<gloo::transport::tcp::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
};

// While an object of this class lives, writing to a connection that the peer has closed does not
// end the process. Threads that are started in that time keep this for good.
class SigpipeBlock {
 public:
  SigpipeBlock();
  ~SigpipeBlock();
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  bool was_blocked_ = false;
  bool was_pending_ = false;
};

}  // namespace contextile

// A connected pair of gloo as a stream of frames.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contextile/extend/transport.h"

namespace gloo::transport {
class Context;
class Device;
class UnboundBuffer;
}  // namespace gloo::transport

namespace contextile {

// The peer's end is gone; everything it sent before has been received.
class LinkClosed : public TransportError {
 public:
  using TransportError::TransportError;
};

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

// Gloo's device with its thread, and a connection to every peer.
class GlooMesh {
 public:
  // Binds one address per peer; `addresses` returns them. Throws InvalidArgument if the machine has
  // no such network.
  GlooMesh(const GlooOptions& options, const std::string& hostname);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Returns, by rank, the address that the peer needs to connect, in gloo's own form; empty for
  // this rank.
  [[nodiscard]] const std::vector<std::string>& addresses() const { return addresses_; }
  // Connects to the peer, which is at the address.
  void connect(Rank peer, const std::string& address);
  [[nodiscard]] std::unique_ptr<GlooLink> link(Rank peer);

 private:
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::vector<std::string> addresses_;
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

// Messages between the devices of a group as work on their streams. NCCL is used for this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "contextile/base.h"
#include "gpu/driver.h"

namespace contextile::cuda {

// Bytes in one piece of device memory, from or to a peer.
struct PeerBytes {
  Rank peer;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;  // > 0
};

// One rank's end of a communicator. The n-th message to a peer meets the n-th that the peer
// expects.
class PointToPoint {
 public:
  virtual ~PointToPoint() = default;

  // Exchanges a group of messages that move at the same time. The group begins in the order of the
  // stream and ends when all its messages have moved, for which the peers' groups have to begin.
  // Throws DeviceError, and TransportError if peers do not connect in time or `abort` was called.
  virtual void exchange(Stream stream, std::span<const PeerBytes> sends,
                        std::span<const PeerBytes> recvs) = 0;
  // Returns what went wrong with groups under way; empty if nothing did.
  [[nodiscard]] virtual std::string failure() = 0;
  // Ends groups under way, so that streams continue. Any thread may call it. Nothing may be
  // exchanged afterwards.
  virtual void abort() noexcept = 0;
};

}  // namespace contextile::cuda

// The frames that one rank writes to another, in order. Each holds at most a piece of a message.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contextile {

enum class FrameKind : std::uint32_t {
  kHello = 1,  // rank (number), size of the group (message_bytes): the first frame
  kPosted,     // a receive has been launched: its number in the pair, its size
  kData,       // the next piece of the message under way; only after its kPosted
  kPing,       // answered by kPong: shows that the process lives and whether bytes move there
  kPong,
  kAbort,  // the group has failed, payload: why; number: 1 if before all had said hello
  kLeave,  // only kPong and kSeen will follow
  kSeen,   // answers kAbort and kLeave: they have been read, the connection may be closed
};

// Precedes the payload of every frame. The ranks of a group run on machines of one byte order.
struct FrameHeader {
  FrameKind kind{};
  std::uint32_t payload_bytes = 0;
  std::int64_t number = 0;
  std::int64_t message_bytes = 0;
  std::int64_t num_moved = 0;  // pieces that the writer has sent and received so far
};

// Bound on the part of a peer's text that goes into errors; the rest is left out.
inline constexpr std::size_t kMostWordsOfPeers = 4000;  // bytes
inline constexpr std::int64_t kPieceBytes = 1 << 20;    // most data of a frame

}  // namespace contextile

// One message of a launch, seen from the rank that posted it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/extend/transport.h"

namespace contextile {

struct PostedEnd {
  Rank peer;
  std::int64_t size_bytes = 0;
  bool is_send = false;
  bool matched = false;  // the peer has posted its end; known only if both are seen (inproc)
  bool moved = false;
  std::int64_t number = 0;  // among the messages of its pair; counted if the sides are apart (mpi)
  std::vector<Segment> segments;
};

// Returns the ends of a launch of `rank` in a group of that size, sends first. Throws
// InvalidArgument for peers and segments that are impossible.
[[nodiscard]] std::vector<PostedEnd> make_ends(Rank rank, std::int32_t num_ranks,
                                               std::span<const Message> sends,
                                               std::span<const Message> recvs);

// Appends the ends that have not moved, as transfers of the launch with that ticket.
void append_open_transfers(std::int64_t ticket, std::span<const PostedEnd> ends,
                           std::vector<OpenTransfer>& open);

// Lists the ends that have not moved, for errors: the first few, in order.
[[nodiscard]] std::string open_ends(std::span<const PostedEnd> ends);

}  // namespace contextile

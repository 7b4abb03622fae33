#include "transport/posted_end.h"

#include <string_view>

#include "base/check.h"

namespace contextile {
namespace {

void check_message(Rank rank, std::int32_t num_ranks, const Message& message,
                   std::string_view what) {
  CONTEXTILE_CHECK(message.peer.valid() && message.peer.value < num_ranks && message.peer != rank,
                   "rank {}, launch: expected a {} peer among 0 … {} other than itself, found {}",
                   rank.value, what, num_ranks - 1, message.peer.value);
  for (const Segment& segment : message.segments) {
    CONTEXTILE_CHECK(segment.row_bytes >= 0 && segment.num_rows >= 0 &&
                         (segment.data != nullptr || segment.size_bytes() == 0),
                     "rank {}, launch: expected rows in memory, found {} rows of {} bytes at {}",
                     rank.value, segment.num_rows, segment.row_bytes,
                     static_cast<const void*>(segment.data));
  }
}

}  // namespace

std::vector<PostedEnd> make_ends(Rank rank, std::int32_t num_ranks, std::span<const Message> sends,
                                 std::span<const Message> recvs) {
  std::vector<PostedEnd> ends;
  ends.reserve(sends.size() + recvs.size());
  for (const Message& message : sends) {
    check_message(rank, num_ranks, message, "send");
    ends.push_back({message.peer, message.size_bytes(), true, false, false, 0, message.segments});
  }
  for (const Message& message : recvs) {
    check_message(rank, num_ranks, message, "receive");
    ends.push_back({message.peer, message.size_bytes(), false, false, false, 0, message.segments});
  }
  return ends;
}

void append_open_transfers(std::int64_t ticket, std::span<const PostedEnd> ends,
                           std::vector<OpenTransfer>& open) {
  for (const PostedEnd& end : ends) {
    if (!end.moved) open.push_back({ticket, end.peer, end.is_send, end.size_bytes});
  }
}

std::string open_ends(std::span<const PostedEnd> ends) {
  constexpr int kShown = 4;
  std::string text;
  int shown = 0;
  for (const PostedEnd& end : ends) {
    if (end.moved) continue;
    if (shown++ == kShown) {
      text += ", …";
      break;
    }
    if (!text.empty()) text += ", ";
    if (end.segments.empty()) {  // only a barrier sends messages without segments
      text += fmt::format("barrier signal {} rank {}", end.is_send ? "to" : "from", end.peer.value);
    } else {
      text += fmt::format("{} rank {} ({} bytes)", end.is_send ? "send to" : "receive from",
                          end.peer.value, end.size_bytes);
    }
  }
  return text;
}

}  // namespace contextile

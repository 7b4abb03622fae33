#include "contextile/extend/transport.h"

#include <cstring>

#include "base/check.h"

namespace contextile {

TransportUse::TransportUse(Transport& transport, std::string_view call) : transport_(transport) {
  const std::thread::id me = std::this_thread::get_id();
  std::thread::id user = transport.user_.load(std::memory_order_relaxed);
  if (user == me) return;
  user = {};
  CONTEXTILE_CHECK(transport.user_.compare_exchange_strong(user, me, std::memory_order_acquire),
                   "rank {}, {}: expected one call at a time, found a call of another thread under "
                   "way on this transport",
                   transport.rank().value, call);
  is_outermost_ = true;
}

TransportUse::~TransportUse() {
  if (is_outermost_) transport_.user_.store({}, std::memory_order_release);
}

std::int64_t Message::size_bytes() const {
  std::int64_t total = 0;
  for (const Segment& segment : segments) total += segment.size_bytes();
  return total;
}

std::vector<std::vector<std::byte>> all_gather(Transport& transport,
                                               std::span<const std::byte> mine) {
  const std::int32_t size = transport.size();
  const auto bytes = static_cast<std::int64_t>(mine.size());
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(size),
                                          std::vector<std::byte>(mine.begin(), mine.end()));
  // Segments are mutable because receives write them, so this rank's own row is the memory to send.
  std::byte* const own = all[transport.rank().index()].data();
  std::vector<Message> sends;
  std::vector<Message> recvs;
  for (std::int32_t step = 1; step < size; ++step) {
    const std::int32_t to = (transport.rank().value + step) % size;
    const std::int32_t from = (transport.rank().value + size - step) % size;
    sends.push_back({Rank{to}, {Segment{own, bytes, 1, bytes}}});
    recvs.push_back(
        {Rank{from}, {Segment{all[static_cast<std::size_t>(from)].data(), bytes, 1, bytes}}});
  }
  transport.wait(transport.launch(sends, recvs));
  return all;
}

// Uses dissemination: after step s every rank has heard, directly or not, of 2^(s+1) ranks.
void barrier(Transport& transport) {
  const std::int32_t size = transport.size();
  for (std::int32_t distance = 1; distance < size; distance *= 2) {
    const Message send{Rank{(transport.rank().value + distance) % size}, {}};
    const Message recv{Rank{(transport.rank().value + size - distance) % size}, {}};
    transport.wait(transport.launch({&send, 1}, {&recv, 1}));
  }
}

}  // namespace contextile

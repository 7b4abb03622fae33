#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "transport/conformance_support.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

void ranks_are_numbered(Transport& transport, std::int32_t) {
  const std::vector<std::int32_t> ranks = gather_values(transport, transport.rank().value);
  expect(ranks.size() == static_cast<std::size_t>(transport.size()), "expected {} ranks, found {}",
         transport.size(), ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    expect(ranks[r] == static_cast<std::int32_t>(r), "expected rank {}, found {}", r, ranks[r]);
  }
  expect(!transport.name().empty(), "expected a name, found none");
}

void message_arrives_unchanged(Transport& transport, std::int32_t) {
  const std::int32_t rank = transport.rank().value;
  if (rank > 1) return;
  std::int64_t total = 0;
  // Any transport that cuts messages cuts the largest into several pieces and a rest.
  for (const std::size_t size : {1000UL, 1UL, 65'537UL, 9'000'001UL}) {
    total += static_cast<std::int64_t>(size);
    const std::vector<std::byte> sent = pattern(size, 7);
    std::vector<std::byte> bytes = rank == 0 ? sent : std::vector<std::byte>(size);
    const std::vector<Message> message = one(Rank{1 - rank}, whole(bytes));
    transport.wait(rank == 0 ? transport.launch(message, {}) : transport.launch({}, message));
    expect(bytes == sent, "message of {} bytes: found other bytes than were sent", size);
    const std::int64_t counted[] = {transport.sent_bytes(), transport.received_bytes()};
    expect(counted[rank] == total && counted[1 - rank] == 0,
           "expected {} bytes counted, found {} sent and {} received", total, counted[0],
           counted[1]);
  }
}

// Every rank sends numbered messages to every other, one launch each, and waits only at the end.
void nth_message_meets_nth(Transport& transport, std::int32_t) {
  constexpr std::size_t kMessages = 200;
  const std::int32_t rank = transport.rank().value;
  const auto size = static_cast<std::size_t>(transport.size());
  const auto value_of = [](std::size_t i, std::size_t src, std::size_t dst) {
    return static_cast<std::int64_t>(i * 10'000 + src * 100 + dst);
  };
  std::vector<std::int64_t> out(kMessages * size);
  std::vector<std::int64_t> in(kMessages * size, -1);
  std::vector<std::int64_t> tickets;
  for (std::size_t i = 0; i < kMessages; ++i) {
    std::vector<Message> sends;
    std::vector<Message> recvs;
    for (std::size_t peer = 0; peer < size; ++peer) {
      if (peer == transport.rank().index()) continue;
      out[i * size + peer] = value_of(i, transport.rank().index(), peer);
      const Rank other{static_cast<std::int32_t>(peer)};
      sends.push_back({other, {whole_value(out[i * size + peer])}});
      recvs.push_back({other, {whole_value(in[i * size + peer])}});
    }
    tickets.push_back(transport.launch(sends, recvs));
  }
  std::reverse(tickets.begin(), tickets.end());  // waits may come in any order
  for (const std::int64_t ticket : tickets) transport.wait(ticket);
  for (std::size_t i = 0; i < kMessages; ++i) {
    for (std::size_t peer = 0; peer < size; ++peer) {
      if (peer == transport.rank().index()) continue;
      const std::int64_t expected = value_of(i, peer, transport.rank().index());
      expect(in[i * size + peer] == expected, "message {} from {} to {}: expected {}, found {}", i,
             peer, rank, expected, in[i * size + peer]);
    }
  }
}

void messages_of_no_bytes_meet(Transport& transport, std::int32_t) {
  if (transport.rank().value > 1) return;
  const Rank peer{1 - transport.rank().value};
  std::byte dummy{};
  const std::vector<Message> no_segments = {Message{peer, {}}};
  const std::vector<Message> no_rows = {Message{peer, {{&dummy, 16, 0, 32}, {nullptr, 0, 5, 0}}}};
  transport.wait(transport.launch(no_segments, no_rows));
  transport.wait(transport.launch(no_rows, no_segments));
  transport.wait(transport.launch({}, {}));
  expect(transport.sent_bytes() + transport.received_bytes() == 0,
         "expected no bytes counted, found {} sent and {} received", transport.sent_bytes(),
         transport.received_bytes());
}

// Returns `total` bytes as strided segments with gaps between rows, and makes `memory` hold them.
std::vector<Segment> random_segments(Rng& rng, std::int64_t total, std::vector<std::byte>& memory) {
  std::vector<Segment> segments;
  std::int64_t end = 0;
  while (total > 0) {
    const std::int64_t row = 1 + static_cast<std::int64_t>(rng.next() % 17);
    const std::int64_t rows =
        std::min<std::int64_t>(1 + static_cast<std::int64_t>(rng.next() % 9), total / row);
    const std::int64_t row_bytes = rows == 0 ? total : row;
    const std::int64_t num_rows = std::max<std::int64_t>(rows, 1);
    const std::int64_t stride = row_bytes + static_cast<std::int64_t>(rng.next() % 3);
    segments.push_back({nullptr, row_bytes, num_rows, stride});
    total -= row_bytes * num_rows;
    end += stride * num_rows;
  }
  memory.assign(static_cast<std::size_t>(end), std::byte{0});
  std::byte* at = memory.data();
  for (Segment& segment : segments) {
    segment.data = at;
    at += segment.stride_bytes * segment.num_rows;
  }
  return segments;
}

template <typename Visit>
void for_each_byte(const std::vector<Segment>& segments, const Visit& visit) {
  for (const Segment& segment : segments) {
    for (std::int64_t row = 0; row < segment.num_rows; ++row) {
      for (std::int64_t i = 0; i < segment.row_bytes; ++i) {
        visit(segment.data[row * segment.stride_bytes + i]);
      }
    }
  }
}

// From turn 20 on, messages have several pieces.
void ends_cut_differently(Transport& transport, std::int32_t turn) {
  if (transport.rank().value > 1) return;
  const bool sends = transport.rank().value == 0;
  const auto seed = static_cast<std::uint64_t>(turn);
  const std::uint64_t most = turn < 20 ? 5000 : 4'000'000;
  const auto total = static_cast<std::int64_t>(Rng(seed).next() % most);
  const std::vector<std::byte> expected = pattern(static_cast<std::size_t>(total), seed);
  Rng rng(2 * seed + (sends ? 0 : 1));
  std::vector<std::byte> memory;
  const std::vector<Segment> segments = random_segments(rng, total, memory);
  std::size_t i = 0;
  if (sends) for_each_byte(segments, [&](std::byte& byte) { byte = expected[i++]; });
  const std::vector<Message> message = {Message{Rank{sends ? 1 : 0}, segments}};
  expect(message[0].size_bytes() == total, "expected {} bytes, found {}", total,
         message[0].size_bytes());
  transport.wait(sends ? transport.launch(message, {}) : transport.launch({}, message));
  if (sends) return;
  std::int64_t filled = 0;
  for_each_byte(segments, [&](std::byte byte) {
    expect(byte == expected[i], "turn {}: byte {} of {} is another than was sent", turn, i, total);
    ++i;
    filled += byte != std::byte{0} ? 1 : 0;
  });
  const auto everywhere =
      std::count_if(memory.begin(), memory.end(), [](std::byte b) { return b != std::byte{0}; });
  expect(everywhere == filled, "turn {}: bytes between the rows were written", turn);
}

void all_gather_returns_all(Transport& transport, std::int32_t) {
  const auto mine = pattern(24, static_cast<std::uint64_t>(transport.rank().value));
  const auto all = all_gather(transport, mine);
  expect(all.size() == static_cast<std::size_t>(transport.size()), "expected {} rows, found {}",
         transport.size(), all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    expect(all[r] == pattern(24, r), "found other bytes of rank {} than it gave", r);
  }
}

// Times can be compared because the ranks run on one machine and share its clock.
void nobody_leaves_a_barrier_early(Transport& transport, std::int32_t) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (std::int32_t turn = 0; turn < 5; ++turn) {
    if (turn % transport.size() == transport.rank().value) {
      std::this_thread::sleep_for(milliseconds(3));
    }
    const std::int64_t came = now();
    barrier(transport);
    const std::int64_t left = now();
    const std::vector<std::int64_t> all_came = gather_values(transport, came);
    const std::int64_t last = *std::max_element(all_came.begin(), all_came.end());
    expect(left >= last, "turn {}: left the barrier {} ns before the last rank came", turn,
           last - left);
  }
}

// Every rank draws the same list of (src, dst, size, step); steps become launches.
void random_traffic_arrives(Transport& transport, std::int32_t turn) {
  struct Parcel {
    Rank src, dst;
    std::size_t step, size;
  };
  constexpr std::size_t kSteps = 15;
  const auto num_ranks = static_cast<std::uint64_t>(transport.size());
  Rng rng(static_cast<std::uint64_t>(turn));
  std::vector<Parcel> parcels;
  for (std::size_t i = 0; i < 20 * kSteps; ++i) {
    const std::uint64_t src = rng.next() % num_ranks;
    const std::uint64_t dst = (src + 1 + rng.next() % (num_ranks - 1)) % num_ranks;
    parcels.push_back({Rank{static_cast<std::int32_t>(src)}, Rank{static_cast<std::int32_t>(dst)},
                       i / 20, rng.next() % 3000});
  }
  const Rank rank = transport.rank();
  std::vector<std::vector<std::byte>> bytes(parcels.size());
  std::vector<std::int64_t> tickets;
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<Message> sends;
    std::vector<Message> recvs;
    for (std::size_t i = 0; i < parcels.size(); ++i) {
      const Parcel& parcel = parcels[i];
      if (parcel.step != step || (parcel.src != rank && parcel.dst != rank)) continue;
      const bool mine = parcel.src == rank;
      bytes[i] = mine ? pattern(parcel.size, i) : std::vector<std::byte>(parcel.size);
      (mine ? sends : recvs).push_back({mine ? parcel.dst : parcel.src, {whole(bytes[i])}});
    }
    tickets.push_back(transport.launch(sends, recvs));
    if (step >= 3) transport.wait(tickets[step - 3]);
  }
  for (std::size_t step = kSteps - 3; step < kSteps; ++step) transport.wait(tickets[step]);
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    expect(parcels[i].dst != rank || bytes[i] == pattern(parcels[i].size, i),
           "turn {}: parcel {} of {} bytes from rank {} came with other bytes", turn, i,
           parcels[i].size, parcels[i].src.value);
  }
}

}  // namespace

std::vector<ConformanceCase> traffic_cases() {
  return {
      {.name = "RanksAreNumberedFromZero", .sizes = {1, 4}, .run = ranks_are_numbered},
      {.name = "AMessageArrivesUnchanged", .sizes = {2}, .run = message_arrives_unchanged},
      {.name = "TheNthMessageOfAPairMeetsTheNth", .sizes = {2, 3}, .run = nth_message_meets_nth},
      {.name = "MessagesOfNoBytesStillMeet", .sizes = {2}, .run = messages_of_no_bytes_meet},
      {.name = "EndsMayCutTheSameBytesDifferently",
       .sizes = {2},
       .num_turns = 23,
       .run = ends_cut_differently},
      {.name = "AllGatherReturnsEveryRanksBytesOnEveryRank",
       .sizes = {1, 2, 5},
       .run = all_gather_returns_all},
      {.name = "NobodyLeavesABarrierBeforeTheLastHasCome",
       .sizes = {1, 2, 3, 7, 8},
       .run = nobody_leaves_a_barrier_early},
      {.name = "RandomTrafficArrives",
       .sizes = {2, 5},
       .num_turns = 5,
       .run = random_traffic_arrives},
  };
}

}  // namespace contextile

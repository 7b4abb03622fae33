#include "transport/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <initializer_list>
#include <thread>
#include <utility>

#include "base/rng.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

template <typename... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw ConformanceFailure(fmt::format(format, std::forward<Args>(args)...));
}

// The text of the error of type E that the call ends in.
template <typename E, typename Call>
std::string error_of(std::string_view what, const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  throw ConformanceFailure(fmt::format("{}: expected an error, nothing was thrown", what));
}

void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    expect(text.find(part) != std::string::npos, "expected an error with '{}', found '{}'", part,
           text);
  }
}

Segment whole(std::vector<std::byte>& bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  return {bytes.data(), size, 1, size};
}

template <typename T>
Segment whole_value(T& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof(T), 1, sizeof(T)};
}

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next() & 0xff);
  return bytes;
}

std::vector<Message> one(Rank peer, Segment segment) { return {Message{peer, {segment}}}; }

// Every rank's value, by rank.
template <typename T>
std::vector<T> gather_values(Transport& transport, const T& mine) {
  std::vector<T> values;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(&mine, 1)))) {
    T value{};
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(&value));
    values.push_back(value);
  }
  return values;
}

// Starts nothing and notices that the group has failed all the same: the text of the error.
std::string hear_of_failure(Transport& transport) {
  return error_of<TransportError>("a rank of a failed group", [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      transport.wait(transport.launch({}, {}));
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
}

// --------------------------------------------------------------------------------- what arrives

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
  // The largest is several pieces of any transport that cuts messages, and a rest.
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

// Everybody sends numbered messages to everybody, one launch each, and waits at the end only.
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

// `total` bytes as strided segments with gaps of their own; `memory` gets the room they need.
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

// The last turns are of several pieces.
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

// Ranks of one machine share the clock.
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

// The same list of (src, dst, size, step) on every rank; steps become launches.
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

// ------------------------------------------------------------------------------------- failures

// The sender may be done before the receiver looks: then it hears in what it does next.
void mismatch_names_both_ends(Transport& transport, std::int32_t) {
  const std::int32_t rank = transport.rank().value;
  if (rank > 1) return;
  std::vector<std::byte> bytes(rank == 0 ? 16 : 8);
  const std::vector<Message> message = one(Rank{1 - rank}, whole(bytes));
  std::vector<std::byte> more(4);
  const std::string text = error_of<TransportError>("sizes that do not fit", [&] {
    transport.wait(rank == 0 ? transport.launch(message, {}) : transport.launch({}, message));
    transport.wait(transport.launch({}, one(Rank{1 - rank}, whole(more))));
  });
  expect_parts(text, {"rank 0 sends 16 bytes", "rank 1 expects 8 bytes"});
}

void stall_ends_in_a_timeout(Transport& transport, std::int32_t) {
  if (transport.rank().value != 1) {  // alive, but sends nothing
    expect_parts(hear_of_failure(transport), {"rank 1"});
    return;
  }
  std::vector<std::byte> bytes(32);
  const std::int64_t ticket = transport.launch({}, one(Rank{2}, whole(bytes)));
  expect_parts(error_of<TransportError>("a stall", [&] { transport.wait(ticket); }),
               {"rank 1", "wait for launch 0", "receive from rank 2 (32 bytes)"});
}

void giving_up_wakes_everybody(Transport& transport, std::int32_t turn) {
  const Rank culprit{turn % transport.size()};
  if (transport.rank() == culprit) {
    transport.abort("out of memory");
    return;
  }
  std::vector<std::byte> bytes(8);
  const std::string text = error_of<TransportError>("a peer that gave up", [&] {
    transport.wait(transport.launch({}, one(culprit, whole(bytes))));
  });
  expect_parts(text, {fmt::format("rank {}", culprit.value), "out of memory"});
}

void leaving_is_noticed(Transport& transport, std::int32_t) {
  if (transport.rank().value != 1) return;
  std::vector<std::byte> bytes(8);
  const std::string text = error_of<TransportError>("a peer that left", [&] {
    transport.wait(transport.launch({}, one(Rank{0}, whole(bytes))));
  });
  expect_parts(text, {"rank 1", "rank 0 left the group", "receive from rank 0 (8 bytes)"});
}

void leaving_without_waiting_fails(Transport& transport, std::int32_t) {
  if (transport.rank().value > 1) return;
  std::vector<std::byte> bytes(8);
  if (transport.rank().value == 0) {
    static_cast<void>(transport.launch(one(Rank{1}, whole(bytes)), {}));
    return;
  }
  std::this_thread::sleep_for(milliseconds(5));
  std::vector<std::byte> more(8);
  const std::string text = error_of<TransportError>("a peer that left without waiting", [&] {
    transport.wait(transport.launch({}, one(Rank{0}, whole(bytes))));
    transport.wait(transport.launch({}, one(Rank{0}, whole(more))));
  });
  expect_parts(text, {"rank 0 left the group"});
}

// For the address and thread sanitizers: nobody copies from or into a rank that has given up.
void memory_is_free_after_giving_up(Transport& transport, std::int32_t turn) {
  const std::int32_t rank = transport.rank().value;
  if (rank > 1) return;
  std::vector<std::byte> bytes(1 << 20);
  const bool sends = rank == turn % 2;
  const std::vector<Message> message = one(Rank{1 - rank}, whole(bytes));
  try {
    const std::int64_t ticket =
        sends ? transport.launch(message, {}) : transport.launch({}, message);
    if (rank == 0) {
      transport.abort("enough");
      std::fill(bytes.begin(), bytes.end(), std::byte{1});
      return;
    }
    transport.wait(ticket);  // may end well: the bytes may have moved before
  } catch (const TransportError& error) {
    expect_parts(error.what(), {"rank 0", "enough"});
  }
}

void nothing_starts_after_a_failure(Transport& transport, std::int32_t) {
  if (transport.rank().value > 0) {
    expect_parts(hear_of_failure(transport), {"rank 0", "no more"});
    return;
  }
  transport.abort("no more");
  const std::string text = error_of<TransportError>(
      "a launch after abort", [&] { static_cast<void>(transport.launch({}, {})); });
  expect_parts(text, {"no more"});
}

// A refused call leaves the group as it was.
void impossible_messages_are_refused(Transport& transport, std::int32_t) {
  for (const std::int32_t peer : {-1, transport.rank().value, transport.size()}) {
    const std::vector<Message> message = {Message{Rank{peer}, {}}};
    static_cast<void>(error_of<InvalidArgument>(
        "an impossible peer", [&] { static_cast<void>(transport.launch(message, {})); }));
    static_cast<void>(error_of<InvalidArgument>(
        "an impossible peer", [&] { static_cast<void>(transport.launch({}, message)); }));
  }
  const std::vector<Message> nowhere =
      one(Rank{(transport.rank().value + 1) % transport.size()}, {nullptr, 8, 1, 8});
  static_cast<void>(error_of<InvalidArgument>(
      "rows outside memory", [&] { static_cast<void>(transport.launch(nowhere, {})); }));
  barrier(transport);
}

void tickets_are_waited_once(Transport& transport, std::int32_t) {
  const std::int64_t ticket = transport.launch({}, {});
  transport.wait(ticket);
  static_cast<void>(error_of<InvalidArgument>("a second wait", [&] { transport.wait(ticket); }));
  static_cast<void>(
      error_of<InvalidArgument>("a ticket of nothing", [&] { transport.wait(ticket + 7); }));
}

std::vector<ConformanceCase> make_cases() {
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
      {.name = "AMismatchOfSizesNamesBothRanksAndSizesOnBothEnds",
       .sizes = {2},
       .run = mismatch_names_both_ends},
      {.name = "AStallEndsInATimeoutThatNamesRankOperationAndPeer",
       .sizes = {3},
       .timeout = milliseconds(100),
       .run = stall_ends_in_a_timeout},
      {.name = "ARankThatGivesUpWakesEveryWaitingRank",
       .sizes = {2, 4},
       .num_turns = 4,
       .run = giving_up_wakes_everybody},
      {.name = "ARankThatLeavesIsNoticedByThoseThatWaitForIt",
       .sizes = {2},
       .run = leaving_is_noticed},
      {.name = "LeavingWithoutWaitingIsAFailure",
       .sizes = {2},
       .run = leaving_without_waiting_fails},
      {.name = "ARankMayFreeItsMemoryOnceItHasGivenUp",
       .sizes = {2},
       .num_turns = 20,
       .run = memory_is_free_after_giving_up},
      {.name = "NothingStartsInAGroupThatHasFailed",
       .sizes = {2},
       .run = nothing_starts_after_a_failure},
      {.name = "MessagesThatCannotBeAreRefused",
       .sizes = {2},
       .run = impossible_messages_are_refused},
      {.name = "ATicketIsWaitedOnce", .sizes = {1}, .run = tickets_are_waited_once},
  };
}

std::string turn_text(const ConformanceCase& tested, std::int32_t turn, std::string_view text) {
  return tested.num_turns == 1 ? std::string(text) : fmt::format("turn {}: {}", turn, text);
}

}  // namespace

std::span<const ConformanceCase> conformance_cases() {
  static const std::vector<ConformanceCase> cases = make_cases();
  return cases;
}

std::string run_case(const ConformanceCase& tested, const MakeTransport& make) {
  std::string first;  // turns go on after a failure: the peers make the next group, too
  for (std::int32_t turn = 0; turn < tested.num_turns; ++turn) {
    std::string text;
    const std::unique_ptr<Transport> transport = make(tested.timeout);
    try {
      tested.run(*transport, turn);
      continue;
    } catch (const std::exception& error) {
      text = error.what();
    }
    transport->abort(text);
    if (first.empty()) first = turn_text(tested, turn, text);
  }
  return first;
}

}  // namespace contextile

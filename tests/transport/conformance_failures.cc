#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "contextile/extend/interrupt.h"
#include "transport/conformance_support.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

// The sender may be done before the receiver looks. Then it hears of the failure in its next call.
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

// A rank whose wait is interrupted has given up.
void an_interrupt_ends_a_wait(Transport& transport, std::int32_t turn) {
  struct Enough : std::exception {
    [[nodiscard]] const char* what() const noexcept override { return "enough"; }
  };
  const Rank culprit{turn % transport.size()};
  const std::string gave_up = fmt::format("rank {} gave up: enough", culprit.value);
  if (transport.rank() != culprit) {
    expect_parts(hear_of_failure(transport), {gave_up});
    return;
  }
  std::vector<std::byte> bytes(8);
  const Rank silent{(culprit.value + 1) % transport.size()};
  const std::int64_t ticket = transport.launch({}, one(silent, whole(bytes)));
  {
    const InterruptScope scope([] { throw Enough(); });
    static_cast<void>(error_of<Enough>("an interrupt", [&] { transport.wait(ticket); }));
  }
  expect_parts(error_of<TransportError>("a launch after an interrupt",
                                        [&] { static_cast<void>(transport.launch({}, {})); }),
               {gave_up});
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

// For the address and thread sanitizers: no copy touches the memory of a rank that has given up.
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

// A launch that cannot move yet and one that has moved, both seen after the group has failed. The
// bytes of a send can be there before its sender knows, so rank 1's send may end either way.
void open_transfers_are_told(Transport& transport, std::int32_t) {
  const std::int32_t rank = transport.rank().value;
  expect(transport.open_transfers().empty(), "expected nothing open, found {} transfers",
         transport.open_transfers().size());
  if (rank > 1) return;
  std::vector<std::byte> first(700);
  std::vector<std::byte> second(9);
  if (rank == 1) {
    const std::string text = error_of<TransportError>("a peer that gave up", [&] {
      transport.wait(transport.launch(one(Rank{0}, whole(first)), {}));
      transport.wait(transport.launch({}, one(Rank{0}, whole(second))));
    });
    expect_parts(text, {"rank 0", "seen enough"});
    return;
  }
  const std::int64_t moved = transport.launch({}, one(Rank{1}, whole(first)));
  const std::int64_t open = transport.launch({}, one(Rank{1}, whole(second)));
  transport.wait(moved);
  transport.abort("seen enough");
  const std::vector<OpenTransfer> found = transport.open_transfers();
  expect(found.size() == 1, "expected one open transfer, found {}", found.size());
  expect(
      found[0].ticket == open && found[0].peer == Rank{1} && !found[0].is_send &&
          found[0].size_bytes == 9,
      "expected the receive of 9 bytes from rank 1 in launch {}, found {} bytes {} rank {} in {}",
      open, found[0].size_bytes, found[0].is_send ? "to" : "from", found[0].peer.value,
      found[0].ticket);
}

}  // namespace

std::vector<ConformanceCase> failure_cases() {
  return {
      {.name = "AMismatchOfSizesNamesBothRanksAndSizesOnBothEnds",
       .sizes = {2},
       .run = mismatch_names_both_ends},
      {.name = "AStallEndsInATimeoutThatNamesRankOperationAndPeer",
       .sizes = {3},
       .timeout = milliseconds(1000),  // processes must find each other within it, too
       .run = stall_ends_in_a_timeout},
      {.name = "ARankThatGivesUpWakesEveryWaitingRank",
       .sizes = {2, 4},
       .num_turns = 4,
       .run = giving_up_wakes_everybody},
      {.name = "AnInterruptedWaitIsGivingUp",
       .sizes = {2, 3},
       .num_turns = 3,
       .run = an_interrupt_ends_a_wait},
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
      {.name = "WhatIsOpenIsTold", .sizes = {2}, .run = open_transfers_are_told},
      {.name = "ATicketIsWaitedOnce", .sizes = {1}, .run = tickets_are_waited_once},
  };
}

}  // namespace contextile

// What every transport must do. A transport joins by adding a runner to the list at the end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "contextile/transport.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs a body on every rank of a fresh group; failures surface as run_inproc documents.
struct Runner {
  std::string name;
  std::function<void(std::int32_t, milliseconds, const std::function<void(Transport&)>&)> run;
  friend void PrintTo(const Runner& runner, std::ostream* out) { *out << runner.name; }
};

class TransportConformance : public ::testing::TestWithParam<Runner> {
 protected:
  static void run(std::int32_t num_ranks, const std::function<void(Transport&)>& body,
                  milliseconds timeout = milliseconds(30'000)) {
    GetParam().run(num_ranks, timeout, body);
  }
  // The message of the TransportError that the run ends in.
  static std::string failure_of(std::int32_t num_ranks, const std::function<void(Transport&)>& body,
                                milliseconds timeout = milliseconds(30'000)) {
    try {
      run(num_ranks, body, timeout);
    } catch (const TransportError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

Segment whole(std::vector<std::byte>& bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  return {bytes.data(), size, 1, size};
}

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next() & 0xff);
  return bytes;
}

std::vector<Message> one(Rank peer, Segment segment) { return {Message{peer, {segment}}}; }

TEST_P(TransportConformance, RanksAndSizeAreAsAskedFor) {
  std::atomic<std::int32_t> sum = 0;
  run(4, [&](Transport& transport) {
    EXPECT_EQ(transport.size(), 4);
    sum += transport.rank().value;
  });
  EXPECT_EQ(sum, 6);
}

TEST_P(TransportConformance, AMessageArrivesUnchanged) {
  run(2, [](Transport& transport) {
    const std::vector<std::byte> sent = pattern(1000, 7);
    std::vector<std::byte> bytes =
        transport.rank().value == 0 ? sent : std::vector<std::byte>(1000);
    const std::vector<Message> message = one(Rank{1 - transport.rank().value}, whole(bytes));
    const std::span<const Message> none;
    const std::int64_t ticket = transport.rank().value == 0 ? transport.launch(message, none)
                                                            : transport.launch(none, message);
    transport.wait(ticket);
    EXPECT_EQ(bytes, sent);
    EXPECT_EQ(transport.sent_bytes(), transport.rank().value == 0 ? 1000 : 0);
    EXPECT_EQ(transport.received_bytes(), transport.rank().value == 0 ? 0 : 1000);
  });
}

TEST_P(TransportConformance, TheNthMessageOfAPairMeetsTheNth) {
  constexpr int kMessages = 200;
  run(3, [](Transport& transport) {
    // Everybody sends numbered messages to everybody, one launch each, and waits at the end only.
    const std::int32_t rank = transport.rank().value;
    std::vector<std::int64_t> out(kMessages * 3);
    std::vector<std::int64_t> in(kMessages * 3, -1);
    std::vector<std::int64_t> tickets;
    for (int i = 0; i < kMessages; ++i) {
      std::vector<Message> sends;
      std::vector<Message> recvs;
      for (std::int32_t peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        auto& value = out[static_cast<std::size_t>(i * 3 + peer)];
        value = i * 100 + rank * 10 + peer;
        sends.push_back({Rank{peer}, {{reinterpret_cast<std::byte*>(&value), 8, 1, 8}}});
        auto* slot = &in[static_cast<std::size_t>(i * 3 + peer)];
        recvs.push_back({Rank{peer}, {{reinterpret_cast<std::byte*>(slot), 8, 1, 8}}});
      }
      tickets.push_back(transport.launch(sends, recvs));
    }
    std::reverse(tickets.begin(), tickets.end());  // waits may come in any order
    for (const std::int64_t ticket : tickets) transport.wait(ticket);
    for (int i = 0; i < kMessages; ++i) {
      for (std::int32_t peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(in[static_cast<std::size_t>(i * 3 + peer)], i * 100 + peer * 10 + rank);
      }
    }
  });
}

TEST_P(TransportConformance, MessagesOfNoBytesStillMeet) {
  run(2, [](Transport& transport) {
    const Rank peer{1 - transport.rank().value};
    std::byte dummy{};
    const std::vector<Message> no_segments = {Message{peer, {}}};
    const std::vector<Message> no_rows = {Message{peer, {{&dummy, 16, 0, 32}, {nullptr, 0, 5, 0}}}};
    transport.wait(transport.launch(no_segments, no_rows));
    transport.wait(transport.launch(no_rows, no_segments));
    transport.wait(transport.launch({}, {}));
    EXPECT_EQ(transport.sent_bytes() + transport.received_bytes(), 0);
  });
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

TEST_P(TransportConformance, EndsMayCutTheSameBytesDifferently) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(2, [seed](Transport& transport) {
      const bool sends = transport.rank().value == 0;
      const auto total = static_cast<std::int64_t>(Rng(seed).next() % 5000);
      const std::vector<std::byte> expected = pattern(static_cast<std::size_t>(total), seed);
      Rng rng(2 * seed + (sends ? 0 : 1));
      std::vector<std::byte> memory;
      const std::vector<Segment> segments = random_segments(rng, total, memory);
      std::size_t i = 0;
      if (sends) for_each_byte(segments, [&](std::byte& byte) { byte = expected[i++]; });
      const std::vector<Message> message = {Message{Rank{sends ? 1 : 0}, segments}};
      EXPECT_EQ(message[0].size_bytes(), total);
      transport.wait(sends ? transport.launch(message, {}) : transport.launch({}, message));
      std::int64_t filled = 0;
      if (!sends) {
        for_each_byte(segments, [&](std::byte byte) {
          EXPECT_EQ(byte, expected[i]);
          ++i;
          filled += byte != std::byte{0} ? 1 : 0;
        });
        const auto everywhere = std::count_if(memory.begin(), memory.end(),
                                              [](std::byte b) { return b != std::byte{0}; });
        EXPECT_EQ(everywhere, filled) << "bytes between the rows were written";
      }
    });
  }
}

TEST_P(TransportConformance, AllGatherReturnsEveryRanksBytesOnEveryRank) {
  for (const std::int32_t size : {1, 2, 5}) {
    run(size, [size](Transport& transport) {
      const std::vector<std::byte> mine =
          pattern(24, static_cast<std::uint64_t>(transport.rank().value));
      const auto all = all_gather(transport, mine);
      ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
      for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], pattern(24, r));
    });
  }
}

TEST_P(TransportConformance, NobodyLeavesABarrierBeforeTheLastHasCome) {
  for (const std::int32_t size : {1, 2, 3, 7, 8}) {
    std::atomic<std::int32_t> arrived = 0;
    run(size, [&](Transport& transport) {
      for (int turn = 1; turn <= 5; ++turn) {
        ++arrived;
        barrier(transport);
        EXPECT_GE(arrived, turn * size);
        barrier(transport);
      }
    });
  }
}

TEST_P(TransportConformance, AMismatchOfSizesNamesBothRanksAndSizesOnBothEnds) {
  std::vector<std::string> messages(2);
  EXPECT_THROW(run(2,
                   [&](Transport& transport) {
                     const std::int32_t rank = transport.rank().value;
                     std::vector<std::byte> bytes(rank == 0 ? 16 : 8);
                     const std::vector<Message> message = one(Rank{1 - rank}, whole(bytes));
                     try {
                       transport.wait(rank == 0 ? transport.launch(message, {})
                                                : transport.launch({}, message));
                     } catch (const TransportError& error) {
                       messages[static_cast<std::size_t>(rank)] = error.what();
                       throw;
                     }
                   }),
               TransportError);
  for (const std::string& message : messages) {
    EXPECT_THAT(message,
                AllOf(HasSubstr("rank 0 sends 16 bytes"), HasSubstr("rank 1 expects 8 bytes")));
  }
}

TEST_P(TransportConformance, AStallEndsInATimeoutThatNamesRankOperationAndPeer) {
  std::atomic<bool> done = false;
  const std::string message = failure_of(
      3,
      [&](Transport& transport) {
        if (transport.rank().value != 1) {  // alive, but sends nothing
          while (!done) std::this_thread::sleep_for(milliseconds(1));
          return;
        }
        std::vector<std::byte> bytes(32);
        const std::int64_t ticket = transport.launch({}, one(Rank{2}, whole(bytes)));
        try {
          transport.wait(ticket);
        } catch (...) {
          done = true;
          throw;
        }
      },
      milliseconds(50));
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("wait for launch 0"),
                             HasSubstr("receive from rank 2 (32 bytes)")));
}

TEST_P(TransportConformance, ARankThatGivesUpWakesEveryWaitingRank) {
  std::atomic<int> woken = 0;
  const std::string message = failure_of(4, [&](Transport& transport) {
    if (transport.rank().value == 2) {
      transport.abort("out of memory");
      return;
    }
    std::vector<std::byte> bytes(8);
    try {
      transport.wait(transport.launch({}, one(Rank{2}, whole(bytes))));
    } catch (const TransportError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2"), HasSubstr("out of memory")));
      ++woken;
      throw;
    }
  });
  EXPECT_EQ(woken, 3);
  EXPECT_THAT(message, AllOf(HasSubstr("rank 2"), HasSubstr("out of memory")));
}

TEST_P(TransportConformance, TheExceptionOfARankIsRethrownAndNotItsEchoes) {
  for (std::int32_t culprit = 0; culprit < 3; ++culprit) {
    try {
      run(3, [culprit](Transport& transport) {
        if (transport.rank().value == culprit) throw std::out_of_range("the cause");
        std::vector<std::byte> bytes(8);
        transport.wait(transport.launch({}, one(Rank{culprit}, whole(bytes))));
        ADD_FAILURE() << "nobody sent anything";
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::out_of_range& error) {
      EXPECT_STREQ(error.what(), "the cause");
    }
  }
}

TEST_P(TransportConformance, ARankThatLeavesIsNoticedByThoseThatWaitForIt) {
  const std::string message = failure_of(2, [](Transport& transport) {
    if (transport.rank().value == 0) return;
    std::vector<std::byte> bytes(8);
    transport.wait(transport.launch({}, one(Rank{0}, whole(bytes))));
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("rank 0 left the group"),
                             HasSubstr("receive from rank 0 (8 bytes)")));
}

TEST_P(TransportConformance, LeavingWithoutWaitingIsAFailure) {
  const std::string message = failure_of(2, [](Transport& transport) {
    std::vector<std::byte> bytes(8);
    if (transport.rank().value == 0) {
      static_cast<void>(transport.launch(one(Rank{1}, whole(bytes)), {}));
      return;
    }
    std::this_thread::sleep_for(milliseconds(5));
    transport.wait(transport.launch({}, one(Rank{0}, whole(bytes))));
    barrier(transport);
  });
  EXPECT_THAT(message, HasSubstr("rank 0 left the group"));
}

// For the address and thread sanitizers: nobody copies from or into a rank that has given up.
TEST_P(TransportConformance, ARankMayFreeItsMemoryOnceItHasGivenUp) {
  for (int turn = 0; turn < 20; ++turn) {
    static_cast<void>(failure_of(2, [turn](Transport& transport) {
      std::vector<std::byte> bytes(1 << 20);
      const bool sends = transport.rank().value == turn % 2;
      const std::vector<Message> message = one(Rank{1 - transport.rank().value}, whole(bytes));
      const std::int64_t ticket =
          sends ? transport.launch(message, {}) : transport.launch({}, message);
      if (transport.rank().value == 0) {
        transport.abort("enough");
        std::fill(bytes.begin(), bytes.end(), std::byte{1});
        return;
      }
      transport.wait(ticket);
    }));
  }
}

TEST_P(TransportConformance, NothingStartsInAGroupThatHasFailed) {
  static_cast<void>(failure_of(2, [](Transport& transport) {
    transport.abort("no more");
    EXPECT_THROW(static_cast<void>(transport.launch({}, {})), TransportError);
  }));
}

TEST_P(TransportConformance, PeersThatCannotBeAreRefused) {
  for (const std::int32_t peer : {-1, 0, 2}) {
    EXPECT_THROW(run(2,
                     [peer](Transport& transport) {
                       if (transport.rank().value != 0) return;
                       const std::vector<Message> message = {Message{Rank{peer}, {}}};
                       static_cast<void>(transport.launch(message, {}));
                     }),
                 InvalidArgument);
  }
}

TEST_P(TransportConformance, ATicketIsWaitedOnce) {
  EXPECT_THROW(run(1,
                   [](Transport& transport) {
                     const std::int64_t ticket = transport.launch({}, {});
                     transport.wait(ticket);
                     transport.wait(ticket);
                   }),
               InvalidArgument);
}

TEST_P(TransportConformance, RandomTrafficArrives) {
  constexpr std::int32_t kRanks = 5;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    // The same list of (src, dst, size, step) on every rank; steps become launches.
    struct Parcel {
      std::int32_t src, dst, step;
      std::size_t size;
    };
    std::vector<Parcel> parcels;
    Rng rng(seed);
    for (int i = 0; i < 300; ++i) {
      const auto src = static_cast<std::int32_t>(rng.next() % kRanks);
      const auto dst = static_cast<std::int32_t>(
          (static_cast<std::uint64_t>(src) + 1 + rng.next() % (kRanks - 1)) % kRanks);
      parcels.push_back({src, dst, i / 20, rng.next() % 3000});
    }
    run(kRanks, [&](Transport& transport) {
      const std::int32_t rank = transport.rank().value;
      std::vector<std::vector<std::byte>> bytes(parcels.size());
      std::vector<std::int64_t> tickets;
      for (std::int32_t step = 0; step < 15; ++step) {
        std::vector<Message> sends;
        std::vector<Message> recvs;
        for (std::size_t i = 0; i < parcels.size(); ++i) {
          const Parcel& parcel = parcels[i];
          if (parcel.step != step || (parcel.src != rank && parcel.dst != rank)) continue;
          bytes[i] =
              parcel.src == rank ? pattern(parcel.size, i) : std::vector<std::byte>(parcel.size);
          auto& list = parcel.src == rank ? sends : recvs;
          list.push_back({Rank{parcel.src == rank ? parcel.dst : parcel.src}, {whole(bytes[i])}});
        }
        tickets.push_back(transport.launch(sends, recvs));
        if (step >= 3) transport.wait(tickets[static_cast<std::size_t>(step) - 3]);
      }
      for (std::size_t step = 12; step < 15; ++step) transport.wait(tickets[step]);
      for (std::size_t i = 0; i < parcels.size(); ++i) {
        if (parcels[i].dst == rank) {
          EXPECT_EQ(bytes[i], pattern(parcels[i].size, i));
        }
      }
    });
  }
}

Runner inproc(const std::string& name, std::int64_t max_delay_us) {
  return {name, [max_delay_us](std::int32_t num_ranks, milliseconds timeout,
                               const std::function<void(Transport&)>& body) {
            InprocOptions options;
            options.timeout = timeout;
            options.max_delay_us = max_delay_us;
            options.delay_seed = 11;
            run_inproc(num_ranks, body, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(All, TransportConformance,
                         ::testing::Values(inproc("inproc", 0), inproc("inproc_delayed", 300)),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace contextile

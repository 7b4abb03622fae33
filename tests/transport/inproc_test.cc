// Tests of properties that only the in-process transport has: delays, groups that serve many runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/interrupt.h"
#include "contextile/extend/transport.h"
#include "transport/inproc_group.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(InprocTransport, DelaysLetPairsOvertakeEachOther) {
  // Rank 0 posts to rank 1 before rank 2; with random delays the second must sometimes come first.
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    InprocOptions options;
    options.max_delay_us = 3000;
    options.delay_seed = seed;
    std::atomic<int> place = 0;
    std::atomic<int> place_of_second = 0;
    run_inproc(
        3,
        [&](Transport& transport) {
          std::vector<std::byte> bytes(8);
          const Segment whole{bytes.data(), 8, 1, 8};
          if (transport.rank().value == 0) {
            const std::vector<Message> sends = {Message{Rank{1}, {whole}},
                                                Message{Rank{2}, {whole}}};
            transport.wait(transport.launch(sends, {}));
            return;
          }
          const Message from_first{Rank{0}, {whole}};
          transport.wait(transport.launch({}, {&from_first, 1}));
          const int mine = ++place;
          if (transport.rank().value == 2) place_of_second = mine;
        },
        options);
    overtaken += place_of_second == 1 ? 1 : 0;
  }
  EXPECT_GT(overtaken, 0);
  EXPECT_LT(overtaken, 40);
}

TEST(InprocTransport, RethrowsTheExceptionOfARankAndNotItsEchoes) {
  for (const std::int64_t max_delay_us : {0, 300}) {
    InprocOptions options;
    options.max_delay_us = max_delay_us;
    for (std::int32_t culprit = 0; culprit < 3; ++culprit) {
      try {
        run_inproc(
            3,
            [culprit](Transport& transport) {
              if (transport.rank().value == culprit) throw std::out_of_range("the cause");
              std::vector<std::byte> bytes(8);
              const Message message{Rank{culprit}, {Segment{bytes.data(), 8, 1, 8}}};
              transport.wait(transport.launch({}, {&message, 1}));
              ADD_FAILURE() << "nobody sent anything";
            },
            options);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::out_of_range& error) {
        EXPECT_STREQ(error.what(), "the cause");
      }
    }
  }
}

// Neither ranks that wait for peers nor ranks that compute hold it up.
TEST(InprocTransport, AnInterruptEndsARunOnAllRanks) {
  const auto run = [] {
    const InterruptScope scope([] { throw std::out_of_range("enough"); });
    run_inproc(3, [](Transport& transport) {
      if (transport.rank().value == 2) {
        while (true) check_interrupt();
      }
      std::vector<std::byte> bytes(8);
      const Message message{Rank{2}, {Segment{bytes.data(), 8, 1, 8}}};
      transport.wait(transport.launch({}, {&message, 1}));
    });
  };
  EXPECT_THROW(run(), std::out_of_range);
}

TEST(InprocTransport, RethrowsAnEchoWhereTheCauseWasCaught) {
  try {
    run_inproc(3, [](Transport& transport) {
      if (transport.rank().value == 2) {
        transport.abort("out of memory");
        return;
      }
      barrier(transport);
    });
    FAIL() << "expected TransportError";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2"), HasSubstr("out of memory")));
  }
}

TEST(InprocTransport, CallsAStallInABarrierOne) {
  InprocOptions options;
  options.timeout = std::chrono::milliseconds(20);
  const auto group = make_inproc_group(2, options);
  try {
    barrier(*group[0]);  // rank 1 exists and does not come
    FAIL() << "expected TransportError";
  } catch (const TransportError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr("nothing moved"),
                                    HasSubstr("barrier signal to rank 1, barrier signal from")));
  }
}

TEST(InprocTransport, AGroupServesManyRunsUntilOneThrows) {
  const auto group = make_inproc_group(3);
  for (std::uint8_t run = 1; run <= 3; ++run) {
    std::vector<std::vector<std::vector<std::byte>>> gathered(3);
    run_inproc(group, [&](Transport& transport) {
      const std::vector<std::byte> mine(4, static_cast<std::byte>(run + transport.rank().value));
      gathered[transport.rank().index()] = all_gather(transport, mine);
    });
    for (const auto& all : gathered) {
      ASSERT_EQ(all.size(), 3);
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_EQ(all[r], std::vector<std::byte>(4, static_cast<std::byte>(run + r)));
      }
    }
    EXPECT_EQ(group[0]->sent_bytes(), 2 * 4 * run);
  }
  const auto failing = [](Transport& transport) {
    if (transport.rank().value == 1) throw std::runtime_error("out of luck");
    barrier(transport);
  };
  EXPECT_THROW(run_inproc(group, failing), std::runtime_error);
  EXPECT_THROW(run_inproc(group, [](Transport& transport) { barrier(transport); }), TransportError);
}

TEST(InprocTransport, RefusesGroupsThatCannotBe) {
  EXPECT_THROW(static_cast<void>(make_inproc_group(0)), InvalidArgument);
  InprocOptions options;
  options.timeout = std::chrono::milliseconds(0);
  EXPECT_THROW(static_cast<void>(make_inproc_group(2, options)), InvalidArgument);
  options = {};
  options.max_delay_us = -1;
  EXPECT_THROW(static_cast<void>(make_inproc_group(2, options)), InvalidArgument);
}

// A mover whose first move waits for `release` and fails.
class FailingMover : public SegmentMover {
 public:
  FailingMover(std::promise<void>& moving, std::shared_future<void> release)
      : moving_(moving), release_(std::move(release)) {}
  std::int64_t ready(Rank /*rank*/, std::int64_t /*num_ends*/) override { return 0; }
  std::int64_t move(const PostedEnd& /*send*/, std::int64_t /*send_ready*/, Rank /*receiver*/,
                    const PostedEnd& /*recv*/, std::int64_t /*recv_ready*/) override {
    moving_.set_value();
    release_.wait();
    throw TransportError("the device is gone");
  }
  void wait(Rank /*rank*/, std::int64_t /*moved*/) override {}

 private:
  std::promise<void>& moving_;
  std::shared_future<void> release_;
};

// A rank that gives up while its memory is copied waits for the copy, also if that fails.
TEST(InprocGroups, ARankThatGivesUpHearsOfACopyThatFails) {
  std::promise<void> moving;
  std::promise<void> release;
  InprocGroup group(2, {}, std::make_unique<FailingMover>(moving, release.get_future().share()));
  std::vector<std::byte> bytes(8);
  const Segment whole{bytes.data(), 8, 1, 8};
  const Message from_first{Rank{0}, {whole}};
  group.launch(Rank{1}, {}, {&from_first, 1});
  std::thread sender([&] {
    const Message to_second{Rank{1}, {whole}};
    EXPECT_THROW(group.launch(Rank{0}, {&to_second, 1}, {}), TransportError);
  });
  moving.get_future().wait();
  std::thread gives_up([&] { group.fail(Rank{1}, "enough"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it waits for the copy
  release.set_value();
  gives_up.join();
  sender.join();
}

}  // namespace
}  // namespace contextile

// HOP-B's closed forms: the paper's example, timelines event by event, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/rng.h"
#include "contextile/serving/helix.h"
#include "serving/forecast/timeline.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

TEST(HopB, HidesExchangesAsInThePapersExample) {
  EXPECT_NEAR(8 * (2 + 1.2), 25.6, 1e-9);
  EXPECT_NEAR(hop_b_attention(8, 2, 1.2), 17.2, 1e-9);
  EXPECT_NEAR(hop_b_attention(8, 1.2, 2), 17.2, 1e-9) << "exchanges that take longer";
  EXPECT_NEAR(hop_b_attention(1, 2, 1.2), 3.2, 1e-9);
}

TEST(HopB, TakesAsLongAsTheTimelineUnderAttention) {
  Rng rng(1);
  for (int round = 0; round < 1000; ++round) {
    const int groups = 1 + static_cast<int>(rng.next() % 9);
    const double attention = rng.uniform();
    const double exchange = 2 * rng.uniform();
    EXPECT_NEAR(hop_b_attention(groups, attention, exchange),
                attention_timeline(groups, attention, exchange), 1e-12)
        << groups << " groups of " << attention << " and " << exchange;
  }
}

TEST(HopB, TakesAsLongAsTheTimelineUnderFeedForward) {
  Rng rng(2);
  for (int round = 0; round < 1000; ++round) {
    const int groups = 1 + static_cast<int>(rng.next() % 9);
    const double attention = rng.uniform();
    const double exchange = 2 * rng.uniform();
    std::vector<double> feed_forward(rng.next() % 5);
    for (double& time : feed_forward) time = 2 * rng.uniform();
    EXPECT_NEAR(hop_b_feed_forward(groups, attention, exchange, feed_forward),
                feed_forward_timeline(groups, attention, exchange, feed_forward), 1e-12)
        << groups << " groups, " << feed_forward.size() << " layers";
  }
}

TEST(HopB, HidesNothingBehindOneGroupAndAllButTheFirstBehindLongFeedForwards) {
  const std::vector<double> layers = {5, 5, 5};
  EXPECT_DOUBLE_EQ(hop_b_feed_forward(1, 2, 1, layers), 3 * (2 + 1 + 5));
  EXPECT_DOUBLE_EQ(hop_b_feed_forward(2, 2, 1, layers), 3 * 2 * (2 + 5) + 1);
  EXPECT_DOUBLE_EQ(hop_b_feed_forward(4, 2, 1, {}), 0);
}

TEST(HopB, ReadingsHaveNames) {
  for (const HopBReading reading :
       {HopBReading::kOff, HopBReading::kAttention, HopBReading::kFeedForward}) {
    EXPECT_EQ(parse_hop_b(to_string(reading)), reading);
  }
  EXPECT_THAT(message_of([] { static_cast<void>(parse_hop_b("on")); }),
              HasSubstr("expected one of off, attention, feed_forward; found 'on'"));
}

TEST(HopB, RefusesTimesThatAreNone) {
  EXPECT_THAT(message_of([] { static_cast<void>(hop_b_attention(0, 1, 1)); }),
              HasSubstr("at least 1 group of requests, found 0"));
  EXPECT_THAT(message_of([] { static_cast<void>(hop_b_attention(1, -1, 1)); }),
              HasSubstr("times of at least 0, found -1"));
  const std::vector<double> endless = {std::numeric_limits<double>::infinity()};
  EXPECT_THAT(message_of([&] { static_cast<void>(hop_b_feed_forward(2, 1, 1, endless)); }),
              HasSubstr("found inf"));
}

}  // namespace
}  // namespace contextile

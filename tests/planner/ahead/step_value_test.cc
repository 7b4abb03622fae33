#include "planner/ahead/step_value.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "contextile/base.h"
#include "planner/ahead/lookahead_keys.h"
#include "support/changed_bytes.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes example() {
  static const Bytes payload = {1, 2, 3, 4, 5};
  return encode_step_value(
      {.step = 7, .kind = StepValueKind::kFailed, .planning_us = 12, .payload = payload});
}

TEST(StepValue, ComesBack) {
  const Bytes bytes = example();
  const StepValue value = decode_step_value(bytes, 7, "somewhere");
  EXPECT_EQ(value.step, 7);
  EXPECT_EQ(value.kind, StepValueKind::kFailed);
  EXPECT_EQ(value.planning_us, 12);
  EXPECT_EQ(Bytes(value.payload.begin(), value.payload.end()), (Bytes{1, 2, 3, 4, 5}));
}

TEST(StepValue, OfAnotherStepIsRefused) {
  EXPECT_EQ(message_of<InvalidPlan>([] { return decode_step_value(example(), 8, "somewhere"); }),
            "somewhere: expected a plan of step 8 or why there is none, found kind 1 of step 7");
}

TEST(StepValue, WithAnyBitFlippedOrCutIsRefused) {
  const auto expect_refused = [](const Bytes& bytes) {
    EXPECT_THROW(static_cast<void>(decode_step_value(bytes, 7, "")), InvalidPlan);
  };
  for_every_cut(example(), expect_refused);
  for_every_flipped_bit(example(), [&](const Bytes& bytes, std::size_t) { expect_refused(bytes); });
}

TEST(StepValue, OfAnotherFormatOrVersionIsCalledThat) {
  Bytes bytes = example();
  bytes[8] = 9;
  EXPECT_EQ(message_of<InvalidPlan>([&] { return decode_step_value(bytes, 7, "somewhere"); }),
            "somewhere: header: expected version 1, found 9: the value was written by a newer "
            "contextile");
  EXPECT_EQ(message_of<InvalidPlan>([] { return decode_step_value({}, 7, "somewhere"); }),
            "somewhere: not a step's plan of a planner: expected it to begin with 'CTXSTEP\\x00', "
            "found ''");
}

TEST(LookaheadKeys, RefuseRunsThatMakeNone) {
  EXPECT_EQ(LookaheadKeys("run-1").slice(3, Rank{2}), "run-1/3/2");
  EXPECT_THROW(LookaheadKeys(""), InvalidArgument);
  EXPECT_THROW(LookaheadKeys("a/b"), InvalidArgument);
  EXPECT_THROW(LookaheadKeys(std::string(25, 'a')), InvalidArgument);
}

TEST(LookaheadKeys, StepsComeBackFromText) {
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{1} << 60}) {
    EXPECT_EQ(parse_step_text(step_as_text(step), ""), step);
  }
  for (const std::string_view text : {"", "-1", "1 ", "x", "99999999999999999999"}) {
    EXPECT_THROW(static_cast<void>(parse_step_text(Bytes(text.begin(), text.end()), "")),
                 InvalidPlan);
  }
}

}  // namespace
}  // namespace contextile

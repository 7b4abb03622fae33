#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "contextile/mask.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Rule = MaskSpec::Rule;

std::string error_of(std::string_view text) {
  try {
    (void)parse_mask_spec(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(ParseMaskSpec, ReadsEveryRule) {
  EXPECT_EQ(parse_mask_spec("full").rule, Rule::kFull);
  EXPECT_EQ(parse_mask_spec("causal").rule, Rule::kCausal);
  const MaskSpec window = parse_mask_spec("sliding_window:12");
  EXPECT_EQ(window.rule, Rule::kSlidingWindow);
  EXPECT_EQ(window.window, 12);
  const MaskSpec lambda = parse_mask_spec("lambda:3,70");
  EXPECT_EQ(lambda.rule, Rule::kLambda);
  EXPECT_EQ(lambda.sink, 3);
  EXPECT_EQ(lambda.window, 70);
  const MaskSpec blockwise = parse_mask_spec("causal_blockwise:16,3,5");
  EXPECT_EQ(blockwise.rule, Rule::kCausalBlockwise);
  EXPECT_EQ(blockwise.block, 16);
  EXPECT_EQ(blockwise.window, 3);
  EXPECT_EQ(blockwise.sink, 5);
  const MaskSpec question = parse_mask_spec("shared_question:0.25,7");
  EXPECT_EQ(question.rule, Rule::kSharedQuestion);
  EXPECT_EQ(question.fraction, 0.25);
  EXPECT_EQ(question.answers, 7);
  EXPECT_TRUE(question.lengths.empty());
  const MaskSpec lengths = parse_mask_spec("shared_question:[10,0,5]");
  EXPECT_EQ(lengths.rule, Rule::kSharedQuestion);
  EXPECT_EQ(lengths.lengths, (std::vector<std::int64_t>{10, 0, 5}));
  EXPECT_EQ(parse_mask_spec("prefix_lm:9").prefix, 9);
  EXPECT_EQ(parse_mask_spec("chunked:8").chunk, 8);
  const MaskSpec tree = parse_mask_spec("tree:[5,3,1],[-1,0,0]");
  EXPECT_EQ(tree.rule, Rule::kTree);
  EXPECT_EQ(tree.lengths, (std::vector<std::int64_t>{5, 3, 1}));
  EXPECT_EQ(tree.parents, (std::vector<std::int64_t>{-1, 0, 0}));
  EXPECT_EQ(to_string(tree), "tree:[5,3,1],[-1,0,0]");
}

TEST(ParseMaskSpec, FillsInTheDefaultsOfThePapers) {
  const MaskSpec lambda = parse_mask_spec("lambda");
  EXPECT_EQ(lambda.sink, 64);
  EXPECT_EQ(lambda.window, 4096);
  const MaskSpec blockwise = parse_mask_spec("causal_blockwise");
  EXPECT_EQ(blockwise.block, 256);
  EXPECT_EQ(blockwise.window, 2);
  EXPECT_EQ(blockwise.sink, 1);
  const MaskSpec question = parse_mask_spec("shared_question");
  EXPECT_EQ(question.fraction, 0.2);
  EXPECT_EQ(question.answers, 4);
}

TEST(ParseMaskSpec, ReadsBackWhatIsPrinted) {
  Rng rng(1);
  for (int trial = 0; trial < 2000; ++trial) {
    MaskSpec spec = random_mask_spec(rng, 100);
    if (spec.rule == Rule::kSharedQuestion && random_chance(rng, 0.5)) {
      spec.lengths = random_lengths(rng, 6, 100);
      spec.lengths.push_back(0);
    }
    if (random_chance(rng, 0.1)) spec = random_tree(rng, 8, 100);
    const std::string text = to_string(spec);
    SCOPED_TRACE(text);
    const MaskSpec parsed = parse_mask_spec(text);
    ASSERT_EQ(parsed.rule, spec.rule);
    ASSERT_EQ(to_string(parsed), text);
    ASSERT_EQ(parsed.lengths, spec.lengths);
    ASSERT_EQ(parsed.parents, spec.parents);
    if (spec.rule == Rule::kSharedQuestion && spec.lengths.empty()) {
      ASSERT_EQ(parsed.fraction, spec.fraction);
      ASSERT_EQ(parsed.answers, spec.answers);
    }
  }
}

TEST(ParseMaskSpec, UnknownRulesAreAnsweredWithTheListAndTheNearest) {
  EXPECT_THAT(error_of("casual"),
              AllOf(HasSubstr("full, causal, sliding_window:W, lambda:SINK,WINDOW, "
                              "causal_blockwise:B,W,SINK, shared_question:F,ANSWERS, prefix_lm:N, "
                              "chunked:N"),
                    HasSubstr("found 'casual'; did you mean 'causal'?")));
  EXPECT_THAT(error_of("zzz"), HasSubstr("found 'zzz'"));
  EXPECT_THAT(error_of(""), HasSubstr("found ''"));
}

TEST(ParseMaskSpec, SaysWhichParameterIsWrong) {
  EXPECT_EQ(error_of("lambda:1"),
            "mask lambda: expected lambda:SINK,WINDOW (2 parameters), found '1'");
  EXPECT_EQ(error_of("sliding_window"),
            "mask sliding_window: expected sliding_window:W, found no parameter");
  EXPECT_EQ(error_of("sliding_window:0"),
            "mask sliding_window: window: expected 1 to 2147483648, found 0");
  EXPECT_EQ(error_of("lambda:4,x"), "mask lambda: WINDOW: expected a number, found 'x'");
  EXPECT_EQ(error_of("chunked:99999999999999999999"),
            "mask chunked: N: expected a number that fits, found '99999999999999999999'");
  EXPECT_EQ(error_of("causal:3"), "mask causal: expected no parameters, found '3'");
  EXPECT_EQ(error_of("shared_question:1.5,2"),
            "mask shared_question: fraction: expected 0 to 1, found 1.5");
  EXPECT_EQ(error_of("tree"),
            "mask tree: expected tree:[L0,L1,...],[-1,P1,...], found no parameter");
  EXPECT_EQ(error_of("tree:[4,5]"),
            "mask tree: expected tree:[L0,L1,...],[-1,P1,...] (2 lists), found '[4,5]'");
  EXPECT_EQ(error_of("tree:[4,5],[-1]"),
            "mask tree: expected a parent for each of 2 lengths, found 1");
  EXPECT_EQ(error_of("tree:[4,0],[-1,0]"), "mask tree: length: expected 1 to 2147483648, found 0");
  EXPECT_EQ(error_of("tree:[4,2147483648],[-1,0]"),
            "mask tree: sum of lengths: expected 0 to 2147483648, found 2147483652");
  EXPECT_EQ(error_of("tree:[4,5],[0,0]"),
            "mask tree: parent of segment 0: expected -1, because it is the root, found 0");
  EXPECT_EQ(error_of("tree:[4,5,6],[-1,0,2]"),
            "mask tree: parent of segment 2: expected 0 to 1, found 2");
  EXPECT_EQ(error_of("tree:[4,5,6],[-1,0,-1]"),
            "mask tree: parent of segment 2: expected 0 to 1, found -1");
  EXPECT_EQ(error_of("tree:[4,5],[-1,x]"), "mask tree: parent: expected a number, found 'x'");
}

TEST(ParseMaskSpec, RejectsEverythingThatIsNoSpec) {
  for (const char* text : {"causal ",
                           " causal",
                           "Causal",
                           "causal:",
                           "full:1",
                           "sliding_window:",
                           "sliding_window:-1",
                           "sliding_window:+1",
                           "sliding_window:1 ",
                           "sliding_window:1.5",
                           "sliding_window:1,",
                           "sliding_window:0x10",
                           "sliding_window:2147483649",
                           "lambda:",
                           "lambda:1,0",
                           "lambda:-1,5",
                           "lambda:1,2,3",
                           "lambda:,",
                           "causal_blockwise:0,2,1",
                           "causal_blockwise:256,0,1",
                           "causal_blockwise:256,2,-1",
                           "causal_blockwise:256,2",
                           "shared_question:nan,4",
                           "shared_question:inf,4",
                           "shared_question:-0.1,4",
                           "shared_question:0.2,0",
                           "shared_question:0.2",
                           "shared_question:0.2x,4",
                           "shared_question:[",
                           "shared_question:[]",
                           "shared_question:[5]",
                           "shared_question:[5,-1]",
                           "shared_question:[0,0]",
                           "shared_question:[5,]",
                           "shared_question:[5,1],4",
                           "shared_question:[2147483648,1]",
                           "shared_question:[9223372036854775807,1]",
                           "prefix_lm:-1",
                           "prefix_lm",
                           "chunked:0",
                           "chunked",
                           "tree:",
                           "tree:[],[]",
                           "tree:[4]",
                           "tree:4,-1",
                           "tree:[4],[-1",
                           "tree:[4,],[-1,0]",
                           "tree:[4],[-1],[0]",
                           "tree:[4],[-1]]",
                           "tree: [4],[-1]",
                           "tree:[4], [-1]"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
}

TEST(ParseMaskSpec, SurvivesAnyBytes) {
  constexpr std::string_view kAlphabet = "causl_:,.[]0123456789-e@=x\xff";
  Rng rng(2);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    if (random_chance(rng, 0.7)) {
      text =
          to_string(random_chance(rng, 0.1) ? random_tree(rng, 6, 50) : random_mask_spec(rng, 50));
    }
    for (std::int64_t edits = random_between(rng, 0, 3); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(random_between(rng, 0, std::ssize(text)));
      const char c = kAlphabet[static_cast<std::size_t>(rng.next() % kAlphabet.size())];
      text.insert(text.begin() + static_cast<std::ptrdiff_t>(at), c);
    }
    try {
      const MaskSpec spec = parse_mask_spec(text);
      ASSERT_EQ(to_string(parse_mask_spec(to_string(spec))), to_string(spec)) << text;
    } catch (const InvalidArgument&) {
      // refused with a message: as it should be
    }
  }
}

TEST(MaskSpecHelp, HasALineForEveryRule) {
  const std::string help = mask_spec_help();
  for (const Rule rule : kAllRules) {
    const std::string text = to_string(MaskSpec{.rule = rule});
    const std::string name = text.substr(0, text.find(':'));
    const bool first = help.starts_with(name);
    EXPECT_TRUE(first || help.find('\n' + name) != std::string::npos) << name;
  }
  EXPECT_NE(help.find("\ntree:[L0,L1,...],[-1,P1,...]"), std::string::npos);
  EXPECT_EQ(std::ranges::count(help, '\n'), std::ssize(kAllRules) + 1);
}

}  // namespace
}  // namespace contextile

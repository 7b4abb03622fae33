#include "contextile/workload.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/mask_support.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;
using Rule = MaskSpec::Rule;

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

const std::vector<std::int64_t> kLengths = {30, 1, 19};
const std::vector<MaskUse> kCausalMask = {parse_mask_use("causal")};

Workload small_workload() { return make_workload(kLengths, {}, kCausalMask); }

TEST(Dtype, ReadsBackWhatIsPrinted) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_EQ(error_of([] { (void)parse_dtype("bf61"); }),
            "dtype: expected one of f32, bf16, f16; found 'bf61'");
  EXPECT_THAT(error_of([] { (void)parse_dtype("f61"); }), HasSubstr("f32, bf16, f16"));
  EXPECT_THAT(error_of([] { (void)parse_dtype("fp16"); }), HasSubstr("did you mean 'f16'?"));
}

TEST(AttentionShape, ScalesByTheHeadDimensionUnlessTold) {
  EXPECT_EQ((AttentionShape{.head_dim = 64}).effective_scale(), 0.125);
  EXPECT_EQ((AttentionShape{.head_dim = 64, .scale = 2}).effective_scale(), 2);
}

TEST(CheckShape, RejectsWhatNoKernelTakes) {
  const auto error = [](const AttentionShape& shape) {
    return error_of([&] { check_shape(shape); });
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.q_heads = 7, .kv_heads = 7, .head_dim = 1, .value_dim = 4096, .scale = -1}),
            "");
  EXPECT_THAT(error({.q_heads = 12, .kv_heads = 5}), HasSubstr("heads not divisible"));
  EXPECT_THAT(error({.q_heads = 0}), HasSubstr("q_heads"));
  EXPECT_THAT(error({.kv_heads = 0}), HasSubstr("kv_heads"));
  EXPECT_THAT(error({.kv_heads = -8}), HasSubstr("kv_heads"));
  EXPECT_THAT(error({.head_dim = 0}), HasSubstr("head_dim: expected 1 to 4096, found 0"));
  EXPECT_THAT(error({.value_dim = 4097}), HasSubstr("value_dim"));
  EXPECT_THAT(error({.dtype = static_cast<Dtype>(9)}), HasSubstr("dtype"));
  EXPECT_THAT(error({.scale = std::nan("")}), HasSubstr("scale"));
  EXPECT_THAT(error({.softcap = -1}), HasSubstr("softcap"));
  EXPECT_THAT(error({.softcap = std::numeric_limits<double>::infinity()}), HasSubstr("softcap"));
}

TEST(SequencesFromLengths, LaysSequencesEndToEnd) {
  const std::vector<Range> expected = {{0, 30}, {30, 31}, {31, 50}};
  EXPECT_EQ(sequences_from_lengths(kLengths), expected);
}

TEST(SequencesFromLengths, NamesTheBadLength) {
  const auto error = [](std::vector<std::int64_t> lengths) {
    return error_of([&] { (void)sequences_from_lengths(lengths); });
  };
  EXPECT_THAT(error({}), HasSubstr("found none"));
  EXPECT_EQ(error({4, 0}), "lengths: index 1: expected at least 1 token, found 0");
  EXPECT_THAT(error({4, 5, -7}), HasSubstr("index 2: expected at least 1 token, found -7"));
  EXPECT_THAT(error({kMaxTokens, 1}), HasSubstr("at index 1"));
  EXPECT_THAT(error({1, std::numeric_limits<std::int64_t>::max()}), HasSubstr("at index 1"));
  EXPECT_EQ(error({kMaxTokens - 1, 1}), "");
}

TEST(ParseMaskUse, SplitsNameSpecAndLayers) {
  const auto expect = [](std::string_view text, std::string_view name, std::int32_t layers,
                         std::string_view spec) {
    const MaskUse use = parse_mask_use(text);
    EXPECT_EQ(use.name, name) << text;
    EXPECT_EQ(use.layers, layers) << text;
    EXPECT_EQ(to_string(use.spec), spec) << text;
  };
  expect("causal", "causal", 1, "causal");
  expect("causal@12", "causal", 12, "causal");
  expect("local=sliding_window:128@40", "local", 40, "sliding_window:128");
  expect("q.1-b_2=shared_question:[4,5]", "q.1-b_2", 1, "shared_question:[4,5]");
}

TEST(ParseMaskUse, RejectsBrokenText) {
  for (const char* text :
       {"", "=causal", "a b=causal", "a=b=causal", "causal@", "causal@0", "causal@-1", "causal@1.5",
        "causal@x", "causal@99999999999", "@3", "name=", "name=@2", "causal@2@3", "\n=causal"}) {
    EXPECT_NE(error_of([&] { (void)parse_mask_use(text); }), "") << text;
  }
}

TEST(MakeWorkload, BuildsEveryMaskOverTheBatch) {
  const std::vector<MaskUse> masks = {parse_mask_use("causal@3"),
                                      parse_mask_use("near=sliding_window:4@5")};
  const Workload workload = make_workload(kLengths, {.q_heads = 4, .kv_heads = 2}, masks);
  EXPECT_EQ(workload.num_tokens(), 50);
  EXPECT_EQ(workload.shape.q_heads, 4);
  ASSERT_EQ(workload.masks.size(), 2U);
  EXPECT_EQ(workload.masks[0].name, "causal");
  EXPECT_EQ(workload.masks[0].layers, 3);
  EXPECT_EQ(workload.masks[0].mask.num_pairs(), 465 + 1 + 190);
  EXPECT_EQ(workload.masks[1].name, "near");
  EXPECT_EQ(workload.masks[1].mask.num_pairs(), (30 * 4 - 6) + 1 + (19 * 4 - 6));
  const std::vector<PositionSegment> positions = {
      {{0, 30}, 0, 0}, {{30, 31}, 1, 0}, {{31, 50}, 2, 0}};
  EXPECT_EQ(workload.positions, positions);
}

TEST(MakeWorkload, TakesPositionsFromTheFirstMaskThatSetsThem) {
  const std::vector<MaskUse> masks = {
      parse_mask_use("causal"), parse_mask_use("shared_question:0.5,2"),
      parse_mask_use("late=shared_question:0.1,3"), parse_mask_use("full")};
  const Workload workload = make_workload(std::vector<std::int64_t>{8}, {}, masks);
  const std::vector<PositionSegment> positions = {{{0, 6}, 0, 0}, {{6, 8}, 0, 4, 3}};
  EXPECT_EQ(workload.positions, positions);
}

TEST(MakeWorkload, NamesAMaskAfterItsRuleAndAsksForNamesWhenTheyClash) {
  std::vector<MaskUse> masks(2);
  masks[0].spec = parse_mask_spec("sliding_window:4");
  masks[1].spec = parse_mask_spec("sliding_window:8");
  EXPECT_THAT(error_of([&] { (void)make_workload(kLengths, {}, masks); }),
              HasSubstr("found 'sliding_window' twice; name them: NAME=SPEC"));
  masks[1].name = "wide";
  EXPECT_EQ(make_workload(kLengths, {}, masks).masks[0].name, "sliding_window");
}

TEST(MakeWorkload, RejectsBadParts) {
  const std::span<const MaskUse> none;
  EXPECT_NE(error_of([&] { (void)make_workload(kLengths, {}, none); }), "");
  EXPECT_NE(error_of([] { (void)make_workload({}, {}, kCausalMask); }), "");
  EXPECT_NE(error_of([] { (void)make_workload(kLengths, {.kv_heads = 5}, kCausalMask); }), "");
}

TEST(CheckWorkload, ProvesEachInvariant) {
  const auto error_after = [](auto change) {
    Workload workload = small_workload();
    change(workload);
    return error_of([&] { check_workload(workload); });
  };
  EXPECT_EQ(error_after([](Workload&) {}), "");
  EXPECT_THAT(error_after([](Workload& w) { w.sequences.clear(); }), HasSubstr("sequence"));
  EXPECT_THAT(error_after([](Workload& w) { w.sequences[1].begin = 29; }), HasSubstr("sequence 1"));
  EXPECT_THAT(error_after([](Workload& w) { w.shape.q_heads = 3; }), HasSubstr("heads"));
  EXPECT_THAT(error_after([](Workload& w) { w.masks.clear(); }), HasSubstr("at least one mask"));
  EXPECT_THAT(error_after([](Workload& w) { w.masks[0].layers = 0; }), HasSubstr("layer"));
  EXPECT_THAT(error_after([](Workload& w) { w.masks[0].name = ""; }), HasSubstr("name"));
  EXPECT_THAT(error_after([](Workload& w) { w.masks.push_back(w.masks[0]); }), HasSubstr("twice"));
  EXPECT_THAT(error_after([](Workload& w) { w.masks[0].mask.bands[2].q.end = 51; }),
              HasSubstr("mask 'causal': mask band 2"));
  EXPECT_THAT(
      error_after([](Workload& w) { w.masks[0].mask.bands.push_back(w.masks[0].mask.bands[0]); }),
      HasSubstr("bands 0 and 3"));
  EXPECT_THAT(error_after([](Workload& w) { w.positions.pop_back(); }), HasSubstr("positions"));
  EXPECT_THAT(error_after([](Workload& w) { w.positions[0].tokens.end = 29; }),
              HasSubstr("positions"));
  EXPECT_THAT(error_after([](Workload& w) { w.positions[0].sequence = 1; }),
              HasSubstr("tokens of sequence 1"));
  EXPECT_THAT(error_after([](Workload& w) { w.positions[0].sequence = 3; }),
              HasSubstr("sequence below 3"));
  EXPECT_THAT(error_after([](Workload& w) { w.positions[0].first_position = -1; }),
              HasSubstr("first position"));
}

TEST(CheckWorkload, ProvesThatBranchesContinueBehindTheTokenTheyFollow) {
  const auto error_with = [](PositionSegment branch) {
    Workload workload = small_workload();  // the last sequence is [31, 50)
    workload.positions.back().tokens.end = 40;
    workload.positions.push_back(branch);
    return error_of([&] { check_workload(workload); });
  };
  EXPECT_EQ(error_with({{40, 50}, 2, 5, 35}), "");
  EXPECT_EQ(error_with({{40, 50}, 2, 5}), "");
  EXPECT_THAT(error_with({{40, 50}, 2, 0, 30}), HasSubstr("an earlier token of sequence 2"));
  EXPECT_THAT(error_with({{40, 50}, 2, 10, 40}), HasSubstr("an earlier token of sequence 2"));
  EXPECT_THAT(error_with({{40, 50}, 2, 6, 35}),
              HasSubstr("expected to begin at 5, behind token 35, found 6"));
}

TEST(CheckWorkload, ProvesHomeAndRoles) {
  const auto error_with = [](std::vector<HomeRange> home, std::vector<RoleRange> roles) {
    Workload workload = small_workload();
    workload.home = std::move(home);
    workload.roles = std::move(roles);
    return error_of([&] { check_workload(workload); });
  };
  EXPECT_EQ(error_with({{{0, 25}, Rank{1}}, {{25, 50}, Rank{0}}}, {}), "");
  EXPECT_THAT(error_with({{{0, 25}, Rank{1}}}, {}), HasSubstr("home: expected to end at token 50"));
  EXPECT_THAT(error_with({{{0, 25}, Rank{1}}, {{26, 50}, Rank{0}}}, {}), HasSubstr("begins at 25"));
  EXPECT_THAT(error_with({{{0, 50}, kInvalidRank}}, {}), HasSubstr("rank"));
  EXPECT_EQ(error_with({}, {{{10, 20}, Role::kBoth}}), "");
  EXPECT_THAT(error_with({}, {{{10, 20}, Role::kBoth}, {{15, 25}, Role::kBoth}}),
              HasSubstr("roles"));
  EXPECT_THAT(error_with({}, {{{40, 51}, Role::kBoth}}), HasSubstr("roles"));
  EXPECT_THAT(error_with({}, {{{10, 20}, Role::kKvOnly}}),
              HasSubstr("band 0: expected no queries in tokens [10, 20)"));
  EXPECT_THAT(error_with({}, {{{5, 9}, Role::kBoth}, {{30, 31}, Role::kQOnly}}),
              HasSubstr("band 1: expected no keys in tokens [30, 31)"));
}

TEST(CheckWorkload, TakesACachedPrefixWithoutQueries) {
  Workload workload = small_workload();
  workload.roles = {{{0, 10}, Role::kKvOnly}, {{31, 35}, Role::kQOnly}};
  workload.masks[0].mask.bands = {{{10, 30}, {0, 30}, -kUnbounded, 0}, {{31, 50}, {35, 50}}};
  EXPECT_NO_THROW(check_workload(workload));
}

TEST(Flops, BackwardIsTwoAndAHalfForwards) {
  const AttentionShape shape{.q_heads = 8, .head_dim = 128, .value_dim = 128};
  EXPECT_EQ(forward_flops(10, 8, shape), 2.0 * 10 * 8 * 256);
  EXPECT_EQ(backward_flops(10, 8, shape), 2.5 * forward_flops(10, 8, shape));
  const AttentionShape mla{.head_dim = 192, .value_dim = 128};
  EXPECT_EQ(forward_flops(1, 1, mla), 2.0 * 320);
  EXPECT_EQ(backward_flops(1, 1, mla), 2.0 * (3 * 192 + 2 * 128));
  EXPECT_EQ(forward_flops(kMaxTokens * kMaxTokens, 128, shape), std::ldexp(1.0, 62 + 1 + 7 + 8));
}

TEST(CutSequences, CutsIntoShortLastBlocks) {
  const Blocking blocking = cut_sequences(small_workload(), 8);
  std::vector<Range> ranges;
  for (std::int32_t b = 0; b < blocking.num_blocks(); ++b) {
    ASSERT_EQ(blocking.ranges(BlockId{b}).size(), 1U);
    ranges.push_back(blocking.ranges(BlockId{b}).front());
  }
  const std::vector<Range> expected = {{0, 8},   {8, 16},  {16, 24}, {24, 30},
                                       {30, 31}, {31, 39}, {39, 47}, {47, 50}};
  EXPECT_EQ(ranges, expected);
  EXPECT_THROW((void)cut_sequences(small_workload(), 0), InvalidArgument);
  EXPECT_EQ(cut_sequences(small_workload(), std::numeric_limits<std::int64_t>::max()).num_blocks(),
            3);
}

std::vector<std::int64_t> block_ends(const Blocking& blocking) {
  std::vector<std::int64_t> ends;
  for (std::int32_t b = 0; b < blocking.num_blocks(); ++b) {
    ends.push_back(blocking.ranges(BlockId{b}).back().end);
  }
  return ends;
}

TEST(CutSequences, CutsLongSequencesAtBandEdges) {
  const MaskUse lambda = parse_mask_use("lambda:3,24");
  const std::vector<std::int64_t> lengths = {15, 64};
  const Workload workload = make_workload(lengths, {}, {&lambda, 1});
  // The short sequence keeps its plain blocks; the long one gets the sink's end as well.
  std::vector<std::int64_t> expected = {10, 15, 25, 35, 45, 55, 65, 75, 79};
  EXPECT_EQ(block_ends(cut_sequences(workload, 10)), expected);
  const std::vector<std::int64_t> edges = block_ends(cut_sequences(workload, 10, BandCuts::kEdges));
  EXPECT_TRUE(std::ranges::includes(edges, expected));
  EXPECT_TRUE(std::ranges::binary_search(edges, 15 + 3));
  EXPECT_TRUE(std::ranges::none_of(edges, [](std::int64_t e) { return e < 15 && e != 10; }));
}

TEST(CutSequences, LeavesSequencesWithManyBandsAlone) {
  const MaskUse chunked = parse_mask_use("chunked:7");
  const std::vector<std::int64_t> lengths = {64};
  const Workload workload = make_workload(lengths, {}, {&chunked, 1});
  EXPECT_EQ(block_ends(cut_sequences(workload, 10, BandCuts::kEdges)),
            block_ends(cut_sequences(workload, 10)));
}

TEST(CutSequences, CutsAtRoleAndHomeBoundariesToo) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    Workload workload = make_workload(random_lengths(rng, 5, 30), {}, kCausalMask);
    const auto pieces = [&](auto add) {
      for (std::int64_t begin = 0; begin < workload.num_tokens();) {
        const std::int64_t end =
            std::min(workload.num_tokens(), begin + random_between(rng, 1, 25));
        add(Range{begin, end});
        begin = end;
      }
    };
    if (random_chance(rng, 0.7)) {
      pieces([&](Range r) { workload.home.push_back({r, Rank{0}}); });
    }
    pieces([&](Range r) {
      if (random_chance(rng, 0.4)) workload.roles.push_back({r, Role::kKvOnly});
    });
    const std::int64_t block_size = random_between(rng, 1, 12);
    const Blocking blocking = cut_sequences(workload, block_size);

    std::vector<bool> is_cut(static_cast<std::size_t>(workload.num_tokens()) + 1);
    const auto cut = [&](std::int64_t token) { is_cut[static_cast<std::size_t>(token)] = true; };
    for (const Range s : workload.sequences) {
      for (std::int64_t t = s.begin; t < s.end; t += block_size) cut(t);
    }
    for (const HomeRange& home : workload.home) cut(home.tokens.begin);
    for (const RoleRange& role : workload.roles) {
      cut(role.tokens.begin);
      cut(role.tokens.end);
    }
    std::int64_t end = 0;
    for (std::int32_t b = 0; b < blocking.num_blocks(); ++b) {
      const Range block = blocking.ranges(BlockId{b}).front();
      ASSERT_EQ(block.begin, end);
      end = block.end;
      for (std::int64_t t = block.begin; t < block.end; ++t) {
        ASSERT_EQ(is_cut[static_cast<std::size_t>(t)], t == block.begin) << "token " << t;
        const bool kv_only = std::ranges::any_of(
            workload.roles, [&](const RoleRange& role) { return role.tokens.contains(t); });
        ASSERT_EQ(blocking.role(BlockId{b}), kv_only ? Role::kKvOnly : Role::kBoth);
      }
    }
    ASSERT_EQ(end, workload.num_tokens());
  }
}

}  // namespace
}  // namespace contextile

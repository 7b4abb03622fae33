#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "contextile/mask.h"
#include "contextile/workload.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using Rule = MaskSpec::Rule;

std::vector<PositionSegment> inferred(const std::vector<Mask>& masks,
                                      const std::vector<Range>& sequences) {
  std::vector<const Mask*> all;
  for (const Mask& mask : masks) all.push_back(&mask);
  return infer_positions(all, sequences);
}

// A token follows followed[t], or begins a document (-1). Its row is itself and its ancestors.
struct Forest {
  std::vector<std::int64_t> followed;
  std::vector<std::vector<Range>> rows;
  std::vector<PositionSegment> segments;
};

Forest random_forest(Rng& rng, const std::vector<Range>& sequences) {
  Forest forest;
  std::vector<std::int64_t> depth;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    std::int64_t document = sequences[s].begin;
    for (std::int64_t t = sequences[s].begin; t < sequences[s].end; ++t) {
      std::int64_t parent = t - 1;
      if (t == sequences[s].begin || random_chance(rng, 0.05)) {
        parent = -1;
        document = t;
      } else if (random_chance(rng, 0.15)) {
        parent = random_between(rng, document, t - 1);
      }
      depth.push_back(parent < 0 ? 0 : depth[static_cast<std::size_t>(parent)] + 1);
      forest.followed.push_back(parent);
      std::vector<Range> row;
      if (parent >= 0) row = forest.rows[static_cast<std::size_t>(parent)];
      row.push_back({t, t + 1});
      forest.rows.push_back(row);
      if (parent < 0 || parent != t - 1) {
        forest.segments.push_back({{t, t}, static_cast<std::int64_t>(s), depth.back(), parent});
      }
      forest.segments.back().tokens.end = t + 1;
    }
  }
  return forest;
}

TEST(InferPositions, FollowsDocumentsAndTrees) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 3, 60));
    const Forest forest = random_forest(rng, sequences);
    EXPECT_EQ(inferred({mask_from_row_ranges(forest.rows)}, sequences), forest.segments);
  }
}

TEST(InferPositions, KeepsStorageOrderUnderRulesThatHaveNoBranches) {
  for (const char* text : {"full", "causal", "sliding_window:3", "lambda:2,4", "prefix_lm:5",
                           "causal_blockwise:4,2,1", "shared_question:0.3,3"}) {
    SCOPED_TRACE(text);
    Rng rng(3);
    for (int trial = 0; trial < 50; ++trial) {
      const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 4, 50));
      const MaskSpec spec = parse_mask_spec(text);
      EXPECT_EQ(inferred({build_mask(spec, sequences)}, sequences),
                build_positions(spec, sequences));
    }
  }
}

TEST(InferPositions, CutsDocumentsThatNoMaskJoins) {
  const std::vector<Range> whole = {{0, 100}};
  const std::vector<Range> documents = {{0, 30}, {30, 31}, {31, 100}};
  const Mask packed = build_mask({}, documents);
  const std::vector<PositionSegment> expected = {
      {{0, 30}, 0, 0}, {{30, 31}, 0, 0}, {{31, 100}, 0, 0}};
  EXPECT_EQ(inferred({packed}, whole), expected);
  EXPECT_EQ(inferred({packed, build_mask(parse_mask_spec("full"), documents)}, whole), expected);
  // A second mask joins them.
  EXPECT_EQ(inferred({packed, build_mask(parse_mask_spec("sliding_window:2"), whole)}, whole),
            (std::vector<PositionSegment>{{{0, 100}, 0, 0}}));
}

TEST(InferPositions, KeepsTokensWithoutPairsTogether) {
  // Two documents and padding that no token attends.
  const std::vector<Range> documents = {{0, 4}, {4, 10}};
  EXPECT_EQ(inferred({build_mask({}, documents)}, {{0, 16}}),
            (std::vector<PositionSegment>{{{0, 4}, 0, 0}, {{4, 10}, 0, 0}, {{10, 16}, 0, 0}}));
  // A cached prefix without queries.
  EXPECT_EQ(inferred({Mask{{{{6, 10}, {0, 10}, -kUnbounded, 0}}}}, {{0, 10}}),
            (std::vector<PositionSegment>{{{0, 10}, 0, 0}}));
}

TEST(InferPositions, SaysWhereBlocksSeeSelectedBlocks) {
  // Blocks of four tokens see themselves and some earlier blocks, and not all see the last one.
  const std::vector<std::vector<int>> selected = {{}, {0}, {0}, {2}, {1, 3}, {0, 2}};
  std::vector<std::vector<Range>> rows;
  for (std::int64_t q = 0; q < 24; ++q) {
    const std::int64_t block = q / 4;
    std::vector<Range> row;
    for (const int other : selected[static_cast<std::size_t>(block)]) {
      row.push_back({other * 4, other * 4 + 4});
    }
    row.push_back({block * 4, q + 1});
    rows.push_back(row);
  }
  EXPECT_EQ(inferred({mask_from_row_ranges(rows)}, {{0, 24}}),
            (std::vector<PositionSegment>{{{0, 24}, 0, 0, kPositionsUnknown}}));
  // Other documents, of which the pairs tell positions, keep theirs.
  rows.push_back({{24, 25}});
  rows.push_back({{24, 26}});
  EXPECT_EQ(inferred({mask_from_row_ranges(rows)}, {{0, 24}, {24, 26}}),
            (std::vector<PositionSegment>{{{0, 24}, 0, 0, kPositionsUnknown}, {{24, 26}, 1, 0}}));
}

// Block diffusion: a noisy copy of eight tokens in blocks of four, then the clean one.
Mask block_diffusion() {
  std::vector<std::vector<Range>> rows;
  for (std::int64_t q = 0; q < 8; ++q) {
    const std::int64_t block = q / 4 * 4;
    rows.push_back(block == 0 ? std::vector<Range>{{0, 4}}
                              : std::vector<Range>{{block, block + 4}, {8, 8 + block}});
  }
  for (std::int64_t q = 0; q < 8; ++q) rows.push_back({{8, 8 + q / 4 * 4 + 4}});
  return mask_from_row_ranges(rows);
}

TEST(InferPositions, SaysThatBlockDiffusionShowsNone) {
  // No pair joins its first block to others.
  EXPECT_EQ(inferred({block_diffusion()}, {{0, 16}}),
            (std::vector<PositionSegment>{{{0, 4}, 0, 0}, {{4, 16}, 0, 0, kPositionsUnknown}}));
}

TEST(SetPositions, KeepsAnOrderThatIsKnown) {
  const std::vector<std::int64_t> lengths = {25, 4};
  const MaskUse tree = {.name = "", .spec = parse_mask_spec("shared_question:[10,5,5,5]")};
  const std::vector<MaskUse> uses = {parse_mask_use("causal")};
  Workload workload = make_workload(std::vector<std::int64_t>{25}, {}, tree);
  const std::vector<PositionSegment> known = workload.positions;
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < 15; ++t) positions.push_back(t);
  for (std::int64_t t = 0; t < 10; ++t) positions.push_back(10 + t % 5);
  set_positions(workload, positions);
  EXPECT_EQ(workload.positions, known);

  // Another position makes a document one whose order is not known, and no other.
  workload = make_workload(lengths, {}, uses);
  positions.assign({0, 1, 2, 3});
  positions.insert(positions.begin(), 25, 7);
  set_positions(workload, positions);
  ASSERT_EQ(workload.positions.size(), 26U);
  EXPECT_EQ(workload.positions[1], (PositionSegment{{1, 2}, 0, 7, kOrderUnknown}));
  EXPECT_EQ(workload.positions[25], (PositionSegment{{25, 29}, 1, 0}));
  check_workload(workload);
}

TEST(SetPositions, TellsThoseOfBlockDiffusion) {
  Workload workload = make_workload(std::vector<std::int64_t>{16}, {});
  const Mask mask = block_diffusion();
  workload.masks.front().mask = mask;
  workload.positions = inferred({mask}, workload.sequences);
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < 16; ++t) positions.push_back(t % 8);
  Workload stored = workload;
  set_positions(workload, positions);
  EXPECT_EQ(workload.positions, (std::vector<PositionSegment>{{{0, 8}, 0, 0, kOrderUnknown},
                                                              {{8, 16}, 0, 0, kOrderUnknown}}));
  for (std::int64_t t = 0; t < 16; ++t) positions[static_cast<std::size_t>(t)] = t;
  set_positions(stored, positions);
  EXPECT_EQ(stored.positions, (std::vector<PositionSegment>{{{0, 16}, 0, 0}}));
}

TEST(SetPositions, RefusesOthers) {
  Workload workload = make_workload(std::vector<std::int64_t>{3}, {});
  EXPECT_THROW(set_positions(workload, std::vector<std::int64_t>{0, 1}), InvalidArgument);
  EXPECT_THROW(set_positions(workload, std::vector<std::int64_t>{0, -1, 2}), InvalidArgument);
  EXPECT_THROW(set_positions(workload, std::vector<std::int64_t>{0, 1, kMaxTokens + 1}),
               InvalidArgument);
}

TEST(InferPositions, TakesTheTreeFromTheMaskThatShowsIt) {
  // One layer kind attends the branch alone, within a window.
  const MaskSpec tree = parse_mask_spec("shared_question:[10,5,5,5]");
  const std::vector<Range> sequences = {{0, 25}};
  const std::vector<Range> parts = {{0, 15}, {15, 20}, {20, 25}};
  const Mask window = build_mask(parse_mask_spec("sliding_window:3"), parts);
  EXPECT_EQ(inferred({window, build_mask(tree, sequences)}, sequences),
            build_positions(tree, sequences));
}

}  // namespace
}  // namespace contextile

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/base.h"
#include "kernel/cpu/panels.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TEST(PanelGrid, PanelsFollowOneAnotherWithoutOneVectorAlone) {
  for (const std::int32_t lanes : {4, 8, 16}) {
    for (std::int64_t rows = 0; rows < 400; ++rows) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(lanes) + " lanes");
      const PanelGrid grid(rows, lanes);
      std::int64_t next = 0;
      for (std::int64_t p = 0; p < grid.num_panels(); ++p) {
        const Panel panel = grid.panel(p);
        ASSERT_EQ(panel.first_row, next);
        ASSERT_GE(panel.num_rows, 1);
        ASSERT_LE(panel.vectors, kMaxPanelVectors);
        ASSERT_GE(panel.vectors, rows > lanes ? 2 : 1);
        const bool is_last = p + 1 == grid.num_panels();
        ASSERT_GT(panel.num_rows,
                  is_last ? (panel.vectors - 1) * lanes : panel.vectors * lanes - 1);
        for (std::int64_t r = next; r < next + panel.num_rows; ++r) ASSERT_EQ(grid.panel_of(r), p);
        next += panel.num_rows;
      }
      ASSERT_EQ(next, rows);
    }
  }
}

TEST(PanelGrid, FourVectorsAreTwoPanelsOfTwo) {
  const PanelGrid grid(64, 16);
  ASSERT_EQ(grid.num_panels(), 2);
  EXPECT_EQ(grid.panel(0).vectors, 2);
  EXPECT_EQ(grid.panel(1).first_row, 32);
}

bool holds(const LaneBand& band, std::int64_t q, std::int64_t k) {
  return q >= band.q_begin && q < band.q_end && k >= band.k_begin && k < band.k_end &&
         k - q >= band.lo && k - q <= band.hi;
}

// Counts how often a step's bands meet every (token, key) of a panel, and lists its full part.
void count_pairs(const PanelBands& bands, std::int64_t panel, Range tokens, DenseMask& by_bands,
                 std::vector<std::pair<std::int64_t, std::int64_t>>& full) {
  for (const PanelStep& step : bands.steps(panel)) {
    ASSERT_LT(step.begin, step.end);
    if (step.full_begin < step.full_end) {
      ASSERT_GE(step.full_begin, step.begin);
      ASSERT_LE(step.full_end, step.end);
    }
    for (std::int64_t q = tokens.begin; q < tokens.end; ++q) {
      for (std::int64_t k = step.begin; k < step.end; ++k) {
        for (std::uint32_t b = 0; b < step.num_bands; ++b) {
          if (holds(bands.band(step.first_band + b), q, k)) {
            ++by_bands.counts[static_cast<std::size_t>(q * by_bands.num_keys + k)];
          }
        }
        if (k >= step.full_begin && k < step.full_end) full.emplace_back(q, k);
      }
    }
  }
}

TEST(PanelBands, StepsMeetEveryPairOnceAndFullPartsOnlyAttendedOnes) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::int64_t rows = random_between(rng, 1, 60);
    const std::int64_t keys = random_between(rng, 1, 60);
    const auto heads = static_cast<std::int32_t>(random_between(rng, 1, 5));
    const std::int32_t lanes = random_chance(rng, 0.5) ? 4 : 16;
    std::vector<LocalBand> listed;
    DenseMask mask(rows, keys);
    for (std::int64_t i = random_between(rng, 0, 8); i > 0; --i) {
      const Band band = random_band(rng, rows, keys);
      DenseMask both = mask;
      add_to_dense(band, both);
      if (std::any_of(both.counts.begin(), both.counts.end(), [](auto n) { return n > 1; })) {
        continue;
      }
      mask = both;
      listed.push_back(band);
    }
    const PanelBands bands(listed, rows, keys, heads, lanes);
    const PanelGrid grid(rows * heads, lanes);
    for (std::int64_t p = 0; p < grid.num_panels(); ++p) {
      const Panel panel = grid.panel(p);
      const Range tokens{panel.first_row / heads,
                         (panel.first_row + panel.num_rows - 1) / heads + 1};
      DenseMask found(rows, keys);
      std::vector<std::pair<std::int64_t, std::int64_t>> full;
      count_pairs(bands, p, tokens, found, full);
      for (std::int64_t q = tokens.begin; q < tokens.end; ++q) {
        for (std::int64_t k = 0; k < keys; ++k) {
          ASSERT_EQ(found.at(q, k), mask.at(q, k)) << "panel " << p << ", " << q << ", " << k;
        }
      }
      for (const auto& [q, k] : full) ASSERT_EQ(mask.at(q, k), 1) << q << ", " << k;
    }
  }
}

TEST(PanelBands, ACausalPanelIsFullUpToItsFirstToken) {
  const std::vector<LocalBand> causal = {{{0, 512}, {0, 512}, -kUnbounded, 0}};
  const PanelBands bands(causal, 512, 512, 4, 16);  // panels of 12 tokens
  const auto steps = bands.steps(10);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].begin, 0);
  EXPECT_EQ(steps[0].end, 132);
  EXPECT_EQ(steps[0].full_begin, 0);
  EXPECT_EQ(steps[0].full_end, 121);
}

TEST(PanelBands, NeighbouringDocumentsOfOnePanelShareAStep) {
  std::vector<LocalBand> documents;
  for (std::int64_t d = 0; d < 16; ++d) {
    documents.push_back({{d * 3, d * 3 + 3}, {d * 3, d * 3 + 3}, -kUnbounded, 0});
  }
  const PanelBands bands(documents, 48, 48, 1, 16);
  ASSERT_EQ(bands.steps(0).size(), 1U);
  EXPECT_EQ(bands.steps(0)[0].num_bands, 16U);
  EXPECT_EQ(bands.steps(0)[0].full_begin, bands.steps(0)[0].full_end);
}

TEST(PanelBands, ATileThatIsTooLongIsRefused) {
  EXPECT_THROW(PanelBands({}, std::int64_t{1} << 29, 1, 1, 16), InvalidArgument);
}

}  // namespace
}  // namespace contextile

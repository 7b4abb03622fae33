#include "strategy/schedule/coloring.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/base.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

std::int32_t largest_degree(const std::vector<BipartiteEdge>& edges) {
  std::vector<std::int32_t> left;
  std::vector<std::int32_t> right;
  std::int32_t largest = 0;
  for (const BipartiteEdge& edge : edges) {
    left.resize(std::max(left.size(), static_cast<std::size_t>(edge.left) + 1));
    right.resize(std::max(right.size(), static_cast<std::size_t>(edge.right) + 1));
    largest = std::max(largest, ++left[static_cast<std::size_t>(edge.left)]);
    largest = std::max(largest, ++right[static_cast<std::size_t>(edge.right)]);
  }
  return largest;
}

// Checks that every edge has a colour in range, edges with a common end differ, and there are Δ
// colours.
void expect_proper(const std::vector<BipartiteEdge>& edges, const EdgeColoring& coloring) {
  ASSERT_EQ(coloring.num_colors, largest_degree(edges));
  ASSERT_EQ(coloring.colors.size(), edges.size());
  std::set<std::pair<std::int32_t, std::int32_t>> left;
  std::set<std::pair<std::int32_t, std::int32_t>> right;
  std::set<std::int32_t> used;
  for (std::size_t e = 0; e < edges.size(); ++e) {
    const std::int32_t color = coloring.colors[e];
    ASSERT_GE(color, 0);
    ASSERT_LT(color, coloring.num_colors);
    used.insert(color);
    ASSERT_TRUE(left.insert({edges[e].left, color}).second) << "two sends, edge " << e;
    ASSERT_TRUE(right.insert({edges[e].right, color}).second) << "two receives, edge " << e;
  }
  EXPECT_EQ(static_cast<std::int32_t>(used.size()), coloring.num_colors);
}

std::vector<BipartiteEdge> random_edges(Rng& rng, std::int64_t count, std::int32_t num_left,
                                        std::int32_t num_right) {
  std::vector<BipartiteEdge> edges;
  const bool skewed = random_chance(rng, 0.3);  // a few vertices have most edges
  for (std::int64_t i = 0; i < count; ++i) {
    const auto end = [&](std::int32_t size) {
      const std::int32_t limit = skewed && random_chance(rng, 0.7) ? (size + 4) / 5 : size;
      return static_cast<std::int32_t>(random_between(rng, 0, limit - 1));
    };
    edges.push_back({end(num_left), end(num_right)});
  }
  return edges;
}

TEST(Coloring, IsProperWithExactlyTheLargestDegreeOnRandomMultigraphs) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const auto num_left = static_cast<std::int32_t>(random_between(rng, 1, 40));
    const auto num_right = static_cast<std::int32_t>(random_between(rng, 1, 40));
    const std::vector<BipartiteEdge> edges =
        random_edges(rng, random_between(rng, 0, 600), num_left, num_right);
    expect_proper(edges, color_edges(edges, num_left, num_right));
    if (HasFatalFailure()) return;
  }
}

TEST(Coloring, CompleteGraphsNeedOneColorAVertex) {
  for (std::int32_t n = 1; n <= 33; ++n) {
    std::vector<BipartiteEdge> edges;
    for (std::int32_t u = 0; u < n; ++u) {
      for (std::int32_t v = 0; v < n; ++v) edges.push_back({u, v});
    }
    SCOPED_TRACE(fmt::format("K {} x {}", n, n));
    const EdgeColoring coloring = color_edges(edges, n, n);
    EXPECT_EQ(coloring.num_colors, n);
    expect_proper(edges, coloring);
  }
}

// Greedy colouring in edge order would need a third colour here.
TEST(Coloring, FindsTwoColorsOfAPathGivenInABadOrder) {
  const std::vector<BipartiteEdge> edges = {{0, 0}, {1, 1}, {1, 0}};
  const EdgeColoring coloring = color_edges(edges, 2, 2);
  EXPECT_EQ(coloring.num_colors, 2);
  expect_proper(edges, coloring);
}

TEST(Coloring, TakesParallelEdgesStarsAndNoEdges) {
  const std::vector<BipartiteEdge> parallel(7, {2, 3});
  expect_proper(parallel, color_edges(parallel, 3, 4));
  std::vector<BipartiteEdge> star;
  for (std::int32_t v = 0; v < 5000; ++v) star.push_back({0, v});
  expect_proper(star, color_edges(star, 1, 5000));
  const EdgeColoring none = color_edges({}, 3, 3);
  EXPECT_EQ(none.num_colors, 0);
  EXPECT_TRUE(none.colors.empty());
}

TEST(Coloring, ColorsAHundredThousandEdges) {
  Rng rng(7);
  for (const std::int32_t vertices : {50, 1000, 60000}) {
    SCOPED_TRACE(fmt::format("{} vertices a side", vertices));
    const std::vector<BipartiteEdge> edges = random_edges(rng, 100000, vertices, vertices);
    expect_proper(edges, color_edges(edges, vertices, vertices));
  }
}

TEST(Coloring, IsTheSameEveryTime) {
  Rng rng(3);
  const std::vector<BipartiteEdge> edges = random_edges(rng, 2000, 30, 50);
  EXPECT_EQ(color_edges(edges, 30, 50).colors, color_edges(edges, 30, 50).colors);
}

TEST(Coloring, NamesAnEdgeWithAnEndOutsideItsSide) {
  const std::vector<BipartiteEdge> edges = {{0, 0}, {1, 5}};
  try {
    static_cast<void>(color_edges(edges, 2, 5));
    FAIL() << "accepted an edge outside";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("edge 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace contextile

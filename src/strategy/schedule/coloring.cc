#include "strategy/schedule/coloring.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace contextile {
namespace {

constexpr std::int32_t kNone = -1;

using Edges = std::vector<BipartiteEdge>;

std::vector<std::int32_t> degrees(std::span<const BipartiteEdge> edges,
                                  std::int32_t BipartiteEdge::*end, std::int32_t num_vertices) {
  std::vector<std::int32_t> degree(static_cast<std::size_t>(num_vertices));
  for (const BipartiteEdge& edge : edges) ++degree[static_cast<std::size_t>(edge.*end)];
  return degree;
}

std::int32_t largest(const std::vector<std::int32_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Joins neighbouring vertices while their degrees add up to at most `limit`. Any two consecutive
// joined vertices exceed it together, so at most 2E/limit + 1 remain. A colouring of the joined
// graph colours the original.
std::int32_t merge_vertices(Edges& edges, std::int32_t BipartiteEdge::*end,
                            const std::vector<std::int32_t>& degree, std::int32_t limit) {
  std::vector<std::int32_t> merged(degree.size());
  std::int32_t last = 0;
  std::int64_t total = 0;
  for (std::size_t v = 0; v < degree.size(); ++v) {
    if (total + degree[v] > limit) {
      ++last;
      total = 0;
    }
    total += degree[v];
    merged[v] = last;
  }
  for (BipartiteEdge& edge : edges) edge.*end = merged[static_cast<std::size_t>(edge.*end)];
  return last + 1;
}

// Colours a graph and, by recursion, the halves it is split into. Every half is a graph of its own
// whose edges are contiguous in memory; tables are reused.
class Colorer {
 public:
  Colorer(std::int32_t num_left, std::int32_t num_right)
      : num_left_(num_left), num_right_(num_right) {}

  // Colours edges whose degrees are at most `degree` with as many colours.
  std::vector<std::int32_t> color(const Edges& edges, std::int32_t degree) {
    if (degree == 1 || edges.empty()) return std::vector<std::int32_t>(edges.size(), 0);
    std::vector<std::int32_t> colors = split(edges);  // the half, at first
    const std::int32_t half_degree = (degree + 1) / 2;
    for (const std::int32_t half : {0, 1}) {
      Edges part;
      part.reserve(edges.size() / 2 + 1);
      for (std::size_t e = 0; e < edges.size(); ++e) {
        if (colors[e] == (half == 0 ? kFirstHalf : kSecondHalf)) part.push_back(edges[e]);
      }
      const std::vector<std::int32_t> of_part = color(part, half_degree);
      std::size_t next = 0;
      for (std::int32_t& c : colors) {
        if (c == (half == 0 ? kFirstHalf : kSecondHalf)) c = half * half_degree + of_part[next++];
      }
    }
    if (degree % 2 == 1) remove_one_color(edges, degree, colors);
    return colors;
  }

 private:
  static constexpr std::int32_t kFirstHalf = -2;
  static constexpr std::int32_t kSecondHalf = -3;

  // Euler split: edges are paired at every vertex, which makes paths and cycles of even length.
  // Along each of them, edges alternate between the two halves. A vertex of degree d keeps at most
  // ceil(d / 2) edges in either.
  std::vector<std::int32_t> split(const Edges& edges) {
    pair_up(edges, &BipartiteEdge::left, num_left_, other_at_left_);
    pair_up(edges, &BipartiteEdge::right, num_right_, other_at_right_);
    std::vector<std::int32_t> halves(edges.size(), kNone);
    for (std::size_t e = 0; e < edges.size(); ++e) {
      if (halves[e] != kNone) continue;
      halves[e] = kFirstHalf;
      walk(e, other_at_left_, other_at_right_, halves);
      walk(e, other_at_right_, other_at_left_, halves);
    }
    return halves;
  }

  void pair_up(const Edges& edges, std::int32_t BipartiteEdge::*end, std::int32_t num_vertices,
               std::vector<std::int32_t>& other) {
    waiting_.assign(static_cast<std::size_t>(num_vertices), kNone);
    other.assign(edges.size(), kNone);
    for (std::size_t e = 0; e < edges.size(); ++e) {
      std::int32_t& waiting = waiting_[static_cast<std::size_t>(edges[e].*end)];
      if (waiting == kNone) {
        waiting = static_cast<std::int32_t>(e);
        continue;
      }
      other[e] = waiting;
      other[static_cast<std::size_t>(waiting)] = static_cast<std::int32_t>(e);
      waiting = kNone;
    }
  }

  static void walk(std::size_t e, const std::vector<std::int32_t>& first,
                   const std::vector<std::int32_t>& second, std::vector<std::int32_t>& halves) {
    const std::vector<std::int32_t>* next = &first;
    const std::vector<std::int32_t>* after = &second;
    for (;;) {
      const std::int32_t partner = (*next)[e];
      if (partner == kNone || halves[static_cast<std::size_t>(partner)] != kNone) return;
      const std::int32_t half = halves[e] == kFirstHalf ? kSecondHalf : kFirstHalf;
      e = static_cast<std::size_t>(partner);
      halves[e] = half;
      std::swap(next, after);
    }
  }

  // Removes one of the degree + 1 colours that the two halves used. The smallest class gives up its
  // colour (the last colour takes its number), and its edges get places among the rest.
  void remove_one_color(const Edges& edges, std::int32_t degree,
                        std::vector<std::int32_t>& colors) {
    std::vector<std::int32_t> sizes(static_cast<std::size_t>(degree) + 1);
    for (const std::int32_t c : colors) ++sizes[static_cast<std::size_t>(c)];
    const auto smallest =
        static_cast<std::int32_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
    const auto stride = static_cast<std::size_t>(degree);
    at_left_.assign(static_cast<std::size_t>(num_left_) * stride, kNone);
    at_right_.assign(static_cast<std::size_t>(num_right_) * stride, kNone);
    std::vector<std::size_t> homeless;
    for (std::size_t e = 0; e < edges.size(); ++e) {
      if (colors[e] == smallest) {
        homeless.push_back(e);
      } else {
        if (colors[e] == degree) colors[e] = smallest;
        paint(edges, e, static_cast<std::size_t>(colors[e]), stride, colors);
      }
    }
    for (const std::size_t e : homeless) insert(edges, e, stride, colors);
  }

  [[nodiscard]] static std::size_t place(std::int32_t vertex, std::size_t color,
                                         std::size_t stride) {
    return static_cast<std::size_t>(vertex) * stride + color;
  }
  void paint(const Edges& edges, std::size_t e, std::size_t color, std::size_t stride,
             std::vector<std::int32_t>& colors) {
    colors[e] = static_cast<std::int32_t>(color);
    at_left_[place(edges[e].left, color, stride)] = static_cast<std::int32_t>(e);
    at_right_[place(edges[e].right, color, stride)] = static_cast<std::int32_t>(e);
  }
  [[nodiscard]] static std::size_t free_color(const std::vector<std::int32_t>& table,
                                              std::int32_t vertex, std::size_t stride) {
    const auto row = table.begin() + static_cast<std::ptrdiff_t>(place(vertex, 0, stride));
    return static_cast<std::size_t>(
        std::find(row, row + static_cast<std::ptrdiff_t>(stride), kNone) - row);
  }

  // Colours an edge. Colour a is free at its left end, b at its right. The path of colours a, b, a,
  // … from the right end never meets the left end (it enters left vertices by a), so swapping the
  // path's colours frees a there.
  void insert(const Edges& edges, std::size_t e, std::size_t stride,
              std::vector<std::int32_t>& colors) {
    const std::size_t a = free_color(at_left_, edges[e].left, stride);
    const std::size_t b = free_color(at_right_, edges[e].right, stride);
    path_.clear();
    for (std::int32_t step = at_right_[place(edges[e].right, a, stride)]; step != kNone;) {
      const auto at = static_cast<std::size_t>(step);
      path_.push_back(at);
      step = path_.size() % 2 == 1 ? at_left_[place(edges[at].left, b, stride)]
                                   : at_right_[place(edges[at].right, a, stride)];
    }
    for (const std::size_t step : path_) {
      const auto old = static_cast<std::size_t>(colors[step]);
      at_left_[place(edges[step].left, old, stride)] = kNone;
      at_right_[place(edges[step].right, old, stride)] = kNone;
    }
    for (std::size_t i = 0; i < path_.size(); ++i) {
      paint(edges, path_[i], i % 2 == 0 ? b : a, stride, colors);
    }
    paint(edges, e, a, stride, colors);
  }

  std::int32_t num_left_;
  std::int32_t num_right_;
  std::vector<std::int32_t> other_at_left_;  // of every edge: its partner at its left end
  std::vector<std::int32_t> other_at_right_;
  std::vector<std::int32_t> waiting_;  // of every vertex: the edge that waits for a partner
  std::vector<std::int32_t> at_left_;  // [vertex][colour]: the edge there
  std::vector<std::int32_t> at_right_;
  std::vector<std::size_t> path_;
};

}  // namespace

EdgeColoring color_edges(std::span<const BipartiteEdge> edges, std::int32_t num_left,
                         std::int32_t num_right) {
  for (std::size_t e = 0; e < edges.size(); ++e) {
    CONTEXTILE_CHECK(edges[e].left >= 0 && edges[e].left < num_left && edges[e].right >= 0 &&
                         edges[e].right < num_right,
                     "edge {}: expected ends below {} and {}, found {} and {}", e, num_left,
                     num_right, edges[e].left, edges[e].right);
  }
  const std::vector<std::int32_t> left = degrees(edges, &BipartiteEdge::left, num_left);
  const std::vector<std::int32_t> right = degrees(edges, &BipartiteEdge::right, num_right);
  EdgeColoring coloring;
  coloring.num_colors = std::max(largest(left), largest(right));
  if (edges.empty()) return coloring;
  Edges merged(edges.begin(), edges.end());
  const std::int32_t merged_left =
      merge_vertices(merged, &BipartiteEdge::left, left, coloring.num_colors);
  const std::int32_t merged_right =
      merge_vertices(merged, &BipartiteEdge::right, right, coloring.num_colors);
  coloring.colors = Colorer(merged_left, merged_right).color(merged, coloring.num_colors);
  return coloring;
}

}  // namespace contextile

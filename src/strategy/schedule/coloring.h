// Exact edge colouring of bipartite multigraphs: transfers (sender → receiver) in rounds in which
// every device sends at most once and receives at most once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace contextile {

struct BipartiteEdge {
  std::int32_t left = 0;   // 0 … num_left - 1, a sender
  std::int32_t right = 0;  // 0 … num_right - 1, a receiver
};

struct EdgeColoring {
  std::int32_t num_colors = 0;       // exactly the largest degree
  std::vector<std::int32_t> colors;  // of every edge, 0 … num_colors - 1
};

// Colours the edges (parallel ones allowed) so that edges that share an end differ. The number of
// colours is exactly the largest degree Δ: no colouring has fewer, and every bipartite graph has
// one with as many (König). Throws InvalidArgument for an end outside its side.
//
// Source: Gabow, "Using Euler partitions to edge color bipartite multigraphs" (1976). Vertices of
// small degree are merged first, which keeps tables at O(E). Euler splits halve Δ down to 1. If Δ
// is odd, the halves have one colour too many, and the edges of the smallest class are recoloured
// one by one along alternating paths. O(E log Δ) for the splits; a path costs at most O(V), usually
// far less.
[[nodiscard]] EdgeColoring color_edges(std::span<const BipartiteEdge> edges, std::int32_t num_left,
                                       std::int32_t num_right);

}  // namespace contextile

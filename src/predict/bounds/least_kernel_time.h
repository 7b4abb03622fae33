// The least time a kernel takes for a document, however it is cut into tiles.
#pragma once

#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "predict/bounds/components.h"

namespace contextile {

// Costs are in pairs at the device's peak (Cluster::attention_tflops).
//
// The cost in TileCosts: the pieces of a call that have the same query rows are a run. A run of r
// rows that computes c pairs costs g(r, c) = c / share(r, c / r); the c are its attended pairs p
// and those wasted along edges. Every piece lies inside one component, and so does every run. Only
// one of a run's pieces has tokens on the diagonal: if two had, t in one and t' > t in the other,
// the other's band would hold t too, as it has t' and a key of row t, none of them after t. "Piece"
// below is a run.
//
// The bound: let α, β, γ, δ >= 0 be such that every possible piece costs at least
// α·p + β·r + γ·m + δ, m its tokens on the diagonal. Then a component costs at least
// α·pairs + β·rows + γ·diagonal + δ. Pairs and tokens on the diagonal are in exactly
// one piece, a row that attends anything is in at least one, and there is a piece.
//
// To find α, β, ε with g(r, c) >= α·c + β·r + ε, let the share grow along rows and along keys, but
// never faster than they do (the constructor raises shares until that holds, which only lowers
// costs). With k = c / r that reads k / share(r, k) >= α·k + β + ε / r. In a cell of the profile
// log(k / share) is bilinear in log r and log k with slopes in [-1, 0] and [0, 1]: k / share is
// concave in k, and concave in 1 / r. So the inequality holds everywhere if it does in the corners
// of all cells; beyond the grid k / share grows linearly in k or not at all in r; below, g stays
// while the right side shrinks.
//
// Wasted pairs: a piece with m tokens on the diagonal (MaskComponent::diagonal) has at least m rows
// and m keys, and of these tokens' m² pairs m(m - 1)/2 are not attended. TileCosts adds h·min(rows,
// keys), h half a kernel tile, to p as long as that fits into the rectangle. So c - p >= h·m, or c
// is the rectangle and c - p >= m(m - 1)/2. With γ = α·u, u <= h: in the first case α·p + γ·m <=
// α·c; in the second α·p + γ·m <= α·c + α·(u·m - m(m - 1)/2) <= α·c + α·(u + 1/2)²/2. So δ = ε -
// α·(u + 1/2)²/2 suffices.
struct KernelCost {
  double pair = 0;      // α
  double row = 0;       // β
  double diagonal = 0;  // γ, of a token on the diagonal
  double piece = 0;     // δ

  [[nodiscard]] double of(const MaskComponent& component) const {
    return pair * static_cast<double>(component.pairs) + row * static_cast<double>(component.rows) +
           diagonal * static_cast<double>(component.diagonal) + piece;
  }
};

class KernelPrice {
 public:
  KernelPrice(const AttentionProfile& profile, Direction direction);

  // The prices at which the component costs most; its pieces cost at least these, and the component
  // at least its cost by them.
  [[nodiscard]] KernelCost least_cost(const MaskComponent& component) const;
  // The largest share of the peak that a piece of the component can reach.
  [[nodiscard]] double best_share(const MaskComponent& component) const;

 private:
  // Corners of the profile's cells that the component's pieces lie in.
  struct Corners {
    std::vector<double> rows;
    std::vector<double> keys;
    std::vector<double> keys_per_share;  // [rows][keys]: k / share(r, k)
    double most_alpha = 0;               // least 1 / share
  };

  [[nodiscard]] Corners corners_of(const MaskComponent& component) const;
  [[nodiscard]] KernelCost least_cost(const MaskComponent& component, const Corners& corners,
                                      double alpha) const;
  [[nodiscard]] double share(double rows, double keys) const;
  [[nodiscard]] double most_keys(const MaskComponent& component) const;

  AttentionProfile profile_;  // shares of the direction, raised, in `forward`
};

}  // namespace contextile

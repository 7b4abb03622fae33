// Ring attention over P positions whose ring may be nested: inner rings of consecutive positions,
// joined by an outer ring. One inner ring of all positions is the plain ring.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "contextile/extend/arrangement.h"

namespace contextile {

// The stages of compute, and the ways of keys, values and their gradients. Positions count inner
// ring by inner ring: position o·inner + i is place i of inner ring o. There are P = size positions
// in size / inner inner rings.
//
// Forward (LoongTrain's Double-Ring-Attention; with one inner ring RingAttention): at outer step j
// and inner step t, step j·inner + t, position (o, i) holds the keys of (o - j, i - t). Keys go
// round the inner ring one hop per step; the hop to the next inner ring is launched at the start of
// an outer step and has until its end. Backward is reversed: in step j·inner + t, position (o, i)
// holds the keys of (o + 1 + j, i + 1 + t). A position's own keys therefore come last, and
// gradients, one hop behind, end at home: first gathered round each inner ring, then from inner
// ring to inner ring. In both directions every unit makes P - 1 hops, all except the number of
// inner rings - 1 of them inside an inner ring.
class NestedRing {
 public:
  // `inner` divides `size`. `rank_at` maps a position to a device.
  NestedRing(std::int32_t size, std::int32_t inner, std::function<Rank(std::int32_t)> rank_at);

  // Return the stage, counted from the first, at which the queries of position `queries` meet the
  // keys of position `keys`.
  [[nodiscard]] std::int32_t forward_stage(std::int32_t queries, std::int32_t keys) const;
  [[nodiscard]] std::int32_t backward_stage(std::int32_t queries, std::int32_t keys) const;
  // Return the number of stages after which all tiles are done and every gradient is home.
  [[nodiscard]] std::int32_t forward_stages() const { return size_; }
  [[nodiscard]] std::int32_t backward_stages() const { return lead_ + size_; }

  // Appends the hops of one key block that starts at position `home`.
  void relay_forward(BlockId block, GroupId group, std::int32_t home, std::int32_t first_stage,
                     std::vector<Transfer>& out) const;
  // Also appends the hops of its gradient. holds(position) returns true if the device there
  // computes a share; hops that would carry nothing are left out.
  void relay_backward(BlockId block, GroupId group, std::int32_t home, std::int32_t first_stage,
                      const std::function<bool(std::int32_t)>& holds,
                      std::vector<Transfer>& out) const;

  // Appends the hops of a gradient whose shares are all computed: round every inner ring to its
  // home's place, then from inner ring to inner ring. holds(position) as above.
  void collect(BlockId block, GroupId group, std::int32_t home, std::int32_t first_stage,
               const std::function<bool(std::int32_t)>& holds, std::vector<Transfer>& out) const;
  // Returns the number of stages after which it is home.
  [[nodiscard]] std::int32_t collecting_stages() const { return inner_ - 1 + num_rings() - 1; }

 private:
  [[nodiscard]] std::int32_t num_rings() const { return size_ / inner_; }
  [[nodiscard]] std::function<Rank(std::int32_t)> ranks_of_inner(std::int32_t outer) const;

  std::int32_t size_;
  std::int32_t inner_;
  std::int32_t lead_;  // backward stages before the first step, in which its keys arrive
  std::function<Rank(std::int32_t)> rank_at_;
};

}  // namespace contextile

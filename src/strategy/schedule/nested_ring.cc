#include "strategy/schedule/nested_ring.h"

#include <utility>

#include "base/check.h"
#include "strategy/schedule/ring.h"

namespace contextile {

NestedRing::NestedRing(std::int32_t size, std::int32_t inner,
                       std::function<Rank(std::int32_t)> rank_at)
    : size_(size), inner_(inner), rank_at_(std::move(rank_at)) {
  CONTEXTILE_CHECK(size > 0 && inner > 0 && size % inner == 0,
                   "inner ring: expected a divisor of {} positions, found {}", size, inner);
  // Keys of the next position are one hop away, those of the next place in the next inner ring two.
  lead_ = size == 1 ? 0 : inner == 1 || inner == size ? 1 : 2;
}

std::int32_t NestedRing::forward_stage(std::int32_t queries, std::int32_t keys) const {
  const std::int32_t outer = ring_shift(queries / inner_, -(keys / inner_), num_rings());
  return outer * inner_ + ring_shift(queries % inner_, -(keys % inner_), inner_);
}

std::int32_t NestedRing::backward_stage(std::int32_t queries, std::int32_t keys) const {
  const std::int32_t outer = ring_shift(keys / inner_, -(queries / inner_) - 1, num_rings());
  return lead_ + outer * inner_ + ring_shift(keys % inner_, -(queries % inner_) - 1, inner_);
}

std::function<Rank(std::int32_t)> NestedRing::ranks_of_inner(std::int32_t outer) const {
  return [this, outer](std::int32_t place) { return rank_at_(outer * inner_ + place); };
}

void NestedRing::relay_forward(BlockId block, GroupId group, std::int32_t home,
                               std::int32_t first_stage, std::vector<Transfer>& out) const {
  const std::int32_t place = home % inner_;
  for (std::int32_t j = 0; j < num_rings(); ++j) {
    const std::int32_t outer = ring_shift(home / inner_, j, num_rings());
    const std::int32_t start = first_stage + j * inner_;
    relay_input({Kind::kKv, block, group, place, inner_, 1, ranks_of_inner(outer)}, inner_ - 1,
                start, out);
    if (j + 1 == num_rings()) break;
    const std::int32_t next = ring_shift(outer, 1, num_rings());
    out.push_back({Kind::kKv, block, group, rank_at_(outer * inner_ + place),
                   rank_at_(next * inner_ + place), start, start + inner_});
  }
}

void NestedRing::relay_backward(BlockId block, GroupId group, std::int32_t home,
                                std::int32_t first_stage,
                                const std::function<bool(std::int32_t)>& holds,
                                std::vector<Transfer>& out) const {
  if (size_ == 1) return;
  const std::int32_t place = home % inner_;
  const auto start_of = [&](std::int32_t j) { return first_stage + lead_ + j * inner_; };
  bool gathered = false;
  for (std::int32_t j = 0; j < num_rings(); ++j) {
    const std::int32_t outer = ring_shift(home / inner_, -1 - j, num_rings());
    const Rank here = rank_at_(outer * inner_ + place);
    const std::int32_t start = start_of(j);
    if (j + 1 < num_rings()) {  // the keys reach this ring one step before they go round it
      const std::int32_t from = ring_shift(outer, 1, num_rings());
      out.push_back({Kind::kKv, block, group, rank_at_(from * inner_ + place), here,
                     j == 0 ? first_stage : start_of(j - 1), inner_ == 1 ? start : start - 1});
    }
    const auto in_ring = ranks_of_inner(outer);
    relay_input({Kind::kKv, block, group, place, inner_, -1, in_ring}, inner_ - 1, start - 1, out);
    const auto holds_in_ring = [&](std::int32_t i) { return holds(outer * inner_ + i); };
    gather_result({Kind::kDkv, block, group, ring_shift(place, -1, inner_), inner_, -1, in_ring},
                  inner_ - 1, start + 1, holds_in_ring, out);
    for (std::int32_t i = 0; i < inner_; ++i) gathered = gathered || holds_in_ring(i);
    if (gathered && j + 1 < num_rings()) {  // all shares of this ring are at the block's place now
      const std::int32_t next = ring_shift(outer, -1, num_rings());
      out.push_back({Kind::kDkv, block, group, here, rank_at_(next * inner_ + place),
                     start + inner_, start + 2 * inner_});
    }
  }
}

void NestedRing::collect(BlockId block, GroupId group, std::int32_t home, std::int32_t first_stage,
                         const std::function<bool(std::int32_t)>& holds,
                         std::vector<Transfer>& out) const {
  const std::int32_t place = home % inner_;
  for (std::int32_t outer = 0; outer < num_rings(); ++outer) {
    gather_result(
        {Kind::kDkv, block, group, ring_shift(place, 1, inner_), inner_, 1, ranks_of_inner(outer)},
        inner_ - 1, first_stage, [&](std::int32_t i) { return holds(outer * inner_ + i); }, out);
  }
  const auto any_in_ring = [&](std::int32_t outer) {
    for (std::int32_t i = 0; i < inner_; ++i) {
      if (holds(outer * inner_ + i)) return true;
    }
    return false;
  };
  gather_result({Kind::kDkv, block, group, ring_shift(home / inner_, 1, num_rings()), num_rings(),
                 1, [&](std::int32_t outer) { return rank_at_(outer * inner_ + place); }},
                num_rings() - 1, first_stage + inner_ - 1, any_in_ring, out);
}

}  // namespace contextile

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/check.h"
#include "contextile/serving/decode.h"
#include "kernel/tensor.h"
#include "serving/decode/shard_weights.h"

namespace contextile {
namespace {

template <LseBase kBase>
void check_shapes(const ShardResult<kBase>& dst, std::span<const ShardResult<kBase>> shards) {
  CONTEXTILE_CHECK(!shards.empty(), "merge: expected at least one shard, found none");
  for (const ShardResult<kBase>& shard : shards) {
    const TensorView& o = shard.o_NHD;
    CONTEXTILE_CHECK(
        o.tokens == dst.o_NHD.tokens && o.heads == dst.o_NHD.heads && o.dim == dst.o_NHD.dim,
        "merge: expected shards of [{}, {}, {}], found [{}, {}, {}]", dst.o_NHD.tokens,
        dst.o_NHD.heads, dst.o_NHD.dim, o.tokens, o.heads, o.dim);
  }
}

}  // namespace

template <LseBase kBase>
float find_weights(std::span<float> lse) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float top = kNone;
  for (float& one : lse) {
    if (std::isnan(one) || one == std::numeric_limits<float>::infinity()) one = kNone;
    top = std::fmax(top, one);
  }
  if (top == kNone) {
    for (float& one : lse) one = 0;
    return kNone;
  }
  float sum = 0;
  for (float& one : lse) {
    one = kBase == LseBase::kE ? std::exp(one - top) : std::exp2(one - top);
    sum += one;
  }
  for (float& one : lse) one /= sum;
  return top + (kBase == LseBase::kE ? std::log(sum) : std::log2(sum));
}

template <LseBase kBase>
void merge_shards(const ShardResult<kBase>& dst, std::span<const ShardResult<kBase>> shards) {
  check_shapes(dst, shards);
  std::vector<float> weights(shards.size());
  std::vector<float> part(static_cast<std::size_t>(dst.o_NHD.dim));
  std::vector<float> sum(part.size());
  for (std::int64_t n = 0; n < dst.o_NHD.tokens; ++n) {
    for (std::int32_t h = 0; h < dst.o_NHD.heads; ++h) {
      for (std::size_t r = 0; r < shards.size(); ++r) {
        weights[r] = stat_at(shards[r].lse_NH.rows, n, h);
      }
      stat_at(dst.lse_NH.rows, n, h) = find_weights<kBase>(weights);
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (std::size_t r = 0; r < shards.size(); ++r) {
        if (weights[r] == 0) continue;
        read_row(shards[r].o_NHD, n, h, std::span(part));
        for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weights[r] * part[d];
      }
      write_row(dst.o_NHD, n, h, sum);
    }
  }
}

template float find_weights<LseBase::kE>(std::span<float>);
template float find_weights<LseBase::kTwo>(std::span<float>);
template void merge_shards(const ShardResult<LseBase::kE>&,
                           std::span<const ShardResult<LseBase::kE>>);
template void merge_shards(const ShardResult<LseBase::kTwo>&,
                           std::span<const ShardResult<LseBase::kTwo>>);

}  // namespace contextile

// Putting together what ranks computed of one softmax, each over its own keys.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/tensor.h"

namespace contextile {

// The base of the logarithm of a sum of exponentials. Attention backends differ in it, and numbers
// of one taken for those of the other are wrong without looking so; hence it is part of the type.
enum class LseBase : std::uint8_t { kE, kTwo };

template <LseBase kBase>
struct Lse {
  float value = 0;
};
using NaturalLse = Lse<LseBase::kE>;
using BinaryLse = Lse<LseBase::kTwo>;

[[nodiscard]] constexpr NaturalLse to_natural(BinaryLse lse) {
  return {lse.value * 0.69314718055994531F};
}
[[nodiscard]] constexpr BinaryLse to_binary(NaturalLse lse) {
  return {lse.value * 1.4426950408889634F};
}

// [rows, heads] of such; rows as RowStats has them.
template <LseBase kBase>
struct LseRows {
  RowStats rows;
};

// One rank's part: O [rows, heads, dim] of f32, bf16 or f16, the average of its values, and LSE. A
// row that saw no key has LSE -inf (NaN and +inf, which some kernels leave there, count as such);
// its O is not read, whatever stands there.
template <LseBase kBase>
struct ShardResult {
  TensorView o_NHD;
  LseRows<kBase> lse_NH;
};

// dst := the merge of the shards (at least one) in the listed order, in fp32:
//   L = log(sum exp(L_r)),  O = sum exp(L_r - L)·O_r;
// rows that are empty everywhere become O = 0, L = -inf. dst overlaps no shard. Throws
// InvalidArgument where shapes differ.
template <LseBase kBase>
void merge_shards(const ShardResult<kBase>& dst, std::span<const ShardResult<kBase>> shards);

extern template void merge_shards(const ShardResult<LseBase::kE>&,
                                  std::span<const ShardResult<LseBase::kE>>);
extern template void merge_shards(const ShardResult<LseBase::kTwo>&,
                                  std::span<const ShardResult<LseBase::kTwo>>);

}  // namespace contextile

// Merging partial attention results over disjoint key sets, and summing gradients.
//
// A partial result of a row is (O, L): L is the natural log of the sum of exp(scores), O the
// average of the values under those weights. A row that has seen no key is (0, -inf). The merge of
// two rows is
//   L = logaddexp(La, Lb),  O = exp(La - L)·Oa + exp(Lb - L)·Ob.
// The O of an empty row is never read: 0·NaN would leak what happens to stand there. Both empty:
// empty.
#pragma once

#include <span>

#include "contextile/kernel.h"

namespace contextile {

// log(exp(a) + exp(b)); -inf when both are -inf.
[[nodiscard]] double logaddexp(double a, double b);

// One slot of partial output, fp32. RowStats of `lse` covers the rows of `o`.
struct PartialOutput {
  TensorView o_NHD;
  RowStats lse_NH;
};

// dst := the merge of srcs in the listed order, computed in fp64, rounded once. dst may be among
// srcs.
void merge_outputs(const PartialOutput& dst, std::span<const PartialOutput> srcs);

// dst := the sum of srcs in the listed order, computed in fp64, rounded once. fp32; dst may be
// among srcs.
void sum_tensors(const TensorView& dst, std::span<const TensorView> srcs);

}  // namespace contextile

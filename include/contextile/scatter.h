// A batch's tensors in the order of every rank, and back.
//
// Legend of suffixes: T tokens of the batch, N tokens of a rank, H heads, D elements of a row.
#pragma once

#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/plan.h"
#include "contextile/tensor.h"

namespace contextile {

// A tensor of the batch is [T, heads, dim], row t for token t (Plan::num_tokens of them); a rank's
// is [N, heads, dim], row n for token local_tokens(plan, rank)[n], N = num_local_tokens: the local
// order, in which an Executor takes and returns its tensors. Whatever there is one row a token of
// can be moved (hidden states: [T, 1, hidden]), for rows are copied bit by bit. Strides are free.
//
// All of them throw InvalidArgument when shapes or dtypes do not fit, naming the rank, and
// InvalidPlan when the plan's tables do not hold together. They do not verify the plan.

// local := the rank's rows of batch. O(N · heads · dim). Ranks own different tokens, so calls for
// several may run side by side, here and in gather.
void scatter(const Plan& plan, Rank rank, const TensorView& batch_THD, const TensorView& local_NHD);
// The rank's rows of batch := local. Other rows are left alone.
void gather(const Plan& plan, Rank rank, const TensorView& local_NHD, const TensorView& batch_THD);

// The same for all ranks at once: by rank, and from as many. A rank that owns no tokens has a
// tensor without rows; a row that no rank owns is NaN.
[[nodiscard]] std::vector<HostTensor> scatter(const Plan& plan, const TensorView& batch_THD);
[[nodiscard]] HostTensor gather(const Plan& plan, std::span<const HostTensor> local_NHD);

}  // namespace contextile

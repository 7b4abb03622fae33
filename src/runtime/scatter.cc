#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"
#include "contextile/advanced/executor.h"
#include "contextile/plan.h"
#include "kernel/tensor.h"
#include "runtime/executor/check_program.h"
#include "runtime/executor/check_tensors.h"

namespace contextile {
namespace {

bool is_contiguous(const TensorView& view) {
  return view.head_stride == view.dim && view.token_stride == std::int64_t{view.heads} * view.dim;
}

// Copies rows between tensors of one shape and dtype.
void copy_rows(const TensorView& to, const TensorView& from) {
  const std::int64_t row_bytes = from.dim * bytes_per_element(from.dtype);
  const std::int64_t token_bytes = row_bytes * from.heads;
  if (is_contiguous(to) && is_contiguous(from)) {
    if (from.tokens == 0) return;
    std::memcpy(to.data, from.data, static_cast<std::size_t>(token_bytes * from.tokens));
    return;
  }
  for (std::int64_t n = 0; n < from.tokens; ++n) {
    for (std::int32_t h = 0; h < from.heads; ++h) {
      std::memcpy(slice(to, n, 1, h, 1).data, slice(from, n, 1, h, 1).data,
                  static_cast<std::size_t>(row_bytes));
    }
  }
}

// Calls copy(batch rows, local rows) for every range of the rank.
template <typename Copy>
void for_each_part(std::string_view what, const Plan& plan, Rank rank, const TensorView& batch,
                   const TensorView& local, const Copy& copy) {
  check_structure(plan);
  const std::string where = fmt::format("{}, rank {}", what, rank.value);
  check_tensor(where, "the batch's tensor", batch, plan.num_tokens(), batch.heads, batch.dim,
               batch.dtype);
  check_tensor(where, "the rank's tensor", local, num_local_tokens(plan, rank), batch.heads,
               batch.dim, batch.dtype);
  std::int64_t row = 0;
  for (const Range& range : local_ranges(plan, rank)) {
    copy(slice(batch, range.begin, range.size(), 0, batch.heads),
         slice(local, row, range.size(), 0, batch.heads));
    row += range.size();
  }
}

}  // namespace

void scatter(const Plan& plan, Rank rank, const TensorView& batch_THD,
             const TensorView& local_NHD) {
  for_each_part("scatter", plan, rank, batch_THD, local_NHD,
                [](const TensorView& batch, const TensorView& local) { copy_rows(local, batch); });
}

void gather(const Plan& plan, Rank rank, const TensorView& local_NHD, const TensorView& batch_THD) {
  for_each_part("gather", plan, rank, batch_THD, local_NHD,
                [](const TensorView& batch, const TensorView& local) { copy_rows(batch, local); });
}

std::vector<HostTensor> scatter(const Plan& plan, const TensorView& batch_THD) {
  check_structure(plan);
  std::vector<HostTensor> local;
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    local.emplace_back(batch_THD.dtype, num_local_tokens(plan, Rank{r}), batch_THD.heads,
                       batch_THD.dim);
    scatter(plan, Rank{r}, batch_THD, local.back().view());
  }
  return local;
}

HostTensor gather(const Plan& plan, std::span<const HostTensor> local_NHD) {
  check_structure(plan);
  CONTEXTILE_CHECK(std::ssize(local_NHD) == plan.num_devices() && !local_NHD.empty(),
                   "gather: expected the tensors of {} ranks, found {}", plan.num_devices(),
                   local_NHD.size());
  const HostTensor& first = local_NHD.front();
  HostTensor batch(first.dtype(), plan.num_tokens(), first.heads(), first.dim());
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    gather(plan, Rank{r}, local_NHD[static_cast<std::size_t>(r)].view(), batch.view());
  }
  return batch;
}

}  // namespace contextile

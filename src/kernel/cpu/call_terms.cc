#include "kernel/cpu/call_terms.h"

#include <numbers>

namespace contextile {
namespace {

constexpr auto kLog2OfE = std::numbers::log2e_v<float>;

}  // namespace

CallTerms::CallTerms(const KernelParams& params)
    : has_any_(params.terms != nullptr && params.terms->has_any()) {
  if (!has_any_) return;
  const ScoreTerms& terms = *params.terms;
  terms_.has_bias = terms.has_bias();
  terms_.has_dropout = terms.dropout != 0;
  terms_.dropout = make_dropout(terms.dropout, terms.dropout_seed);
  for (const float slope : terms.slopes_H) slopes_log2_.push_back(slope * kLog2OfE);
  if (!slopes_log2_.empty()) terms_.slopes_log2 = slopes_log2_.data();
  if (terms.table_HB.empty()) return;
  // The table by offset instead of by bucket, so that a lane needs one load.
  const auto num_buckets = static_cast<std::size_t>(terms.num_buckets);
  for (std::size_t row = 0; row < terms.table_HB.size(); row += num_buckets) {
    for (const std::int32_t bucket : terms.buckets) {
      const float bias = terms.table_HB[row + static_cast<std::size_t>(bucket)];
      by_offset_log2_.push_back(bias * kLog2OfE);
    }
  }
  terms_.by_offset_log2 = by_offset_log2_.data();
  terms_.first_offset = terms.first_offset;
  terms_.num_offsets = static_cast<std::int32_t>(terms.buckets.size());
}

OffsetShares::OffsetShares(const KernelParams& params, std::size_t num_tasks) : params_(params) {
  if (params.terms == nullptr || params.dtable_HB.empty()) return;
  const auto heads = static_cast<std::size_t>(params.q_heads / params.kv_heads);
  task_cells_ = heads * params.terms->buckets.size();
  sums_.resize(num_tasks * task_cells_);
}

double* OffsetShares::of(std::size_t task) {
  return sums_.empty() ? nullptr : sums_.data() + task * task_cells_;
}

void OffsetShares::add_to_table(std::int32_t first_head, std::size_t num_shares) const {
  if (sums_.empty()) return;
  const ScoreTerms& terms = *params_.terms;
  const auto num_buckets = static_cast<std::size_t>(terms.num_buckets);
  const std::size_t num_offsets = terms.buckets.size();
  const std::size_t heads = task_cells_ / num_offsets;
  for (std::size_t task = 0; task < sums_.size() / task_cells_; ++task) {
    for (std::size_t cell = 0; cell < task_cells_; ++cell) {
      const std::size_t head =
          static_cast<std::size_t>(first_head) + task / num_shares * heads + cell / num_offsets;
      const auto bucket = static_cast<std::size_t>(terms.buckets[cell % num_offsets]);
      params_.dtable_HB[head * num_buckets + bucket] += sums_[task * task_cells_ + cell];
    }
  }
}

}  // namespace contextile

// The terms of a call in plain loops, for the reference kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/dropout.h"

namespace contextile {

// The terms of one query head of a tile.
class HeadTerms {
 public:
  HeadTerms(const KernelParams& params, const TilePlaces& places, std::int32_t head)
      : terms_(params.terms), places_(places), head_(places.first_head + head) {
    if (terms_ == nullptr) return;
    dropout_ = make_dropout(terms_->dropout, terms_->dropout_seed);
    if (terms_->table_HB.empty()) return;
    num_buckets_ = static_cast<std::size_t>(terms_->num_buckets);
    if (!params.dtable_HB.empty()) gradient_ = row_of(params.dtable_HB);
  }

  [[nodiscard]] bool has_any() const { return terms_ != nullptr; }
  [[nodiscard]] double bias(std::int64_t row, std::int64_t key) const {
    double sum = 0;
    if (!terms_->slopes_H.empty()) sum += double{slope()} * offset(row, key);
    if (num_buckets_ > 0) sum += double{row_of(terms_->table_HB)[bucket(row, key)]};
    return sum;
  }

  [[nodiscard]] double factor(std::int64_t row, std::int64_t key) const {
    if (terms_->dropout == 0) return 1;
    return double{dropout_factor(dropout_, head_, places_.q_N[static_cast<std::size_t>(row)].token,
                                 places_.k_M[static_cast<std::size_t>(key)].token)};
  }

  // Adds the gradient of a score to that of the table.
  void add_gradient(std::int64_t row, std::int64_t key, double gradient) const {
    if (!gradient_.empty()) gradient_[bucket(row, key)] += gradient;
  }

 private:
  template <typename T>
  [[nodiscard]] std::span<T> row_of(std::span<T> table) const {
    return table.subspan(static_cast<std::size_t>(head_) * num_buckets_, num_buckets_);
  }
  [[nodiscard]] float slope() const { return terms_->slopes_H[static_cast<std::size_t>(head_)]; }
  [[nodiscard]] std::int64_t offset(std::int64_t row, std::int64_t key) const {
    return std::int64_t{places_.k_M[static_cast<std::size_t>(key)].position} -
           places_.q_N[static_cast<std::size_t>(row)].position;
  }
  [[nodiscard]] std::size_t bucket(std::int64_t row, std::int64_t key) const {
    const auto last = static_cast<std::int64_t>(terms_->buckets.size()) - 1;
    const std::int64_t at =
        std::clamp<std::int64_t>(offset(row, key) - terms_->first_offset, 0, last);
    return static_cast<std::size_t>(terms_->buckets[static_cast<std::size_t>(at)]);
  }

  const ScoreTerms* terms_;
  const TilePlaces places_;
  const std::int32_t head_;
  Dropout dropout_;
  std::size_t num_buckets_ = 0;
  std::span<double> gradient_;
};

}  // namespace contextile

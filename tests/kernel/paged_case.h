// Requests to keys in pages whose answers fp64 computes.
//
// Suffixes: N query rows, H heads, D dim.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "contextile/extend/paged_attention.h"
#include "kernel/cached_element.h"
#include "kernel/tensor.h"

namespace contextile {

inline constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Elements of a cache by their bits. At first they are poisoned: NaN, or the largest number of
// int8.
class Elements {
 public:
  Elements(KvDtype dtype, std::int64_t count)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(count * bytes_per_element(dtype)), 0xff) {
    if (dtype == KvDtype::kInt8) std::fill(bytes_.begin(), bytes_.end(), 0x7f);
  }
  [[nodiscard]] const void* data() const { return bytes_.data(); }

  void set(std::int64_t i, float value) {
    put_element(dtype_, bytes_.data(), i, dtype_ == KvDtype::kInt8 ? value * 30 : value);
  }
  [[nodiscard]] double get(std::int64_t i) const { return element(dtype_, bytes_.data(), i); }

 private:
  KvDtype dtype_;
  std::vector<std::uint8_t> bytes_;
};

struct Shape {
  std::int32_t q_heads = 4;
  std::int32_t kv_heads = 2;
  std::int32_t head_dim = 32;
  std::int32_t value_dim = 32;
  std::int32_t page_size = 4;
  KvDtype dtype = KvDtype::kF32;
  Dtype q_dtype = Dtype::kF32;
  bool heads_first = false;  // in a page
  bool shared = false;       // values are the beginnings of keys
  bool scaled = false;
  float softcap = 0;
};

struct RequestOf {
  std::vector<std::vector<Range>> rows;  // keys that each row sees
};

struct Errors {
  double out = 0;
  double lse = 0;
};

// A cache that is filled where any row sees it and poisoned elsewhere, and the results of fp64 on
// it.
class Case {
 public:
  Case(const Shape& shape, const std::vector<RequestOf>& requests, std::uint64_t seed)
      : shape_(shape), random_(seed) {
    place(requests);
    const std::int64_t k_size = num_pages_ * shape.page_size * shape.kv_heads * shape.head_dim;
    const std::int64_t v_size = num_pages_ * shape.page_size * shape.kv_heads * shape.value_dim;
    k_ = Elements(shape.dtype, k_size);
    v_ = Elements(shape.dtype, v_size);
    fill(requests);
    std::int64_t rows = 0;
    for (const RequestOf& one : requests) rows += static_cast<std::int64_t>(one.rows.size());
    q_ = HostTensor(shape.q_dtype, rows, shape.q_heads, shape.head_dim);
    std::vector<float> row(static_cast<std::size_t>(shape.head_dim));
    for (std::int64_t n = 0; n < rows; ++n) {
      for (std::int32_t h = 0; h < shape.q_heads; ++h) {
        for (float& x : row) x = draw();
        write_row(q_.view(), n, h, row);
      }
    }
    for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
      k_scale_.push_back(0.5F + 0.25F * static_cast<float>(h));
      v_scale_.push_back(1.5F - 0.25F * static_cast<float>(h));
    }
  }

  [[nodiscard]] PagedKv kv() const {
    PagedKv kv;
    kv.k = tensor(k_, shape_.head_dim);
    kv.v = shape_.shared ? kv.k : tensor(v_, shape_.value_dim);
    kv.v.dim = shape_.value_dim;
    if (shape_.scaled) {
      kv.k.scale_H = k_scale_;
      kv.v.scale_H = v_scale_;
    }
    kv.dtype = shape_.dtype;
    kv.kv_heads = shape_.kv_heads;
    kv.page_size = shape_.page_size;
    return kv;
  }
  [[nodiscard]] const HostTensor& q() const { return q_; }
  [[nodiscard]] const std::vector<PagedRequest>& requests() const { return asked_; }
  [[nodiscard]] PagedParams params() const { return {0.2F, shape_.softcap}; }

  // Returns the largest differences from fp64, those of results relative to the largest value.
  [[nodiscard]] Errors errors_of(const HostTensor& out, const HostTensor& lse) const {
    Errors worst;
    for (const PagedRequest& request : asked_) {
      for (std::int64_t row = 0; row < request.num_rows; ++row) {
        for (std::int32_t h = 0; h < shape_.q_heads; ++h) {
          const Errors errors = errors_of_row(request, row, h, out, lse);
          worst.out = std::max(worst.out, errors.out);
          worst.lse = std::max(worst.lse, errors.lse);
        }
      }
    }
    return worst;
  }

 private:
  float draw() { return std::uniform_real_distribution<float>(-2, 2)(random_); }

  [[nodiscard]] std::int64_t place(const PagedTensor& t, PageId page, std::int64_t token,
                                   std::int32_t head, std::int32_t d) const {
    return page.value * t.page_stride + token * t.token_stride + head * t.head_stride + d;
  }
  [[nodiscard]] PagedTensor tensor(const Elements& elements, std::int32_t dim) const {
    PagedTensor t;
    t.data = elements.data();
    t.dim = dim;
    t.page_stride = std::int64_t{shape_.page_size} * shape_.kv_heads * dim;
    t.token_stride = shape_.heads_first ? dim : std::int64_t{shape_.kv_heads} * dim;
    t.head_stride = shape_.heads_first ? std::int64_t{shape_.page_size} * dim : dim;
    return t;
  }

  // Places pages in any order, and no page where no row sees a key.
  void place(const std::vector<RequestOf>& requests) {
    tables_.resize(requests.size());
    keys_.resize(requests.size());
    splits_.resize(requests.size());
    std::vector<PageId*> open;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      std::int64_t most = 0;
      for (const auto& row : requests[i].rows) {
        for (const Range& keys : row) most = std::max(most, keys.end);
      }
      tables_[i].resize(static_cast<std::size_t>((most + shape_.page_size - 1) / shape_.page_size));
      for (const auto& row : requests[i].rows) {
        for (const Range& keys : row) {
          for (std::int64_t key = keys.begin; key < keys.end; ++key) {
            PageId& page = tables_[i][static_cast<std::size_t>(key / shape_.page_size)];
            if (!page.valid()) {
              page = PageId(0);
              open.push_back(&page);
            }
          }
        }
      }
    }
    num_pages_ = static_cast<std::int64_t>(open.size()) + 3;
    std::vector<std::int32_t> numbers(static_cast<std::size_t>(num_pages_));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i);
    std::shuffle(numbers.begin(), numbers.end(), random_);
    for (std::size_t i = 0; i < open.size(); ++i) *open[i] = PageId(numbers[i]);
  }

  void fill(const std::vector<RequestOf>& requests) {
    std::int64_t row_of_all = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      splits_[i].push_back(0);
      for (const auto& row : requests[i].rows) {
        for (const Range& keys : row) {
          keys_[i].push_back(keys);
          for (std::int64_t key = keys.begin; key < keys.end; ++key) fill_key(i, key);
        }
        splits_[i].push_back(static_cast<std::int32_t>(keys_[i].size()));
      }
      PagedRequest asked;
      asked.first_row = row_of_all;
      asked.num_rows = static_cast<std::int64_t>(requests[i].rows.size());
      asked.table = tables_[i];
      asked.keys = keys_[i];
      const bool is_plain =
          std::ranges::all_of(requests[i].rows, [](const auto& row) { return row.size() == 1; });
      if (!is_plain) asked.row_splits = splits_[i];
      asked_.push_back(asked);
      row_of_all += asked.num_rows;
    }
  }

  void fill_key(std::size_t request, std::int64_t key) {
    const PageId page = tables_[request][static_cast<std::size_t>(key / shape_.page_size)];
    const auto fill_tensor = [&](Elements& elements, std::int32_t dim) {
      const PagedTensor t = tensor(elements, dim);
      for (std::int32_t h = 0; h < shape_.kv_heads; ++h) {
        for (std::int32_t d = 0; d < dim; ++d) {
          elements.set(place(t, page, key % shape_.page_size, h, d), draw());
        }
      }
    };
    fill_tensor(k_, shape_.head_dim);
    fill_tensor(v_, shape_.value_dim);
  }

  [[nodiscard]] double score(const PagedRequest& request, std::int64_t row, std::int32_t h,
                             std::int64_t key) const {
    const PagedTensor t = kv().k;
    const std::int32_t kv_head = h / (shape_.q_heads / shape_.kv_heads);
    const PageId page = request.table[static_cast<std::size_t>(key / shape_.page_size)];
    std::vector<double> q(static_cast<std::size_t>(shape_.head_dim));
    read_row(q_.view(), request.first_row + row, h, std::span(q));
    double sum = 0;
    for (std::int32_t d = 0; d < shape_.head_dim; ++d) {
      sum += q[static_cast<std::size_t>(d)] *
             k_.get(place(t, page, key % shape_.page_size, kv_head, d));
    }
    if (shape_.scaled) sum *= k_scale_[static_cast<std::size_t>(kv_head)];
    sum *= params().scale;
    return shape_.softcap != 0 ? shape_.softcap * std::tanh(sum / shape_.softcap) : sum;
  }

  [[nodiscard]] Errors errors_of_row(const PagedRequest& request, std::int64_t row, std::int32_t h,
                                     const HostTensor& out, const HostTensor& lse) const {
    const PagedTensor t = kv().v;
    const Elements& values = shape_.shared ? k_ : v_;
    const std::int32_t kv_head = h / (shape_.q_heads / shape_.kv_heads);
    std::vector<double> o(static_cast<std::size_t>(shape_.value_dim), 0);
    double total = 0;
    const auto split = [&](std::int64_t at) {
      const auto i = static_cast<std::size_t>(at);
      return request.row_splits.empty() ? i : static_cast<std::size_t>(request.row_splits[i]);
    };
    const std::size_t begin = split(row);
    const std::size_t end = split(row + 1);
    for (std::size_t r = begin; r < end; ++r) {
      for (std::int64_t key = request.keys[r].begin; key < request.keys[r].end; ++key) {
        const double weight = std::exp(score(request, row, h, key));
        const PageId page = request.table[static_cast<std::size_t>(key / shape_.page_size)];
        total += weight;
        for (std::size_t d = 0; d < o.size(); ++d) {
          o[d] += weight * values.get(place(t, page, key % shape_.page_size, kv_head,
                                            static_cast<std::int32_t>(d)));
        }
      }
    }
    std::vector<double> found(o.size());
    read_row(out.view(), request.first_row + row, h, std::span(found));
    double stat = 0;
    read_row(lse.view(), request.first_row + row, h, std::span(&stat, 1));
    const double scale = shape_.scaled ? v_scale_[static_cast<std::size_t>(kv_head)] : 1.0;
    const double expected_lse = total > 0 ? std::log(total) : kNothing;
    Errors errors;
    errors.lse = larger(0, stat == expected_lse ? 0 : std::abs(stat - expected_lse) / 4);
    for (std::size_t d = 0; d < o.size(); ++d) {
      const double expected = total > 0 ? o[d] / total * scale : 0;
      const double difference =
          std::abs(found[d] - expected) / (shape_.dtype == KvDtype::kInt8 ? 60 : 2);
      errors.out = larger(errors.out, difference);
    }
    return errors;
  }

  // Returns the larger one; a NaN is larger than anything.
  static double larger(double known, double found) {
    return found <= known ? known : std::isnan(found) ? -kNothing : found;
  }

  Shape shape_;
  std::mt19937_64 random_;
  std::int64_t num_pages_ = 0;
  std::vector<std::vector<PageId>> tables_;
  std::vector<std::vector<Range>> keys_;
  std::vector<std::vector<std::int32_t>> splits_;
  std::vector<PagedRequest> asked_;
  Elements k_{KvDtype::kF32, 0};
  Elements v_{KvDtype::kF32, 0};
  std::vector<float> k_scale_;
  std::vector<float> v_scale_;
  HostTensor q_;
};

}  // namespace contextile

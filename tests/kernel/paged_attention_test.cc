#include "contextile/paged_attention.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "kernel/cached_element.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Elements of a cache by their bits; poisoned: NaN, or as far from anything as int8 goes.
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
  bool heads_first = false;  // in a page
  bool shared = false;       // values are the beginnings of keys
  bool scaled = false;
  float softcap = 0;
};

struct RequestOf {
  std::vector<std::vector<Range>> rows;  // keys that each sees
};

// A cache filled where anybody looks and poisoned elsewhere, and what fp64 makes of it.
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
    q_ = HostTensor(Dtype::kF32, rows, shape.q_heads, shape.head_dim);
    for (float& x : q_.values<float>()) x = draw();
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

  // The largest difference from fp64, relative to the largest value.
  [[nodiscard]] double error_of(const HostTensor& out, const HostTensor& lse) const {
    double worst = 0;
    for (const PagedRequest& request : asked_) {
      for (std::int64_t row = 0; row < request.num_rows; ++row) {
        for (std::int32_t h = 0; h < shape_.q_heads; ++h) {
          worst = std::max(worst, error_of_row(request, row, h, out, lse));
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

  // Pages in any order, none where nobody looks.
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

  [[nodiscard]] double error_of_row(const PagedRequest& request, std::int64_t row, std::int32_t h,
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
    double error = stat == expected_lse ? 0 : std::abs(stat - expected_lse) / 4;
    for (std::size_t d = 0; d < o.size(); ++d) {
      const double expected = total > 0 ? o[d] / total * scale : 0;
      const double difference =
          std::abs(found[d] - expected) / (shape_.dtype == KvDtype::kInt8 ? 60 : 2);
      error = difference <= error ? error : difference;  // NaN, too
    }
    return error;
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

struct Result {
  HostTensor out;
  HostTensor lse;
};

Result run(const PagedKernel& kernel, const Case& one, const Shape& shape) {
  Result result = {HostTensor(Dtype::kF32, one.q().tokens(), shape.q_heads, shape.value_dim),
                   HostTensor(Dtype::kF32, one.q().tokens(), shape.q_heads, 1)};
  kernel.run(one.params(), one.kv(), one.q().view(), one.requests(),
             {result.out.view(), result.lse.stats()});
  return result;
}

RequestOf causal(std::int64_t length, std::int64_t rows) {
  RequestOf request;
  for (std::int64_t row = 0; row < rows; ++row) request.rows.push_back({{0, length + row}});
  return request;
}

void expect_right(const Shape& shape, const std::vector<RequestOf>& requests, double bound = 2e-6) {
  const Case one(shape, requests, 7);
  for (const PagedKernel* kernel : paged_kernels()) {
    SCOPED_TRACE(kernel->name());
    const Result result = run(*kernel, one, shape);
    EXPECT_LT(one.error_of(result.out, result.lse), bound);
  }
}

// What decoding asks: one query, drafts, windows with sinks, trees of drafts, rows that see
// nothing, a request that is only just there.
std::vector<RequestOf> mixed_batch() {
  return {causal(1, 1),
          causal(131, 1),
          causal(70, 4),
          {{{{0, 4}, {90, 131}}, {{0, 4}, {91, 132}}}},
          {{{{0, 60}, {60, 61}},
            {{0, 60}, {61, 62}},
            {{0, 61}, {62, 63}},
            {{0, 60}, {61, 62}, {63, 64}}}},
          {{{}}},
          {{{}, {{5, 6}}}},
          causal(64, 20)};
}

TEST(PagedAttention, IsThatOfFp64) {
  for (const KvDtype dtype :
       {KvDtype::kF32, KvDtype::kBf16, KvDtype::kF16, KvDtype::kFp8, KvDtype::kInt8}) {
    for (const bool heads_first : {false, true}) {
      SCOPED_TRACE(fmt::format("{} heads first {}", to_string(dtype), heads_first));
      Shape shape;
      shape.dtype = dtype;
      shape.heads_first = heads_first;
      shape.scaled = dtype == KvDtype::kFp8;
      expect_right(shape, mixed_batch(), dtype == KvDtype::kInt8 ? 2e-5 : 2e-6);
    }
  }
}

TEST(PagedAttention, TakesHeadsAndDimsOfAnyNumber) {
  for (const auto& [q_heads, kv_heads, head_dim, value_dim, page_size] :
       std::vector<std::tuple<int, int, int, int, int>>{{1, 1, 1, 1, 1},
                                                        {3, 3, 20, 12, 5},
                                                        {6, 2, 33, 65, 16},
                                                        {40, 8, 128, 128, 16},
                                                        {7, 1, 8, 8, 64}}) {
    SCOPED_TRACE(fmt::format("{}/{} heads of {} and {}", q_heads, kv_heads, head_dim, value_dim));
    Shape shape;
    shape.q_heads = q_heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.page_size = page_size;
    for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kFp8}) {
      shape.dtype = dtype;
      expect_right(shape, mixed_batch(), 4e-6);
    }
  }
}

TEST(PagedAttention, OfLatentKeys) {
  Shape shape;
  shape.q_heads = 16;
  shape.kv_heads = 1;
  shape.head_dim = 576;
  shape.value_dim = 512;
  shape.shared = true;
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16}) {
    shape.dtype = dtype;
    expect_right(shape, {causal(150, 2), causal(3, 1)}, 4e-6);
  }
}

TEST(PagedAttention, WithASoftcap) {
  Shape shape;
  shape.softcap = 1.5F;
  expect_right(shape, mixed_batch());
}

TEST(PagedAttention, ManyKeysAreCutInRunsAndMerged) {
  Shape shape;
  shape.head_dim = shape.value_dim = 16;
  shape.page_size = 16;
  RequestOf window = {{{{0, 64}, {9000, 14001}}, {{0, 64}, {9001, 14002}}}};
  expect_right(shape, {causal(9000, 1), window, causal(5000, 3)}, 4e-6);
}

// Chunks of prompts, on a rank that holds every third token: edges of rows move every third row.
// Windows that leave keys behind, also wholly; rows that see nothing; keys between those of two
// rows that nobody sees.
std::vector<RequestOf> chunks() {
  RequestOf shared;
  RequestOf window;
  RequestOf narrow;
  RequestOf odd;
  for (std::int64_t row = 0; row < 70; ++row) {
    shared.rows.push_back({{0, (600 + row) / 3}});
    window.rows.push_back({{(400 + row) / 3, (600 + row) / 3}});
    narrow.rows.push_back({{300 + row, 310 + row}});
    odd.rows.push_back({row % 7 == 0 ? Range{} : row < 35 ? Range{0, 5} : Range{1500, 1501 + row}});
  }
  return {shared, causal(3, 1), window, narrow, odd, causal(1, 32), causal(700, 33)};
}

TEST(PagedAttention, OfChunksOfPrompts) {
  for (const KvDtype dtype :
       {KvDtype::kF32, KvDtype::kBf16, KvDtype::kF16, KvDtype::kFp8, KvDtype::kInt8}) {
    SCOPED_TRACE(to_string(dtype));
    Shape shape;
    shape.dtype = dtype;
    shape.scaled = dtype == KvDtype::kFp8 || dtype == KvDtype::kInt8;
    expect_right(shape, chunks(), dtype == KvDtype::kInt8 ? 2e-5 : 4e-6);
  }
  Shape shape;
  shape.softcap = 1.5F;
  shape.heads_first = true;
  expect_right(shape, chunks(), 4e-6);
}

TEST(PagedAttention, GivesTheSameBitsAgain) {
  const Shape shape;
  const Case one(shape, {causal(9000, 1), causal(70, 4)}, 3);
  for (const PagedKernel* kernel : paged_kernels()) {
    const Result first = run(*kernel, one, shape);
    for (int i = 0; i < 5; ++i) {
      const Result again = run(*kernel, one, shape);
      EXPECT_TRUE(std::ranges::equal(first.out.bytes(), again.out.bytes()));
      EXPECT_TRUE(std::ranges::equal(first.lse.bytes(), again.lse.bytes()));
    }
  }
}

TEST(PagedAttention, ANanThatIsSeenIsThere) {
  Shape shape;
  shape.kv_heads = shape.q_heads = 1;
  Case one(shape, {causal(10, 2)}, 5);
  // The key that the second row alone sees.
  const PagedKv kv = one.kv();
  const PageId page = one.requests()[0].table[2];
  auto* value = static_cast<float*>(const_cast<void*>(kv.v.data)) + page.value * kv.v.page_stride +
                10 % 4 * kv.v.token_stride;
  *value = std::numeric_limits<float>::quiet_NaN();
  for (const PagedKernel* kernel : paged_kernels()) {
    const Result result = run(*kernel, one, shape);
    EXPECT_FALSE(std::isnan(result.out.values<float>()[0]));
    EXPECT_TRUE(std::isnan(result.out.values<float>()[32]));
  }
}

TEST(PagedAttention, SaysWhatDoesNotFit) {
  const Shape shape;
  const Case one(shape, {causal(10, 2), causal(5, 1)}, 1);
  HostTensor out(Dtype::kF32, 3, 4, 32);
  HostTensor lse(Dtype::kF32, 3, 4, 1);
  const auto error = [&](auto change) {
    PagedKv kv = one.kv();
    TensorView q = one.q().view();
    std::vector<PagedRequest> requests = one.requests();
    PartialOutput result = {out.view(), lse.stats()};
    change(kv, q, requests, result);
    try {
      find_paged_kernel().run({}, kv, q, requests, result);
    } catch (const InvalidArgument& invalid) {
      return std::string(invalid.what());
    }
    return std::string("none");
  };
  using Requests = std::vector<PagedRequest>;
  EXPECT_EQ(error([](auto&, auto&, auto&, auto&) {}), "none");
  EXPECT_THAT(error([](PagedKv& kv, auto&, auto&, auto&) { kv.kv_heads = 3; }),
              HasSubstr("a multiple of 3 heads"));
  EXPECT_THAT(error([](PagedKv& kv, auto&, auto&, auto&) { kv.k.dim = 31; }),
              HasSubstr("of dim 31, found 4 of 32"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) { r[0].table = r[0].table.first(2); }),
              HasSubstr("request 0 row 0: expected ascending keys of a table of 8 tokens"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) { r[1].first_row = 1; }),
              HasSubstr("found row 1 taken"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) { r.pop_back(); }),
              HasSubstr("a request for row 2, found none"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) {
                r[0].row_splits = {};
                r[0].num_rows = 3;
              }),
              HasSubstr("keys for 3 rows"));
  std::vector<PageId> holes(3);
  EXPECT_THAT(error([&](auto&, auto&, Requests& r, auto&) { r[0].table = holes; }),
              HasSubstr("expected a page for keys [0, 10), found none at 0 of the table"));
  EXPECT_THAT(error([](auto&, auto&, auto&, PartialOutput& o) { o.o_NHD.dim = 16; }),
              HasSubstr("out: expected f32 [3, 4, 32]"));
}

TEST(PagedAttention, NamesItsKernelsAndDtypes) {
  EXPECT_EQ(parse_kv_dtype("fp8"), KvDtype::kFp8);
  EXPECT_THROW(static_cast<void>(parse_kv_dtype("f8")), InvalidArgument);
  EXPECT_EQ(&find_paged_kernel(paged_kernels().back()->name()), paged_kernels().back());
  EXPECT_THROW(static_cast<void>(find_paged_kernel("cuda")), InvalidArgument);
}

}  // namespace
}  // namespace contextile

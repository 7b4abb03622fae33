// Bias and dropout of every kernel, compared with dense attention in fp64.
//
// Suffixes: N query rows, M key rows, H query heads, D head dim, B buckets.
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/kernel.h"
#include "kernel/cpu/dropout.h"
#include "kernel/host_tensor.h"
#include "kernel/tensor.h"
#include "support/bf16_kernels.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

// Known answers of Random123's Philox4x32-10.
TEST(Dropout, DrawsTheWordsOfPhilox) {
  const auto expect_words = [](PhiloxWords counter, std::uint32_t key0, std::uint32_t key1,
                               const std::vector<std::uint32_t>& expected) {
    const PhiloxWords found = philox(counter, key0, key1);
    EXPECT_EQ(std::vector<std::uint32_t>(found.word, found.word + 4), expected);
  };
  expect_words({{0, 0, 0, 0}}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t kOnes = 0xffffffff;
  expect_words({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes,
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Dropout, DropsTheShareOfWeightsThatIsAsked) {
  const Dropout dropout = make_dropout(0.25, 7);
  EXPECT_EQ(dropout.kept, static_cast<float>(1 / 0.75));
  std::int64_t dropped = 0;
  for (std::int32_t q = 0; q < 200; ++q) {
    for (std::int32_t k = 0; k < 200; ++k) {
      if (dropout_factor(dropout, 3, q, k) == 0) ++dropped;
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped) / 40000, 0.25, 0.01);
}

// Largest difference relative to the largest expected number, or to `least`.
double relative_error(const std::vector<double>& found, const std::vector<double>& expected,
                      double least) {
  EXPECT_EQ(found.size(), expected.size());
  double largest = least;
  double error = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) continue;  // both may be -inf
    if (!std::isfinite(found[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(found[i] - expected[i]));
  }
  return error / largest;
}

// The terms of a layer, and where a tile's rows are in its batch.
struct Terms {
  std::vector<float> slopes;
  std::vector<float> table;
  std::vector<std::int32_t> buckets;
  std::vector<TokenPlace> q, k;
  std::vector<double> dtable;
  ScoreTerms terms;
  std::int32_t first_head = 0;

  [[nodiscard]] TilePlaces places() const { return {first_head, q, k}; }
  void point() {
    terms.slopes_H = slopes;
    terms.table_HB = table;
    terms.buckets = buckets;
  }
};

struct Case {
  std::string name;
  bool slopes = false;
  bool table = false;
  double dropout = 0;
  float softcap = 0;
  float scale = 0.25F;
  std::int32_t q_heads = 4;
  std::int32_t kv_heads = 2;
  std::int64_t rows = 75;
  std::int64_t keys = 131;
};

// Buckets by distance, a few of them shared, on a layer of twice as many heads as the tile's.
Terms make_terms(Rng& rng, const Case& c) {
  Terms t;
  t.first_head = c.q_heads;
  for (std::int32_t h = 0; h < 2 * c.q_heads; ++h) {
    if (c.slopes) t.slopes.push_back(std::exp2(-static_cast<float>(h + 2)));
  }
  if (c.table) {
    t.terms.num_buckets = 7;
    t.terms.first_offset = -20;
    for (std::int32_t o = -20; o <= 11; ++o) t.buckets.push_back((o + 20) / 5);
    t.table.resize(static_cast<std::size_t>(2 * c.q_heads * 7));
    for (float& bias : t.table) bias = static_cast<float>(random_between(rng, -100, 100)) / 50;
    t.dtable.assign(t.table.size(), 0);
  }
  t.terms.dropout = c.dropout;
  t.terms.dropout_seed = 0x123456789abcdef;
  // Keys are not contiguous tokens, and positions begin again.
  for (std::int64_t n = 0; n < c.rows; ++n) {
    const auto token = static_cast<std::int32_t>(60 + n + n / 10);
    t.q.push_back({token, n < 50 ? token - 10 : token - 100});
  }
  for (std::int64_t m = 0; m < c.keys; ++m) {
    const auto token = static_cast<std::int32_t>(m + m / 7 * 3);
    t.k.push_back({token, token});
  }
  return t;
}

struct Layer {
  Layer(Rng& rng, const KernelParams& p, Dtype dtype, std::int64_t rows, std::int64_t keys)
      : params(p) {
    q = normal_tensor(rng, dtype, rows, p.q_heads, p.head_dim);
    k = normal_tensor(rng, dtype, keys, p.kv_heads, p.head_dim);
    v = normal_tensor(rng, dtype, keys, p.kv_heads, p.value_dim);
    dout = normal_tensor(rng, dtype, rows, p.q_heads, p.value_dim);
    delta = HostTensor(Dtype::kF32, rows, p.q_heads, 1);
    o = HostTensor(Dtype::kF32, rows, p.q_heads, p.value_dim);
    lse = HostTensor(Dtype::kF32, rows, p.q_heads, 1);
    dq = HostTensor(Dtype::kF32, rows, p.q_heads, p.head_dim);
    dk = HostTensor(Dtype::kF32, keys, p.kv_heads, p.head_dim);
    dv = HostTensor(Dtype::kF32, keys, p.kv_heads, p.value_dim);
  }
  KernelParams params;
  HostTensor q, k, v, dout, delta, o, lse, dq, dk, dv;
};

struct Dense {
  std::vector<double> o, lse, dq, dk, dv, dtable;
};

bool attends(std::span<const LocalBand> bands, std::int64_t n, std::int64_t m) {
  for (const LocalBand& band : bands) {
    if (band.q.contains(n) && band.k.contains(m) && m - n >= band.lo && m - n <= band.hi) {
      return true;
    }
  }
  return false;
}

// Dense attention of one head, forward and backward.
class DenseHead {
 public:
  DenseHead(Layer& layer, const Terms& t, std::int32_t h)
      : p_(layer.params),
        t_(t),
        h_(h),
        kv_(h / (p_.q_heads / p_.kv_heads)),
        q_(doubles_of(layer.q)),
        k_(doubles_of(layer.k)),
        v_(doubles_of(layer.v)),
        dout_(doubles_of(layer.dout)) {}

  void add_row(std::int64_t n, std::int64_t keys, std::span<const LocalBand> bands, Dense& to) {
    const auto M = static_cast<std::size_t>(keys);
    std::vector<double> score(M, -std::numeric_limits<double>::infinity());
    std::vector<double> cap_slope(M, 1);
    std::vector<double> factor(M, 1);
    double sum = 0;
    for (std::size_t m = 0; m < M; ++m) {
      const auto key = static_cast<std::int64_t>(m);
      if (!attends(bands, n, key)) continue;
      double s = double{p_.scale} * dot(q_, n, h_, p_.q_heads, k_, key, p_.head_dim);
      if (p_.softcap != 0) {
        const double bent = std::tanh(s / double{p_.softcap});
        s = double{p_.softcap} * bent;
        cap_slope[m] = 1 - bent * bent;
      }
      score[m] = s + bias(n, key);
      if (t_.terms.dropout != 0) {
        factor[m] = double{dropout_factor(make_dropout(t_.terms.dropout, t_.terms.dropout_seed),
                                          t_.first_head + h_, t_.q[index(n)].token, t_.k[m].token)};
      }
      sum += std::exp(score[m]);
    }
    const std::size_t row = index(n * p_.q_heads + h_);
    to.lse[row] = sum == 0 ? -std::numeric_limits<double>::infinity() : std::log(sum);
    if (sum == 0) return;
    double delta = 0;
    for (std::size_t m = 0; m < M; ++m) {
      const double weight = std::exp(score[m]) / sum * factor[m];
      const auto key = static_cast<std::int64_t>(m);
      delta += weight * dot(dout_, n, h_, p_.q_heads, v_, key, p_.value_dim);
      for (std::int32_t d = 0; d < p_.value_dim; ++d) {
        const std::size_t at = index((key * p_.kv_heads + kv_) * p_.value_dim + d);
        const std::size_t out = row * index(p_.value_dim) + index(d);
        to.o[out] += weight * v_[at];
        to.dv[at] += weight * dout_[out];
      }
    }
    for (std::size_t m = 0; m < M; ++m) {
      if (std::isinf(score[m])) continue;
      const auto key = static_cast<std::int64_t>(m);
      const double dp = dot(dout_, n, h_, p_.q_heads, v_, key, p_.value_dim);
      const double ds = std::exp(score[m]) / sum * (factor[m] * dp - delta);
      if (!to.dtable.empty()) to.dtable[cell(n, key)] += ds;
      for (std::int32_t d = 0; d < p_.head_dim; ++d) {
        const std::size_t at = index((key * p_.kv_heads + kv_) * p_.head_dim + d);
        const std::size_t mine = row * index(p_.head_dim) + index(d);
        to.dq[mine] += double{p_.scale} * ds * cap_slope[m] * k_[at];
        to.dk[at] += double{p_.scale} * ds * cap_slope[m] * q_[mine];
      }
    }
  }

 private:
  template <typename T>
  static std::size_t index(T i) {
    return static_cast<std::size_t>(i);
  }
  [[nodiscard]] double dot(const std::vector<double>& a, std::int64_t n, std::int32_t h,
                           std::int32_t heads, const std::vector<double>& b, std::int64_t m,
                           std::int32_t dim) const {
    double sum = 0;
    for (std::int32_t d = 0; d < dim; ++d) {
      sum += a[index((n * heads + h) * dim + d)] * b[index((m * p_.kv_heads + kv_) * dim + d)];
    }
    return sum;
  }
  [[nodiscard]] std::int32_t offset(std::int64_t n, std::int64_t m) const {
    return t_.k[index(m)].position - t_.q[index(n)].position;
  }
  [[nodiscard]] std::size_t cell(std::int64_t n, std::int64_t m) const {
    const auto last = static_cast<std::int32_t>(t_.buckets.size()) - 1;
    const std::int32_t at = std::clamp(offset(n, m) - t_.terms.first_offset, 0, last);
    return index((t_.first_head + h_) * t_.terms.num_buckets + t_.buckets[index(at)]);
  }
  [[nodiscard]] double bias(std::int64_t n, std::int64_t m) const {
    double sum = 0;
    if (!t_.slopes.empty()) sum += double{t_.slopes[index(t_.first_head + h_)]} * offset(n, m);
    if (!t_.table.empty()) sum += double{t_.table[cell(n, m)]};
    return sum;
  }

  const KernelParams p_;
  const Terms& t_;
  const std::int32_t h_;
  const std::int32_t kv_;
  const std::vector<double> q_, k_, v_, dout_;
};

Dense dense(Layer& layer, const Terms& t, std::span<const LocalBand> bands) {
  Dense to;
  const auto zeros = [](const HostTensor& like) {
    return std::vector<double>(doubles_of(like).size(), 0);
  };
  to.o = zeros(layer.o);
  to.lse = zeros(layer.lse);
  to.dq = zeros(layer.dq);
  to.dk = zeros(layer.dk);
  to.dv = zeros(layer.dv);
  to.dtable.assign(t.table.size(), 0);
  for (std::int32_t h = 0; h < layer.params.q_heads; ++h) {
    DenseHead head(layer, t, h);
    for (std::int64_t n = 0; n < layer.q.view().tokens; ++n) {
      head.add_row(n, layer.k.view().tokens, bands, to);
    }
  }
  return to;
}

// Runs a layer as two tiles, of keys [0, cut) and [cut, M), whose results meet in one slot.
void run(const AttentionKernel& kernel, Layer& layer, Terms& t, std::span<const LocalBand> bands,
         std::int64_t cut) {
  const std::int64_t M = layer.k.view().tokens;
  layer.params.terms = &t.terms;
  layer.params.dtable_HB = t.dtable;
  std::vector<ForwardTile> forward;
  std::vector<BackwardTile> backward;
  std::vector<std::vector<LocalBand>> cut_bands(2);
  for (const int part : {0, 1}) {
    const Range keys = part == 0 ? Range{0, cut} : Range{cut, M};
    for (const LocalBand& band : bands) {
      const Band some = clip(band, band.q, keys);
      if (some.k.begin >= some.k.end) continue;
      cut_bands[static_cast<std::size_t>(part)].push_back(
          {some.q,
           {some.k.begin - keys.begin, some.k.end - keys.begin},
           some.lo == -kUnbounded ? some.lo : some.lo - keys.begin,
           some.hi == kUnbounded ? some.hi : some.hi - keys.begin});
    }
    const auto rows_of = [&](HostTensor& tensor) {
      const TensorView all = tensor.view();
      return slice(all, keys.begin, keys.size(), 0, all.heads);
    };
    TilePlaces places = t.places();
    places.k_M = places.k_M.subspan(static_cast<std::size_t>(keys.begin),
                                    static_cast<std::size_t>(keys.size()));
    const auto& of_part = cut_bands[static_cast<std::size_t>(part)];
    forward.push_back({layer.q.view(), rows_of(layer.k), rows_of(layer.v), layer.o.view(),
                       layer.lse.stats(), of_part, part == 0, nullptr, places});
    backward.push_back({layer.q.view(), rows_of(layer.k), rows_of(layer.v), layer.dout.view(),
                        layer.lse.stats(), layer.delta.stats(), layer.dq.view(), rows_of(layer.dk),
                        rows_of(layer.dv), of_part, part == 0, true, nullptr, places});
  }
  kernel.forward(layer.params, forward);
  const std::vector<double> o = doubles_of(layer.o);
  const std::vector<double> dout = doubles_of(layer.dout);
  const auto dim = static_cast<std::size_t>(layer.params.value_dim);
  for (std::int64_t n = 0; n < layer.q.view().tokens; ++n) {
    for (std::int32_t h = 0; h < layer.params.q_heads; ++h) {
      double sum = 0;
      const auto row = static_cast<std::size_t>(n * layer.params.q_heads + h) * dim;
      for (std::size_t d = 0; d < dim; ++d) sum += o[row + d] * dout[row + d];
      stat_at(layer.delta.stats(), n, h) = static_cast<float>(sum);
    }
  }
  kernel.backward(layer.params, backward);
}

const std::vector<Case>& cases() {
  static const std::vector<Case> kAll = {
      {.name = "alibi", .slopes = true},
      {.name = "table", .table = true},
      {.name = "both_capped", .slopes = true, .table = true, .softcap = 3},
      {.name = "dropout", .dropout = 0.3},
      {.name = "dropout_capped", .dropout = 0.3, .softcap = 3},
      {.name = "everything",
       .slopes = true,
       .table = true,
       .dropout = 0.2,
       .scale = -0.2F,
       .q_heads = 6},
      {.name = "everything_capped",
       .slopes = true,
       .table = true,
       .dropout = 0.5,
       .softcap = 2,
       .q_heads = 3,
       .kv_heads = 3},
      {.name = "without_products", .slopes = true, .scale = 0},
      {.name = "one_row", .slopes = true, .table = true, .dropout = 0.2, .rows = 1, .keys = 3},
      {.name = "many_keys",
       .table = true,
       .dropout = 0.1,
       .q_heads = 2,
       .kv_heads = 1,
       .rows = 9,
       .keys = 3001},
  };
  return kAll;
}

std::vector<LocalBand> bands_of(const Case& c) {
  if (c.rows == 1) return {{{0, 1}, {0, c.keys}}};
  const std::int64_t cut = c.rows / 2;
  // A causal part, a window whose first rows attend nothing, and a row that attends everything.
  return {{{0, cut}, {0, c.keys}, -kUnbounded, c.keys - c.rows},
          {{cut, c.rows - 1}, {0, c.keys}, 10, 40},
          {{c.rows - 1, c.rows}, {0, c.keys}}};
}

void expect_dense(const AttentionKernel& kernel, const Case& c, Dtype dtype) {
  SCOPED_TRACE(std::string(kernel.name()) + " " + c.name + " " + std::string(to_string(dtype)));
  Rng rng(11);
  Terms t = make_terms(rng, c);
  t.point();
  const KernelParams params{.q_heads = c.q_heads,
                            .kv_heads = c.kv_heads,
                            .head_dim = 20,
                            .value_dim = 12,
                            .scale = c.scale,
                            .softcap = c.softcap};
  Layer layer(rng, params, dtype, c.rows, c.keys);
  const std::vector<LocalBand> bands = bands_of(c);
  run(kernel, layer, t, bands, c.keys / 3 + 1);
  const Dense expected = dense(layer, t, bands);
  const bool rounds = kernel.weight_dtype(dtype) != Dtype::kF32;
  const double bound = rounds ? 3e-2 : 1e-5;
  EXPECT_LE(relative_error(doubles_of(layer.o), expected.o, 1e-1), rounds ? 2e-2 : 5e-6);
  EXPECT_LE(relative_error(doubles_of(layer.lse), expected.lse, 1), rounds ? 1e-5 : 3e-6);
  EXPECT_LE(relative_error(doubles_of(layer.dq), expected.dq, 1), bound);
  EXPECT_LE(relative_error(doubles_of(layer.dk), expected.dk, 1), bound);
  EXPECT_LE(relative_error(doubles_of(layer.dv), expected.dv, 1), bound);
  EXPECT_LE(relative_error(t.dtable, expected.dtable, 1), bound);
}

TEST(ScoreTerms, EqualDenseAttentionOnEveryKernel) {
  for (const Case& c : cases()) {
    for (const AttentionKernel* kernel : kernels()) {
      ASSERT_TRUE(kernel->has_terms());
      expect_dense(*kernel, c, Dtype::kF32);
      expect_dense(*kernel, c, Dtype::kBf16);
    }
    for (const AttentionKernel* kernel : emulated_bf16_kernels()) {
      expect_dense(*kernel, c, Dtype::kBf16);
    }
  }
}

TEST(ScoreTerms, GiveTheSameBitsOnAnyNumberOfThreads) {
  const Case c{.name = "threads",
               .slopes = true,
               .table = true,
               .dropout = 0.2,
               .q_heads = 4,
               .kv_heads = 1,
               .rows = 150,
               .keys = 3000};
  const auto result_on = [&](std::size_t threads, const AttentionKernel& kernel) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    Rng rng(5);
    Terms t = make_terms(rng, c);
    t.point();
    const KernelParams params{.q_heads = c.q_heads,
                              .kv_heads = c.kv_heads,
                              .head_dim = 32,
                              .value_dim = 32,
                              .scale = c.scale};
    Layer layer(rng, params, Dtype::kF32, c.rows, c.keys);
    run(kernel, layer, t, bands_of(c), 1000);
    std::vector<double> all = doubles_of(layer.o);
    for (const HostTensor* more : {&layer.dq, &layer.dk, &layer.dv}) {
      const std::vector<double> some = doubles_of(*more);
      all.insert(all.end(), some.begin(), some.end());
    }
    all.insert(all.end(), t.dtable.begin(), t.dtable.end());
    return all;
  };
  for (const AttentionKernel* kernel : kernels()) {
    EXPECT_EQ(result_on(1, *kernel), result_on(2, *kernel)) << kernel->name();
  }
}

TEST(ScoreTerms, OfNothingChangeNoBit) {
  const Case c{.name = "none"};
  for (const AttentionKernel* kernel : kernels()) {
    Rng rng(3);
    Terms t = make_terms(rng, c);
    t.point();
    const KernelParams params{.q_heads = 4, .kv_heads = 2, .head_dim = 20, .value_dim = 12};
    Layer layer(rng, params, Dtype::kF32, c.rows, c.keys);
    run(*kernel, layer, t, bands_of(c), 50);
    const std::vector<double> with = doubles_of(layer.dk);
    layer.params.terms = nullptr;
    Terms none;
    none.q = t.q;
    none.k = t.k;
    run(*kernel, layer, none, bands_of(c), 50);
    EXPECT_EQ(with, doubles_of(layer.dk)) << kernel->name();
  }
}

}  // namespace
}  // namespace contextile

// The requirements on every kernel, against loops written straight from the definition.
//
// Suffixes: N query rows, M key rows, H query heads, D head dim.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "contextile/extend/kernel.h"
#include "kernel/cpu/simd_kernel.h"
#include "runtime/check/run_error.h"
#include "support/bf16_kernels.h"
#include "support/cuda_host_kernel.h"
#include "support/device_under_test.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A tensor with gaps between rows and heads, NaN everywhere until filled.
class Strided {
 public:
  Strided(Dtype dtype, std::int64_t tokens, std::int32_t heads, std::int32_t dim, std::int64_t gap)
      : dtype_(dtype),
        tokens_(tokens),
        heads_(heads),
        dim_(dim),
        head_stride_(dim + gap),
        token_stride_(head_stride_ * heads + 2 * gap) {
    const auto elements = static_cast<std::size_t>(tokens * token_stride_);
    if (dtype == Dtype::kF32) {
      wide_.assign(elements, std::numeric_limits<float>::quiet_NaN());
    } else {
      narrow_.assign(elements, 0xffff);
    }
  }

  [[nodiscard]] TensorView view() {
    void* data = dtype_ == Dtype::kF32 ? static_cast<void*>(wide_.data()) : narrow_.data();
    return {data, dtype_, tokens_, heads_, dim_, token_stride_, head_stride_};
  }
  [[nodiscard]] RowStats stats() { return {wide_.data(), token_stride_, head_stride_}; }

  [[nodiscard]] double at(std::int64_t n, std::int32_t h, std::int32_t d) const {
    const auto i = static_cast<std::size_t>(n * token_stride_ + h * head_stride_ + d);
    if (dtype_ == Dtype::kF32) return wide_[i];
    return dtype_ == Dtype::kBf16 ? bf16_to_float(narrow_[i]) : f16_to_float(narrow_[i]);
  }
  void set(std::int64_t n, std::int32_t h, std::int32_t d, double value) {
    const auto i = static_cast<std::size_t>(n * token_stride_ + h * head_stride_ + d);
    const auto rounded = static_cast<float>(value);
    if (dtype_ == Dtype::kF32) {
      wide_[i] = rounded;
    } else {
      narrow_[i] = dtype_ == Dtype::kBf16 ? float_to_bf16(rounded) : float_to_f16(rounded);
    }
  }
  void fill_normal(Rng& rng) {
    for_each([&](std::int64_t n, std::int32_t h, std::int32_t d) { set(n, h, d, rng.normal()); });
  }
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> all;
    for_each([&](std::int64_t n, std::int32_t h, std::int32_t d) { all.push_back(at(n, h, d)); });
    return all;
  }
  // Returns true if the bits between the rows are as at first.
  [[nodiscard]] bool gaps_are_untouched() const {
    for (std::int64_t n = 0; n < tokens_; ++n) {
      for (std::int64_t i = 0; i < token_stride_; ++i) {
        const std::int64_t d = i % head_stride_;
        if (i < head_stride_ * heads_ && d < dim_) continue;
        if (!std::isnan(wide_[static_cast<std::size_t>(n * token_stride_ + i)])) return false;
      }
    }
    return true;
  }

 private:
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::int64_t n = 0; n < tokens_; ++n) {
      for (std::int32_t h = 0; h < heads_; ++h) {
        for (std::int32_t d = 0; d < dim_; ++d) visit(n, h, d);
      }
    }
  }

  Dtype dtype_;
  std::int64_t tokens_;
  std::int32_t heads_;
  std::int32_t dim_;
  std::int64_t head_stride_;
  std::int64_t token_stride_;
  std::vector<float> wide_;
  std::vector<std::uint16_t> narrow_;
};

struct Case {
  KernelParams params;
  Dtype dtype = Dtype::kF32;
  std::int64_t rows = 1;
  std::int64_t keys = 1;
  std::int64_t gap = 0;
  std::uint64_t seed = 0;
};

struct Tensors {
  explicit Tensors(const Case& c)
      : q(c.dtype, c.rows, c.params.q_heads, c.params.head_dim, c.gap),
        k(c.dtype, c.keys, c.params.kv_heads, c.params.head_dim, c.gap),
        v(c.dtype, c.keys, c.params.kv_heads, c.params.value_dim, c.gap),
        dout(c.dtype, c.rows, c.params.q_heads, c.params.value_dim, c.gap),
        o(Dtype::kF32, c.rows, c.params.q_heads, c.params.value_dim, c.gap),
        lse(Dtype::kF32, c.rows, c.params.q_heads, 1, c.gap),
        delta(Dtype::kF32, c.rows, c.params.q_heads, 1, c.gap),
        dq(Dtype::kF32, c.rows, c.params.q_heads, c.params.head_dim, c.gap),
        dk(Dtype::kF32, c.keys, c.params.kv_heads, c.params.head_dim, c.gap),
        dv(Dtype::kF32, c.keys, c.params.kv_heads, c.params.value_dim, c.gap) {
    Rng rng(c.seed);
    for (Strided* tensor : {&q, &k, &v, &dout}) tensor->fill_normal(rng);
  }
  [[nodiscard]] ForwardTile forward(std::span<const LocalBand> bands, bool init) {
    return {q.view(), k.view(), v.view(), o.view(), lse.stats(), bands, init};
  }
  [[nodiscard]] BackwardTile backward(std::span<const LocalBand> bands, bool init) {
    return {q.view(),  k.view(),  v.view(),  dout.view(), lse.stats(), delta.stats(),
            dq.view(), dk.view(), dv.view(), bands,       init,        init};
  }
  Strided q, k, v, dout, o, lse, delta, dq, dk, dv;
};

struct Expected {
  std::vector<double> o, lse, dq, dk, dv;
};

// Computes dense attention from the definition; `mask` says which keys a query attends. Gradients
// use this forward's own LSE and delta, which are also stored in `t` for the kernel to read.
Expected dense(const Case& c, Tensors& t, const DenseMask& mask) {
  const KernelParams& p = c.params;
  Expected e;
  e.dq.assign(static_cast<std::size_t>(c.rows * p.q_heads * p.head_dim), 0.0);
  e.dk.assign(static_cast<std::size_t>(c.keys * p.kv_heads * p.head_dim), 0.0);
  e.dv.assign(static_cast<std::size_t>(c.keys * p.kv_heads * p.value_dim), 0.0);
  for (std::int64_t n = 0; n < c.rows; ++n) {
    for (std::int32_t h = 0; h < p.q_heads; ++h) {
      const std::int32_t g = h / (p.q_heads / p.kv_heads);
      std::vector<double> s(static_cast<std::size_t>(c.keys), -kInf);
      double total = 0;
      for (std::int64_t m = 0; m < c.keys; ++m) {
        if (mask.at(n, m) == 0) continue;
        double& score = s[static_cast<std::size_t>(m)];
        score = 0;
        for (std::int32_t d = 0; d < p.head_dim; ++d) score += t.q.at(n, h, d) * t.k.at(m, g, d);
        score *= p.scale;
        if (p.softcap != 0) score = p.softcap * std::tanh(score / p.softcap);
        total += std::exp(score);  // scores of a few units: no overflow
      }
      const double lse = std::log(total);
      std::vector<double> row(static_cast<std::size_t>(p.value_dim));
      for (std::int64_t m = 0; m < c.keys; ++m) {
        if (mask.at(n, m) == 0) continue;
        const double weight = std::exp(s[static_cast<std::size_t>(m)] - lse);
        for (std::int32_t d = 0; d < p.value_dim; ++d) {
          row[static_cast<std::size_t>(d)] += weight * t.v.at(m, g, d);
        }
      }
      double delta = 0;
      for (std::int32_t d = 0; d < p.value_dim; ++d) {
        delta += t.dout.at(n, h, d) * row[static_cast<std::size_t>(d)];
      }
      e.o.insert(e.o.end(), row.begin(), row.end());
      e.lse.push_back(lse);
      t.delta.set(n, h, 0, delta);
      for (std::int64_t m = 0; m < c.keys; ++m) {
        if (mask.at(n, m) == 0) continue;
        const double score = s[static_cast<std::size_t>(m)];
        const double weight = std::exp(score - lse);
        double dp = 0;
        for (std::int32_t d = 0; d < p.value_dim; ++d) {
          dp += t.dout.at(n, h, d) * t.v.at(m, g, d);
          e.dv[static_cast<std::size_t>((m * p.kv_heads + g) * p.value_dim + d)] +=
              weight * t.dout.at(n, h, d);
        }
        double ds = weight * (dp - delta) * p.scale;
        if (p.softcap != 0) ds *= 1 - (score / p.softcap) * (score / p.softcap);
        for (std::int32_t d = 0; d < p.head_dim; ++d) {
          e.dq[static_cast<std::size_t>((n * p.q_heads + h) * p.head_dim + d)] +=
              ds * t.k.at(m, g, d);
          e.dk[static_cast<std::size_t>((m * p.kv_heads + g) * p.head_dim + d)] +=
              ds * t.q.at(n, h, d);
        }
      }
    }
  }
  return e;
}

// Returns disjoint bands: random ones, each kept only if it shares no pair with earlier ones.
std::vector<LocalBand> random_bands(Rng& rng, std::int64_t rows, std::int64_t keys) {
  std::vector<LocalBand> bands;
  DenseMask taken(rows, keys);
  const std::int64_t wanted = random_between(rng, 0, 5);
  for (std::int64_t i = 0; i < wanted; ++i) {
    const Band band = clip(random_band(rng, rows, keys), {0, rows}, {0, keys});
    if (num_pairs(band) == 0) continue;
    DenseMask both = taken;
    add_to_dense(band, both);
    if (std::any_of(both.counts.begin(), both.counts.end(), [](auto n) { return n > 1; })) continue;
    taken = both;
    bands.push_back(band);
  }
  return bands;
}

Case random_case(Rng& rng, std::uint64_t seed) {
  Case c;
  c.seed = seed;
  constexpr std::int32_t kDims[][2] = {{8, 8},     {32, 32},   {64, 64}, {96, 96}, {128, 128},
                                       {192, 128}, {256, 256}, {7, 3},   {4, 1},   {1, 5}};
  const auto& dims = kDims[random_between(rng, 0, 9)];
  c.params.head_dim = dims[0];
  c.params.value_dim = dims[1];
  c.params.kv_heads = static_cast<std::int32_t>(random_between(rng, 1, 3));
  c.params.q_heads = c.params.kv_heads * static_cast<std::int32_t>(random_between(rng, 1, 4));
  c.params.scale = static_cast<float>(1 / std::sqrt(dims[0]));
  c.params.softcap = random_chance(rng, 0.3) ? 1.5F : 0.0F;
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};
  c.dtype = kDtypes[random_between(rng, 0, 2)];
  c.rows = random_between(rng, 1, random_chance(rng, 0.2) ? 200 : 40);
  c.keys = random_between(rng, 1, random_chance(rng, 0.2) ? 200 : 40);
  c.gap = random_between(rng, 0, 3);
  return c;
}

// Returns the nearest case that the CUDA kernels take.
Case cuda_case(Case c) {
  if (c.dtype == Dtype::kF32) c.dtype = Dtype::kF16;
  for (std::int32_t* dim : {&c.params.head_dim, &c.params.value_dim}) {
    *dim = (*dim + 7) / 8 * 8;
  }
  c.gap *= 8;
  return c;
}

class KernelConformance : public ::testing::TestWithParam<const AttentionKernel*> {
 protected:
  static const AttentionKernel& kernel() { return *GetParam(); }
  static Case taken(const Case& c) { return runs_on_device() ? cuda_case(c) : c; }
  static Case one_head(std::int32_t dim, float scale, std::int64_t rows, std::int64_t keys) {
    Case c;
    c.params = {1, 1, dim, dim, scale, 0.0F};
    c.rows = rows;
    c.keys = keys;
    return taken(c);
  }
  static bool runs_on_device() { return kernel().name().starts_with("cuda:"); }
  // All keys but one weigh nothing in a row. On devices the weight of that key is the power of a
  // rounding error, and is rounded in the product but not in the sum.
  static void expect_value_of(const Tensors& t, std::int64_t row, std::int64_t key) {
    const double bound = runs_on_device() ? std::ldexp(1.0, -8) : std::ldexp(1.0, -21);
    for (std::int32_t d = 0; d < 4; ++d) {
      const double expected = t.v.at(key, 0, d);
      EXPECT_NEAR(t.o.at(row, 0, d), expected, bound * std::abs(expected));
    }
  }
  // Returns the amount that rounding the weights of a row to bf16 adds to a bound: the unit in the
  // last place.
  static double rounding(const Case& c) { return weight_rounding(kernel().weight_dtype(c.dtype)); }
  static void expect_close(const Strided& found, const std::vector<double>& expected, double bound,
                           std::string_view what, double floor = 1e-2) {
    EXPECT_LE(relative_error(found.values(), expected, floor), bound) << what;
    EXPECT_TRUE(found.gaps_are_untouched()) << what;
  }
  // If a gradient cancels (a row with one key has none), its error is measured by the terms that
  // cancel.
  static void expect_gradients_close(const Case& c, const Tensors& t, const Expected& expected,
                                     double bound) {
    bound += 2 * rounding(c);  // of weights and of slopes
    const double terms = c.params.scale * max_abs(t.delta.values()) / 16;
    expect_close(t.dq, expected.dq, bound, "dq", terms * max_abs(t.k.values()));
    expect_close(t.dk, expected.dk, bound, "dk", terms * max_abs(t.q.values()));
    expect_close(t.dv, expected.dv, bound, "dv");
  }
  static double max_abs(const std::vector<double>& values) {
    double largest = 1e-6;
    for (const double value : values) largest = std::max(largest, std::abs(value));
    return largest;
  }
};

TEST_P(KernelConformance, ForwardEqualsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Case c = taken(random_case(rng, seed));
    const std::vector<LocalBand> bands = random_bands(rng, c.rows, c.keys);
    Tensors t(c);
    const Expected expected = dense(c, t, dense_of_bands(bands, c.rows, c.keys));
    const ForwardTile tile = t.forward(bands, true);  // over NaN
    kernel().forward(c.params, {&tile, 1});
    expect_close(t.o, expected.o, 2e-6 + rounding(c), "o");
    expect_close(t.lse, expected.lse, 2e-6, "lse");
  }
}

TEST_P(KernelConformance, BackwardEqualsTheDefinition) {
  for (std::uint64_t seed = 100; seed < 160; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Case c = taken(random_case(rng, seed));
    const std::vector<LocalBand> bands = random_bands(rng, c.rows, c.keys);
    Tensors t(c);
    const Expected expected = dense(c, t, dense_of_bands(bands, c.rows, c.keys));
    for (std::int64_t n = 0; n < c.rows; ++n) {
      for (std::int32_t h = 0; h < c.params.q_heads; ++h) {
        t.lse.set(n, h, 0, expected.lse[static_cast<std::size_t>(n * c.params.q_heads + h)]);
      }
    }
    const BackwardTile tile = t.backward(bands, true);
    kernel().backward(c.params, {&tile, 1});
    expect_gradients_close(c, t, expected, 1e-5);
  }
}

// Splits the bands among tiles of one call that write the same slots: the first overwrites, the
// others merge.
TEST_P(KernelConformance, TilesOfOneSlotMergeIntoTheWhole) {
  for (std::uint64_t seed = 200; seed < 240; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Case c = taken(random_case(rng, seed));
    const std::vector<LocalBand> bands = random_bands(rng, c.rows, c.keys);
    Tensors t(c);
    const Expected expected = dense(c, t, dense_of_bands(bands, c.rows, c.keys));
    std::vector<ForwardTile> forward = {t.forward({}, true)};
    for (const LocalBand& band : bands) forward.push_back(t.forward({&band, 1}, false));
    kernel().forward(c.params, forward);
    expect_close(t.o, expected.o, 3e-6 + rounding(c), "o");
    expect_close(t.lse, expected.lse, 2e-6, "lse");
    std::vector<BackwardTile> backward = {t.backward({}, true)};
    for (const LocalBand& band : bands) backward.push_back(t.backward({&band, 1}, false));
    kernel().backward(c.params, backward);
    expect_gradients_close(c, t, expected, 2e-5);
  }
}

TEST_P(KernelConformance, RowsWithoutAPairAreWrittenAndNeverMultiplied) {
  Case c;
  c.params = {2, 1, 8, 8, 1.0F, 0.0F};
  c.rows = 3;
  c.keys = 4;
  c = taken(c);
  Tensors t(c);
  for (std::int32_t h = 0; h < 2; ++h) {  // row 1 attends nothing; its query must not matter
    for (std::int32_t d = 0; d < 8; ++d) t.q.set(1, h, d, kInf);
  }
  const std::vector<LocalBand> bands = {{{0, 1}, {0, 4}}, {{2, 3}, {0, 4}}};
  const ForwardTile tile = t.forward(bands, true);
  kernel().forward(c.params, {&tile, 1});
  for (std::int32_t h = 0; h < 2; ++h) {
    EXPECT_EQ(t.lse.at(1, h, 0), -kInf);
    for (std::int32_t d = 0; d < 8; ++d) {
      EXPECT_EQ(t.o.at(1, h, d), 0);
      EXPECT_TRUE(std::isfinite(t.o.at(0, h, d)));
    }
  }
  // A slot whose rows are empty so far may hold anything in O: merging must not read it.
  for (std::int32_t h = 0; h < 2; ++h) {
    for (std::int64_t n = 0; n < 3; ++n) t.lse.set(n, h, 0, -kInf);
    for (std::int32_t d = 0; d < 8; ++d) t.o.set(0, h, d, std::nan(""));
  }
  const ForwardTile merged = t.forward(bands, false);
  kernel().forward(c.params, {&merged, 1});
  EXPECT_TRUE(std::isfinite(t.o.at(0, 0, 0)));
}

TEST_P(KernelConformance, RowsThatAttendNothingHaveNoGradient) {
  const Case c = one_head(8, 1.0F, 2, 2);
  Tensors t(c);
  for (std::int64_t n = 0; n < 2; ++n) {
    t.lse.set(n, 0, 0, -kInf);
    t.delta.set(n, 0, 0, 0);
  }
  const std::vector<LocalBand> bands = {{{0, 2}, {0, 2}}};
  const BackwardTile tile = t.backward(bands, true);
  kernel().backward(c.params, {&tile, 1});
  for (const Strided* gradient : {&t.dq, &t.dk, &t.dv}) {
    for (const double value : gradient->values()) EXPECT_EQ(value, 0);
  }
}

TEST_P(KernelConformance, LargeScoresDoNotOverflow) {
  const Case c = one_head(4, 1.0F, 2, 130);
  Tensors t(c);
  for (std::int64_t m = 0; m < c.keys; ++m) {
    for (std::int32_t d = 0; d < c.params.head_dim; ++d)
      t.k.set(m, 0, d, d == 0 ? static_cast<double>(m * 10) : 0);
  }
  for (std::int64_t n = 0; n < 2; ++n) t.q.set(n, 0, 0, n == 0 ? 10.0 : -10.0);
  const std::vector<LocalBand> bands = {{{0, 2}, {0, 130}}};
  const ForwardTile tile = t.forward(bands, true);
  kernel().forward(c.params, {&tile, 1});
  EXPECT_FLOAT_EQ(static_cast<float>(t.lse.at(0, 0, 0)), 12900.0F);
  EXPECT_FLOAT_EQ(static_cast<float>(t.lse.at(1, 0, 0)), 0.0F);
  expect_value_of(t, 0, 129);
  expect_value_of(t, 1, 0);
}

TEST_P(KernelConformance, HugeScoresHaveTheLargestKeysValue) {
  // Scores of up to 2.9e12, which fp32 rounds by more than exponents of weights can hold. Those of
  // devices, up to 8e7, are rounded by as much as they can hold.
  const Case c = one_head(4, runs_on_device() ? 30.0F : 1.1e6F, 16, 130);
  Tensors t(c);
  for (std::int32_t d = 0; d < c.params.head_dim; ++d) {
    for (std::int64_t m = 0; m < c.keys; ++m) t.k.set(m, 0, d, d == 0 ? (m - 64.0) * 32 : 0);
    for (std::int64_t n = 0; n < c.rows; ++n) t.q.set(n, 0, d, d == 0 ? 1000.0 + n * 16.0 : 0);
  }
  const std::vector<LocalBand> bands = {{{0, 16}, {0, 130}}};
  const ForwardTile tile = t.forward(bands, true);
  kernel().forward(c.params, {&tile, 1});
  for (std::int64_t n = 0; n < c.rows; ++n) {
    expect_value_of(t, n, 129);
    t.delta.set(n, 0, 0, 0.25);
  }
  if (runs_on_device()) return;  // their backward does not hold such weights
  const BackwardTile gradients = t.backward(bands, true);
  kernel().backward(c.params, {&gradients, 1});
  for (const Strided* gradient : {&t.dq, &t.dk, &t.dv}) {
    for (const double value : gradient->values()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_P(KernelConformance, ACallOfManyTilesEqualsManyCalls) {
  // Large enough to run on several threads.
  Case c;
  c.params = {8, 4, 64, 64, 0.125F, 0.0F};
  c.rows = 150;
  c.keys = 150;
  c = taken(c);
  const std::vector<LocalBand> lower = {{{0, 150}, {0, 150}, -kUnbounded, -40}};
  const std::vector<LocalBand> upper = {{{0, 150}, {0, 150}, -39, 20}};
  Tensors together(c);
  Tensors apart(c);
  const auto forward_all = [&](Tensors& t) {
    return std::vector<ForwardTile>{t.forward(upper, true), t.forward(lower, false)};
  };
  kernel().forward(c.params, forward_all(together));
  for (const ForwardTile& tile : forward_all(apart)) kernel().forward(c.params, {&tile, 1});
  EXPECT_LE(relative_error(together.o.values(), apart.o.values(), 0), 2e-6 + rounding(c));
  EXPECT_LE(relative_error(together.lse.values(), apart.lse.values(), 0), 2e-6);
  for (Tensors* t : {&together, &apart}) {
    for (std::int64_t n = 0; n < c.rows; ++n) {
      for (std::int32_t h = 0; h < 8; ++h) t->delta.set(n, h, 0, 0.25);
    }
  }
  const auto backward_all = [&](Tensors& t) {
    return std::vector<BackwardTile>{t.backward(upper, true), t.backward(lower, false)};
  };
  kernel().backward(c.params, backward_all(together));
  for (const BackwardTile& tile : backward_all(apart)) kernel().backward(c.params, {&tile, 1});
  EXPECT_LE(relative_error(together.dq.values(), apart.dq.values(), 0), 1e-5 + rounding(c));
  EXPECT_LE(relative_error(together.dk.values(), apart.dk.values(), 0), 1e-5 + rounding(c));
  EXPECT_LE(relative_error(together.dv.values(), apart.dv.values(), 0), 1e-5 + rounding(c));
}

std::string name_of(const ::testing::TestParamInfo<const AttentionKernel*>& tested) {
  std::string name(tested.param->name());
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, KernelConformance,
                         ::testing::ValuesIn(kernels().begin(), kernels().end()), name_of);
INSTANTIATE_TEST_SUITE_P(OfRoundedWeights, KernelConformance,
                         ::testing::ValuesIn(emulated_bf16_kernels().begin(),
                                             emulated_bf16_kernels().end()),
                         name_of);

INSTANTIATE_TEST_SUITE_P(OfCuda, KernelConformance,
                         ::testing::Values(&cuda_host_kernel(), &wgmma_host_kernel()), name_of);

// Does the same on a device that has its own memory: through the driver's library, a GPU if
// CONTEXTILE_TEST_GPU names one, otherwise the CPU again.
INSTANTIATE_TEST_SUITE_P(OfDevice, KernelConformance,
                         ::testing::ValuesIn(staged_kernels().begin(), staged_kernels().end()),
                         name_of);

}  // namespace
}  // namespace contextile

// The promises of the SIMD kernels in addition to conformance: long rows and many panels, the same
// bits on any number of threads, names that choose.
//
// Suffixes: N query rows, M key rows, H query heads, D head dim.
#include "kernel/cpu/simd_kernel.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/executor.h"
#include "kernel/cpu/cpu_features.h"
#include "kernel/cpu/reference_kernel.h"
#include "kernel/host_tensor.h"
#include "kernel/tensor.h"
#include "runtime/check/run_error.h"
#include "support/bf16_kernels.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

constexpr float kEmptyRow = -std::numeric_limits<float>::infinity();

// One tile's tensors; results are NaN until written.
struct Layer {
  Layer(std::uint64_t seed, const KernelParams& p, Dtype dtype, std::int64_t rows,
        std::int64_t keys)
      : params(p) {
    Rng rng(seed);
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

  void run(const AttentionKernel& kernel, std::span<const LocalBand> bands,
           const PreparedBands* prepared = nullptr) {
    const ForwardTile forward{q.view(),    k.view(), v.view(), o.view(),
                              lse.stats(), bands,    true,     prepared};
    kernel.forward(params, {&forward, 1});
    set_delta();
    const BackwardTile backward{q.view(),      k.view(),  v.view(),  dout.view(), lse.stats(),
                                delta.stats(), dq.view(), dk.view(), dv.view(),   bands,
                                true,          true,      prepared};
    kernel.backward(params, {&backward, 1});
  }

  // Sets delta to rowsum(dO ∘ O).
  void set_delta() {
    std::vector<float> a(static_cast<std::size_t>(params.value_dim));
    std::vector<float> b(a.size());
    for (std::int64_t n = 0; n < o.view().tokens; ++n) {
      for (std::int32_t h = 0; h < params.q_heads; ++h) {
        read_row(dout.view(), n, h, std::span<float>(a));
        read_row(o.view(), n, h, std::span<float>(b));
        double sum = 0;
        for (std::size_t d = 0; d < a.size(); ++d) sum += double{a[d]} * b[d];
        stat_at(delta.stats(), n, h) = static_cast<float>(sum);
      }
    }
  }

  KernelParams params;
  HostTensor q, k, v, dout, delta, o, lse, dq, dk, dv;
};

// Expects every array to be close to the reference kernel's. The bounds include rounding to bf16.
void expect_close(Layer& found, Layer& expected, double forward_bound, double gradient_bound) {
  EXPECT_LE(relative_error(doubles_of(found.o), doubles_of(expected.o), 1e-2), forward_bound);
  EXPECT_LE(relative_error(doubles_of(found.lse), doubles_of(expected.lse), 1), 2e-6);
  EXPECT_LE(relative_error(doubles_of(found.dq), doubles_of(expected.dq), 1e-1), gradient_bound);
  EXPECT_LE(relative_error(doubles_of(found.dk), doubles_of(expected.dk), 1e-1), gradient_bound);
  EXPECT_LE(relative_error(doubles_of(found.dv), doubles_of(expected.dv), 1e-1), gradient_bound);
}

void expect_same_bits(Layer& a, Layer& b) {
  EXPECT_EQ(doubles_of(a.o), doubles_of(b.o));
  EXPECT_EQ(doubles_of(a.lse), doubles_of(b.lse));
  EXPECT_EQ(doubles_of(a.dq), doubles_of(b.dq));
  EXPECT_EQ(doubles_of(a.dk), doubles_of(b.dk));
  EXPECT_EQ(doubles_of(a.dv), doubles_of(b.dv));
}

// Returns several documents: some with a window, some full, some whose rows attend nothing.
std::vector<LocalBand> long_bands(Rng& rng, std::int64_t rows, std::int64_t keys) {
  std::vector<LocalBand> bands;
  for (std::int64_t q = 0; q < rows;) {
    const std::int64_t end = std::min(rows, q + random_between(rng, 1, 400));
    const std::int64_t first = random_between(rng, 0, keys - 1);
    const std::int64_t last = random_between(rng, first + 1, keys);
    switch (random_between(rng, 0, 3)) {
      case 0:
        bands.push_back({{q, end}, {first, last}});
        break;
      case 1:  // ends aligned: causal against a longer past
        bands.push_back({{q, end}, {0, keys}, -kUnbounded, keys - rows});
        break;
      case 2: {
        const std::int64_t window = random_between(rng, 1, 500);
        bands.push_back({{q, end}, {0, keys}, keys - rows - window, keys - rows});
        break;
      }
      default:
        break;
    }
    q = end;
  }
  return bands;
}

class Simd : public ::testing::TestWithParam<const AttentionKernel*> {
 protected:
  static const AttentionKernel& kernel() { return *GetParam(); }
};

TEST_P(Simd, ManyPanelsAndBlocksEqualTheReference) {
  constexpr std::int32_t kDims[][2] = {{64, 64},   {128, 128}, {40, 72},
                                       {192, 128}, {256, 256}, {80, 80}};
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto& dims = kDims[seed % 6];
    KernelParams params;
    params.kv_heads = static_cast<std::int32_t>(random_between(rng, 1, 2));
    params.q_heads = params.kv_heads * static_cast<std::int32_t>(random_between(rng, 1, 5));
    params.head_dim = dims[0];
    params.value_dim = dims[1];
    params.scale = random_chance(rng, 0.2) ? -0.125F : 0.125F;
    params.softcap = random_chance(rng, 0.3) ? 20.0F : 0.0F;
    const Dtype dtype = kDtypes[random_between(rng, 0, 2)];
    const std::int64_t rows = random_between(rng, 1, 400);
    const std::int64_t keys = random_between(rng, 300, 900);
    const std::vector<LocalBand> bands = long_bands(rng, rows, keys);
    Layer found(seed, params, dtype, rows, keys);
    Layer expected(seed, params, dtype, rows, keys);
    found.run(kernel(), bands);
    expected.run(reference_kernel(), bands);
    const double rounded = weight_rounding(kernel().weight_dtype(dtype));
    expect_close(found, expected, 2e-6 + rounded, 1e-5 + 2 * rounded);
  }
}

// Later blocks of keys score far above all earlier ones of a row, so the sums so far are scaled
// down.
TEST_P(Simd, ScoresThatGrowFromBlockToBlockEqualTheReference) {
  const KernelParams params{3, 1, 64, 48, 0.125F, 0};
  const std::vector<LocalBand> bands = {{{0, 50}, {0, 1000}}};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    Layer found(6, params, dtype, 50, 1000);
    Layer expected(6, params, dtype, 50, 1000);
    for (Layer* layer : {&found, &expected}) {
      std::vector<float> row(64);
      for (std::int64_t key = 0; key < 1000; ++key) {
        read_row(layer->k.view(), key, 0, std::span<float>(row));
        for (float& x : row) x *= key < 300 ? 0.5F : key < 600 ? 4 : 16;
        write_row(layer->k.view(), key, 0, row);
      }
    }
    found.run(kernel(), bands);
    expected.run(reference_kernel(), bands);
    const double rounded = weight_rounding(kernel().weight_dtype(dtype));
    EXPECT_LE(relative_error(doubles_of(found.o), doubles_of(expected.o), 0), 4e-6 + rounded);
    EXPECT_LE(relative_error(doubles_of(found.lse), doubles_of(expected.lse), 1), 2e-6);
  }
}

TEST_P(Simd, EightThousandKeysStayWithinThePromise) {
  const KernelParams params{2, 1, 128, 128, 0.08838835F, 0};
  const std::vector<LocalBand> bands = {{{0, 40}, {0, 8192}}};
  Layer found(1, params, Dtype::kF32, 40, 8192);
  Layer expected(1, params, Dtype::kF32, 40, 8192);
  found.run(kernel(), bands);
  expected.run(reference_kernel(), bands);
  EXPECT_LE(relative_error(doubles_of(found.o), doubles_of(expected.o), 0), 2e-6);
  EXPECT_LE(relative_error(doubles_of(found.lse), doubles_of(expected.lse), 0), 2e-6);
  EXPECT_LE(relative_error(doubles_of(found.dq), doubles_of(expected.dq), 0), 1e-5);
  EXPECT_LE(relative_error(doubles_of(found.dk), doubles_of(expected.dk), 0), 1e-5);
  EXPECT_LE(relative_error(doubles_of(found.dv), doubles_of(expected.dv), 0), 1e-5);
}

// Every row attends one key, so dS = P·(dP - delta) is 0 except for rounding, and so are dq and dk.
// They are measured by the terms that cancel, as compare_results does.
TEST_P(Simd, WhereAllTermsCancelOnlyTheRoundingOfOutAndDeltaIsLeft) {
  const std::vector<LocalBand> own_key = {{{0, 64}, {0, 64}, 0, 0}};
  const std::vector<LocalBand> one_key = {{{0, 64}, {0, 1}}};
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::int32_t dim = seed % 2 == 0 ? 128 : 200;
    const bool is_shared = seed % 4 >= 2;
    const KernelParams params{4, seed % 3 == 0 ? 1 : 4, dim, dim, 0.08838835F, 0};
    Layer layer(seed, params, Dtype::kF32, 64, is_shared ? 1 : 64);
    layer.run(kernel(), is_shared ? one_key : own_key);
    const auto largest = [](HostTensor& tensor) {
      double size = 0;
      for (const double value : doubles_of(tensor)) size = std::max(size, std::abs(value));
      return size;
    };
    const double terms = params.scale * largest(layer.delta) / 64;
    EXPECT_LE(largest(layer.dq), 1e-5 * terms * largest(layer.k));
    EXPECT_LE(largest(layer.dk), 1e-5 * terms * largest(layer.q));
  }
}

// Tiles of one slot meet in registers, so their bits differ from those of one call each. The bits
// do not depend on threads or on the run.
TEST_P(Simd, ThreadsAndRepetitionsChangeNoBitOfACallOfManyTiles) {
  const KernelParams params{6, 2, 64, 64, 0.125F, 0};
  const std::vector<std::vector<LocalBand>> bands = {
      {{{0, 700}, {0, 900}, -kUnbounded, -500}},
      {{{0, 700}, {0, 900}, -499, -37}},
      {{{0, 700}, {0, 900}, -36, 150}, {{0, 90}, {400, 900}}}};
  const auto run = [&](std::size_t threads) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    Layer layer(3, params, Dtype::kF32, 700, 900);
    std::vector<ForwardTile> forward;
    std::vector<BackwardTile> backward;
    for (std::size_t i = 0; i < bands.size(); ++i) {
      forward.push_back({layer.q.view(), layer.k.view(), layer.v.view(), layer.o.view(),
                         layer.lse.stats(), bands[i], i == 0});
      backward.push_back({layer.q.view(), layer.k.view(), layer.v.view(), layer.dout.view(),
                          layer.lse.stats(), layer.delta.stats(), layer.dq.view(), layer.dk.view(),
                          layer.dv.view(), bands[i], i == 0, i == 0});
    }
    kernel().forward(params, forward);
    layer.set_delta();
    kernel().backward(params, backward);
    return layer;
  };
  Layer first = run(1);
  for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
    SCOPED_TRACE(std::to_string(threads) + " threads");
    Layer again = run(threads);
    expect_same_bits(first, again);
  }
}

TEST_P(Simd, ThreadsAndPreparedBandsChangeNoBit) {
  const KernelParams params{6, 2, 64, 64, 0.125F, 0};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    Rng rng(7);
    const std::vector<LocalBand> bands = long_bands(rng, 1100, 1300);
    Layer one(3, params, dtype, 1100, 1300);
    {
      const tbb::global_control alone(tbb::global_control::max_allowed_parallelism, 1);
      one.run(kernel(), bands);
    }
    const auto prepared = kernel().prepare_bands(params, 1100, 1300, bands);
    ASSERT_NE(prepared, nullptr);
    EXPECT_GT(prepared->size_bytes(), 0);
    for (const std::size_t threads : {2U, 5U}) {
      SCOPED_TRACE(std::to_string(threads) + " threads");
      const tbb::global_control several(tbb::global_control::max_allowed_parallelism, threads);
      Layer many(3, params, dtype, 1100, 1300);
      many.run(kernel(), bands, prepared.get());
      expect_same_bits(one, many);
    }
  }
}

TEST_P(Simd, BandsPreparedForOtherHeadsAreWorkedOutAnew) {
  const KernelParams params{4, 2, 16, 16, 0.25F, 0};
  const KernelParams others{8, 2, 16, 16, 0.25F, 0};
  const std::vector<LocalBand> bands = {{{0, 70}, {0, 70}, -kUnbounded, 0}};
  const auto prepared = kernel().prepare_bands(others, 70, 70, bands);
  Layer with(5, params, Dtype::kF32, 70, 70);
  Layer without(5, params, Dtype::kF32, 70, 70);
  with.run(kernel(), bands, prepared.get());
  without.run(kernel(), bands);
  expect_same_bits(with, without);
}

TEST_P(Simd, AScaleOfZeroAveragesTheValues) {
  const KernelParams params{1, 1, 8, 8, 0.0F, 0};
  const std::vector<LocalBand> bands = {{{0, 3}, {0, 3}, -kUnbounded, 0}};
  Layer layer(2, params, Dtype::kF32, 3, 3);
  layer.run(kernel(), bands);
  const std::vector<double> v = doubles_of(layer.v);
  const std::vector<double> o = doubles_of(layer.o);
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_NEAR(o[16 + d], (v[d] + v[8 + d] + v[16 + d]) / 3, 1e-6);
  }
  EXPECT_NEAR(doubles_of(layer.lse)[2], std::log(3.0), 1e-6);
  for (const double gradient : doubles_of(layer.dq)) EXPECT_EQ(gradient, 0);
}

TEST_P(Simd, ARowWithoutALogSumExpGivesNoGradientWhateverItsQueryHolds) {
  const KernelParams params{1, 1, 8, 8, 1.0F, 0};
  const std::vector<LocalBand> bands = {{{0, 2}, {0, 2}}};
  Layer layer(4, params, Dtype::kF32, 2, 2);
  layer.run(kernel(), bands);
  const std::vector<float> infinite(8, std::numeric_limits<float>::infinity());
  write_row(layer.q.view(), 1, 0, infinite);
  stat_at(layer.lse.stats(), 1, 0) = kEmptyRow;
  const BackwardTile tile{layer.q.view(),
                          layer.k.view(),
                          layer.v.view(),
                          layer.dout.view(),
                          layer.lse.stats(),
                          layer.delta.stats(),
                          layer.dq.view(),
                          layer.dk.view(),
                          layer.dv.view(),
                          bands,
                          true,
                          true};
  kernel().backward(params, {&tile, 1});
  for (HostTensor* gradient : {&layer.dq, &layer.dk, &layer.dv}) {
    for (const double value : doubles_of(*gradient)) EXPECT_TRUE(std::isfinite(value));
  }
  for (std::size_t d = 8; d < 16; ++d) EXPECT_EQ(doubles_of(layer.dq)[d], 0);
}

TEST_P(Simd, TheCallersSubnormalsSurviveACall) {
  const KernelParams params{1, 1, 8, 8, 1.0F, 0};
  const std::vector<LocalBand> bands = {{{0, 2}, {0, 2}}};
  Layer layer(4, params, Dtype::kF32, 2, 2);
  layer.run(kernel(), bands);
  volatile float smallest = std::numeric_limits<float>::denorm_min();
  const float twice = smallest * 2;
  EXPECT_GT(twice, 0.0F);
}

std::string kernel_name(const ::testing::TestParamInfo<const AttentionKernel*>& tested) {
  std::string name(tested.param->name());
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Simd,
                         ::testing::ValuesIn(simd_kernels().begin(), simd_kernels().end()),
                         kernel_name);
INSTANTIATE_TEST_SUITE_P(OfRoundedWeights, Simd,
                         ::testing::ValuesIn(emulated_bf16_kernels().begin(),
                                             emulated_bf16_kernels().end()),
                         kernel_name);

TEST(SimdKernels, ThePreferredOneIsFoundByTheirCommonName) {
  ASSERT_FALSE(simd_kernels().empty());
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    EXPECT_EQ(&find_kernel("simd", dtype), &preferred_kernel(dtype));
    EXPECT_EQ(&find_kernel("", dtype), &preferred_kernel(dtype));
  }
  EXPECT_EQ(&preferred_kernel(Dtype::kF32), simd_kernels().front());
  EXPECT_EQ(&preferred_kernel(Dtype::kF16), simd_kernels().front());
  EXPECT_EQ(kernels().front(), simd_kernels().front());
  EXPECT_EQ(simd_kernels().back()->name(), "simd:portable");
}

// Tiles come before vectors, and vectors only if the processor runs them faster than fp32.
TEST(SimdKernels, TheOneForBf16InputsIsTheFastestItsProcessorHas) {
  std::string expected(simd_kernels().front()->name());
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx512_bf16 && cpu.fast_bf16) expected = "simd:avx512_bf16";
  if (cpu.amx_bf16) expected = "simd:amx_bf16";
  EXPECT_EQ(preferred_kernel(Dtype::kBf16).name(), expected);
}

TEST(SimdKernels, OnlyThoseThatMultiplyBf16RoundItsWeights) {
  for (const AttentionKernel* kernel : kernels()) {
    SCOPED_TRACE(kernel->name());
    EXPECT_EQ(kernel->weight_dtype(Dtype::kBf16),
              kernel->name().ends_with("_bf16") ? Dtype::kBf16 : Dtype::kF32);
    EXPECT_EQ(kernel->weight_dtype(Dtype::kF32), Dtype::kF32);
    EXPECT_EQ(kernel->weight_dtype(Dtype::kF16), Dtype::kF32);
  }
}

TEST(SimdKernels, ANameChoosesTheKernelThatComputes) {
  // The instruction sets order the same sums differently: the bits differ, the result is the same.
  const KernelParams params{2, 1, 64, 64, 0.125F, 0};
  const std::vector<LocalBand> bands = {{{0, 100}, {0, 600}}};
  std::vector<std::vector<double>> outputs;
  for (const char* name : {"simd", "simd:portable", "reference"}) {
    Layer layer(9, params, Dtype::kF32, 100, 600);
    layer.run(find_kernel(name), bands);
    outputs.push_back(doubles_of(layer.o));
  }
  if (simd_kernels().size() > 1) {
    EXPECT_NE(outputs[0], outputs[1]);
  }
  EXPECT_NE(outputs[1], outputs[2]);
  EXPECT_LE(relative_error(outputs[0], outputs[2], 0), 2e-6);
}

TEST(Kernels, AreFoundByName) {
  for (const AttentionKernel* kernel : kernels()) EXPECT_EQ(&find_kernel(kernel->name()), kernel);
}

TEST(Kernels, AnUnknownNameListsTheKnownOnes) {
  try {
    static_cast<void>(find_kernel("referense"));
    FAIL() << "found a kernel";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string_view(error.what()).find("reference"), std::string_view::npos);
    EXPECT_NE(std::string_view(error.what()).find("did you mean"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace contextile

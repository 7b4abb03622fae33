// The oracle, compared with loops over a dense matrix, and its inputs.

#include "contextile/advanced/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "contextile/advanced/executor.h"
#include "kernel/tensor.h"
#include "runtime/check/run_error.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Workload workload_of(std::int64_t tokens, const AttentionShape& shape) {
  Workload workload;
  workload.sequences = {{0, tokens}};
  workload.shape = shape;
  return workload;
}

AttentionShape random_shape(Rng& rng) {
  AttentionShape shape;
  shape.kv_heads = static_cast<std::int32_t>(random_between(rng, 1, 3));
  shape.q_heads = shape.kv_heads * static_cast<std::int32_t>(random_between(rng, 1, 3));
  shape.head_dim = static_cast<std::int32_t>(random_between(rng, 1, 20));
  shape.value_dim = static_cast<std::int32_t>(random_between(rng, 1, 20));
  shape.dtype = Dtype::kF32;
  shape.scale = random_chance(rng, 0.3) ? 0.4 : 0.0;
  shape.softcap = random_chance(rng, 0.4) ? 1.5 : 0.0;
  shape.sink = random_chance(rng, 0.4);
  return shape;
}

// out and lse of one (token, head), and the weight of every key.
struct DenseRow {
  std::vector<double> weights, slopes, out;  // slopes: d(score) / d(scale · q·k)
  double lse = 0;
};

DenseRow dense_row(const BatchTensors& b, const AttentionShape& s, const DenseMask& mask,
                   std::int64_t t, std::int32_t h) {
  const std::int32_t g = h / (s.q_heads / s.kv_heads);
  DenseRow row;
  row.out.resize(static_cast<std::size_t>(s.value_dim));
  std::vector<double> scores(static_cast<std::size_t>(b.tokens), -kInf);
  row.slopes.assign(scores.size(), 0.0);
  double sum = s.sink ? std::exp(b.sink[static_cast<std::size_t>(h)]) : 0.0;
  for (std::int64_t k = 0; k < b.tokens; ++k) {
    if (mask.at(t, k) == 0) continue;
    double score = 0;
    for (std::int32_t d = 0; d < s.head_dim; ++d) {
      score += b.q[static_cast<std::size_t>((t * s.q_heads + h) * s.head_dim + d)] *
               b.k[static_cast<std::size_t>((k * s.kv_heads + g) * s.head_dim + d)];
    }
    score *= s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.head_dim));
    double slope = 1;
    if (s.softcap != 0) {
      const double c = std::cosh(score / s.softcap);
      slope = 1 / (c * c);
      score = s.softcap * std::tanh(score / s.softcap);
    }
    scores[static_cast<std::size_t>(k)] = score;
    row.slopes[static_cast<std::size_t>(k)] = slope;
    sum += std::exp(score);
  }
  row.lse = std::log(sum);
  for (std::int64_t k = 0; k < b.tokens; ++k) {
    const double weight = sum == 0 ? 0 : std::exp(scores[static_cast<std::size_t>(k)]) / sum;
    row.weights.push_back(weight);
    for (std::int32_t d = 0; d < s.value_dim; ++d) {
      row.out[static_cast<std::size_t>(d)] +=
          weight * b.v[static_cast<std::size_t>((k * s.kv_heads + g) * s.value_dim + d)];
    }
  }
  return row;
}

OracleResult dense(const BatchTensors& b, const AttentionShape& s, const DenseMask& mask) {
  OracleResult r;
  r.dq.resize(b.q.size());
  r.dk.resize(b.k.size());
  r.dv.resize(b.v.size());
  r.dsink.resize(b.sink.size());
  const double scale = s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.head_dim));
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    for (std::int32_t h = 0; h < s.q_heads; ++h) {
      const std::int32_t g = h / (s.q_heads / s.kv_heads);
      const DenseRow row = dense_row(b, s, mask, t, h);
      r.out.insert(r.out.end(), row.out.begin(), row.out.end());
      r.lse.push_back(row.lse);
      const double* d_o = b.dout.data() + (t * s.q_heads + h) * s.value_dim;
      double delta = 0;
      for (std::size_t d = 0; d < row.out.size(); ++d) delta += d_o[d] * row.out[d];
      for (std::int64_t k = 0; k < b.tokens; ++k) {
        const double weight = row.weights[static_cast<std::size_t>(k)];
        if (weight == 0) continue;
        double dp = 0;
        for (std::int32_t d = 0; d < s.value_dim; ++d) {
          const auto i = static_cast<std::size_t>((k * s.kv_heads + g) * s.value_dim + d);
          dp += d_o[d] * b.v[i];
          r.dv[i] += weight * d_o[d];
        }
        const double ds = weight * (dp - delta) * row.slopes[static_cast<std::size_t>(k)] * scale;
        for (std::int32_t d = 0; d < s.head_dim; ++d) {
          const auto i = static_cast<std::size_t>((t * s.q_heads + h) * s.head_dim + d);
          const auto j = static_cast<std::size_t>((k * s.kv_heads + g) * s.head_dim + d);
          r.dq[i] += ds * b.k[j];
          r.dk[j] += ds * b.q[i];
        }
      }
      if (s.sink) {
        const auto i = static_cast<std::size_t>(h);
        r.dsink[i] -= std::exp(b.sink[i] - row.lse) * delta;
      }
    }
  }
  return r;
}

TEST(Oracle, EqualsDenseAttentionOnRandomMasks) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 4, 30));
    const std::int64_t tokens = sequences.back().end;
    Mask mask = build_mask(random_mask_spec(rng, 30), sequences);
    if (mask.bands.size() > 1 && random_chance(rng, 0.3)) mask.bands.pop_back();  // empty rows
    const AttentionShape shape = random_shape(rng);
    const BatchTensors batch = random_batch(workload_of(tokens, shape), seed);
    const OracleResult found = oracle(batch, shape, mask, Passes::kForwardBackward);
    const OracleResult expected = dense(batch, shape, dense_of_bands(mask.bands, tokens, tokens));
    EXPECT_LE(relative_error(found.out, expected.out, 1), 1e-12);
    EXPECT_LE(relative_error(found.lse, expected.lse, 1), 1e-12);
    EXPECT_LE(relative_error(found.dq, expected.dq, 1), 1e-12);
    EXPECT_LE(relative_error(found.dk, expected.dk, 1), 1e-12);
    EXPECT_LE(relative_error(found.dv, expected.dv, 1), 1e-12);
    EXPECT_LE(relative_error(found.dsink, expected.dsink, 1), 1e-12);
  }
}

TEST(Oracle, LeavesGradientsOutWhenTheyAreNotAskedFor) {
  AttentionShape shape{.q_heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4};
  const BatchTensors batch = random_batch(workload_of(3, shape), 1);
  const OracleResult result = oracle(batch, shape, {{Band{{0, 3}, {0, 3}}}}, Passes::kForward);
  EXPECT_EQ(result.out.size(), 3 * 2 * 4);
  EXPECT_TRUE(result.dq.empty());
}

TEST(Oracle, RefusesWhatDoesNotFit) {
  AttentionShape shape{.q_heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4};
  BatchTensors batch = random_batch(workload_of(3, shape), 1);
  EXPECT_THROW(static_cast<void>(oracle(batch, shape, {{Band{{0, 3}, {0, 4}}}}, Passes::kForward)),
               InvalidArgument);
  batch.k.pop_back();
  EXPECT_THROW(static_cast<void>(oracle(batch, shape, {}, Passes::kForward)), InvalidArgument);
}

TEST(RandomBatch, DependsOnTheSeedAndIsRepresentableInTheDtype) {
  AttentionShape shape{.q_heads = 2, .kv_heads = 1, .head_dim = 8, .value_dim = 4};
  shape.sink = true;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    shape.dtype = dtype;
    const BatchTensors batch = random_batch(workload_of(50, shape), 3);
    EXPECT_EQ(batch.tokens, 50);
    EXPECT_EQ(batch.sink.size(), 2);
    double sum_of_squares = 0;
    for (const std::vector<double>* tensor : {&batch.q, &batch.k, &batch.v, &batch.dout}) {
      for (const double value : *tensor) EXPECT_EQ(value, round_to(dtype, value));
    }
    for (const double value : batch.q) sum_of_squares += value * value;
    EXPECT_NEAR(sum_of_squares / static_cast<double>(batch.q.size()), 1, 0.2);
    EXPECT_EQ(random_batch(workload_of(50, shape), 3).q, batch.q);
    EXPECT_NE(random_batch(workload_of(50, shape), 4).q, batch.q);
  }
}

}  // namespace
}  // namespace contextile

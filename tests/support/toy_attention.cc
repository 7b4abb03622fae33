#include "support/toy_attention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/rng.h"

namespace contextile {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

std::vector<double> random_values(Rng& rng, std::int64_t size) {
  std::vector<double> values(static_cast<std::size_t>(size));
  for (double& value : values) value = rng.normal();
  return values;
}

}  // namespace

ToyInputs random_toy_inputs(const AttentionShape& shape, std::int64_t tokens, std::uint64_t seed) {
  Rng rng(seed);
  ToyInputs inputs;
  inputs.q = random_values(rng, tokens * shape.q_heads * shape.head_dim);
  inputs.k = random_values(rng, tokens * shape.kv_heads * shape.head_dim);
  inputs.v = random_values(rng, tokens * shape.kv_heads * shape.value_dim);
  inputs.dout = random_values(rng, tokens * shape.q_heads * shape.value_dim);
  return inputs;
}

std::vector<bool> dense_mask(const Plan& plan, std::size_t mask) {
  const std::int64_t tokens = plan.num_tokens();
  std::vector<bool> dense(static_cast<std::size_t>(tokens * tokens));
  for (const PlanRound& round : plan.rounds) {
    for (const Band& band : round.masks.at(mask).mask.bands) {
      for (std::int64_t q = band.q.begin; q < band.q.end; ++q) {
        for (std::int64_t k = band.k.begin; k < band.k.end; ++k) {
          if (band.lo <= k - q && k - q <= band.hi) {
            dense.at(static_cast<std::size_t>(q * tokens + k)) = true;
          }
        }
      }
    }
  }
  return dense;
}

ToyResults dense_attention(const ToyInputs& in, const std::vector<bool>& attended,
                           const AttentionShape& shape, std::int64_t tokens) {
  const auto sized = [&](const std::vector<double>& like) {
    return std::vector<double>(like.size());
  };
  ToyResults out{
      sized(in.dout),
      std::vector<double>(static_cast<std::size_t>(tokens * shape.q_heads), kMinusInfinity),
      sized(in.q), sized(in.k), sized(in.v)};
  const std::int32_t d = shape.head_dim;
  const std::int32_t dv = shape.value_dim;
  const double scale = shape.effective_scale();
  for (std::int64_t q = 0; q < tokens; ++q) {
    for (std::int32_t h = 0; h < shape.q_heads; ++h) {
      const std::int32_t g = h / (shape.q_heads / shape.kv_heads);
      std::vector<std::pair<std::int64_t, double>> scores;
      double sum = 0;
      for (std::int64_t k = 0; k < tokens; ++k) {
        if (!attended[static_cast<std::size_t>(q * tokens + k)]) continue;
        scores.emplace_back(k, scale * dot(row(in.q, q, shape.q_heads, h, d),
                                           row(in.k, k, shape.kv_heads, g, d), d));
        sum += std::exp(scores.back().second);
      }
      if (scores.empty()) continue;
      out.lse[static_cast<std::size_t>(q * shape.q_heads + h)] = std::log(sum);
      double* o = row(out.out, q, shape.q_heads, h, dv);
      for (const auto& [k, s] : scores) {
        add_scaled(o, std::exp(s) / sum, row(in.v, k, shape.kv_heads, g, dv), dv);
      }
      const double* dout = row(in.dout, q, shape.q_heads, h, dv);
      for (const auto& [k, s] : scores) {
        const double p = std::exp(s) / sum;
        const double ds =
            p * scale * (dot(dout, row(in.v, k, shape.kv_heads, g, dv), dv) - dot(dout, o, dv));
        add_scaled(row(out.dv, k, shape.kv_heads, g, dv), p, dout, dv);
        add_scaled(row(out.dq, q, shape.q_heads, h, d), ds, row(in.k, k, shape.kv_heads, g, d), d);
        add_scaled(row(out.dk, k, shape.kv_heads, g, d), ds, row(in.q, q, shape.q_heads, h, d), d);
      }
    }
  }
  return out;
}

}  // namespace contextile

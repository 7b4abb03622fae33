#include "support/toy_attention.h"

#include <cmath>
#include <limits>
#include <utility>

namespace contextile {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

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
  const std::int32_t D = shape.head_dim;
  const std::int32_t Dv = shape.value_dim;
  const double scale = shape.effective_scale();
  for (std::int64_t q = 0; q < tokens; ++q) {
    for (std::int32_t h = 0; h < shape.q_heads; ++h) {
      const std::int32_t g = h / (shape.q_heads / shape.kv_heads);
      std::vector<std::pair<std::int64_t, double>> scores;
      double sum = 0;
      for (std::int64_t k = 0; k < tokens; ++k) {
        if (!attended[static_cast<std::size_t>(q * tokens + k)]) continue;
        scores.emplace_back(k, scale * dot(row(in.q, q, shape.q_heads, h, D),
                                           row(in.k, k, shape.kv_heads, g, D), D));
        sum += std::exp(scores.back().second);
      }
      if (scores.empty()) continue;
      out.lse[static_cast<std::size_t>(q * shape.q_heads + h)] = std::log(sum);
      double* o = row(out.out, q, shape.q_heads, h, Dv);
      for (const auto& [k, s] : scores) {
        add_scaled(o, std::exp(s) / sum, row(in.v, k, shape.kv_heads, g, Dv), Dv);
      }
      const double* dout = row(in.dout, q, shape.q_heads, h, Dv);
      for (const auto& [k, s] : scores) {
        const double p = std::exp(s) / sum;
        const double ds =
            p * scale * (dot(dout, row(in.v, k, shape.kv_heads, g, Dv), Dv) - dot(dout, o, Dv));
        add_scaled(row(out.dv, k, shape.kv_heads, g, Dv), p, dout, Dv);
        add_scaled(row(out.dq, q, shape.q_heads, h, D), ds, row(in.k, k, shape.kv_heads, g, D), D);
        add_scaled(row(out.dk, k, shape.kv_heads, g, D), ds, row(in.q, q, shape.q_heads, h, D), D);
      }
    }
  }
  return out;
}

}  // namespace contextile

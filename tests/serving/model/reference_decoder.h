// A second implementation of the model, in fp64 and without anything clever: whole sequences, dense
// attention, one device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "contextile/serving/decoder_model.h"

namespace contextile {

class ReferenceDecoder {
 public:
  // weights: those of one rank of one.
  ReferenceDecoder(DecoderConfig config, DecoderWeights weights)
      : config_(std::move(config)), weights_(std::move(weights)) {}

  // Logits after the last of the tokens.
  [[nodiscard]] std::vector<double> logits(std::span<const std::int32_t> tokens) const {
    std::vector<Row> x;
    for (const std::int32_t token : tokens) {
      const std::vector<float> all = weights_.embeddings.values();
      const auto first = all.begin() + std::int64_t{token} * config_.hidden_size;
      x.emplace_back(first, first + config_.hidden_size);
    }
    for (std::int32_t i = 0; i < config_.num_layers; ++i) {
      attend(weights_.layers[static_cast<std::size_t>(i)], config_.window(i), x);
      for (Row& row : x) feed_forward(weights_.layers[static_cast<std::size_t>(i)], row);
    }
    return times(weights_.logits, normed(x.back(), weights_.norm));
  }

 private:
  using Row = std::vector<double>;

  [[nodiscard]] static Row times(const WeightElements& elements, const Row& x) {
    const std::vector<float> matrix = elements.values();
    Row y(matrix.size() / x.size(), 0);
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += x[i] * matrix[o * x.size() + i];
    }
    return y;
  }
  static void add(Row& x, std::span<const float> y) {
    for (std::size_t i = 0; i < y.size(); ++i) x[i] += y[i];
  }
  [[nodiscard]] Row normed(const Row& x, std::span<const float> weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    Row y = x;
    const double size = std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_epsilon);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= weight[i] / size;
    return y;
  }

  // Queries or keys of a token, by head.
  [[nodiscard]] std::vector<Row> heads(const Row& x, const WeightElements& matrix,
                                       std::span<const float> bias, std::span<const float> norm,
                                       std::int64_t position, bool turns) const {
    Row all = times(matrix, x);
    if (!bias.empty()) add(all, bias);
    std::vector<Row> heads;
    const std::size_t dim = static_cast<std::size_t>(config_.head_dim);
    for (std::size_t first = 0; first < all.size(); first += dim) {
      Row head(all.begin() + static_cast<std::ptrdiff_t>(first),
               all.begin() + static_cast<std::ptrdiff_t>(first + dim));
      if (!norm.empty()) head = normed(head, norm);
      if (turns) turn(head, position);
      heads.push_back(head);
    }
    return heads;
  }

  void turn(Row& head, std::int64_t position) const {
    const std::size_t half = head.size() / 2;
    for (std::size_t d = 0; d < half; ++d) {
      const double frequency =
          std::pow(config_.rope.theta, -static_cast<double>(d) / static_cast<double>(half));
      const double angle = static_cast<double>(position) * frequency;
      const double a = head[d];
      const double b = head[d + half];
      head[d] = a * std::cos(angle) - b * std::sin(angle);
      head[d + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  void attend(const DecoderWeights::Layer& layer, std::int64_t window, std::vector<Row>& x) const {
    std::vector<std::vector<Row>> q;
    std::vector<std::vector<Row>> k;
    std::vector<std::vector<Row>> v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Row row = normed(x[t], layer.attention_norm);
      const auto position = static_cast<std::int64_t>(t);
      q.push_back(heads(row, layer.q, layer.q_bias, layer.q_norm, position, true));
      k.push_back(heads(row, layer.k, layer.k_bias, layer.k_norm, position, true));
      v.push_back(heads(row, layer.v, layer.v_bias, {}, position, false));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row o;
      for (std::int32_t h = 0; h < config_.q_heads; ++h) {
        const auto kv = static_cast<std::size_t>(h / (config_.q_heads / config_.kv_heads));
        const Row head = average(q[t][static_cast<std::size_t>(h)], k, v, kv, t, window);
        o.insert(o.end(), head.begin(), head.end());
      }
      Row y = times(layer.o, o);
      if (!layer.o_bias.empty()) add(y, layer.o_bias);
      for (std::size_t i = 0; i < y.size(); ++i) x[t][i] += y[i];
    }
  }

  [[nodiscard]] static Row average(const Row& q, const std::vector<std::vector<Row>>& k,
                                   const std::vector<std::vector<Row>>& v, std::size_t head,
                                   std::size_t t, std::int64_t window) {
    Row o(q.size(), 0);
    double total = 0;
    const std::size_t first = window == 0 || t + 1 <= static_cast<std::size_t>(window)
                                  ? 0
                                  : t + 1 - static_cast<std::size_t>(window);
    for (std::size_t s = first; s <= t; ++s) {
      double score = 0;
      for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k[s][head][d];
      const double weight = std::exp(score / std::sqrt(static_cast<double>(q.size())));
      total += weight;
      for (std::size_t d = 0; d < q.size(); ++d) o[d] += weight * v[s][head][d];
    }
    for (double& value : o) value /= total;
    return o;
  }

  void feed_forward(const DecoderWeights::Layer& layer, Row& x) const {
    const Row input = normed(x, layer.ffn_norm);
    Row gate = times(layer.gate, input);
    const Row up = times(layer.up, input);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    const Row y = times(layer.down, gate);
    for (std::size_t i = 0; i < y.size(); ++i) x[i] += y[i];
  }

  const DecoderConfig config_;
  const DecoderWeights weights_;
};

}  // namespace contextile

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
      const DecoderWeights::Layer& layer = weights_.layers[static_cast<std::size_t>(i)];
      attend(layer, config_.window(i), x);
      for (Row& row : x) feed_forward(layer, config_.has_experts(i), row);
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
    return normed(x, weight, config_.norm_epsilon);
  }
  [[nodiscard]] static Row normed(const Row& x, std::span<const float> weight, double epsilon) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    Row y = x;
    const double size = std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
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

  // Rotates the last elements of a head.
  void turn(Row& head, std::int64_t position) const {
    const auto dim = static_cast<std::size_t>(config_.rope_dim());
    const std::size_t half = dim / 2;
    for (std::size_t d = 0; d < half; ++d) {
      const double frequency =
          std::pow(config_.rope.theta, -static_cast<double>(d) / static_cast<double>(half));
      const double angle = static_cast<double>(position) * frequency;
      const bool next = config_.rope.interleaved;
      double& x = head[head.size() - dim + (next ? 2 * d : d)];
      double& y = head[head.size() - dim + (next ? 2 * d + 1 : d + half)];
      const double a = x;
      const double b = y;
      x = a * std::cos(angle) - b * std::sin(angle);
      y = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  // Keys and values of all heads of a token, from its latent vector.
  void expand(const DecoderWeights::Layer& layer, const Row& x, std::int64_t position,
              std::vector<Row>& k, std::vector<Row>& v) const {
    const LatentConfig& latent = *config_.latent;
    Row all = times(layer.kv_a, x);
    turn(all, position);
    const Row rotated(all.begin() + latent.kv_rank, all.end());
    all.resize(static_cast<std::size_t>(latent.kv_rank));
    const Row expanded = times(layer.kv_b, normed(all, layer.kv_a_norm, 1e-6));
    const std::int64_t plain = config_.head_dim - latent.rope_dim;
    for (auto at = expanded.begin(); at != expanded.end(); at += plain + latent.value_dim) {
      k.emplace_back(at, at + plain);
      k.back().insert(k.back().end(), rotated.begin(), rotated.end());
      v.emplace_back(at + plain, at + plain + latent.value_dim);
    }
  }

  void attend(const DecoderWeights::Layer& layer, std::int64_t window, std::vector<Row>& x) const {
    std::vector<std::vector<Row>> q;
    std::vector<std::vector<Row>> k;
    std::vector<std::vector<Row>> v;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Row row = normed(x[t], layer.attention_norm);
      const auto position = static_cast<std::int64_t>(t);
      const bool compressed = !layer.q_a_norm.empty();
      q.push_back(heads(compressed ? normed(times(layer.q_a, row), layer.q_a_norm, 1e-6) : row,
                        layer.q, layer.q_bias, layer.q_norm, position, true));
      if (config_.latent) {
        expand(layer, row, position, k.emplace_back(), v.emplace_back());
        continue;
      }
      k.push_back(heads(row, layer.k, layer.k_bias, layer.k_norm, position, true));
      v.push_back(heads(row, layer.v, layer.v_bias, {}, position, false));
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row o;
      for (std::size_t h = 0; h < q[t].size(); ++h) {
        const std::size_t kv = h / (q[t].size() / k[t].size());
        const double sink = config_.sinks ? std::exp(static_cast<double>(layer.sinks[h])) : 0;
        const Row head = average(q[t][h], k, v, kv, t, window, sink);
        o.insert(o.end(), head.begin(), head.end());
      }
      Row y = times(layer.o, o);
      if (!layer.o_bias.empty()) add(y, layer.o_bias);
      for (std::size_t i = 0; i < y.size(); ++i) x[t][i] += y[i];
    }
  }

  [[nodiscard]] Row average(const Row& q, const std::vector<std::vector<Row>>& k,
                            const std::vector<std::vector<Row>>& v, std::size_t head, std::size_t t,
                            std::int64_t window, double sink) const {
    Row o(v[0][head].size(), 0);
    double total = sink;
    const std::size_t first = window == 0 || t + 1 <= static_cast<std::size_t>(window)
                                  ? 0
                                  : t + 1 - static_cast<std::size_t>(window);
    for (std::size_t s = first; s <= t; ++s) {
      double score = 0;
      for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k[s][head][d];
      const double weight = std::exp(score * config_.score_scale());
      total += weight;
      for (std::size_t d = 0; d < o.size(); ++d) o[d] += weight * v[s][head][d];
    }
    for (double& value : o) value /= total;
    return o;
  }

  // Experts of a row and the weights of their outputs.
  [[nodiscard]] std::vector<std::pair<std::size_t, double>> routes(
      const DecoderWeights::Layer& layer, const Row& x) const {
    const ExpertsConfig& experts = *config_.experts;
    const bool is_sigmoid = experts.weights == ExpertsConfig::Weights::kSigmoid;
    Row scores = times(layer.router, x);
    if (!layer.router_bias.empty()) add(scores, layer.router_bias);
    double sum = 0;
    for (double& score : scores) {
      score = is_sigmoid ? 1 / (1 + std::exp(-score)) : std::exp(score);
      sum += score;
    }
    std::vector<std::pair<double, std::size_t>> choice;  // the best first
    for (std::size_t e = 0; e < scores.size(); ++e) {
      if (!is_sigmoid) scores[e] /= sum;
      choice.emplace_back(-scores[e] - (is_sigmoid ? layer.choice_bias[e] : 0), e);
    }
    const std::size_t size = scores.size() / static_cast<std::size_t>(experts.num_groups);
    std::vector<std::pair<double, std::size_t>> groups;
    for (std::size_t first = 0; first < scores.size(); first += size) {
      std::vector<std::pair<double, std::size_t>> its(
          choice.begin() + static_cast<std::ptrdiff_t>(first),
          choice.begin() + static_cast<std::ptrdiff_t>(first + size));
      std::sort(its.begin(), its.end());
      groups.emplace_back(its[0].first + (is_sigmoid ? its[1].first : 0), first / size);
    }
    std::sort(groups.begin(), groups.end());
    groups.resize(static_cast<std::size_t>(experts.top_groups));
    std::sort(choice.begin(), choice.end());
    std::vector<std::pair<std::size_t, double>> found;
    double total = 0;
    for (const auto& [score, e] : choice) {
      const bool is_in =
          std::any_of(groups.begin(), groups.end(),
                      [&, expert = e](const auto& its) { return its.second == expert / size; });
      if (!is_in || std::ssize(found) == experts.top_k) continue;
      found.emplace_back(e, scores[e]);
      total += scores[e];
    }
    const bool norms =
        experts.norm_weights || experts.weights == ExpertsConfig::Weights::kChosenSoftmax;
    for (auto& [e, weight] : found) weight *= experts.weight_factor / (norms ? total : 1);
    return found;
  }

  [[nodiscard]] Row expert(const DecoderWeights::Layer::Expert& its, const Row& x) const {
    Row gate = times(its.gate, x);
    Row up = times(its.up, x);
    add(gate, its.gate_bias);
    add(up, its.up_bias);
    const auto& clamped = config_.experts->clamped;
    for (std::size_t i = 0; i < gate.size(); ++i) {
      if (clamped) {
        gate[i] = std::min(gate[i], clamped->limit);
        up[i] = std::clamp(up[i], -clamped->limit, clamped->limit) + 1;
      }
      gate[i] *= up[i] / (1 + std::exp(-(clamped ? clamped->alpha : 1) * gate[i]));
    }
    Row y = times(its.down, gate);
    add(y, its.down_bias);
    return y;
  }

  void feed_forward(const DecoderWeights::Layer& layer, bool has_experts, Row& x) const {
    const Row input = normed(x, layer.ffn_norm);
    if (layer.gate.size() > 0) {
      Row gate = times(layer.gate, input);
      const Row up = times(layer.up, input);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      const Row y = times(layer.down, gate);
      for (std::size_t i = 0; i < y.size(); ++i) x[i] += y[i];
    }
    if (!has_experts) return;
    for (const auto& [e, weight] : routes(layer, input)) {
      const Row y = expert(layer.experts[e], input);
      for (std::size_t i = 0; i < y.size(); ++i) x[i] += weight * y[i];
    }
  }

  const DecoderConfig config_;
  const DecoderWeights weights_;
};

}  // namespace contextile

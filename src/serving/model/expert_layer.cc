#include "serving/model/expert_layer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>

#include "serving/model/activation_rows.h"
#include "serving/model/linear.h"

namespace contextile {
namespace {

using Floats = std::vector<float>;
using Weights = ExpertsConfig::Weights;

// The scores that experts are chosen by.
Floats scores_of(Weights weights, std::span<const float> logits) {
  Floats scores(logits.begin(), logits.end());
  if (weights == Weights::kSigmoid) {
    for (float& score : scores) score = 1 / (1 + std::exp(-score));
  } else {
    const float most = *std::ranges::max_element(scores);
    float sum = 0;
    for (float& score : scores) sum += score = std::exp(score - most);
    for (float& score : scores) score /= sum;
  }
  return scores;
}

// Indices of the `count` largest values, the first of equal ones first.
std::vector<std::size_t> largest(std::span<const float> values, std::int32_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return values[a] > values[b]; });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

// Experts of groups that are not among the best become the last choice.
void leave_out_groups(const ExpertsConfig& config, Floats& choice) {
  if (config.top_groups == config.num_groups) return;
  const std::size_t size = choice.size() / static_cast<std::size_t>(config.num_groups);
  Floats of_group;
  for (std::size_t first = 0; first < choice.size(); first += size) {
    const auto group = std::span(choice).subspan(first, size);
    const bool sums = config.weights == Weights::kSigmoid;
    float score = 0;
    for (const std::size_t i : largest(group, sums ? 2 : 1)) score += group[i];
    of_group.push_back(score);
  }
  const std::vector<std::size_t> best = largest(of_group, config.top_groups);
  for (std::size_t group = 0; group < of_group.size(); ++group) {
    if (std::ranges::find(best, group) != best.end()) continue;
    std::fill_n(choice.begin() + static_cast<std::ptrdiff_t>(group * size), size,
                -std::numeric_limits<float>::infinity());
  }
}

void finish_weights(const ExpertsConfig& config, std::span<Route> routes) {
  float sum = 0;
  for (const Route& route : routes) sum += route.weight;
  const bool norms = config.norm_weights || config.weights == Weights::kChosenSoftmax;
  for (Route& route : routes) {
    if (norms) route.weight /= sum;
    route.weight *= static_cast<float>(config.weight_factor);
  }
}

}  // namespace

// The softmax of the chosen logits is that of all, divided by the sum of the chosen ones.
std::vector<Route> choose_experts(const ExpertsConfig& config, std::span<const float> logits,
                                  std::span<const float> choice_bias) {
  const auto num_experts = static_cast<std::size_t>(config.num_experts);
  std::vector<Route> routes;
  routes.reserve(logits.size() / num_experts * static_cast<std::size_t>(config.top_k));
  for (std::size_t first = 0; first < logits.size(); first += num_experts) {
    const Floats scores = scores_of(config.weights, logits.subspan(first, num_experts));
    Floats choice = scores;
    if (!choice_bias.empty()) add(choice, choice_bias);
    leave_out_groups(config, choice);
    for (const std::size_t expert : largest(choice, config.top_k)) {
      routes.push_back({static_cast<std::int32_t>(expert), scores[expert]});
    }
    finish_weights(config, std::span(routes).last(static_cast<std::size_t>(config.top_k)));
  }
  return routes;
}

ExpertLayer::ExpertLayer(const DecoderConfig& config, const DecoderWeights::Layer& layer,
                         const DecoderPart& part, std::int64_t& flops)
    : config_(*config.experts),
      layer_(layer),
      part_(part),
      hidden_(static_cast<std::size_t>(config.hidden_size)),
      flops_(flops) {}

namespace {

// x · Wᵀ, with a bias if there is one.
Floats product(std::span<const float> x, const WeightElements& weights, std::int64_t inputs,
               std::span<const float> bias, std::int64_t& flops) {
  const WeightsView view = weights_view(weights, inputs);
  const std::int64_t rows = std::ssize(x) / inputs;
  Floats y(static_cast<std::size_t>(rows * view.outputs));
  multiply(x, view, y);
  if (!bias.empty()) add(y, bias);
  flops += 2 * rows * view.outputs * inputs;
  return y;
}

}  // namespace

std::vector<Route> ExpertLayer::routes(std::span<const float> x) const {
  const Floats logits =
      product(x, layer_.router, static_cast<std::int64_t>(hidden_), layer_.router_bias, flops_);
  return choose_experts(config_, logits, layer_.choice_bias);
}

Floats ExpertLayer::outputs(const DecoderWeights::Layer::Expert& expert,
                            std::span<const float> x) const {
  const auto hidden = static_cast<std::int64_t>(hidden_);
  Floats gate = product(x, expert.gate, hidden, expert.gate_bias, flops_);
  const Floats up = product(x, expert.up, hidden, expert.up_bias, flops_);
  if (config_.clamped) {
    gate_by_clamped_silu(gate, up, static_cast<float>(config_.clamped->alpha),
                         static_cast<float>(config_.clamped->limit));
  } else {
    gate_by_silu(gate, up);
  }
  return product(gate, expert.down, config_.ffn_size, expert.down_bias, flops_);
}

void ExpertLayer::add_own(std::span<const float> x, std::span<const Route> routes,
                          std::span<float> y) const {
  const Range own = part_.own(config_.num_experts);
  const auto top_k = static_cast<std::size_t>(config_.top_k);
  for (std::int64_t e = own.begin; e < own.end; ++e) {
    Floats some;
    std::vector<std::size_t> chosen;  // routes to the expert
    for (std::size_t i = 0; i < routes.size(); ++i) {
      if (routes[i].expert != e) continue;
      chosen.push_back(i);
      const auto row = x.subspan(i / top_k * hidden_, hidden_);
      some.insert(some.end(), row.begin(), row.end());
    }
    if (chosen.empty()) continue;
    const Floats found = outputs(layer_.experts[static_cast<std::size_t>(e - own.begin)], some);
    for (std::size_t n = 0; n < chosen.size(); ++n) {
      float* to = y.data() + chosen[n] / top_k * hidden_;
      const float weight = routes[chosen[n]].weight;
      for (std::size_t d = 0; d < hidden_; ++d) to[d] += weight * found[n * hidden_ + d];
    }
  }
}

namespace {

// Rows on their way to the experts of a rank, and what comes back.
struct Parcel {
  std::vector<std::size_t> rows;  // of the sender
  Floats x;
  std::vector<Route> routes;
  Floats y;

  void resize(std::size_t count, std::size_t hidden, std::size_t top_k) {
    x.resize(count * hidden);
    y.assign(count * hidden, 0);
    routes.resize(count * top_k);
  }
};

template <typename T>
Segment segment_of(std::vector<T>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  return {reinterpret_cast<std::byte*>(values.data()), bytes, 1, bytes};
}

// Sends the segments of `sent` to every other rank that gets a row, and receives likewise.
template <typename Segments>
void exchange(Transport& group, std::vector<Parcel>& sent, std::vector<Parcel>& received,
              const Segments& sent_segments, const Segments& received_segments) {
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (std::int32_t peer = 0; peer < group.size(); ++peer) {
    if (Rank(peer) == group.rank()) continue;
    Parcel& to = sent[static_cast<std::size_t>(peer)];
    Parcel& from = received[static_cast<std::size_t>(peer)];
    if (!to.x.empty()) sends.push_back({Rank(peer), sent_segments(to)});
    if (!from.x.empty()) receives.push_back({Rank(peer), received_segments(from)});
  }
  group.wait(group.launch(sends, receives));
}

// The numbers of rows that every rank sends to this one.
std::vector<std::int64_t> counts_for_me(Transport& group, const std::vector<Parcel>& sent) {
  std::vector<std::int64_t> mine;
  for (const Parcel& parcel : sent) mine.push_back(std::ssize(parcel.rows));
  const auto all = all_gather(group, std::as_bytes(std::span(mine)));
  std::vector<std::int64_t> counts;
  for (const std::vector<std::byte>& its : all) {
    std::memcpy(mine.data(), its.data(), its.size());
    counts.push_back(mine[group.rank().index()]);
  }
  return counts;
}

}  // namespace

void ExpertLayer::add_over(Transport& group, std::span<const float> x,
                           std::span<const Route> routes, std::span<float> y) const {
  const auto top_k = static_cast<std::size_t>(config_.top_k);
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<Parcel> sent(ranks);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    // Rank `peer` of those that share tokens has the same place among those that split heads.
    DecoderPart part = part_;
    part.rank = Rank(static_cast<std::int32_t>(peer) * part.tensor_parallel() +
                     part_.rank.value % part.tensor_parallel());
    const Range experts = part.own(config_.num_experts);
    Parcel& parcel = sent[peer];
    for (std::size_t row = 0; row * top_k < routes.size(); ++row) {
      std::vector<Route> its(routes.begin() + static_cast<std::ptrdiff_t>(row * top_k),
                             routes.begin() + static_cast<std::ptrdiff_t>((row + 1) * top_k));
      bool has_some = false;
      for (Route& route : its) {
        if (experts.contains(route.expert)) {
          has_some = true;
        } else {
          route = {};
        }
      }
      if (!has_some) continue;
      parcel.rows.push_back(row);
      const auto values = x.subspan(row * hidden_, hidden_);
      parcel.x.insert(parcel.x.end(), values.begin(), values.end());
      parcel.routes.insert(parcel.routes.end(), its.begin(), its.end());
    }
    parcel.y.resize(parcel.x.size());
  }
  const std::size_t me = group.rank().index();
  std::vector<Parcel> received(ranks);
  const std::vector<std::int64_t> counts = counts_for_me(group, sent);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer != me) received[peer].resize(static_cast<std::size_t>(counts[peer]), hidden_, top_k);
  }
  const auto inputs = +[](Parcel& its) {
    return std::vector<Segment>{segment_of(its.x), segment_of(its.routes)};
  };
  const auto outputs = +[](Parcel& its) { return std::vector<Segment>{segment_of(its.y)}; };
  exchange(group, sent, received, inputs, inputs);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    Parcel& its = peer == me ? sent[me] : received[peer];
    add_own(its.x, its.routes, its.y);
  }
  exchange(group, received, sent, outputs, outputs);
  for (const Parcel& parcel : sent) {
    for (std::size_t n = 0; n < parcel.rows.size(); ++n) {
      for (std::size_t d = 0; d < hidden_; ++d) {
        y[parcel.rows[n] * hidden_ + d] += parcel.y[n * hidden_ + d];
      }
    }
  }
}

}  // namespace contextile

#include "partition/hypergraph/graph_state.h"

#include <algorithm>
#include <utility>

namespace contextile {
namespace {

// With at most this many parts, an array over all parts is the faster form for every net.
constexpr std::int32_t kAlwaysDenseParts = 16;

bool is_dense(std::size_t num_pins, std::int32_t num_parts) {
  return num_parts <= kAlwaysDenseParts || static_cast<std::size_t>(num_parts) <= 2 * num_pins;
}

}  // namespace

NetCounts::NetCounts(const Hypergraph& graph, std::int32_t num_parts) : num_parts_(num_parts) {
  offsets_.resize(graph.nets());
  lambda_.assign(graph.nets(), 0);
  std::size_t cells = 0;
  for (const NetId e : graph.nets()) {
    const std::size_t num_pins = graph.pins_of(e).size();
    const bool dense = is_dense(num_pins, num_parts);
    offsets_[e] = static_cast<std::int64_t>(2 * cells + (dense ? 1 : 0));
    cells += dense ? static_cast<std::size_t>(num_parts) : 2 * num_pins;
  }
  data_.assign(cells, 0);
}

void NetCounts::add(NetId net, PartId part) {
  const Cells cells = cells_of(net);
  std::int32_t& lambda = lambda_[net];
  if (cells.dense) {
    if (data_[cells.begin + part.index()]++ == 0) ++lambda;
    return;
  }
  const std::size_t end = cells.begin + 2 * cells.touched;
  for (std::size_t i = cells.begin; i < end; i += 2) {
    if (data_[i] != part.value) continue;
    ++data_[i + 1];
    return;
  }
  data_[end] = part.value;
  data_[end + 1] = 1;
  ++lambda;
}

void NetCounts::remove(NetId net, PartId part) {
  const Cells cells = cells_of(net);
  std::int32_t& lambda = lambda_[net];
  if (cells.dense) {
    if (--data_[cells.begin + part.index()] == 0) --lambda;
    return;
  }
  std::size_t i = cells.begin;
  while (data_[i] != part.value) i += 2;
  if (--data_[i + 1] > 0) return;
  const std::size_t last = cells.begin + 2 * (cells.touched - 1);
  data_[i] = data_[last];
  data_[i + 1] = data_[last + 1];
  --lambda;
}

void Affinity::measure(const HyperState& state, VertexId vertex) {
  for (const PartId p : parts_) shared_[p] = 0;
  parts_.clear();
  cost_of_strange_part_ = 0;
  const PartId from = state.part(vertex);
  for (const NetId e : state.level().nets_of(vertex)) {
    const std::int64_t weight = state.level().net_weight(e);
    if (state.counts().count(e, from) > 1) cost_of_strange_part_ += weight;
    if (state.counts().lambda(e) == 1) continue;
    state.counts().for_each_part(e, [&](PartId p) {
      std::int64_t& shared = shared_[p];
      if (shared == 0) parts_.push_back(p);
      shared += weight;
    });
  }
}

HyperState::HyperState(const HyperLevel& level, const HyperProblem& problem,
                       IdVector<VertexId, PartId> parts)
    : level_(&level),
      problem_(&problem),
      parts_(std::move(parts)),
      counts_(level.graph, problem.num_parts),
      weights_(problem.parts()),
      traffic_(problem.parts(), 0) {
  for (const VertexId v : level.vertices()) {
    HyperWeight& weight = weights_[part(v)];
    weight = weight + level.weight(v);
  }
  double traffic_sum = 0;
  for (const NetId e : level.graph.nets()) {
    for (const VertexId v : level.graph.pins_of(e)) counts_.add(e, part(v));
    const std::int32_t lambda = counts_.lambda(e);
    if (lambda < 2) continue;
    const std::int64_t weight = level.net_weight(e);
    connectivity_ += weight * (lambda - 1);
    counts_.for_each_part(e, [&](PartId p) { traffic_[p] += weight; });
    traffic_sum += static_cast<double>(weight) * lambda;
  }
  per_mean_traffic_ = traffic_sum > 0 ? problem.num_parts / traffic_sum : 1;
}

double HyperState::penalty(std::int64_t traffic) const {
  const auto x = static_cast<double>(traffic);
  const double ratio = x * per_mean_traffic_;
  return problem_->traffic_weight * x * ratio * ratio * ratio;
}

double HyperState::score() const {
  auto score = static_cast<double>(connectivity_);
  if (problem_->traffic_weight > 0) {
    for (const std::int64_t traffic : traffic_) score += penalty(traffic);
  }
  return score;
}

double HyperState::objective() const {
  const std::int64_t most = *std::max_element(traffic_.begin(), traffic_.end());
  return static_cast<double>(connectivity_) +
         problem_->traffic_weight * problem_->num_parts * static_cast<double>(most);
}

double HyperState::overload() const {
  double sum = 0;
  for (const PartId p : problem_->parts()) {
    sum += problem_->overload(p, part_weight(p));
  }
  return sum;
}

HyperDelta HyperState::delta(VertexId vertex, PartId to) const {
  const PartId from = part(vertex);
  if (from == to) return {};
  HyperDelta delta;
  std::int64_t traffic_from = 0;
  std::int64_t traffic_to = 0;
  for (const NetId e : level_->nets_of(vertex)) {
    const bool leaves = counts_.count(e, from) == 1;
    const bool arrives = counts_.count(e, to) == 0;
    const std::int64_t weight = level_->net_weight(e);
    const std::int32_t lambda = counts_.lambda(e);
    if (leaves != arrives) delta.connectivity += arrives ? weight : -weight;
    // Nets have at least two pins, so a net that leaves or arrives is cut before or after. A net
    // that becomes cut charges both ends, and one that is no longer cut frees both.
    if (leaves) traffic_from -= weight;
    if (arrives) traffic_to += weight;
    if (lambda == 1) traffic_from += weight;
    if (leaves && !arrives && lambda == 2) traffic_to -= weight;
  }
  if (problem_->traffic_weight > 0) {
    const std::int64_t x = traffic(from);
    const std::int64_t y = traffic(to);
    delta.traffic = penalty(x + traffic_from) - penalty(x) + penalty(y + traffic_to) - penalty(y);
  }
  return delta;
}

void HyperState::move(VertexId vertex, PartId to) {
  const PartId from = part(vertex);
  if (from == to) return;
  std::int64_t& traffic_from = traffic_[from];
  std::int64_t& traffic_to = traffic_[to];
  for (const NetId e : level_->nets_of(vertex)) {
    const std::int64_t weight = level_->net_weight(e);
    const std::int32_t before = counts_.lambda(e);
    counts_.remove(e, from);
    const bool leaves = counts_.lambda(e) < before;
    const std::int32_t between = counts_.lambda(e);
    counts_.add(e, to);
    const bool arrives = counts_.lambda(e) > between;
    if (leaves) traffic_from -= weight;
    if (arrives) traffic_to += weight;
    if (before == 1) traffic_from += weight;
    if (leaves && !arrives && before == 2) traffic_to -= weight;
    connectivity_ += weight * (counts_.lambda(e) - before);
  }
  const HyperWeight weight = level_->weight(vertex);
  HyperWeight& weight_from = weights_[from];
  HyperWeight& weight_to = weights_[to];
  weight_from = weight_from - weight;
  weight_to = weight_to + weight;
  parts_[vertex] = to;
}

double HyperState::overload_delta(VertexId vertex, PartId to) const {
  const PartId from = part(vertex);
  if (from == to) return 0;
  const HyperWeight weight = level_->weight(vertex);
  return problem_->overload(from, part_weight(from) - weight) -
         problem_->overload(from, part_weight(from)) +
         problem_->overload(to, part_weight(to) + weight) - problem_->overload(to, part_weight(to));
}

}  // namespace contextile

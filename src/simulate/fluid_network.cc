#include "simulate/fluid_network.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>

namespace contextile {

FluidNetwork::FluidNetwork(std::vector<double> capacity)
    : capacity_(std::move(capacity)),
      flows_of_port_(capacity_.size()),
      left_(capacity_.size()),
      waiting_(capacity_.size()) {}

void FluidNetwork::add(const FlowPath& path, double bytes, std::int32_t tag) {
  std::int32_t id = static_cast<std::int32_t>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[static_cast<std::size_t>(id)];
  flow = {.path = path, .place = {}, .bytes_left = bytes, .rate = 0, .tag = tag, .active = true};
  for (std::int32_t i = 0; i < path.num_ports; ++i) {
    auto& list = flows_of_port_[static_cast<std::size_t>(path.port[static_cast<std::size_t>(i)])];
    flow.place[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(list.size());
    list.push_back(id);
  }
}

void FluidNetwork::remove(std::int32_t id) {
  Flow& flow = flows_[static_cast<std::size_t>(id)];
  for (std::int32_t i = 0; i < flow.path.num_ports; ++i) {
    const std::int32_t port = flow.path.port[static_cast<std::size_t>(i)];
    auto& list = flows_of_port_[static_cast<std::size_t>(port)];
    const std::int32_t place = flow.place[static_cast<std::size_t>(i)];
    const std::int32_t last = list.back();
    list[static_cast<std::size_t>(place)] = last;
    list.pop_back();
    Flow& moved = flows_[static_cast<std::size_t>(last)];
    for (std::int32_t j = 0; j < moved.path.num_ports; ++j) {
      if (moved.path.port[static_cast<std::size_t>(j)] == port) {
        moved.place[static_cast<std::size_t>(j)] = place;
      }
    }
  }
  flow.active = false;
  free_.push_back(id);
}

void FluidNetwork::share_out(double now_us) {
  for (Flow& flow : flows_) {
    if (!flow.active) continue;
    flow.bytes_left = std::max(0.0, flow.bytes_left - flow.rate * (now_us - since_us_));
    flow.shared = false;
  }
  since_us_ = now_us;
  using Share = std::pair<double, std::size_t>;  // (share of each waiting flow, port)
  std::priority_queue<Share, std::vector<Share>, std::greater<>> tightest;
  for (std::size_t p = 0; p < capacity_.size(); ++p) {
    left_[p] = capacity_[p];
    waiting_[p] = static_cast<std::int32_t>(flows_of_port_[p].size());
    if (waiting_[p] > 0) tightest.emplace(left_[p] / waiting_[p], p);
  }
  while (!tightest.empty()) {
    const auto [queued_share, p] = tightest.top();
    tightest.pop();
    if (waiting_[p] == 0) continue;
    // Shares only grow while others are served: an outdated one is too small and goes back.
    const double share = std::max(0.0, left_[p]) / waiting_[p];
    if (share > queued_share) {
      tightest.emplace(share, p);
      continue;
    }
    for (const std::int32_t id : flows_of_port_[p]) {
      Flow& flow = flows_[static_cast<std::size_t>(id)];
      if (flow.shared) continue;
      flow.shared = true;
      flow.rate = share;
      for (std::int32_t i = 0; i < flow.path.num_ports; ++i) {
        const auto port = static_cast<std::size_t>(flow.path.port[static_cast<std::size_t>(i)]);
        left_[port] -= share;
        --waiting_[port];
      }
    }
  }
  ends_.clear();
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    const Flow& flow = flows_[f];
    if (!flow.active) continue;
    const double end = flow.bytes_left <= 0 ? now_us
                       : flow.rate > 0      ? now_us + flow.bytes_left / flow.rate
                                            : std::numeric_limits<double>::infinity();
    ends_.emplace_back(end, static_cast<std::int32_t>(f));
  }
  std::make_heap(ends_.begin(), ends_.end(), std::greater<>());
}

double FluidNetwork::next_end_us() const {
  return ends_.empty() ? std::numeric_limits<double>::infinity() : ends_.front().first;
}

std::int32_t FluidNetwork::pop_ended() {
  const std::int32_t id = ends_.front().second;
  std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
  ends_.pop_back();
  const std::int32_t tag = flows_[static_cast<std::size_t>(id)].tag;
  remove(id);
  return tag;
}

}  // namespace contextile

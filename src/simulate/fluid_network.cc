#include "simulate/fluid_network.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>

namespace contextile {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

FluidNetwork::FluidNetwork(std::vector<double> capacity)
    : capacity_(std::move(capacity)),
      listed_(capacity_.size()),
      flows_of_port_(capacity_.size()),
      left_(capacity_.size()),
      waiting_(capacity_.size()) {}

std::int32_t FluidNetwork::add_stream(const FlowPath& path) {
  streams_.push_back({.path = path});
  members_.emplace_back();
  shared_in_.push_back(0);
  return static_cast<std::int32_t>(streams_.size()) - 1;
}

void FluidNetwork::add(std::int32_t stream, double bytes, std::int32_t tag) {
  joining_.push_back({stream, bytes, tag});
  ++num_flows_;
}

// Puts the stream on the lists of its ports.
void FluidNetwork::list(std::int32_t id) {
  const FlowPath& path = streams_[static_cast<std::size_t>(id)].path;
  Members& members = members_[static_cast<std::size_t>(id)];
  for (std::size_t i = 0; i < static_cast<std::size_t>(path.num_ports); ++i) {
    auto& list = listed_[static_cast<std::size_t>(path.port[i])];
    members.place[i] = static_cast<std::int32_t>(list.size());
    list.push_back(id);
  }
}

void FluidNetwork::unlist(std::int32_t id) {
  const FlowPath& path = streams_[static_cast<std::size_t>(id)].path;
  for (std::size_t i = 0; i < static_cast<std::size_t>(path.num_ports); ++i) {
    const std::int32_t port = path.port[i];
    auto& list = listed_[static_cast<std::size_t>(port)];
    const std::int32_t place = members_[static_cast<std::size_t>(id)].place[i];
    const auto last = static_cast<std::size_t>(list.back());
    list[static_cast<std::size_t>(place)] = list.back();
    list.pop_back();
    const FlowPath& moved = streams_[last].path;
    for (std::size_t j = 0; j < static_cast<std::size_t>(moved.num_ports); ++j) {
      if (moved.port[j] == port) members_[last].place[j] = place;
    }
  }
}

// Books flows that come or go.
void FluidNetwork::count(std::int32_t id, std::int32_t flows) {
  Stream& stream = streams_[static_cast<std::size_t>(id)];
  stream.num_flows += flows;
  for (std::size_t i = 0; i < static_cast<std::size_t>(stream.path.num_ports); ++i) {
    flows_of_port_[static_cast<std::size_t>(stream.path.port[i])] += flows;
  }
}

void FluidNetwork::join(const Joining& flow, double now_us) {
  Stream& stream = streams_[static_cast<std::size_t>(flow.stream)];
  auto& flows = members_[static_cast<std::size_t>(flow.stream)].flows;
  if (tracks_ports_) bound_at_join_[flow.tag] = bound_us(flow.stream, now_us);
  if (stream.num_flows == 0) list(flow.stream);
  count(flow.stream, 1);
  // What the stream has served is booked up to the last share-out only.
  const double served = stream.served + stream.rate * (now_us - since_us_);
  flows.emplace_back(served + flow.bytes, flow.tag);
  std::push_heap(flows.begin(), flows.end(), std::greater<>());
  stream.first_end = flows.front();
}

double FluidNetwork::end_us(const Stream& stream) const {
  const double bytes_left = stream.first_end.first - stream.served;
  if (bytes_left <= 0) return since_us_;
  return stream.rate > 0 ? since_us_ + bytes_left / stream.rate : kNever;
}

// Ends are many and only the next ones matter until the next share-out.
void FluidNetwork::collect(const End& end) {
  earliest_end_us_ = std::min(earliest_end_us_, end.time_us);
  if (end.time_us <= std::max(limit_us_, earliest_end_us_)) ends_.push_back(end);
}

FluidNetwork::PortTimes FluidNetwork::bound_us(std::int32_t id, double now_us) const {
  const Members& members = members_[static_cast<std::size_t>(id)];
  PortTimes times = members.bound_us;
  if (members.bound_by >= 0)
    times[static_cast<std::size_t>(members.bound_by)] += now_us - since_us_;
  return times;
}

// From now on this port sets the stream's rate.
void FluidNetwork::note_port(std::int32_t id, std::int32_t port, double now_us) {
  Members& members = members_[static_cast<std::size_t>(id)];
  members.bound_us = bound_us(id, now_us);
  const auto& ports = streams_[static_cast<std::size_t>(id)].path.port;
  members.bound_by =
      static_cast<std::int32_t>(std::find(ports.begin(), ports.end(), port) - ports.begin());
}

void FluidNetwork::note_end(std::int32_t id, std::int32_t tag, double now_us) {
  Members& members = members_[static_cast<std::size_t>(id)];
  PortTimes times = bound_us(id, now_us);
  const auto joined = bound_at_join_.find(tag);
  for (std::size_t i = 0; i < times.size(); ++i) times[i] -= joined->second[i];
  bound_at_join_.erase(joined);
  const auto longest = std::max_element(times.begin(), times.end()) - times.begin();
  ended_at_port_ =
      streams_[static_cast<std::size_t>(id)].path.port[static_cast<std::size_t>(longest)];
  if (streams_[static_cast<std::size_t>(id)].num_flows == 0) {
    members.bound_us = {};
    members.bound_by = -1;
  }
}

// The port is full: each of its flows without a rate gets this one.
void FluidNetwork::fix(std::size_t port, double share, double now_us) {
  for (const std::int32_t id : listed_[port]) {
    std::int64_t& shared_in = shared_in_[static_cast<std::size_t>(id)];
    if (shared_in == num_share_outs_) continue;
    shared_in = num_share_outs_;
    Stream& stream = streams_[static_cast<std::size_t>(id)];
    if (tracks_ports_) note_port(id, static_cast<std::int32_t>(port), now_us);
    stream.served += stream.rate * (now_us - since_us_);
    stream.rate = share;
    const double taken = share * stream.num_flows;
    for (std::size_t i = 0; i < static_cast<std::size_t>(stream.path.num_ports); ++i) {
      const auto crossed = static_cast<std::size_t>(stream.path.port[i]);
      left_[crossed] -= taken;
      waiting_[crossed] -= stream.num_flows;
    }
    const double bytes_left = stream.first_end.first - stream.served;
    collect({bytes_left <= 0 ? now_us
             : share > 0     ? now_us + bytes_left / share
                             : kNever,
             stream.first_end.second, id});
  }
}

void FluidNetwork::fill(double now_us) {
  tightest_.clear();
  for (std::size_t p = 0; p < capacity_.size(); ++p) {
    left_[p] = capacity_[p];
    waiting_[p] = flows_of_port_[p];
    if (waiting_[p] > 0) tightest_.emplace_back(left_[p] / waiting_[p], p);
  }
  std::make_heap(tightest_.begin(), tightest_.end(), std::greater<>());
  while (!tightest_.empty()) {
    const auto [queued_share, p] = tightest_.front();
    std::pop_heap(tightest_.begin(), tightest_.end(), std::greater<>());
    tightest_.pop_back();
    if (waiting_[p] == 0) continue;
    // Shares only grow while others are served: an outdated one is too small and goes back.
    const double share = std::max(0.0, left_[p]) / waiting_[p];
    if (share > queued_share) {
      tightest_.emplace_back(share, p);
      std::push_heap(tightest_.begin(), tightest_.end(), std::greater<>());
      continue;
    }
    fix(p, share, now_us);
  }
}

void FluidNetwork::share_out(double now_us, double horizon_us) {
  for (const Joining& flow : joining_) join(flow, now_us);
  joining_.clear();
  ends_.clear();
  earliest_end_us_ = kNever;
  limit_us_ = horizon_us;
  ++num_share_outs_;
  fill(now_us);
  since_us_ = now_us;
  limit_us_ = std::max(limit_us_, earliest_end_us_);
  std::erase_if(ends_, [this](const End& end) { return end.time_us > limit_us_; });
  std::make_heap(ends_.begin(), ends_.end(), std::greater<>());
}

double FluidNetwork::next_end_us() const { return ends_.empty() ? kNever : ends_.front().time_us; }

std::int32_t FluidNetwork::pop_ended() {
  const auto [time_us, tag, id] = ends_.front();
  std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
  ends_.pop_back();
  Stream& stream = streams_[static_cast<std::size_t>(id)];
  auto& flows = members_[static_cast<std::size_t>(id)].flows;
  std::pop_heap(flows.begin(), flows.end(), std::greater<>());
  flows.pop_back();
  --num_flows_;
  count(id, -1);
  if (tracks_ports_) note_end(id, tag, time_us);
  if (stream.num_flows == 0) {
    unlist(id);
    stream.served = 0;
    stream.rate = 0;
    return tag;
  }
  stream.first_end = flows.front();
  const double next_us = end_us(stream);
  if (next_us <= limit_us_) {
    ends_.push_back({next_us, stream.first_end.second, id});
    std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
  }
  return tag;
}

}  // namespace contextile

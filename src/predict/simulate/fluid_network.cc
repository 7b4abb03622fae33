#include "predict/simulate/fluid_network.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>

namespace contextile {
namespace {

// If changes reach most streams, searching for the others does not pay. This is the number of
// share-outs that then go without a search.
constexpr std::int64_t kSharedOutUnsearched = 16;

// Streams ahead of the visited one that are prefetched.
constexpr std::size_t kAhead = 12;

}  // namespace

FluidNetwork::FluidNetwork(std::vector<double> capacity)
    : capacity_(std::move(capacity)),
      listed_(capacity_.size()),
      port_reached_in_(capacity_.size()),
      flows_of_port_(capacity_.size()),
      left_(capacity_.size()),
      waiting_(capacity_.size()) {
  std::vector<double> classes;
  for (const double capacity : capacity_) {
    const auto found = std::ranges::find(classes, capacity);
    capacity_class_.push_back(static_cast<std::int32_t>(found - classes.begin()));
    if (found == classes.end()) classes.push_back(capacity);
  }
  alike_of_flows_.resize(classes.size());
  alike_of_port_.resize(capacity_.size());
}

std::int32_t FluidNetwork::add_stream(const FlowPath& path) {
  paths_.push_back(path);
  slot_of_.push_back(-1);
  return static_cast<std::int32_t>(paths_.size()) - 1;
}

std::int32_t FluidNetwork::take_slot(std::int32_t stream) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::int32_t>(streams_.size()));
    streams_.emplace_back();
    members_.emplace_back();
    reached_in_.push_back(0);
    fixed_in_.push_back(0);
  }
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  streams_[static_cast<std::size_t>(slot)] = {.path = paths_[static_cast<std::size_t>(stream)]};
  members_[static_cast<std::size_t>(slot)].stream = stream;
  slot_of_[static_cast<std::size_t>(stream)] = slot;
  list(slot);
  return slot;
}

void FluidNetwork::give_back_slot(std::int32_t slot) {
  unlist(slot);
  slot_of_[static_cast<std::size_t>(members_[static_cast<std::size_t>(slot)].stream)] = -1;
  free_slots_.push_back(slot);
}

void FluidNetwork::add(std::int32_t stream, double bytes, std::int32_t tag) {
  joining_.push_back({stream, bytes, tag});
  ++num_flows_;
}

// Adds the stream to the lists of its ports and to the streams with flows.
void FluidNetwork::list(std::int32_t slot) {
  const FlowPath& path = streams_[static_cast<std::size_t>(slot)].path;
  Members& members = members_[static_cast<std::size_t>(slot)];
  members.active_place = static_cast<std::int32_t>(active_.size());
  active_.push_back(slot);
  for (std::size_t i = 0; i < static_cast<std::size_t>(path.num_ports); ++i) {
    auto& list = listed_[static_cast<std::size_t>(path.port[i])];
    members.place[i] = static_cast<std::int32_t>(list.size());
    list.push_back(slot);
  }
}

// Removes the stream from all lists without moving others: the last one takes its place in each.
void FluidNetwork::unlist(std::int32_t slot) {
  const FlowPath& path = streams_[static_cast<std::size_t>(slot)].path;
  const std::int32_t active_place = members_[static_cast<std::size_t>(slot)].active_place;
  members_[static_cast<std::size_t>(active_.back())].active_place = active_place;
  active_[static_cast<std::size_t>(active_place)] = active_.back();
  active_.pop_back();
  for (std::size_t i = 0; i < static_cast<std::size_t>(path.num_ports); ++i) {
    const std::int32_t port = path.port[i];
    auto& list = listed_[static_cast<std::size_t>(port)];
    const std::int32_t place = members_[static_cast<std::size_t>(slot)].place[i];
    const auto last = static_cast<std::size_t>(list.back());
    list[static_cast<std::size_t>(place)] = list.back();
    list.pop_back();
    const FlowPath& moved = streams_[last].path;
    for (std::size_t j = 0; j < static_cast<std::size_t>(moved.num_ports); ++j) {
      if (moved.port[j] == port) members_[last].place[j] = place;
    }
  }
}

// Records flows that come or go.
void FluidNetwork::count(std::int32_t slot, std::int32_t flows) {
  Stream& stream = streams_[static_cast<std::size_t>(slot)];
  stream.num_flows += flows;
  for (std::size_t i = 0; i < static_cast<std::size_t>(stream.path.num_ports); ++i) {
    flows_of_port_[static_cast<std::size_t>(stream.path.port[i])] += flows;
    changed_.push_back(stream.path.port[i]);
  }
}

void FluidNetwork::join(const Joining& flow, double now_us) {
  std::int32_t slot = slot_of_[static_cast<std::size_t>(flow.stream)];
  if (slot < 0) slot = take_slot(flow.stream);
  Stream& stream = streams_[static_cast<std::size_t>(slot)];
  auto& flows = members_[static_cast<std::size_t>(slot)].flows;
  if (tracks_ports_) bound_at_join_[flow.tag] = bound_us(slot, now_us);
  count(slot, 1);
  // The bytes that the stream has served are recorded only up to the last share-out.
  const double served = stream.served + stream.rate * (now_us - since_us_);
  flows.emplace_back(served + flow.bytes, flow.tag);
  std::push_heap(flows.begin(), flows.end(), std::greater<>());
  stream.first_end = flows.front();
}

FluidNetwork::PortTimes FluidNetwork::bound_us(std::int32_t slot, double now_us) const {
  const Members& members = members_[static_cast<std::size_t>(slot)];
  PortTimes times = members.bound_us;
  if (members.bound_by >= 0)
    times[static_cast<std::size_t>(members.bound_by)] += now_us - since_us_;
  return times;
}

// Records that this port sets the stream's rate from now on.
void FluidNetwork::note_port(std::int32_t slot, std::int32_t port) {
  Members& members = members_[static_cast<std::size_t>(slot)];
  const auto& ports = streams_[static_cast<std::size_t>(slot)].path.port;
  members.bound_by =
      static_cast<std::int32_t>(std::find(ports.begin(), ports.end(), port) - ports.begin());
}

// Finds the port that set the rate of an ended flow for most of its time, by the difference of the
// stream's times now and those when the flow joined.
void FluidNetwork::note_end(std::int32_t slot, std::int32_t tag, double now_us) {
  Members& members = members_[static_cast<std::size_t>(slot)];
  PortTimes times = bound_us(slot, now_us);
  const auto joined = bound_at_join_.find(tag);
  for (std::size_t i = 0; i < times.size(); ++i) times[i] -= joined->second[i];
  bound_at_join_.erase(joined);
  const auto longest = std::max_element(times.begin(), times.end()) - times.begin();
  ended_at_port_ =
      streams_[static_cast<std::size_t>(slot)].path.port[static_cast<std::size_t>(longest)];
  if (streams_[static_cast<std::size_t>(slot)].num_flows == 0) {
    members.bound_us = {};
    members.bound_by = -1;
  }
}

// Adds the port to the reached ones, once per share-out and only if it has flows.
void FluidNetwork::reach(std::int32_t port) {
  std::int64_t& reached_in = port_reached_in_[static_cast<std::size_t>(port)];
  if (reached_in == num_share_outs_ || flows_of_port_[static_cast<std::size_t>(port)] == 0) return;
  reached_in = num_share_outs_;
  reached_.push_back(port);
}

// Finds the ports of all streams whose rate a change may affect: those that cross a changed port,
// those that cross a port of one of them, and so on.
void FluidNetwork::find_reached() {
  reached_.clear();
  if (num_share_outs_ < next_search_) {
    for (std::size_t p = 0; p < capacity_.size(); ++p) reach(static_cast<std::int32_t>(p));
    return;
  }
  for (const std::int32_t port : changed_) reach(port);
  std::size_t streams = 0;
  // Breadth-first search; `reached_` is its queue.
  for (std::size_t next = 0; next < reached_.size(); ++next) {
    for (const std::int32_t slot : listed_[static_cast<std::size_t>(reached_[next])]) {
      std::int64_t& reached_in = reached_in_[static_cast<std::size_t>(slot)];
      if (reached_in == num_share_outs_) continue;
      reached_in = num_share_outs_;
      ++streams;
      const FlowPath& path = streams_[static_cast<std::size_t>(slot)].path;
      for (std::size_t i = 0; i < static_cast<std::size_t>(path.num_ports); ++i) {
        reach(path.port[i]);
      }
    }
  }
  if (2 * streams > active_.size()) next_search_ = num_share_outs_ + kSharedOutUnsearched;
}

// Fixes the rates at a port that is full: each of its flows without a rate gets this share.
void FluidNetwork::fix(std::size_t port, double share, double now_us) {
  // Finds its streams without a rate first, and without branches: no processor predicts them.
  const std::vector<std::int32_t>& slots = listed_[port];
  without_rate_.resize(std::max(without_rate_.size(), slots.size()));
  std::size_t num_found = 0;
  for (const std::int32_t slot : slots) {
    without_rate_[num_found] = slot;
    num_found += is_fixed(slot) ? 0 : 1;
  }
  const std::span<const std::int32_t> found(without_rate_.data(), num_found);
  for (const std::int32_t slot : found.first(std::min(kAhead, num_found))) prefetch(slot);
  // The port's own values stay in registers: every one of its streams changes them.
  double left = left_[port];
  std::int32_t waiting = waiting_[port];
  for (std::size_t i = 0; i < num_found; ++i) {
    if (i + kAhead < num_found) prefetch(found[i + kAhead]);
    const std::int32_t slot = found[i];
    fixed_in_[static_cast<std::size_t>(slot)] = num_share_outs_;
    Stream& stream = streams_[static_cast<std::size_t>(slot)];
    advance(slot, stream, now_us);
    if (tracks_ports_) note_port(slot, static_cast<std::int32_t>(port));
    stream.rate = share;
    const double taken = share * stream.num_flows;
    left -= taken;
    waiting -= stream.num_flows;
    for (std::size_t p = 0; p < static_cast<std::size_t>(stream.path.num_ports); ++p) {
      const auto crossed = static_cast<std::size_t>(stream.path.port[p]);
      if (crossed == port) continue;
      left_[crossed] -= taken;
      waiting_[crossed] -= stream.num_flows;
    }
    collect_end(slot, stream, now_us);
  }
  num_fixed_ += num_found;
  left_[port] = left;
  waiting_[port] = waiting;
}

std::int32_t& FluidNetwork::alike_of(std::size_t port) {
  auto& of_flows = alike_of_flows_[static_cast<std::size_t>(capacity_class_[port])];
  const auto flows = static_cast<std::size_t>(flows_of_port_[port]);
  if (flows >= of_flows.size()) of_flows.resize(flows + 1, -1);
  return of_flows[flows];
}

// Groups the reached ports by capacity and number of flows, so that few shares need sorting.
void FluidNetwork::find_alike() {
  alike_.clear();
  for (const std::int32_t port : reached_) {
    const auto p = static_cast<std::size_t>(port);
    std::int32_t& alike = alike_of(p);
    if (alike < 0) {
      alike = static_cast<std::int32_t>(alike_.size());
      alike_.push_back({.share = capacity_[p] / flows_of_port_[p], .first = p});
    }
    ++alike_[static_cast<std::size_t>(alike)].num_ports;
    alike_of_port_[p] = alike;
  }
  for (const Alike& alike : alike_) alike_of(alike.first) = -1;
}

// Sorts the reached ports by (share of a flow, port). Shares are few, so it sorts by counting.
void FluidNetwork::order_reached() {
  constexpr std::size_t kFew = 16;
  // Ports must be ascending within a share. If many are reached, a scan beats sorting.
  if (kFew * reached_.size() < capacity_.size()) {
    std::ranges::sort(reached_);
  } else {
    reached_.clear();
    for (std::size_t p = 0; p < capacity_.size(); ++p) {
      if (port_reached_in_[p] == num_share_outs_) reached_.push_back(static_cast<std::int32_t>(p));
    }
  }
  find_alike();
  by_share_.resize(alike_.size());
  std::iota(by_share_.begin(), by_share_.end(), std::size_t{0});
  std::ranges::sort(by_share_, {}, [this](std::size_t a) { return alike_[a].share; });
  // Each distinct share gets a range of places; every port goes to the next place of its share.
  next_place_.clear();
  std::size_t place = 0;
  for (std::size_t i = 0; i < by_share_.size(); ++i) {
    Alike& alike = alike_[by_share_[i]];
    if (i == 0 || alike.share != alike_[by_share_[i - 1]].share) next_place_.push_back(place);
    alike.slot = next_place_.size() - 1;
    place += alike.num_ports;
  }
  in_order_.resize(reached_.size());
  for (const std::int32_t port : reached_) {
    const auto p = static_cast<std::size_t>(port);
    const Alike& alike = alike_[static_cast<std::size_t>(alike_of_port_[p])];
    in_order_[next_place_[alike.slot]++] = {alike.share, p};
  }
}

// Progressive filling: repeatedly takes the port with the least share for its flows without a rate
// and fixes their rates at that share.
void FluidNetwork::fill(double now_us) {
  for (const std::int32_t port : reached_) {
    const auto p = static_cast<std::size_t>(port);
    left_[p] = capacity_[p];
    waiting_[p] = flows_of_port_[p];
  }
  order_reached();
  tightest_.clear();
  std::size_t next = 0;
  while (next < in_order_.size() || !tightest_.empty()) {
    // The least is at the front of the initial order or of the queue of updated shares.
    const bool is_first =
        tightest_.empty() || (next < in_order_.size() && in_order_[next] < tightest_.least());
    const auto [queued_share, p] = is_first ? in_order_[next] : tightest_.least();
    // Shares only grow while others are served: an outdated one is too small and is queued again.
    const double share = waiting_[p] > 0 ? std::max(0.0, left_[p]) / waiting_[p] : 0;
    const bool is_outdated = share > queued_share;
    if (is_first) {
      ++next;
      if (is_outdated) tightest_.push({share, p});
    } else if (is_outdated) {
      tightest_.replace_least({share, p});
    } else {
      tightest_.pop();
    }
    if (waiting_[p] > 0 && !is_outdated) fix(p, share, now_us);
  }
}

// Brings the streams that the share-out did not reach up to now.
void FluidNetwork::advance_others(double now_us) {
  if (num_fixed_ == active_.size()) return;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    if (i + kAhead < active_.size() && !is_fixed(active_[i + kAhead])) {
      prefetch(active_[i + kAhead]);
    }
    const std::int32_t slot = active_[i];
    if (is_fixed(slot)) continue;
    Stream& stream = streams_[static_cast<std::size_t>(slot)];
    advance(slot, stream, now_us);
    collect_end(slot, stream, now_us);
  }
}

void FluidNetwork::share_out(double now_us, double horizon_us) {
  for (const Joining& flow : joining_) join(flow, now_us);
  joining_.clear();
  ++num_share_outs_;
  find_reached();
  changed_.clear();
  ends_.clear();
  horizon_us_ = horizon_us;
  limit_us_ = kNever;
  num_fixed_ = 0;
  fill(now_us);
  advance_others(now_us);
  since_us_ = now_us;
  std::erase_if(ends_, [this](const End& end) { return end.time_us > limit_us_; });
  std::make_heap(ends_.begin(), ends_.end(), std::greater<>());
}

double FluidNetwork::next_end_us() const { return ends_.empty() ? kNever : ends_.front().time_us; }

std::int32_t FluidNetwork::pop_ended() {
  const auto [time_us, tag, slot] = ends_.front();
  std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
  ends_.pop_back();
  Stream& stream = streams_[static_cast<std::size_t>(slot)];
  auto& flows = members_[static_cast<std::size_t>(slot)].flows;
  std::pop_heap(flows.begin(), flows.end(), std::greater<>());
  flows.pop_back();
  --num_flows_;
  count(slot, -1);
  if (tracks_ports_) note_end(slot, tag, time_us);
  if (stream.num_flows == 0) {
    give_back_slot(slot);
    return tag;
  }
  stream.first_end = flows.front();
  const double next_us = end_us(stream, since_us_);
  // The stream's next flow counts only if it ends before the next share-out.
  if (next_us <= limit_us_) {
    ends_.push_back({next_us, stream.first_end.second, slot});
    std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
  }
  return tag;
}

}  // namespace contextile

#include "contextile/bounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "predict/bounds/checked_bound.h"
#include "predict/bounds/components.h"
#include "predict/bounds/least_kernel_time.h"
#include "predict/bounds/participation.h"
#include "predict/bounds/traffic.h"

namespace contextile {
namespace {

constexpr double kBytesPerUsOfGbytes = 1e3;  // 1 GB/s = 1000 bytes/µs
constexpr double kRounding = 1e-9;           // of sums of doubles, here and in the simulation
constexpr std::int64_t kSlackTokens = 1024;  // documented at BoundOptions::max_owned_tokens

constexpr std::array<std::string_view, 5> kCauseNames = {"compute", "device ports", "node uplinks",
                                                         "latency", "compute and latency"};

struct OwnedTokens {
  std::int64_t device = 0;
  std::int64_t node = 0;
};

OwnedTokens most_of(const std::vector<std::int64_t>& tokens_of_device,
                    std::int32_t devices_per_node) {
  OwnedTokens most;
  const auto per_node = static_cast<std::size_t>(devices_per_node);
  for (std::size_t first = 0; first < tokens_of_device.size(); first += per_node) {
    const auto node = std::span(tokens_of_device).subspan(first, per_node);
    most.device = std::max(most.device, std::ranges::max(node));
    most.node = std::max(most.node, std::accumulate(node.begin(), node.end(), std::int64_t{0}));
  }
  return most;
}

OwnedTokens owned_tokens(const Workload& workload, const Cluster& cluster,
                         const BoundOptions& options) {
  OwnedTokens owned;
  if (workload.home.empty()) {
    const std::int64_t devices = cluster.num_devices();
    owned.device = options.max_owned_tokens.value_or(
        (workload.num_tokens() + devices - 1) / devices + kSlackTokens);
    owned.node = owned.device * cluster.devices_per_node;
  } else {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(cluster.num_devices()));
    for (const HomeRange& home : workload.home) {
      CONTEXTILE_CHECK(home.owner.valid() && home.owner.index() < tokens.size(),
                       "bounds: home layout: expected an owner below {}, found {}", tokens.size(),
                       home.owner.value);
      tokens[home.owner.index()] += home.tokens.size();
    }
    owned = most_of(tokens, cluster.devices_per_node);
    owned.device = options.max_owned_tokens.value_or(owned.device);
  }
  owned.node = options.max_node_tokens.value_or(owned.node);
  CONTEXTILE_CHECK(
      owned.device * cluster.num_devices() >= workload.num_tokens(),
      "bounds: max_owned_tokens: expected at least {} tokens for each of {} devices, as "
      "the batch has {}, found {}",
      workload.num_tokens() / cluster.num_devices(), cluster.num_devices(), workload.num_tokens(),
      owned.device);
  CONTEXTILE_CHECK(
      owned.node * cluster.nodes >= workload.num_tokens(),
      "bounds: max_node_tokens: expected at least {} tokens for each of {} nodes, as the "
      "batch has {}, found {}",
      workload.num_tokens() / cluster.nodes, cluster.nodes, workload.num_tokens(), owned.node);
  return owned;
}

enum class Ways : std::uint8_t { kBoth, kOne };

// Forward: a query comes, its output goes, a key comes with its value. Backward: dO comes, dQ goes,
// and dK with dV; Q, K and V may have stayed since forward. One way: inputs in forward, results in
// backward.
TokenBytes token_bytes(const AttentionShape& shape, Direction direction, std::int32_t head_groups,
                       Ways ways, const BoundOptions& options) {
  const Dtype dtype = shape.dtype;
  const Dtype partial = options.partial_wire.value_or(Dtype::kBf16);
  const Dtype result = bytes_per_element(partial) < bytes_per_element(dtype) ? partial : dtype;
  const auto bytes = [&](Kind kind, Dtype wire) {
    return static_cast<double>(unit_bytes(kind, 1, shape, head_groups, wire));
  };
  TokenBytes token;
  if (direction == Direction::kForward) {
    token.row = bytes(Kind::kQ, dtype);
    token.key = bytes(Kind::kKv, dtype);
    if (ways == Ways::kBoth) token.row += bytes(Kind::kO, result);
  } else {
    token.row = bytes(Kind::kDq, result);
    token.key = bytes(Kind::kDkv, result);
    if (ways == Ways::kBoth) token.row += bytes(Kind::kDo, dtype);
  }
  return token;
}

// An input is launched, travels and is read by a later call. In backward a result is launched after
// a call and travels; in forward the part that computes it has received an input before.
void set_lost_time(double setup_us, double call_us, Direction direction, Ways ways,
                   TokenBytes& token) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const double one_us = setup_us + call_us;
  token.lost_us = ways == Ways::kBoth ? setup_us : one_us;
  token.part_lost_us = {one_us, kNever};
  if (ways == Ways::kBoth) {
    token.part_lost_us[1] = direction == Direction::kForward ? one_us + setup_us : one_us;
  }
}

// The least latency of any message, before its data flows.
double least_latency_of_messages_us(const Cluster& cluster) {
  if (cluster.nodes == 1) return cluster.intra_latency_us;
  if (cluster.devices_per_node == 1) return cluster.inter_latency_us;
  return std::min(cluster.intra_latency_us, cluster.inter_latency_us);
}

// Bytes to devices of the same node leave by the device's port, others by its NIC.
PartLevel device_level(const Cluster& cluster, const OwnedTokens& owned) {
  PartLevel level;
  level.parts = cluster.num_devices();
  level.devices_per_part = 1;
  level.owned_tokens = static_cast<double>(owned.device);
  level.setup_us = cluster.launch_us + least_latency_of_messages_us(cluster);
  level.launch_us = cluster.launch_us;
  if (cluster.devices_per_node > 1) {
    level.bytes_per_us += level.parts * cluster.intra_gbytes_per_s * kBytesPerUsOfGbytes;
    level.part_bytes_per_us += cluster.intra_gbytes_per_s * kBytesPerUsOfGbytes;
  }
  if (cluster.nodes > 1) {
    const double node = cluster.inter_gbytes_per_s_per_node * kBytesPerUsOfGbytes;
    level.bytes_per_us += cluster.nodes * node;
    level.part_bytes_per_us += node / cluster.nics_per_node;
  }
  return level;
}

PartLevel node_level(const Cluster& cluster, const OwnedTokens& owned) {
  const double node = cluster.inter_gbytes_per_s_per_node * kBytesPerUsOfGbytes;
  return {.parts = static_cast<double>(cluster.nodes),
          .devices_per_part = static_cast<double>(cluster.devices_per_node),
          .owned_tokens = static_cast<double>(owned.node),
          .bytes_per_us = cluster.nodes * node,
          .part_bytes_per_us = node,
          .setup_us = cluster.launch_us + cluster.inter_latency_us};
}

struct MaskBound {
  double compute_us = 0;
  double devices_us = 0;
  double nodes_us = 0;
  double latency_us = 0;
  double joint_us = 0;

  // In the order of kCauseNames; of equal causes the first counts.
  [[nodiscard]] std::array<double, 5> by_cause() const {
    return {compute_us, devices_us, nodes_us, latency_us, joint_us};
  }
  [[nodiscard]] double communication_us() const { return std::max(devices_us, nodes_us); }
  [[nodiscard]] double separate_us() const {
    return std::max({compute_us, communication_us(), latency_us});
  }
  [[nodiscard]] double time_us() const { return std::max(separate_us(), joint_us); }
};

class Bounds {
 public:
  Bounds(const Workload& workload, const Cluster& cluster, Direction direction,
         const BoundOptions& options)
      : cluster_(cluster),
        direction_(direction),
        owned_(owned_tokens(workload, cluster, options)),
        price_(cluster.attention, direction) {
    const AttentionShape& shape = workload.shape;
    const std::int32_t groups = options.head_groups.value_or(shape.kv_heads);
    CONTEXTILE_CHECK(groups >= 1 && shape.kv_heads % groups == 0,
                     "bounds: head_groups: expected a divisor of the {} KV heads, found {}",
                     shape.kv_heads, groups);
    const std::int32_t heads = shape.q_heads / groups;
    const double flops = direction == Direction::kForward ? forward_flops(1, heads, shape)
                                                          : backward_flops(1, heads, shape);
    rates_ = {.head_groups = static_cast<double>(groups),
              .pairs_per_us = cluster.usable_attention_tflops() * 1e6 / flops,
              .call_us = cluster.attention.call_us};
    both_ways_ = token_bytes(shape, direction, groups, Ways::kBoth, options);
    one_way_ = token_bytes(shape, direction, groups, Ways::kOne, options);
  }

  [[nodiscard]] MaskBound of(const Mask& mask) const {
    const MaskComponents components = components_of(mask);
    MaskBound bound;
    if (components.components.empty()) return bound;
    const std::vector<ComponentLoad> loads = loads_of(components.components);
    bound.compute_us = compute_us(loads);
    bound.joint_us = bound.compute_us;
    if (cluster_.num_devices() == 1) return bound;
    bound.joint_us = participation_us(loads,
                                      {.devices = static_cast<double>(cluster_.num_devices()),
                                       .owned_tokens = static_cast<double>(owned_.device),
                                       .us_per_cost = rates_.head_groups / rates_.pairs_per_us,
                                       .call_us = rates_.call_us,
                                       .launch_us = cluster_.launch_us,
                                       .latency_us = least_latency_of_messages_us(cluster_)},
                                      bound.compute_us);
    const PartLevel devices = device_level(cluster_, owned_);
    const PartLevel nodes = node_level(cluster_, owned_);
    bound.devices_us = traffic_us(components, devices, bound);
    if (cluster_.nodes > 1) bound.nodes_us = traffic_us(components, nodes, bound);
    raise_traffic(components, devices, bound, bound.devices_us);
    if (cluster_.nodes > 1) raise_traffic(components, nodes, bound, bound.nodes_us);
    return bound;
  }

 private:
  // Groups components that agree in everything that their cost depends on into one load.
  [[nodiscard]] std::vector<ComponentLoad> loads_of(
      const std::vector<MaskComponent>& components) const {
    std::vector<MaskComponent> sorted = components;
    const auto key = [](const MaskComponent& c) {
      return std::array{c.tokens.size(), c.pairs,           c.rows, c.diagonal, c.max_degree,
                        c.future_pairs,  c.connected_tokens};
    };
    std::ranges::sort(sorted, {}, key);
    std::vector<ComponentLoad> loads;
    for (const MaskComponent& component : sorted) {
      if (!loads.empty() && key(loads.back().component) == key(component)) {
        ++loads.back().count;
      } else {
        loads.push_back({component, price_.least_cost(component)});
      }
    }
    return loads;
  }

  // Time of the device with the most work, which is at least the mean and at least one call, or of
  // all slots together.
  [[nodiscard]] double compute_us(const std::vector<ComponentLoad>& loads) const {
    double cost = 0;
    for (const ComponentLoad& load : loads) cost += load.count * load.cost.of(load.component);
    const double work_us = cost * rates_.head_groups / rates_.pairs_per_us;
    return std::max(rates_.call_us + work_us / cluster_.num_devices(),
                    work_us / cluster_.compute_slots());
  }

  // Time of moving data between parts; raises the bound's latency.
  [[nodiscard]] double traffic_us(const MaskComponents& components, const PartLevel& level,
                                  MaskBound& bound) const {
    TokenBytes bytes = both_ways_;
    set_lost_time(level.setup_us, rates_.call_us, direction_, Ways::kBoth, bytes);
    TrafficBound traffic(components, price_, level, rates_, bytes, bound.compute_us);
    const double us = traffic.least_us();
    // An input is launched, travels and is read by a later call; a result is launched after a call.
    const double latency_us = level.setup_us + rates_.call_us;
    const bool is_cut = std::ranges::any_of(components.components, [&](const MaskComponent& c) {
      return static_cast<double>(c.connected_tokens) > level.owned_tokens;
    });
    if (is_cut) {
      bound.latency_us = std::max(bound.latency_us, latency_us);
    } else if (us > 0) {
      bound.latency_us = std::max(bound.latency_us, least_latency_us(traffic, latency_us, bound));
    }
    return us;
  }

  // Raises `us`, the time of moving data both ways, to that of data in one direction and of the
  // bicliques, if that is above the bound. One way takes hardly more than twice the time of both.
  void raise_traffic(const MaskComponents& components, const PartLevel& level,
                     const MaskBound& bound, double& us) const {
    const auto raise = [&](Ways ways, CountedPairs pairs) {
      const double so_far_us = bound.time_us();
      TokenBytes bytes = ways == Ways::kBoth ? both_ways_ : one_way_;
      set_lost_time(level.setup_us, rates_.call_us, direction_, ways, bytes);
      TrafficBound traffic(components, price_, level, rates_, bytes, so_far_us, pairs);
      const double traffic_us = traffic.least_us();
      if (traffic_us > so_far_us) us = traffic_us;
      return traffic_us;
    };
    const auto may_be_higher = [&](double both_ways_us) {
      return both_ways_us > 0 && 2 * both_ways_us + rates_.call_us > bound.time_us();
    };
    if (may_be_higher(us)) raise(Ways::kOne, CountedPairs::kAll);
    if (may_be_higher(raise(Ways::kBoth, CountedPairs::kBiclique))) {
      raise(Ways::kOne, CountedPairs::kBiclique);
    }
  }

  // A plan has a message, or takes so long that nothing has to move. Returns the least time of the
  // two.
  [[nodiscard]] static double least_latency_us(TrafficBound& traffic, double latency_us,
                                               const MaskBound& bound) {
    constexpr double kClose = 1.01;
    double low = bound.compute_us;
    if (latency_us <= low || traffic.least_bytes(latency_us) >= 1) return latency_us;
    double high = latency_us;
    while (high > kClose * low) {
      const double middle = std::sqrt(low * high);
      (traffic.least_bytes(middle) >= 1 ? low : high) = middle;
    }
    return low;
  }

  const Cluster& cluster_;
  Direction direction_;
  OwnedTokens owned_;
  KernelPrice price_;
  WorkRates rates_;
  TokenBytes both_ways_;
  TokenBytes one_way_;
};

}  // namespace

TimeBound lower_bound(const Workload& workload, const Cluster& cluster, Direction direction,
                      const BoundOptions& options) {
  check_workload(workload);
  return lower_bound_of_checked(workload, cluster, direction, options);
}

TimeBound lower_bound_of_checked(const Workload& workload, const Cluster& cluster,
                                 Direction direction, const BoundOptions& options) {
  check_cluster(cluster);
  const Bounds bounds(workload, cluster, direction, options);
  TimeBound total;
  std::array<double, kCauseNames.size()> time_of_cause{};
  for (const NamedMask& named : workload.masks) {
    const MaskBound bound = bounds.of(named.mask);
    const auto causes = bound.by_cause();
    const auto largest = std::ranges::max_element(causes);
    time_of_cause[static_cast<std::size_t>(largest - causes.begin())] += *largest;
    total.compute_us += bound.compute_us * (1 - kRounding);
    total.device_ports_us += bound.devices_us * (1 - kRounding);
    total.node_uplinks_us += bound.nodes_us * (1 - kRounding);
    total.communication_us += bound.communication_us() * (1 - kRounding);
    total.latency_us += bound.latency_us * (1 - kRounding);
    total.joint_us += bound.joint_us * (1 - kRounding);
    total.separate_us += bound.separate_us() * (1 - kRounding);
    total.time_us += *largest * (1 - kRounding);
  }
  const auto cause = std::ranges::max_element(time_of_cause) - time_of_cause.begin();
  total.binding = kCauseNames[static_cast<std::size_t>(cause)];
  return total;
}

BoundOptions bound_options_of(const Plan& plan) {
  BoundOptions options;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(plan.num_devices()));
  std::int32_t groups = 1;
  for (const PlanRound& round : plan.rounds) {
    groups = std::lcm(groups, round.head_groups);
    for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
      tokens[round.owners[BlockId{b}.index()].index()] += round.blocks.num_tokens(BlockId{b});
    }
  }
  const OwnedTokens most = most_of(tokens, plan.devices_per_node);
  options.max_owned_tokens = most.device;
  options.max_node_tokens = most.node;
  options.head_groups = groups;
  options.partial_wire = plan.partial_wire;
  return options;
}

BoundOptions bound_options_beside(const Plan& plan, const Workload& workload,
                                  const Cluster& cluster) {
  const OwnedTokens usual = owned_tokens(workload, cluster, {});
  const BoundOptions narrowest = bound_options_of(plan);
  return {.max_owned_tokens = std::max(usual.device, *narrowest.max_owned_tokens),
          .max_node_tokens = std::max(usual.node, *narrowest.max_node_tokens)};
}

}  // namespace contextile

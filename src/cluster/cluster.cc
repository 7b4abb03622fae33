#include "contextile/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::int64_t kMaxDevices = 65536;
constexpr double kLeastSlots = 1e-3;  // tp divides the slots of a node

// Wider than any machine by factors of thousands, narrow enough for arithmetic with every digit.
struct Limits {
  double least;
  double most;
};
constexpr Limits kRate = {1e-9, 1e12};  // GB/s, TFLOP/s
constexpr Limits kDelay = {0, 1e9};     // microseconds

void check_within(Limits limits, double value, std::string_view name, std::string_view key) {
  // This form lets a NaN fail, too.
  CONTEXTILE_CHECK(value >= limits.least && value <= limits.most,
                   "cluster {}: {}: expected {} to {}, found {}", name, key, limits.least,
                   limits.most, value);
}

void check_flow_rates(const Cluster& cluster, const std::string& name) {
  std::int32_t nodes = 0;
  for (const FlowRate& rate : cluster.flow_gbytes_per_s) {
    CONTEXTILE_CHECK(rate.nodes > nodes && rate.nodes <= kMaxDevices,
                     "cluster {}: flow_gbytes_per_s: expected ascending numbers of nodes up to {}, "
                     "found {} after {}",
                     name, kMaxDevices, rate.nodes, nodes);
    nodes = rate.nodes;
    check_within(kRate, rate.gbytes_per_s, name, "flow_gbytes_per_s");
  }
}

void check_collectives(const Cluster& cluster, const std::string& name) {
  std::set<std::tuple<Collective, std::int32_t, std::int32_t>> measured;
  for (const CollectiveCost& cost : cluster.collectives) {
    const std::string_view op = to_string(cost.op);
    const bool one_node = cost.nodes == 0;
    const std::int32_t size = one_node ? cost.devices : cost.nodes;
    CONTEXTILE_CHECK((one_node || cost.devices == 0) && size >= 2 && size <= kMaxDevices,
                     "cluster {}: collectives, {}: expected 2 to {} devices of a node, or as many "
                     "nodes, found {} devices and {} nodes",
                     name, op, kMaxDevices, cost.devices, cost.nodes);
    CONTEXTILE_CHECK(measured.emplace(cost.op, cost.devices, cost.nodes).second,
                     "cluster {}: collectives: expected {} of {} {} once, found it twice", name, op,
                     size, one_node ? "devices" : "nodes");
    check_within(kDelay, cost.start_us, name, "collectives.start_us");
    check_within(kDelay, cost.ramp_us, name, "collectives.ramp_us");
    check_within(kRate, cost.gbytes_per_s, name, "collectives.gbytes_per_s");
  }
}

// Gives the devices that take part in collectives between nodes so much of their nodes' NICs.
void share_nics(double share, std::vector<CollectiveCost>& costs) {
  for (CollectiveCost& cost : costs) {
    if (cost.nodes == 0) continue;
    cost.ramp_us = std::min(cost.ramp_us / std::sqrt(share), kDelay.most);
    cost.gbytes_per_s = std::max(cost.gbytes_per_s * share, kRate.least);
  }
}

void check_engine(const EngineCosts& engine, const std::string& name) {
  CONTEXTILE_CHECK(!engine.name.empty(), "cluster {}: engine: expected a name, found none", name);
  for (const EngineCost& cost : engine_costs()) {
    check_within(kDelay, engine.*cost.member, name, fmt::format("engine.{}", cost.key));
  }
}

}  // namespace

void check_cluster(const Cluster& cluster) {
  const std::string name = quote(cluster.name);
  const auto check_count = [&](std::int32_t value, std::string_view key) {
    CONTEXTILE_CHECK(value >= 1 && value <= kMaxDevices,
                     "cluster {}: {}: expected 1 to {}, found {}", name, key, kMaxDevices, value);
  };
  check_count(cluster.nodes, "nodes");
  check_count(cluster.devices_per_node, "devices_per_node");
  const std::int64_t num_devices = std::int64_t{cluster.nodes} * cluster.devices_per_node;
  CONTEXTILE_CHECK(num_devices <= kMaxDevices,
                   "cluster {}: expected at most {} devices, found {} nodes x {} = {}", name,
                   kMaxDevices, cluster.nodes, cluster.devices_per_node, num_devices);
  check_within(kRate, cluster.intra_gbytes_per_s, name, "intra_gbytes_per_s");
  check_within(kRate, cluster.inter_gbytes_per_s_per_node, name, "inter_gbytes_per_s_per_node");
  check_flow_rates(cluster, name);
  check_within(kRate, cluster.attention_tflops, name, "attention_tflops");
  CONTEXTILE_CHECK(cluster.memory_bytes >= 0,
                   "cluster {}: memory_bytes: expected 0 (unknown) or more, found {}", name,
                   cluster.memory_bytes);
  if (cluster.peak_tflops != 0) {  // 0: unknown
    check_within(kRate, cluster.peak_tflops, name, "peak_tflops");
  }
  check_within(kRate, cluster.memory_gbytes_per_s, name, "memory_gbytes_per_s");
  check_within(kDelay, cluster.intra_latency_us, name, "intra_latency_us");
  check_within(kDelay, cluster.inter_latency_us, name, "inter_latency_us");
  check_within(kDelay, cluster.launch_us, name, "launch_us");
  CONTEXTILE_CHECK(cluster.nics_per_node >= 1 && cluster.nics_per_node <= cluster.devices_per_node,
                   "cluster {}: nics_per_node: expected 1 to {} (the devices of a node), found {}",
                   name, cluster.devices_per_node, cluster.nics_per_node);
  CONTEXTILE_CHECK(cluster.sms >= 0, "cluster {}: sms: expected 0 (unknown) or more, found {}",
                   name, cluster.sms);
  CONTEXTILE_CHECK(
      cluster.transfer_sms == 0 || (cluster.transfer_sms > 0 && cluster.transfer_sms < cluster.sms),
      "cluster {}: transfer_sms: expected 0 or fewer than the {} multiprocessors of a device "
      "(sms), found {}",
      name, cluster.sms, cluster.transfer_sms);
  CONTEXTILE_CHECK(cluster.sm_fraction >= 0 && cluster.sm_fraction < 1,
                   "cluster {}: sm_fraction: expected at least 0 and below 1, found {}", name,
                   cluster.sm_fraction);
  check_within(kDelay, cluster.transfer_compute_us_per_mb, name, "transfer_compute_us_per_mb");
  const double slots = cluster.compute_slots_per_node;
  CONTEXTILE_CHECK(slots == 0 || (slots >= kLeastSlots && slots <= kMaxDevices),
                   "cluster {}: compute_slots_per_node: expected 0 (one for every device) or {} "
                   "to {}, found {}",
                   name, kLeastSlots, kMaxDevices, slots);
  check_profile(cluster.attention);
  check_collectives(cluster, name);
  check_engine(cluster.engine, name);
}

std::optional<double> Cluster::flow_limit_gbytes_per_s() const {
  if (flow_gbytes_per_s.empty()) return std::nullopt;
  const auto above = std::ranges::upper_bound(flow_gbytes_per_s, nodes, {}, &FlowRate::nodes);
  if (above == flow_gbytes_per_s.begin()) return above->gbytes_per_s;
  const FlowRate& low = *std::prev(above);
  if (above == flow_gbytes_per_s.end() || low.nodes == nodes) return low.gbytes_per_s;
  const double share = std::log(static_cast<double>(nodes) / low.nodes) /
                       std::log(static_cast<double>(above->nodes) / low.nodes);
  return low.gbytes_per_s * std::pow(above->gbytes_per_s / low.gbytes_per_s, share);
}

Cluster Cluster::group(std::int32_t tp, std::int32_t pp) const {
  check_cluster(*this);
  CONTEXTILE_CHECK(tp >= 1 && devices_per_node % tp == 0,
                   "cluster {}: expected a tp that divides {} devices per node, found {}",
                   quote(name), devices_per_node, tp);
  const std::int32_t ranks_per_node = devices_per_node / tp;
  const std::int32_t num_ranks = nodes * ranks_per_node;
  CONTEXTILE_CHECK(pp >= 1 && num_ranks % pp == 0,
                   "cluster {}: expected a pp that divides the {} ranks left by tp {}, found {}",
                   quote(name), num_ranks, tp, pp);
  // Pipeline stages are runs of consecutive ranks. Every stage must see the same nodes: a whole
  // number of them, or an equal part of one.
  const std::int32_t stage_ranks = num_ranks / pp;
  CONTEXTILE_CHECK(
      stage_ranks % ranks_per_node == 0 || ranks_per_node % stage_ranks == 0,
      "cluster {}: expected pipeline stages of whole nodes or an equal part of one ({} ranks per "
      "node after tp {}), found {} ranks per stage for pp {}",
      quote(name), ranks_per_node, tp, stage_ranks, pp);

  Cluster result = *this;
  result.nodes = stage_ranks >= ranks_per_node ? stage_ranks / ranks_per_node : 1;
  result.devices_per_node = stage_ranks / result.nodes;
  result.inter_gbytes_per_s_per_node = inter_gbytes_per_s_per_node / tp;
  result.nics_per_node = std::clamp(nics_per_node / tp, 1, result.devices_per_node);
  share_nics(1.0 / tp, result.collectives);
  // The other devices of the node compute at the same time.
  result.compute_slots_per_node =
      compute_slots_per_node * result.devices_per_node / devices_per_node;
  return result;
}

Cluster Cluster::consecutive(Rank first, std::int32_t count) const {
  check_cluster(*this);
  CONTEXTILE_CHECK(first.valid() && count >= 1 && count <= num_devices() - first.value,
                   "cluster {}: expected ranks below {}, found {} ranks from {} on", quote(name),
                   num_devices(), count, first.value);
  const std::int32_t offset = first.value % devices_per_node;
  std::int32_t part = count;  // of a node
  if (offset + count > devices_per_node) {
    // Equal parts divide the ranks on the first node, on whole nodes and on the last node.
    const std::int32_t on_first = devices_per_node - offset;
    const std::int32_t on_last = (offset + count) % devices_per_node;
    part =
        count == 2 * on_first ? on_first : std::gcd(std::gcd(on_first, devices_per_node), on_last);
  }
  Cluster result = *this;
  result.nodes = count / part;
  result.devices_per_node = part;
  const double share = static_cast<double>(part) / devices_per_node;
  result.inter_gbytes_per_s_per_node *= share;
  share_nics(share, result.collectives);
  result.nics_per_node = std::clamp(static_cast<std::int32_t>(nics_per_node * share), 1, part);
  result.compute_slots_per_node = compute_slots_per_node * part / devices_per_node;
  return result;
}

}  // namespace contextile

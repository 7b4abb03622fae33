#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

constexpr double kBytesPerMb = 1e6;
constexpr double kUsPerMbAtOneGbyte = 1e3;  // 1 GB/s

std::int32_t size_of(const CollectiveCost& cost) { return std::max(cost.devices, cost.nodes); }

double us_per_mb(const CollectiveCost& cost) { return kUsPerMbAtOneGbyte / cost.gbytes_per_s; }

// The cost of a group of `size` from those of two sizes, the smaller first. Every step of a ring
// starts once for each rank, so start_us follows a line over the size. A device moves all bytes but
// its own part, so the other times follow a line over the reciprocal of the size.
CollectiveCost between(const CollectiveCost& small, const CollectiveCost& large,
                       std::int32_t size) {
  const auto first = static_cast<double>(size_of(small));
  const auto last = static_cast<double>(size_of(large));
  const double steps = (size - first) / (last - first);
  const double moved = (1 / first - 1.0 / size) / (1 / first - 1 / last);
  const auto line = [&](double from, double to, double share) {
    const double value = from + (to - from) * share;
    return size > last ? std::max(value, to) : value;
  };
  CollectiveCost cost = large;
  (cost.devices > 0 ? cost.devices : cost.nodes) = size;
  cost.start_us = line(small.start_us, large.start_us, steps);
  cost.ramp_us = line(small.ramp_us, large.ramp_us, moved);
  cost.gbytes_per_s = kUsPerMbAtOneGbyte / line(us_per_mb(small), us_per_mb(large), moved);
  return cost;
}

// Constants are least squares of logarithms over the fitted rows of labs/measured/collectives.csv;
// docs/results/measured.md says how far judged rows are off. Inside a node they are NCCL's, from
// tables of aiconfigurator.
using enum Collective;

// The two nodes are p4de.24xlarge, measured by awsome-distributed-training.
std::vector<CollectiveCost> a100_costs() {
  return {{kAllGather, 2, 0, 9.2, 9.0, 349},     {kAllGather, 8, 0, 15.0, 9.5, 251},
          {kReduceScatter, 2, 0, 9.1, 8.6, 412}, {kReduceScatter, 8, 0, 14.3, 8.2, 259},
          {kAllReduce, 2, 0, 9.4, 16.1, 253},    {kAllReduce, 8, 0, 21.3, 11.9, 133},
          {kAllReduce, 0, 2, 166.2, 146.0, 50},  {kAllToAll, 2, 0, 10.7, 9.0, 392},
          {kAllToAll, 8, 0, 12.3, 11.7, 271}};
}

std::vector<CollectiveCost> h100_costs() {
  return {{kAllGather, 2, 0, 5.0, 5.4, 584},     {kAllGather, 8, 0, 10.5, 5.3, 431},
          {kReduceScatter, 2, 0, 5.1, 4.1, 517}, {kReduceScatter, 8, 0, 10.2, 3.4, 399},
          {kAllReduce, 2, 0, 5.9, 5.9, 332},     {kAllReduce, 8, 0, 15.8, 8.2, 271},
          {kAllToAll, 2, 0, 7.4, 6.2, 776},      {kAllToAll, 8, 0, 9.1, 4.1, 381}};
}

std::vector<CollectiveCost> b200_costs() {
  return {{kAllGather, 2, 0, 8.8, 3.8, 1123},    {kAllGather, 8, 0, 16.4, 7.1, 907},
          {kReduceScatter, 2, 0, 8.9, 2.9, 952}, {kReduceScatter, 8, 0, 15.7, 7.1, 919},
          {kAllReduce, 2, 0, 9.7, 5.5, 662},     {kAllReduce, 8, 0, 24.9, 7.9, 422},
          {kAllToAll, 2, 0, 10.2, 5.0, 870},     {kAllToAll, 8, 0, 12.2, 4.9, 798}};
}

std::vector<CollectiveCost> gb200_costs() {
  return {{kAllGather, 2, 0, 9.4, 3.6, 1099},    {kAllGather, 4, 0, 11.5, 4.9, 969},
          {kReduceScatter, 2, 0, 9.3, 3.0, 955}, {kReduceScatter, 4, 0, 11.5, 4.1, 890},
          {kAllReduce, 2, 0, 10.3, 5.5, 656},    {kAllReduce, 4, 0, 15.2, 6.2, 475},
          {kAllToAll, 2, 0, 11.0, 4.8, 857},     {kAllToAll, 4, 0, 11.4, 4.3, 827}};
}

struct MeasuredMachine {
  std::string_view preset;
  std::vector<CollectiveCost> costs;
};

const std::vector<MeasuredMachine>& measured_machines() {
  static const std::vector<MeasuredMachine> kMachines = {{"p4de", a100_costs()},
                                                         {"dgx-h100", h100_costs()},
                                                         {"b200", b200_costs()},
                                                         {"gb200-nvl72", gb200_costs()}};
  return kMachines;
}

}  // namespace

std::string_view to_string(Collective op) {
  switch (op) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllToAll:
      return "all_to_all";
  }
  fail_argument("collective: expected a known op, found {}", static_cast<int>(op));
}

double CollectiveCost::us(double bytes) const {
  const double mb = bytes / kBytesPerMb;
  return start_us + ramp_us * std::sqrt(mb) + us_per_mb(*this) * mb;
}

std::optional<CollectiveCost> Cluster::collective_cost(Collective op, std::int32_t num_devices,
                                                       std::int32_t num_nodes) const {
  const bool one_node = num_nodes <= 1;
  std::vector<CollectiveCost> costs;
  std::ranges::copy_if(collectives, std::back_inserter(costs), [&](const CollectiveCost& cost) {
    return cost.op == op && (cost.devices > 0) == one_node;
  });
  if (costs.empty()) return std::nullopt;
  std::ranges::sort(costs, {}, size_of);
  const std::int32_t size = one_node ? num_devices : num_nodes;
  if (!one_node && size > size_of(costs.back())) return std::nullopt;
  if (costs.size() == 1 || size <= size_of(costs.front())) return costs.front();
  const auto large =
      std::min(std::ranges::lower_bound(costs, size, {}, size_of), std::prev(costs.end()));
  return between(*std::prev(large), *large, size);
}

const std::vector<CollectiveCost>& measured_collectives(std::string_view preset) {
  const std::vector<MeasuredMachine>& machines = measured_machines();
  const auto found = std::ranges::find(machines, preset, &MeasuredMachine::preset);
  CONTEXTILE_CHECK(found != machines.end(),
                   "collectives: expected a preset with measured ones, found {}", quote(preset));
  return found->costs;
}

}  // namespace contextile

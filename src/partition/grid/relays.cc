#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/extend/partition.h"

namespace contextile {
namespace {

// The devices of one unit on one remote node.
struct Crossing {
  std::size_t unit = 0;
  std::size_t first = 0;  // in the unit's devices
  std::size_t last = 0;
  Rank relay{};  // invalid: none chosen yet
};

class RelayChooser {
 public:
  RelayChooser(std::span<const MovingUnit> units, std::int32_t num_devices,
               std::int32_t devices_per_node, std::int64_t inter_weight)
      : units_(units),
        devices_per_node_(devices_per_node),
        inter_weight_(inter_weight),
        sent_(IdRange<Rank>(num_devices)),
        received_(IdRange<Rank>(num_devices)) {}

  std::vector<std::vector<Rank>> run() {
    std::vector<std::vector<Rank>> via;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      via.emplace_back(units_[u].devices.size(), units_[u].owner);
      gather_crossings(u);
    }
    std::stable_sort(crossings_.begin(), crossings_.end(),
                     [&](const Crossing& a, const Crossing& b) {
                       return units_[a.unit].bytes > units_[b.unit].bytes;
                     });
    // Every pass chooses the relay of each crossing again, given all others.
    constexpr int kPasses = 3;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (Crossing& crossing : crossings_) {
        if (crossing.relay.valid()) route(crossing, kTakeBack);
        crossing.relay = least_loaded(crossing);
        route(crossing, kAdd);
      }
    }
    for (const Crossing& crossing : crossings_) {
      for (std::size_t i = crossing.first; i < crossing.last; ++i) {
        if (units_[crossing.unit].devices[i] != crossing.relay)
          via[crossing.unit][i] = crossing.relay;
      }
    }
    return via;
  }

 private:
  // Factors by which route multiplies bytes.
  static constexpr std::int64_t kAdd = 1;
  static constexpr std::int64_t kTakeBack = -1;

  [[nodiscard]] std::int32_t node(Rank device) const { return device.value / devices_per_node_; }

  void gather_crossings(std::size_t u) {
    const MovingUnit& unit = units_[u];
    for (std::size_t i = 0; i < unit.devices.size();) {
      std::size_t j = i;
      while (j < unit.devices.size() && node(unit.devices[j]) == node(unit.devices[i])) ++j;
      if (node(unit.devices[i]) == node(unit.owner)) {
        for (; i < j; ++i) move(unit, unit.owner, unit.devices[i], unit.bytes);
      } else {
        crossings_.push_back({u, i, j, Rank{}});
      }
      i = j;
    }
  }

  void move(const MovingUnit& unit, Rank from, Rank to, std::int64_t bytes) {
    if (unit.towards_owner) std::swap(from, to);
    sent_[from] += bytes;
    received_[to] += bytes;
  }

  // Adds the crossing's traffic through its relay, or takes it back.
  void route(const Crossing& crossing, std::int64_t sign) {
    const MovingUnit& unit = units_[crossing.unit];
    move(unit, unit.owner, crossing.relay, sign * unit.bytes * inter_weight_);
    for (std::size_t i = crossing.first; i < crossing.last; ++i) {
      if (unit.devices[i] != crossing.relay) {
        move(unit, crossing.relay, unit.devices[i], sign * unit.bytes);
      }
    }
  }

  // Returns the device of the crossing whose busier direction is lowest if it relays: the relay
  // carries the unit across nodes and a copy for every other device of the crossing.
  [[nodiscard]] Rank least_loaded(const Crossing& crossing) const {
    const MovingUnit& unit = units_[crossing.unit];
    const std::int64_t fan =
        static_cast<std::int64_t>(crossing.last - crossing.first - 1) * unit.bytes;
    Rank best;
    std::int64_t best_load = 0;
    for (std::size_t i = crossing.first; i < crossing.last; ++i) {
      const Rank device = unit.devices[i];
      const std::int64_t across = unit.bytes * inter_weight_;
      const std::int64_t in = received_[device] + (unit.towards_owner ? fan : across);
      const std::int64_t out = sent_[device] + (unit.towards_owner ? across : fan);
      if (!best.valid() || std::max(in, out) < best_load) {
        best = device;
        best_load = std::max(in, out);
      }
    }
    return best;
  }

  std::span<const MovingUnit> units_;
  std::int32_t devices_per_node_;
  std::int64_t inter_weight_;
  IdVector<Rank, std::int64_t> sent_;
  IdVector<Rank, std::int64_t> received_;
  std::vector<Crossing> crossings_;
};

}  // namespace

std::vector<std::vector<Rank>> choose_relays(std::span<const MovingUnit> units,
                                             std::int32_t num_devices,
                                             std::int32_t devices_per_node,
                                             std::int64_t inter_weight) {
  return RelayChooser(units, num_devices, devices_per_node, inter_weight).run();
}

}  // namespace contextile

// The ports of a cluster's network, numbered as the fluid network expects: every device into and
// out of its node's fabric, then every NIC out and in.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/simulate.h"
#include "predict/simulate/fluid_network.h"

namespace contextile {

class Ports {
 public:
  explicit Ports(const Cluster& cluster) : cluster_(cluster) {}

  [[nodiscard]] std::int32_t num_ports() const { return 2 * (cluster_.num_devices() + num_nics()); }
  // Bytes per µs, by number.
  [[nodiscard]] std::vector<double> capacities() const;
  // The ports that a message from one device to another crosses, without that of its flow: the
  // event machine numbers those behind these ports, as many as pairs of devices need.
  [[nodiscard]] FlowPath path_between(Rank src, Rank dst) const;

  [[nodiscard]] NetworkPort port(std::int32_t number) const;
  [[nodiscard]] std::int32_t number(NetworkPort port) const;

 private:
  [[nodiscard]] std::int32_t num_nics() const { return cluster_.nodes * cluster_.nics_per_node; }

  const Cluster& cluster_;
};

}  // namespace contextile

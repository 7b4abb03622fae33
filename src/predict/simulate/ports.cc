#include "predict/simulate/ports.h"

#include <cstddef>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kBytesPerUsOfGbytes = 1e3;  // 1 GB/s = 1000 bytes/µs

}  // namespace

std::vector<double> Ports::capacities() const {
  const auto devices = static_cast<std::size_t>(cluster_.num_devices());
  std::vector<double> capacity(2 * devices, cluster_.intra_gbytes_per_s * kBytesPerUsOfGbytes);
  capacity.resize(
      static_cast<std::size_t>(num_ports()),
      cluster_.inter_gbytes_per_s_per_node / cluster_.nics_per_node * kBytesPerUsOfGbytes);
  return capacity;
}

FlowPath Ports::path_between(Rank src, Rank dst) const {
  FlowPath path;
  if (cluster_.same_node(src, dst)) {
    path.cross(number({PortKind::kDeviceOut, src.value}));
    path.cross(number({PortKind::kDeviceIn, dst.value}));
    return path;
  }
  const std::int32_t nics = cluster_.nics_per_node;
  std::int32_t nic_out = cluster_.nic_of(src);
  const std::int32_t nic_in = cluster_.nic_of(dst);
  if (cluster_.rails && nic_out != nic_in) {
    // The message goes to the first device of the sender's node on the receiver's rail.
    std::int32_t proxy = cluster_.node_of(src) * cluster_.devices_per_node;
    while (cluster_.nic_of(Rank{proxy}) != nic_in) ++proxy;
    path.cross(number({PortKind::kDeviceOut, src.value}));
    path.cross(number({PortKind::kDeviceIn, proxy}));
    nic_out = nic_in;
  }
  path.cross(number({PortKind::kNicOut, cluster_.node_of(src) * nics + nic_out}));
  path.cross(number({PortKind::kNicIn, cluster_.node_of(dst) * nics + nic_in}));
  return path;
}

NetworkPort Ports::port(std::int32_t number) const {
  const std::int32_t devices = cluster_.num_devices();
  if (number < devices) return {PortKind::kDeviceOut, number};
  if (number < 2 * devices) return {PortKind::kDeviceIn, number - devices};
  const std::int32_t nic = number - 2 * devices;
  return nic < num_nics() ? NetworkPort{PortKind::kNicOut, nic}
                          : NetworkPort{PortKind::kNicIn, nic - num_nics()};
}

std::int32_t Ports::number(NetworkPort port) const {
  const std::int32_t devices = cluster_.num_devices();
  switch (port.kind) {
    case PortKind::kDeviceOut:
      return port.index;
    case PortKind::kDeviceIn:
      return devices + port.index;
    case PortKind::kNicOut:
      return 2 * devices + port.index;
    case PortKind::kNicIn:
      break;
    case PortKind::kFlow:
      fail_argument("network: expected a port of a device or a NIC, found a flow");
  }
  return 2 * devices + num_nics() + port.index;
}

}  // namespace contextile

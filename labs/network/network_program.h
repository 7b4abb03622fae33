// The programs of a plan as a second model of the network reads them: durations, host times and
// messages, made from the public headers alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"

namespace contextile {

// An instruction of a device.
enum class NetworkStepKind : std::uint8_t { kAttention, kMerge, kLaunch, kWait };
struct NetworkStep {
  NetworkStepKind kind = NetworkStepKind::kAttention;
  double duration_us = 0;         // that the device itself needs; none for a wait
  double host_us = 0;             // that the host needs to issue it
  std::int32_t launch = -1;       // of launches and waits: which launch of the device, from 0
  std::int32_t num_messages = 0;  // of a launch, in both directions
};

// All that one device sends to another in one launch.
struct NetworkMessage {
  Rank src;
  Rank dst;
  std::int32_t src_launch = 0;  // launch of the sender, from 0
  std::int32_t dst_launch = 0;
  std::int64_t bytes = 0;
};

// One round, mask and direction; all devices start together.
struct NetworkProgram {
  // Programs with the same number are rounds of one call (a mask and a direction), which the host
  // issues one after another, without waiting for the devices.
  std::int32_t call = 0;
  std::vector<std::vector<NetworkStep>> devices = {};  // steps by rank
  std::vector<NetworkMessage> messages = {};
};

// The programs of a plan. Messages are matched here, not taken from the simulator: the k-th from
// one device to another is the k-th that the other expects.
class NetworkPrograms {
 public:
  // The programs have no times yet. Throws InvalidPlan if ends of messages do not match.
  explicit NetworkPrograms(const Plan& plan);

  // Gives every step the duration that the simulator takes, so that two models differ in nothing
  // but the network, and its host time on the cluster. Returns the simulator's time of the plan,
  // µs. `plan` is that of the constructor.
  double set_times(const Plan& plan, const Cluster& cluster);

  [[nodiscard]] const std::vector<NetworkProgram>& programs() const { return programs_; }

 private:
  std::vector<NetworkProgram> programs_;  // forward first, each by round and mask
};

// Throws InvalidArgument, naming the constant, if transfers change how fast the cluster's devices
// compute (sm_fraction, transfer_compute_us_per_mb, compute_slots_per_node): a network alone cannot
// say how long instructions take then.
void check_network_cluster(const Cluster& cluster);

}  // namespace contextile

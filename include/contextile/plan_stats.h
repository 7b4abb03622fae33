// What a plan moves, computes and needs in memory, counted from the plan alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "contextile/arrangement.h"
#include "contextile/base.h"
#include "contextile/plan.h"

namespace contextile {

// Bytes of one device and direction: what the executor allocates for the plan.
struct DeviceMemory {
  std::int64_t staging_bytes = 0;      // arenas
  std::int64_t accumulator_bytes = 0;  // owned o, dq, dkv in fp32 (o with its LSE)
  std::int64_t conversion_bytes =
      0;                            // results converted to or from a narrower wire dtype in flight
  std::int64_t retained_bytes = 0;  // kept from forward to backward, one layer

  [[nodiscard]] std::int64_t total_bytes() const {
    return staging_bytes + accumulator_bytes + conversion_bytes;
  }
};
[[nodiscard]] DeviceMemory device_memory(const Plan& plan, std::size_t round, std::size_t mask,
                                         Direction direction, Rank rank);

// Where converted transfers of each launch stand in the conversion buffer: same order as sends then
// recvs. Offsets are bytes; -1: not packed (the slot itself is sent or received).
struct ConversionLayout {
  std::map<std::int32_t, std::vector<std::int64_t>> send_offset_bytes;  // by launch id
  std::map<std::int32_t, std::vector<std::int64_t>> recv_offset_bytes;
  std::int64_t size_bytes = 0;
};
[[nodiscard]] ConversionLayout conversion_layout(const Plan& plan, const PlanRound& round,
                                                 const Program& program);

struct DeviceStats {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t inter_sent_bytes = 0;  // to other nodes
  std::int64_t inter_received_bytes = 0;
  double flops = 0;
  std::int64_t memory_bytes = 0;  // peak over rounds and masks
};

// One layer of every mask, all rounds. Bytes are counted once per transfer (at the sender), LSE and
// delta included.
struct DirectionStats {
  std::int64_t tiles = 0;
  std::int64_t pairs = 0;  // per group, summed over tiles of group 0
  std::int64_t transfers = 0;
  std::int64_t messages = 0;
  std::int64_t launches = 0;
  std::int64_t inter_bytes = 0;
  std::int64_t intra_bytes = 0;
  std::array<std::int64_t, kNumKinds> bytes_by_kind{};
  std::int64_t max_device_bytes = 0;       // largest max(sent, received)
  std::int64_t max_node_uplink_bytes = 0;  // largest max(sent, received) across node boundaries
  double flops = 0;
  double compute_imbalance = 0;  // (max - mean) / max of FLOPs; rounds have a barrier between
  double compute_overload = 0;   // max / mean - 1
  std::int64_t peak_memory_bytes = 0;
  std::int64_t retained_bytes = 0;  // largest device
  std::vector<DeviceStats> devices;

  [[nodiscard]] std::int64_t total_bytes() const { return inter_bytes + intra_bytes; }
};

struct PlanStats {
  std::int64_t tokens = 0;
  double token_imbalance = 0;  // (max - mean) / max of owned tokens
  double token_overload = 0;   // max / mean - 1
  std::optional<DirectionStats> forward;
  std::optional<DirectionStats> backward;
};
[[nodiscard]] PlanStats statistics(const Plan& plan);

// FLOPs of one attention instruction of the round.
[[nodiscard]] double attention_flops(const AttentionOp& op, Direction direction,
                                     const AttentionShape& shape, const PlanRound& round);

}  // namespace contextile

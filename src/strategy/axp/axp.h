// The A x P family of strategies: A ranks split the heads of the tokens they hold together, P
// positions split the tokens. ring, zigzag, ulysses, hybrid, double_ring and all_gather are presets
// of it.
#pragma once

#include <cstdint>
#include <optional>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/workload.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {

// How keys and values reach the queries along the P positions.
enum class KvMovement : std::uint8_t {
  kRing,          // one hop per stage, under the previous stage's compute; dKV travels back with it
  kGatherRing,    // all hops before any compute; dKV is reduce-scattered round the ring
  kGatherDirect,  // every owner sends to all positions at once; dKV partials go straight home
  kReplicate,     // the all-to-all brings a head group's keys to all its ranks; dKV goes home
};

struct AxpConfig {
  std::int32_t head_parallel = 1;     // A: consecutive ranks; head groups = A, divides the KV heads
  std::int32_t context_parallel = 1;  // P: stride A; A·P = number of devices
  TokenLayout layout = TokenLayout::kZigzag;
  KvMovement movement = KvMovement::kRing;
  // kRing, kGatherRing: positions of an inner ring, divides P; 0: one ring.
  std::int32_t inner_ring = 0;
  std::optional<std::int64_t> block_size;  // tokens; unset: one block per rank
  bool backward = true;
};

// Sets how all keys get to all positions before any compute. Needs A = 1.
void gather_by(GatherAlgorithm algorithm, const Cluster& cluster, AxpConfig& config);
inline constexpr const char* kGatherAlgorithmHelp =
    "ring: hop by hop, a node boundary crossed once per node, by one device; direct: every owner "
    "to "
    "everybody; nested: rings inside nodes, and from node to node by every device, as NCCL uses "
    "all "
    "NICs";

// Returns an arrangement of one round. Tiles run with their queries: rank p·A + a computes head
// group a of all queries owned by position p. The caller fills in name, options and wire.
// kReplicate numbers ranks the other way: rank a·P + p.
//
// Forward: all-to-all of Q, K, V inside the A ranks (retained for backward), then KV along the P
// positions, then finished O back by all-to-all. Backward: all-to-all of dO, then KV (and dKV)
// along the positions in reverse, then finished dQ and dKV back.
[[nodiscard]] Arrangement arrange_axp(const Workload& workload, const Cluster& cluster,
                                      const AxpConfig& config);

// The cost of padding every sequence to a multiple of 2·A·P (zigzag) or A·P (contiguous) tokens:
// padded over real tokens and causal pairs, as factors >= 1.
struct PaddingFactors {
  double tokens = 1;
  double pairs = 1;
};
[[nodiscard]] PaddingFactors padding_factors(const Workload& workload, TokenLayout layout,
                                             std::int32_t num_ranks);

}  // namespace contextile

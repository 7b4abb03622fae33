// The machine a plan is for: topology, presets, cluster files, and the constants of the cost model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Devices 0 … nodes·devices_per_node - 1; node of a device = device / devices_per_node.
// Bandwidths are per direction. GB/s are 1e9 bytes a second.
struct Cluster {
  std::string name = "custom";
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 8;
  double intra_gbytes_per_s = 450;           // one device's port inside its node
  double inter_gbytes_per_s_per_node = 400;  // all NICs of a node together
  double attention_tflops = 600;  // achievable attention throughput of one device, bf16 forward
  std::int64_t memory_bytes = 0;  // of one device; 0: unknown, no limit

  [[nodiscard]] std::int32_t num_devices() const { return nodes * devices_per_node; }
  [[nodiscard]] std::int32_t node_of(Rank rank) const { return rank.value / devices_per_node; }
  [[nodiscard]] bool same_node(Rank a, Rank b) const { return node_of(a) == node_of(b); }

  // The devices left for context parallelism when every TP group of `tp` consecutive devices acts
  // as one rank and the job has `pp` pipeline stages (rank order TP-CP-DP-PP). Node NICs are shared
  // by TP peers: a rank sees 1/tp of its node's uplink. Throws InvalidArgument when tp does not
  // divide devices_per_node or pp does not divide what is left.
  [[nodiscard]] Cluster group(std::int32_t tp, std::int32_t pp) const;
};

void check_cluster(const Cluster& cluster);  // throws InvalidArgument

struct ClusterPreset {
  std::string_view name;
  std::string_view description;  // hardware, constants and their source
  Cluster cluster;
};
[[nodiscard]] const std::vector<ClusterPreset>& cluster_presets();

// "NAME", "NAME:NODESxDEVICES" or the path of a JSON file (anything that ends in .json or holds a
// '/'). Throws InvalidArgument (unknown preset: lists them, with a "did you mean") or IoError.
[[nodiscard]] Cluster load_cluster(std::string_view text);
// One JSON object; `where` names the source in messages. Unknown keys are errors.
[[nodiscard]] Cluster parse_cluster_json(std::string_view text, std::string_view where);
[[nodiscard]] std::string to_json(const Cluster& cluster);

}  // namespace contextile

// The machine that a plan is for: topology, presets, cluster files and the constants of the cost
// model.
//
//   const Cluster cluster = load_cluster("dgx-h200:4x8");  // 4 nodes of 8 devices
//   if (cluster.same_node(Rank(7), Rank(8))) return 1;  // they are on different nodes
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// How fast one device computes attention, as shares of Cluster::attention_tflops on a grid of
// rectangles of q rows x keys in which all pairs are attended. Between grid points the logarithm of
// the share is interpolated bilinearly over the logarithms of rows and keys. Beyond the last points
// the share stays constant. A rectangle below the first points takes as long as the smallest one.
struct AttentionProfile {
  std::vector<std::int64_t> q_rows;   // ascending, at least one
  std::vector<std::int64_t> kv_rows;  // ascending, at least one
  std::vector<double> forward;        // [q_rows][kv_rows], each in (0, 2]
  std::vector<double> backward;
  double call_us = 20;  // fixed cost of one attention call, before any work
  // A partial tile is computed in squares of this many rows: a square that an edge of a band
  // crosses is computed whole. 0: only attended pairs cost time.
  std::int64_t kernel_tile_rows = 128;

  // Share of the peak on a rectangle of rows x keys. Source of the method: the simulators of DistCA
  // and WLB-LLM interpolate profiled grids in the same way.
  [[nodiscard]] double forward_share(double rows, double keys) const;
  [[nodiscard]] double backward_share(double rows, double keys) const;

  // Pairs that the kernel computes for a band of `pairs` attended pairs in rows x keys. An edge
  // crosses about as many kernel tiles as the shorter side is long, and half of each is wasted.
  [[nodiscard]] double computed_pairs(std::int64_t rows, std::int64_t keys,
                                      std::int64_t pairs) const;

  // Returns a grid from a closed form: the cost of a rectangle is its pairs, plus `row_keys` more
  // keys for every row, plus `call_pairs` pairs. The cost is at least the pairs of whole kernel
  // tiles, because a kernel computes these for even the fewest rows or keys. Peak shares are those
  // of unlimited rectangles.
  [[nodiscard]] static AttentionProfile from_overheads(double row_keys, double call_pairs,
                                                       double backward_share,
                                                       std::int64_t kernel_tile_rows = 128);
  friend bool operator==(const AttentionProfile&, const AttentionProfile&) = default;
};
void check_profile(const AttentionProfile& profile);  // throws InvalidArgument

// A profile for many lookups: the logarithms of its grid are taken once. Results are bit-identical
// to those of the profile.
class AttentionShares {
 public:
  explicit AttentionShares(const AttentionProfile& profile);

  [[nodiscard]] double forward(double rows, double keys) const;
  [[nodiscard]] double backward(double rows, double keys) const;

 private:
  AttentionProfile profile_;
  std::vector<double> log_q_rows_;
  std::vector<double> log_kv_rows_;
  std::vector<double> log_forward_;
  std::vector<double> log_backward_;
};

// How the launched groups of transfers of a device share its time.
enum class LaunchOrder : std::uint8_t {
  kConcurrent,  // all launched groups move at once
  kGrouped,     // one after another, like collectives on one stream (NCCL)
};

// The most that one flow gets, the data from one device to one of another node, where so many nodes
// take part. It is below the rate of the NIC for most transports, and falls with the nodes.
struct FlowRate {
  std::int32_t nodes = 2;
  double gbytes_per_s = 0;
  friend bool operator==(const FlowRate&, const FlowRate&) = default;
};

// An attention kernel of a GPU, with constants fitted to measurements.
struct GpuKernel {
  std::string_view name;
  std::vector<std::string_view> presets;  // clusters of that GPU
  std::string_view description;           // where the constants come from, and what is assumed
  double attention_tflops = 0;
  AttentionProfile attention;
};
[[nodiscard]] const std::vector<GpuKernel>& gpu_kernels();
// Throws InvalidArgument, with the names, if the preset's GPU has no such kernel.
[[nodiscard]] const GpuKernel& find_gpu_kernel(std::string_view preset, std::string_view name);

// The costs of the implementation that runs a plan, next to attention and transfers. The default is
// Contextile's own: attention adds to the output that a slot holds, and the host issues work faster
// than a device does it.
struct EngineCosts {
  std::string name = "native";
  // Memory traffic of merging a partial output into one that a slot holds, bytes per element of the
  // output, at memory_gbytes_per_s. 0: the attention kernel does it.
  double merge_bytes_per_element = 0;
  // Time of the host, µs. It runs ahead of the device and waits for nothing, so it costs time only
  // where the device has no work left.
  double host_call_us = 0;      // of a direction of one layer
  double host_sequence_us = 0;  // of each sequence of the batch, in a direction of one layer
  double host_stage_us = 0;     // of an attention call
  double host_launch_us = 0;    // of starting a group of transfers
  double host_message_us = 0;   // of each of its messages
  double host_merge_us = 0;     // of a merge, sum or copy

  // Host time of beginning a direction of one layer.
  [[nodiscard]] double host_begin_us(std::size_t sequences) const {
    return host_call_us + host_sequence_us * static_cast<double>(sequences);
  }
  [[nodiscard]] EngineCosts without_host() const;
  friend bool operator==(const EngineCosts&, const EngineCosts&) = default;
};
// A cost by its name in cluster files and messages.
struct EngineCost {
  const char* key;
  double EngineCosts::*member;
};
[[nodiscard]] std::span<const EngineCost> engine_costs();
struct EnginePreset {
  std::string_view name;
  std::string_view description;  // what it is, and where its constants come from
  EngineCosts costs;
};
[[nodiscard]] const std::vector<EnginePreset>& engine_presets();
// Throws InvalidArgument, with the names, for another name than those of engine_presets().
[[nodiscard]] EngineCosts find_engine(std::string_view name);

// An operation in which all devices of a group take part.
enum class Collective : std::uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll };
inline constexpr Collective kCollectives[] = {Collective::kAllGather, Collective::kReduceScatter,
                                              Collective::kAllReduce, Collective::kAllToAll};
[[nodiscard]] std::string_view to_string(Collective op);  // as in cluster files: "all_gather"

// The cost of a collective in a group of one size. Its bytes are those of a device's input or
// result, whichever is larger: the size that nccl-tests prints.
struct CollectiveCost {
  Collective op = Collective::kAllGather;
  // The group is `devices` of one node, or all devices of several `nodes`; the other number is 0.
  std::int32_t devices = 0;
  std::int32_t nodes = 0;
  double start_us = 0;      // time of the smallest collective
  double ramp_us = 0;       // for a square root of an MB (1e6 bytes)
  double gbytes_per_s = 1;  // rate that large collectives approach

  // start_us + ramp_us·√MB + 1000·MB / gbytes_per_s.
  [[nodiscard]] double us(double bytes) const;
  friend bool operator==(const CollectiveCost&, const CollectiveCost&) = default;
};
// Costs measured on the machine of a preset. Throws InvalidArgument if there are none.
[[nodiscard]] const std::vector<CollectiveCost>& measured_collectives(std::string_view preset);

// A cluster of the devices 0 … nodes·devices_per_node - 1. The node of a device is device /
// devices_per_node. Bandwidths are per direction. GB/s are 1e9 bytes per second.
struct Cluster {
  std::string name = "custom";
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 8;
  double intra_gbytes_per_s = 450;           // port of one device inside its node
  double inter_gbytes_per_s_per_node = 400;  // all NICs of a node together
  double attention_tflops = 600;  // attention throughput of one device on large full tiles, forward
  std::int64_t memory_bytes = 0;  // memory of one device; 0: unknown, no limit
  // Rate of dense bf16 matrix products on one device, as its maker states it. MFUs of training
  // steps are relative to it. 0: unknown.
  double peak_tflops = 0;

  // The rest of the cost model, beyond peak rates.
  AttentionProfile attention = AttentionProfile::from_overheads(115, 9600, 0.86);
  double memory_gbytes_per_s = 2000;  // read plus written, by merges and copies on a device
  double intra_latency_us = 7;        // latency of a message inside a node
  double inter_latency_us = 12;       // latency of a message between nodes
  double launch_us = 3;  // cost of starting a group of transfers, on the device's timeline
  // NICs of a node, each of which serves an equal run of its devices. 1: one uplink that all share.
  std::int32_t nics_per_node = 1;
  // True for a rail-optimised network: NIC i reaches only NIC i of other nodes. A message to
  // another rail first crosses the sender's node.
  bool rails = false;
  // Limits of flows, ascending by nodes. Between two numbers of nodes the logarithm of the rate is
  // interpolated over that of the nodes; beyond them it stays. Empty: no limit but those of ports.
  std::vector<FlowRate> flow_gbytes_per_s = {};
  LaunchOrder launches = LaunchOrder::kConcurrent;
  // Measured costs of collectives, which training steps use instead of the links' constants above.
  // The transfers of attention plans are messages and do not use them.
  std::vector<CollectiveCost> collectives = {};
  std::int32_t sms = 0;  // multiprocessors of a device; 0: unknown
  // Multiprocessors that a device keeps for its transfers for as long as it runs attention, so that
  // attention has sms - transfer_sms (FCP, section 5: a Green Context). Needs `sms`.
  std::int32_t transfer_sms = 0;
  double sm_fraction = 0;  // share of a device's compute that is lost while its transfers move
  // Compute time that a device loses for every MB (1e6 bytes) that it sends or receives, while that
  // data moves. This models transports that pack and move messages on the processor cores that
  // compute. A device that waits loses nothing.
  double transfer_compute_us_per_mb = 0;
  // A node computes as fast as this many devices at full speed. When more of its devices compute at
  // the same time, they share that speed evenly (ranks that share processor cores). 0: one slot per
  // device.
  double compute_slots_per_node = 0;
  EngineCosts engine = {};  // what runs the plan

  [[nodiscard]] std::int32_t num_devices() const { return nodes * devices_per_node; }
  // attention_tflops that the multiprocessors reach which are not kept for transfers.
  [[nodiscard]] double usable_attention_tflops() const {
    return transfer_sms == 0 ? attention_tflops : attention_tflops * (sms - transfer_sms) / sms;
  }
  // The limit of a flow in this cluster, with its number of nodes, GB/s.
  [[nodiscard]] std::optional<double> flow_limit_gbytes_per_s() const;
  // The cost of a collective in a group of `num_devices` in one node, or of several `num_nodes`.
  // Between two measured sizes start_us follows a line over the size, and the other times follow
  // one over its reciprocal. Inside a node these lines go on beyond the last size, but no time
  // falls there. A group smaller than the first size costs as much as that. Empty if the op was not
  // measured, or only on fewer nodes.
  [[nodiscard]] std::optional<CollectiveCost> collective_cost(Collective op,
                                                              std::int32_t num_devices,
                                                              std::int32_t num_nodes = 1) const;
  // Compute slots of all nodes together: the cluster computes as fast as this many devices at full
  // speed.
  [[nodiscard]] double compute_slots() const {
    return compute_slots_per_node == 0 || compute_slots_per_node > devices_per_node
               ? num_devices()
               : nodes * compute_slots_per_node;
  }
  [[nodiscard]] std::int32_t node_of(Rank rank) const { return rank.value / devices_per_node; }
  // Index of the device's NIC among those of its node.
  [[nodiscard]] std::int32_t nic_of(Rank rank) const {
    return static_cast<std::int32_t>(std::int64_t{rank.value % devices_per_node} * nics_per_node /
                                     devices_per_node);
  }
  [[nodiscard]] bool same_node(Rank a, Rank b) const { return node_of(a) == node_of(b); }

  // Returns the cluster that remains for context parallelism when every TP group of `tp`
  // consecutive devices acts as one rank and the job has `pp` pipeline stages (rank order
  // TP-CP-DP-PP). TP peers share the NICs of their node: a rank sees 1/tp of its node's uplink.
  // Throws InvalidArgument when tp does not divide devices_per_node or pp does not divide the
  // remaining devices.
  [[nodiscard]] Cluster group(std::int32_t tp, std::int32_t pp) const;

  // Returns the cluster of the ranks first … first + count - 1 alone: whole nodes, or an equal part
  // of each. If the ranks are spread unevenly over nodes, the parts are the largest of equal size,
  // and links between two parts of a node count as links between nodes. Throws InvalidArgument when
  // the cluster does not have these ranks.
  [[nodiscard]] Cluster consecutive(Rank first, std::int32_t count) const;
};

void check_cluster(const Cluster& cluster);  // throws InvalidArgument

// Gives a cluster the constants of a kernel of the preset's GPU. `preset` may be followed by a size
// and settings, as load_cluster takes them. The cluster's name stays. Throws as find_gpu_kernel.
void use_gpu_kernel(std::string_view preset, std::string_view name, Cluster& cluster);

// Limits that a plan must keep on every device. They are recorded in the plan and proved by verify.
struct DeviceLimits {
  std::optional<std::int64_t> tokens = {};        // tokens that it may own; unset: any number
  std::optional<std::int64_t> memory_bytes = {};  // memory that it may need in a direction; unset:
                                                  // any amount
  friend bool operator==(const DeviceLimits&, const DeviceLimits&) = default;
};

// The source of a constant of a preset.
struct ConstantSource {
  std::string_view key;     // its name in cluster files
  std::string_view source;  // who measured or states it, and when
  bool assumed = false;     // true: not measured on such a machine
  friend bool operator==(const ConstantSource&, const ConstantSource&) = default;
};
struct ClusterPreset {
  std::string_view name;
  std::string_view description;  // the hardware
  std::vector<ConstantSource> sources;
  Cluster cluster;
};
[[nodiscard]] const std::vector<ClusterPreset>& cluster_presets();
// The sources of the constants of the preset that a cluster's name begins with. Empty for other
// clusters.
[[nodiscard]] std::span<const ConstantSource> constant_sources(const Cluster& cluster);

// Loads a preset, "NAME" or "NAME:NODESxDEVICES", or the path of a JSON file (any text that ends in
// .json or contains a '/'). After a preset, ",transfer_sms=N" sets Cluster::transfer_sms,
// ",kernel=NAME" the constants of one of gpu_kernels() and ",engine=NAME" Cluster::engine, and the
// cluster's name says so. Throws InvalidArgument (an unknown preset: the message lists the presets,
// with a "did you mean") or IoError.
[[nodiscard]] Cluster load_cluster(std::string_view text);
// Returns the part of such a text, or of a cluster's name, that stands before the settings:
// "dgx-h200" of "dgx-h200,kernel=fa2".
[[nodiscard]] std::string_view without_settings(std::string_view name);
// Parses one JSON object. `where` names the source in messages. Unknown keys are errors.
[[nodiscard]] Cluster parse_cluster_json(std::string_view text, std::string_view where);
[[nodiscard]] std::string to_json(const Cluster& cluster);

}  // namespace contextile

// contextile/cluster.h: clusters and presets.
#include <string>
#include <tuple>

#include "bind.h"
#include "contextile/cluster.h"

namespace contextile::python {
namespace {

LaunchOrder launch_order(const std::string& name) {
  if (name == "concurrent") return LaunchOrder::kConcurrent;
  if (name == "grouped") return LaunchOrder::kGrouped;
  fail("launches: expected concurrent or grouped, found '" + name + "'");
}

// Loads "NAME:NODESxDEVICES"; the preset supplies numbers that are not given.
Cluster preset(const std::string& name, std::optional<std::int32_t> nodes,
               std::optional<std::int32_t> devices_per_node) {
  const Cluster alone = load_cluster(name);
  const std::string machine(without_settings(name));  // the size follows it
  return load_cluster(machine + ":" + std::to_string(nodes.value_or(alone.nodes)) + "x" +
                      std::to_string(devices_per_node.value_or(alone.devices_per_node)) +
                      name.substr(machine.size()));
}

nb::object from_torch(nb::object group, nb::kwargs options) {
  return nb::module_::import_("contextile.torch._ranks.group").attr("cluster_of")(group, **options);
}

void bind_constants(nb::class_<Cluster>& cluster) {
  cluster.def_rw("name", &Cluster::name)
      .def_rw("nodes", &Cluster::nodes, "Number of nodes.")
      .def_rw("devices_per_node", &Cluster::devices_per_node, "Number of devices of a node.")
      .def_rw("intra_gbytes_per_s", &Cluster::intra_gbytes_per_s,
              "Rate of one device's port inside its node, GB/s per direction.")
      .def_rw("inter_gbytes_per_s_per_node", &Cluster::inter_gbytes_per_s_per_node,
              "Rate of all NICs of a node together, GB/s per direction.")
      .def_rw("attention_tflops", &Cluster::attention_tflops,
              "Forward attention of one device on large full tiles, TFLOP/s.")
      .def_rw("memory_bytes", &Cluster::memory_bytes, "Memory of one device; 0: unknown.")
      .def_rw("peak_tflops", &Cluster::peak_tflops,
              "Rate of dense bf16 products as the maker states it; 0: unknown.")
      .def_rw("memory_gbytes_per_s", &Cluster::memory_gbytes_per_s,
              "Rate of merges and copies on a device, read plus written.")
      .def_rw("intra_latency_us", &Cluster::intra_latency_us, "Latency of a message inside a node.")
      .def_rw("inter_latency_us", &Cluster::inter_latency_us, "Latency of a message between nodes.")
      .def_rw("launch_us", &Cluster::launch_us, "Time of a device to launch a group of transfers.")
      .def_rw("nics_per_node", &Cluster::nics_per_node,
              "NICs of a node, each serving an equal run of devices; 1: all share one uplink.")
      .def_rw("rails", &Cluster::rails, "True if NIC i reaches only NIC i of other nodes.")
      .def_prop_rw(
          "flow_gbytes_per_s",
          [](const Cluster& cluster) {
            std::vector<std::pair<std::int32_t, double>> rates;
            for (const FlowRate& rate : cluster.flow_gbytes_per_s) {
              rates.emplace_back(rate.nodes, rate.gbytes_per_s);
            }
            return rates;
          },
          [](Cluster& cluster, const std::vector<std::pair<std::int32_t, double>>& rates) {
            cluster.flow_gbytes_per_s.clear();
            for (const auto& [nodes, rate] : rates) {
              cluster.flow_gbytes_per_s.push_back({.nodes = nodes, .gbytes_per_s = rate});
            }
          },
          "The most that one flow between two nodes gets, as (nodes, GB/s); empty: no limit.")
      .def_rw("sms", &Cluster::sms, "Multiprocessors of a device; 0: unknown.")
      .def_rw("transfer_sms", &Cluster::transfer_sms,
              "Multiprocessors of `sms` that attention leaves to transfers.")
      .def_rw("sm_fraction", &Cluster::sm_fraction,
              "Share of a device's compute that is lost while its transfers move.")
      .def_rw("transfer_compute_us_per_mb", &Cluster::transfer_compute_us_per_mb,
              "Compute that a device loses per 1e6 bytes that it sends or receives.")
      .def_rw("compute_slots_per_node", &Cluster::compute_slots_per_node,
              "Devices of a node that compute at full speed together; 0: all.")
      .def_rw("engine", &Cluster::engine, "What runs the plan: an `EngineCosts`.")
      .def_prop_rw(
          "launches",
          [](const Cluster& cluster) {
            return cluster.launches == LaunchOrder::kGrouped ? "grouped" : "concurrent";
          },
          [](Cluster& cluster, const std::string& name) { cluster.launches = launch_order(name); },
          "How groups of transfers share a device's time: 'concurrent', or 'grouped' (one after "
          "another, like NCCL on one stream).");
}

// Name and description of each preset of a cluster or an engine.
template <typename Preset>
std::vector<std::pair<std::string, std::string>> described(const std::vector<Preset>& presets) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Preset& preset : presets) names.emplace_back(preset.name, preset.description);
  return names;
}

void bind_presets(nb::module_& module) {
  module.def(
      "cluster_presets", [] { return described(cluster_presets()); },
      "Returns name and description (the hardware) of every preset.");
  module.def(
      "engine_presets", [] { return described(engine_presets()); },
      "Returns name and description (what it is, where its costs come from) of every engine.");
}

// The name and the costs, in the order of engine_costs().
std::pair<std::string, std::vector<double>> costs_of(const EngineCosts& engine) {
  std::vector<double> costs;
  for (const EngineCost& cost : engine_costs()) costs.push_back(engine.*cost.member);
  return {engine.name, costs};
}
EngineCosts engine_of(const std::pair<std::string, std::vector<double>>& state) {
  EngineCosts engine{.name = state.first};
  for (std::size_t i = 0; i < std::min(state.second.size(), engine_costs().size()); ++i) {
    engine.*engine_costs()[i].member = state.second[i];
  }
  return engine;
}

void bind_engine(nb::module_& module) {
  nb::class_<EngineCosts>(
      module, "EngineCosts",
      "What the implementation that runs a plan costs beside attention and transfers. Those of "
      "'native', Contextile's own, are 0; `engine_presets()` lists the others.")
      .def(
          "__init__",
          [](EngineCosts* self, const std::string& name) {
            new (self) EngineCosts(find_engine(name));
          },
          nb::arg("name") = "native")
      .def_rw("name", &EngineCosts::name)
      .def_rw("merge_bytes_per_element", &EngineCosts::merge_bytes_per_element,
              "Memory traffic of merging a partial output into another, bytes per element; 0: "
              "attention does it.")
      .def_rw("host_call_us", &EngineCosts::host_call_us,
              "Host time of a direction of one layer, µs.")
      .def_rw("host_sequence_us", &EngineCosts::host_sequence_us,
              "Host time of each sequence of the batch in a direction of one layer, µs.")
      .def_rw("host_stage_us", &EngineCosts::host_stage_us, "Host time of an attention call, µs.")
      .def_rw("host_launch_us", &EngineCosts::host_launch_us,
              "Host time of starting a group of transfers, µs.")
      .def_rw("host_message_us", &EngineCosts::host_message_us,
              "Host time of each message of a group, µs.")
      .def_rw("host_merge_us", &EngineCosts::host_merge_us,
              "Host time of a merge, sum or copy, µs.")
      .def(
          "__eq__", [](const EngineCosts& a, const EngineCosts& b) { return a == b; },
          nb::is_operator())
      .def("__getstate__", &costs_of)
      .def("__setstate__",
           [](EngineCosts& self, const std::pair<std::string, std::vector<double>>& state) {
             new (&self) EngineCosts(engine_of(state));
           })
      .def("__repr__",
           [](const EngineCosts& costs) { return "EngineCosts('" + costs.name + "')"; });
}

void bind_text(nb::class_<Cluster>& cluster) {
  cluster
      .def(
          "__eq__", [](const Cluster& a, const Cluster& b) { return to_json(a) == to_json(b); },
          nb::is_operator())
      .def("__getstate__", [](const Cluster& one) { return to_json(one); })
      .def("__setstate__",
           [](Cluster& self, const std::string& json) {
             new (&self) Cluster(parse_cluster_json(json, "pickle"));
           })
      .def("__repr__", [](const Cluster& one) {
        return "Cluster('" + one.name + "', " + std::to_string(one.nodes) + " x " +
               std::to_string(one.devices_per_node) + " devices)";
      });
}

}  // namespace

void bind_clusters(nb::module_& module) {
  bind_engine(module);
  nb::class_<Cluster> cluster(
      module, "Cluster",
      R"(A cluster: topology, bandwidths, and the constants of the cost model.

Devices are 0 … nodes·devices_per_node - 1; a device's node is device // devices_per_node. Rates are
per direction, and GB are 1e9 bytes. Attributes may be changed; check() says whether the result is
possible. Make one with Cluster.load, Cluster.preset, Cluster.from_torch or Cluster.parse_json.

>>> import contextile as ct
>>> cluster = ct.Cluster.preset("dgx-h200", nodes=4)
>>> cluster.num_devices, cluster.node_of(9)
(32, 1)
)");
  bind_constants(cluster);
  cluster.def(nb::init<const Cluster&>(), "other"_a, "Copies a cluster.")
      .def_static(
          "load", [](const Path& text) { return load_cluster(text.string()); }, "text"_a,
          "Loads 'NAME', 'NAME:NODESxDEVICES', each perhaps with ',transfer_sms=N', ',kernel=NAME' "
          "and ',engine=NAME', or the JSON file at a path. Raises InvalidArgument for an unknown "
          "preset, listing all, and IoError.")
      .def_static(
          "preset", &preset, "name"_a, nb::kw_only(), "nodes"_a = nb::none(),
          "devices_per_node"_a = nb::none(),
          "Returns a preset (contextile.cluster_presets), with these numbers of nodes and of "
          "devices per node if they are given. Raises InvalidArgument.")
      .def_static(
          "from_torch", &from_torch, "group"_a = nb::none(), "options"_a,
          nb::sig("def from_torch(group: object | None = None, **options: typing.Any) -> Cluster"),
          "Returns the cluster of a torch.distributed group (default: the whole job). Hosts "
          "become nodes; preset= names the machine whose constants it has (default 'local'), and "
          "timeout= is the number of seconds to wait for ranks (default 60). Collective: every "
          "rank of the group calls it. Raises InvalidArgument unless every host has equally many "
          "consecutive ranks, and TransportError that names ranks that did not come.")
      .def_static("parse_json", &parse_cluster_json, "text"_a, nb::kw_only(), "where"_a = "cluster",
                  "Parses the text of a cluster file; where names it in messages. Raises "
                  "InvalidArgument.")
      .def(
          "to_json", [](const Cluster& cluster) { return to_json(cluster); },
          "Returns the text of a cluster file.")
      .def_prop_ro("num_devices", &Cluster::num_devices, "Number of devices of all nodes.")
      .def(
          "node_of",
          [](const Cluster& cluster, RankArgument rank) {
            check_cluster(cluster);
            return cluster.node_of(rank);
          },
          "rank"_a, "Returns the node of a device.")
      .def("group", &Cluster::group, nb::kw_only(), "tp"_a = 1, "pp"_a = 1,
           "Returns the cluster that is left for context parallelism if tp consecutive devices act "
           "as one rank and the job has pp pipeline stages. Raises InvalidArgument if they do not "
           "fit.")
      .def("check", &check_cluster,
           "Raises InvalidArgument if the numbers contradict each other or are out of range.");
  bind_text(cluster);
  bind_presets(module);
}

}  // namespace contextile::python

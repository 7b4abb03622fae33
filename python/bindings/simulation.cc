// contextile/simulate.h, bounds.h, report.h: predicted times, bounds and reports of plans.
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>

#include "bind.h"
#include "contextile/bounds.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "plan_object.h"

namespace contextile::python {
namespace {

using Spans = std::vector<std::tuple<std::int32_t, std::string, std::int32_t, double, double>>;
using Messages = std::vector<std::tuple<std::int32_t, std::int32_t, std::int64_t, double, double>>;

Simulation simulated(const PlanObject& self, const Cluster& cluster, bool timeline) {
  return simulate(*self.plan, cluster, {.timeline = timeline});
}

void bind_programs(nb::module_& module) {
  nb::class_<DeviceTimes>(module, "DeviceTimes",
                          "Predicted times of one device in one direction, µs.")
      .def_prop_ro("attention_us",
                   [](const DeviceTimes& times) { return times.of(Activity::kAttention); })
      .def_prop_ro("merge_us", [](const DeviceTimes& times) { return times.of(Activity::kMerge); })
      .def_prop_ro("launch_us",
                   [](const DeviceTimes& times) { return times.of(Activity::kLaunch); })
      .def_prop_ro(
          "exposed_us", [](const DeviceTimes& times) { return times.of(Activity::kExposed); },
          "Time spent waiting for transfers.")
      .def_ro("idle_us", &DeviceTimes::idle_us, "Time between its end and that of the last device.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "DeviceTimes",
                       {"attention_us", "merge_us", "launch_us", "exposed_us", "idle_us"});
      });
  nb::class_<SimulatedProgram>(module, "SimulatedProgram",
                               "Predicted times of one round and mask of a direction.")
      .def_ro("round", &SimulatedProgram::round)
      .def_ro("mask", &SimulatedProgram::mask)
      .def_ro("time_us", &SimulatedProgram::time_us)
      .def_prop_ro(
          "activities",
          [](const SimulatedProgram& program) {
            Spans spans;
            for (const ActivitySpan& span : program.activities) {
              spans.emplace_back(span.device.value, to_string(span.activity), span.instruction,
                                 span.start_us, span.end_us);
            }
            return spans;
          },
          "Rows (device, activity, instruction, start_us, end_us), with timeline=True.")
      .def_prop_ro(
          "messages",
          [](const SimulatedProgram& program) {
            Messages messages;
            for (const MessageSpan& span : program.messages) {
              messages.emplace_back(span.src.value, span.dst.value, span.bytes, span.start_us,
                                    span.end_us);
            }
            return messages;
          },
          "Rows (src, dst, bytes, start_us, end_us), with timeline=True.");
}

void bind_times(nb::module_& module) {
  bind_programs(module);
  nb::class_<SimulatedDirection>(module, "SimulatedDirection",
                                 "Predicted times of one layer of every mask, over all rounds.")
      .def_ro("time_us", &SimulatedDirection::time_us)
      .def_ro("flops", &SimulatedDirection::flops)
      .def_ro("mfu", &SimulatedDirection::mfu, "Share of the cluster's attention_tflops.")
      .def_ro("attention_us", &SimulatedDirection::attention_us, "Mean over devices.")
      .def_ro("exposed_us", &SimulatedDirection::exposed_us, "Mean over devices.")
      .def_ro("intra_bytes", &SimulatedDirection::intra_bytes)
      .def_ro("inter_bytes", &SimulatedDirection::inter_bytes)
      .def_ro("devices", &SimulatedDirection::devices)
      .def_ro("programs", &SimulatedDirection::programs)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "SimulatedDirection",
                       {"time_us", "mfu", "attention_us", "exposed_us"});
      });
  nb::class_<Simulation>(module, "Simulation",
                         "Predicted times of a plan. backward is None for a plan without it.")
      .def_ro("forward", &Simulation::forward)
      .def_ro("backward", &Simulation::backward)
      .def_prop_ro("time_us", &Simulation::time_us, "Time of forward and backward.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Simulation", {"time_us", "forward", "backward"});
      });
  nb::class_<TimeBound>(module, "TimeBound", "A time that no plan can beat, µs, and its parts.")
      .def_ro("compute_us", &TimeBound::compute_us)
      .def_ro("device_ports_us", &TimeBound::device_ports_us)
      .def_ro("node_uplinks_us", &TimeBound::node_uplinks_us)
      .def_ro("communication_us", &TimeBound::communication_us,
              "The larger of device_ports_us and node_uplinks_us.")
      .def_ro("latency_us", &TimeBound::latency_us)
      .def_ro("joint_us", &TimeBound::joint_us, "Compute, launches and latency together.")
      .def_ro("separate_us", &TimeBound::separate_us, "The largest part except joint_us.")
      .def_ro("time_us", &TimeBound::time_us)
      .def_ro("binding", &TimeBound::binding)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "TimeBound", {"time_us", "binding"});
      });
}

void write_file(const Path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) throw IoError("'" + path.string() + "': cannot be written");
}

std::string report_of(const PlanObject& self, const MaybeCluster& asked, const std::string& name,
                      std::int64_t max_bytes) {
  const Cluster cluster = cluster_for(self, asked);
  const Simulation simulation = simulated(self, cluster, true);
  const VerifyReport verified = verify(*self.plan);
  const ReportedPlan reported = {name, *self.plan, cluster, simulation, verified};
  std::ostringstream out;
  write_report({&reported, 1}, out, {.max_bytes = max_bytes});
  return std::move(out).str();
}

std::string trace_of(const PlanObject& self, const MaybeCluster& asked) {
  const Cluster cluster = cluster_for(self, asked);
  std::ostringstream out;
  write_trace(*self.plan, cluster, simulated(self, cluster, true), out);
  return std::move(out).str();
}

std::string why_of(const PlanObject& self, const MaybeCluster& asked) {
  const Cluster cluster = cluster_for(self, asked);
  return why_text(*self.plan, cluster, simulated(self, cluster, true));
}

}  // namespace

void bind_simulation(nb::module_& module) {
  bind_times(module);
  const auto release = nb::call_guard<WithoutGil>();
  nb::class_<PlanObject> plan = nb::borrow<nb::class_<PlanObject>>(nb::type<PlanObject>());
  plan.def(
          "simulate",
          [](const PlanObject& self, const MaybeCluster& cluster, bool timeline) {
            return simulated(self, cluster_for(self, cluster), timeline);
          },
          "cluster"_a = nb::none(), nb::kw_only(), "timeline"_a = false, release,
          R"(Predicts the times of the plan on a cluster of its shape, for one layer of every mask.

The default cluster is the one it was planned for. timeline=True also records every span and
message. Raises InvalidArgument if there is no cluster, or it has another shape.

>>> import contextile as ct
>>> plan = ct.plan([8192], cluster="dgx-h200:1x4", strategy="zigzag")
>>> simulation = plan.simulate()
>>> simulation.time_us == simulation.forward.time_us + simulation.backward.time_us
True
)")
      .def("why", &why_of, "cluster"_a = nb::none(), release,
           "Explains the predicted time as text: the critical path, the largest causes with the "
           "time that each costs, and the longest waits. Raises InvalidArgument.")
      .def(
          "report",
          [](const PlanObject& self, const Path& path, const MaybeCluster& cluster,
             std::optional<std::string> name, std::int64_t max_bytes) {
            write_file(path,
                       report_of(self, cluster, name.value_or(self.plan->strategy), max_bytes));
          },
          "path"_a, "cluster"_a = nb::none(), nb::kw_only(), "name"_a = nb::none(),
          "max_bytes"_a = ReportOptions().max_bytes, release,
          "Writes an HTML page about the plan: batch, tiles, timeline, traffic, every device. "
          "Raises InvalidArgument and IoError.")
      .def("report_html", &report_of, "cluster"_a = nb::none(), nb::kw_only(), "name"_a = "plan",
           "max_bytes"_a = ReportOptions().max_bytes, release,
           "Returns the page of report() as text.")
      .def(
          "trace",
          [](const PlanObject& self, const Path& path, const MaybeCluster& cluster) {
            write_file(path, trace_of(self, cluster));
          },
          "path"_a, "cluster"_a = nb::none(), release,
          "Writes the simulation as Chrome trace events, for https://ui.perfetto.dev. Raises "
          "InvalidArgument and IoError.");
  module.def(
      "lower_bound",
      [](const Workload& workload, const Cluster& cluster, const std::string& direction) {
        return lower_bound(workload, cluster, direction_of(direction));
      },
      "workload"_a, "cluster"_a, "direction"_a, release);
}

}  // namespace contextile::python

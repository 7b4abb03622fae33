#include "report/why.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/report.h"
#include "report/html/text.h"
#include "report/json.h"
#include "report/wait_text.h"

namespace contextile {
namespace {

constexpr std::size_t kLongestWaits = 3;

// Kinds of steps in the order in which they are printed.
constexpr StepKind kStepKinds[] = {StepKind::kAttention, StepKind::kMerge,    StepKind::kLaunch,
                                   StepKind::kLatency,   StepKind::kTransfer, StepKind::kBarrier};

// A wait of a simulation, which outlives it.
struct LongWait {
  Direction direction;
  const SimulatedProgram* program;
  const ActivitySpan* wait;
  WaitText text;
};

// Returns the longest waits of all programs, the longest first. Waits of equal length stay in the
// order of directions, programs and devices, so the report is deterministic.
std::vector<LongWait> longest_waits(const Plan& plan, const Cluster& cluster,
                                    const Simulation& simulation) {
  std::vector<LongWait> waits;
  for (const auto& [direction, simulated] : simulation.directions()) {
    for (const SimulatedProgram& program : simulated->programs) {
      for (const ActivitySpan& span : program.activities) {
        if (span.activity != Activity::kExposed) continue;
        waits.push_back({direction, &program, &span, {}});
      }
    }
  }
  std::ranges::stable_sort(waits, std::greater<>(), [](const LongWait& wait) {
    return wait.wait->end_us - wait.wait->start_us;
  });
  if (waits.size() > kLongestWaits) waits.resize(kLongestWaits);
  // Reasons cost a pass over the whole program, so they are found only for the waits that are
  // shown. Every exposed span has one, so the search succeeds.
  for (LongWait& wait : waits) {
    const std::vector<WaitReason> reasons = wait_reasons(*wait.program, cluster);
    const auto activity = static_cast<std::int32_t>(wait.wait - wait.program->activities.data());
    const auto reason = std::ranges::find(reasons, activity, &WaitReason::activity);
    wait.text = WaitTexts(plan, cluster, wait.direction, *wait.program).of(*reason);
  }
  return waits;
}

// Wraps words after `begin`; lines behind the first are below the names of entries.
std::string wrapped(std::string_view begin, std::string_view text) {
  constexpr std::size_t kIndent = 5;
  return fmt::format("{}{}\n", begin,
                     wrap(text, kTextColumns, {.first = begin.size(), .others = kIndent}));
}

// Lines of a numbered list: its head, and the lines below.
std::string entry(std::size_t number, std::string_view head) {
  return wrapped(fmt::format("  {}  ", number), head);
}

std::string line(std::string_view text) { return wrapped("     ", text); }

// Says how transfers take compute from attention, in up to three ways that add up. Multiprocessors
// that are kept for transfers are named first, and the others by the same function on a cluster
// without these.
std::string stolen_text(const Cluster& cluster) {
  if (cluster.transfer_sms > 0) {
    const std::string kept =
        fmt::format("{} of a device's {} multiprocessors are kept for transfers",
                    cluster.transfer_sms, cluster.sms);
    Cluster others = cluster;
    others.transfer_sms = 0;
    const bool is_all = others.sm_fraction == 0 && others.transfer_compute_us_per_mb == 0;
    return is_all ? kept : kept + ", and " + stolen_text(others);
  }
  const std::string share = fmt::format("{:.0f}% of a device's compute", 100 * cluster.sm_fraction);
  const std::string per_mb =
      fmt::format("{} of it a MB", time_text(cluster.transfer_compute_us_per_mb));
  if (cluster.transfer_compute_us_per_mb == 0) return "transfers take " + share;
  if (cluster.sm_fraction == 0) return "transfers take compute, " + per_mb;
  return "transfers take " + share + " and " + per_mb;
}

// The busiest port is named even where the gain is that of all ports of its kind, because it shows
// where the time goes. `num_ports` tells which ports had no limit.
CauseText link_text(const TimeCause& cause, const Cluster& cluster) {
  const bool is_node = cause.cause == Cause::kNodeLinks;
  return {fmt::format("{}, carries {}", port_text(cluster, *cause.port),
                      bytes_text(static_cast<double>(cause.bytes))),
          cause.num_ports == 1 ? "that link without a limit"
          : is_node            ? "all links between nodes without a limit"
                               : "all ports inside nodes without a limit"};
}

}  // namespace

// A remedy is the change with which the plan was simulated again, not advice that was tried:
// several causes need another plan, which the words in parentheses suggest.
CauseText cause_text(const TimeCause& cause, const Plan& plan, const Cluster& cluster) {
  switch (cause.cause) {
    case Cause::kImbalance:
      return {fmt::format("device {} computes {:.2f}x the mean of {} devices", cause.device.value,
                          cause.ratio, plan.num_devices()),
              "attention spread evenly over the devices"};
    case Cause::kTiles:
      return {"attention runs below the kernel's best rate: small tiles, edges of masks",
              "every tile at the best rate, no waste at edges"};
    case Cause::kCalls:
      return {fmt::format("{} cost {} each before any work", counted(cause.steps, "attention call"),
                          time_text(cluster.attention.call_us)),
              "calls that cost nothing (fewer, larger ones)"};
    case Cause::kMerging:
      return {"merging and converting partial results",
              "memory without a limit (fewer partial results)"};
    case Cause::kLaunches:
      return {fmt::format("{} cost {} each", counted(cause.steps, "launch"),
                          time_text(cluster.launch_us)),
              "launches that cost nothing (fewer ones)"};
    case Cause::kLatency:
      return {fmt::format("latency of {}: {} inside nodes, {} between them",
                          counted(cause.steps, "message"), time_text(cluster.intra_latency_us),
                          time_text(cluster.inter_latency_us)),
              "no latency (fewer messages in a row)"};
    case Cause::kNodeLinks:
    case Cause::kDeviceLinks:
      return link_text(cause, cluster);
    case Cause::kFlows:
      return {
          fmt::format("a flow between nodes gets at most {:g} GB/s, which binds {}",
                      cluster.flow_limit_gbytes_per_s().value(), counted(cause.steps, "message")),
          "flows that only ports limit"};
    case Cause::kHost:
      return {fmt::format("the host of engine {} issues work later than devices could begin it",
                          printable(cluster.engine.name)),
              "a host that takes no time (fewer calls and launches, CUDA graphs)"};
    case Cause::kLaunchOrder:
      return {fmt::format("{} behind earlier launches", counted(cause.steps, "message")),
              "all launches of a device moving at once"};
    case Cause::kBarriers:
      return {fmt::format("{} between rounds", counted(cause.steps, "barrier")),
              "rounds without barriers"};
    case Cause::kStolenCompute:
      return {stolen_text(cluster), "transfers that take none"};
    case Cause::kSharedSlots:
      return {fmt::format("{} devices of a node compute as fast as {:g}", cluster.devices_per_node,
                          cluster.compute_slots_per_node),
              "full speed for every device"};
  }
  fail_argument("cause: expected one of 14, found {}", static_cast<int>(cause.cause));
}

std::string why_text(const Plan& plan, const Cluster& cluster, const Simulation& simulation) {
  return why_text(plan, cluster, simulation, causes_of_time(plan, cluster, simulation));
}

std::string why_text(const Plan& plan, const Cluster& cluster, const Simulation& simulation,
                     const std::vector<TimeCause>& causes) {
  std::string text = fmt::format("\nwhy {}\n", time_text(simulation.time_us()));
  // The steps of a path add up to its direction's time. Kinds without time are omitted.
  for (const auto& [direction, simulated] : simulation.directions()) {
    const auto us = path_times_us(critical_path(*simulated));
    std::vector<std::string> parts;
    for (const StepKind kind : kStepKinds) {
      const double part = us[static_cast<std::size_t>(kind)];
      if (part > 0) parts.push_back(fmt::format("{} {}", to_string(kind), time_text(part)));
    }
    text += wrapped(
        "  ", fmt::format("critical path, {}: {}", to_string(direction), fmt::join(parts, ", ")));
  }
  // Gains are shares of the time of both directions together. They do not add up, since each is
  // measured with all other causes in place.
  text += "\nlargest causes, each by simulating without it\n";
  if (causes.empty()) text += "  none of a thousandth of the time\n";
  for (std::size_t i = 0; i < causes.size(); ++i) {
    const TimeCause& cause = causes[i];
    const CauseText words = cause_text(cause, plan, cluster);
    text += entry(i + 1, words.what);
    // Without a cause another chain may be the longest, so the gain may be far below `path_us`.
    text += line(fmt::format("{} of the critical path", time_text(cause.path_us)));
    text += line(fmt::format("with {}: {}, {:.1f}% less", words.remedy, time_text(cause.without_us),
                             100 * cause.gain_us / simulation.time_us()));
  }
  const std::vector<LongWait> waits = longest_waits(plan, cluster, simulation);
  if (!waits.empty()) text += "\nlongest waits\n";
  // Each wait names its message, the link that bound it, and the peer with its last activity.
  for (std::size_t i = 0; i < waits.size(); ++i) {
    const LongWait& wait = waits[i];
    text += entry(i + 1, fmt::format("device {}, {}, {} from {}", wait.wait->device.value,
                                     to_string(wait.direction),
                                     time_text(wait.wait->end_us - wait.wait->start_us),
                                     time_text(wait.wait->start_us)));
    text += line("for " + wait.text.message);
    text += line("link: " + wait.text.link);
    text += line(fmt::format("{}, was {}", wait.text.peer, wait.text.peer_was));
  }
  return text;
}

// The same content for programs. Times are in seconds, and words are those of the text.
Json why_json(const Plan& plan, const Cluster& cluster, const Simulation& simulation,
              const std::vector<TimeCause>& causes) {
  Json path = Json::object();
  for (const auto& [direction, simulated] : simulation.directions()) {
    const auto us = path_times_us(critical_path(*simulated));
    Json& times = path[std::string(to_string(direction))];
    for (const StepKind kind : kStepKinds) {
      if (kind == StepKind::kBarrier) continue;  // takes no time
      times[fmt::format("{}_s", to_string(kind))] = 1e-6 * us[static_cast<std::size_t>(kind)];
    }
  }
  Json list = Json::array();
  for (const TimeCause& cause : causes) {
    const CauseText words = cause_text(cause, plan, cluster);
    Json& entry = list.emplace_back(Json{{"cause", to_string(cause.cause)},
                                         {"what", words.what},
                                         {"remedy", words.remedy},
                                         {"path_s", 1e-6 * cause.path_us},
                                         {"without_s", 1e-6 * cause.without_us},
                                         {"gain_s", 1e-6 * cause.gain_us},
                                         {"steps", cause.steps}});
    // Keys that only some causes have are absent elsewhere.
    if (cause.cause == Cause::kImbalance) {
      entry["device"] = cause.device.value;
      entry["ratio"] = cause.ratio;
    }
    if (cause.port) {
      entry["link"] = port_text(cluster, *cause.port);
      entry["bytes"] = cause.bytes;
      entry["links_without_limit"] = cause.num_ports;
    }
  }
  Json waits = Json::array();
  for (const LongWait& wait : longest_waits(plan, cluster, simulation)) {
    waits.push_back({{"direction", to_string(wait.direction)},
                     {"round", wait.program->round},
                     {"mask", wait.program->mask},
                     {"device", wait.wait->device.value},
                     {"start_s", 1e-6 * wait.wait->start_us},
                     {"wait_s", 1e-6 * (wait.wait->end_us - wait.wait->start_us)},
                     {"message", wait.text.message},
                     {"link", wait.text.link},
                     {"peer", wait.text.peer},
                     {"peer_was", wait.text.peer_was}});
  }
  return {{"critical_path", std::move(path)},
          {"causes", std::move(list)},
          {"longest_waits", std::move(waits)}};
}

}  // namespace contextile

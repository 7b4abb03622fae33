#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "contextile/simulate.h"
#include "predict/simulate/ports.h"

namespace contextile {
namespace {

StepKind kind_of(Activity activity) {
  switch (activity) {
    case Activity::kAttention:
      return StepKind::kAttention;
    case Activity::kMerge:
      return StepKind::kMerge;
    case Activity::kLaunch:
      return StepKind::kLaunch;
    case Activity::kExposed:
      break;
  }
  fail_argument("critical path: expected an activity that computes, found a wait");
}

// Finds the event that let another begin, in one program. Spans of a device follow each other
// without gaps, and a wait ends with its message, so equal times are the same event.
class Dependencies {
 public:
  explicit Dependencies(const SimulatedProgram& program) : program_(program) {
    for (std::size_t m = 0; m < program.messages.size(); ++m) {
      const MessageSpan& message = program.messages[m];
      last_of_[{message.src, message.src_launch}] = static_cast<std::int32_t>(m);
      last_of_[{message.dst, message.dst_launch}] = static_cast<std::int32_t>(m);
    }
  }

  // The message of a device's launch that ended last.
  [[nodiscard]] std::int32_t last_message(Rank device, std::int32_t launch) const {
    const auto found = last_of_.find({device, launch});
    CONTEXTILE_CHECK(found != last_of_.end(),
                     "critical path: rank {}: expected messages of launch {}, found none",
                     device.value, launch);
    return found->second;
  }

  // The spans of a device, by time.
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> spans_of(Rank device) const {
    const auto& spans = program_.activities;
    const auto begin = std::ranges::lower_bound(spans, device, {}, &ActivitySpan::device);
    const auto end = std::ranges::upper_bound(spans, device, {}, &ActivitySpan::device);
    return {static_cast<std::int32_t>(begin - spans.begin()),
            static_cast<std::int32_t>(end - spans.begin())};
  }

  // The span of a device that ends at that time; -1: it has not begun.
  [[nodiscard]] std::int32_t span_ending_at(Rank device, double time_us) const {
    const auto [begin, end] = spans_of(device);
    const auto first = program_.activities.begin() + begin;
    const auto after =
        std::upper_bound(first, program_.activities.begin() + end, time_us,
                         [](double time, const ActivitySpan& span) { return time < span.end_us; });
    return after == first ? -1 : static_cast<std::int32_t>(after - program_.activities.begin()) - 1;
  }

  // The steps from the end of a span back to a time; latest first.
  [[nodiscard]] std::vector<PathStep> back_from(std::int32_t activity, double until_us) const {
    std::vector<PathStep> steps;
    // Each iteration goes from an event to the one that let it happen.
    while (activity >= 0) {
      const ActivitySpan& span = at(activity);
      if (span.end_us <= until_us) break;
      if (span.activity == Activity::kExposed) {
        // A wait ends with the last message of its launch.
        activity = through_message(last_message(span.device, span.launch), until_us, steps);
      } else {
        steps.push_back({.kind = kind_of(span.activity),
                         .device = span.device,
                         .activity = activity,
                         .start_us = std::max(span.start_us, until_us),
                         .end_us = span.end_us});
        activity = span_ending_at(span.device, span.start_us);
      }
    }
    return steps;
  }

  [[nodiscard]] const SimulatedProgram& program() const { return program_; }

 private:
  struct KeyHash {
    std::size_t operator()(const std::pair<Rank, std::int32_t>& key) const {
      return std::hash<std::int64_t>()((std::int64_t{key.first.value} << 32) ^ key.second);
    }
  };

  [[nodiscard]] const ActivitySpan& at(std::int32_t activity) const {
    return program_.activities[static_cast<std::size_t>(activity)];
  }

  // Goes back past the message, and those that it queued behind, to the span that let it start.
  std::int32_t through_message(std::int32_t m, double until_us,
                               std::vector<PathStep>& steps) const {
    while (true) {
      const MessageSpan& message = program_.messages[static_cast<std::size_t>(m)];
      const auto add = [&](StepKind kind, double start_us, double end_us) {
        steps.push_back({.kind = kind,
                         .device = message.dst,
                         .message = m,
                         .start_us = std::max(start_us, until_us),
                         .end_us = end_us});
      };
      add(StepKind::kTransfer, message.flow_us, message.end_us);
      if (message.flow_us > std::max(message.start_us, until_us)) {
        add(StepKind::kLatency, message.start_us, message.flow_us);
      }
      if (message.start_us <= until_us) return -1;
      if (message.queued_after < 0) return span_ending_at(message.opener, message.start_us);
      // In the grouped order it queued behind an earlier launch of the device that opened it.
      m = last_message(message.opener, message.queued_after);
    }
  }

  const SimulatedProgram& program_;
  std::unordered_map<std::pair<Rank, std::int32_t>, std::int32_t, KeyHash> last_of_;
};

// The messages of every port by start.
class PortMessages {
 public:
  PortMessages(const SimulatedProgram& program, const Cluster& cluster)
      : program_(program), ports_(cluster), of_port_(static_cast<std::size_t>(ports_.num_ports())) {
    for (std::size_t m = 0; m < program.messages.size(); ++m) {
      const FlowPath path = ports_.path_between(program.messages[m].src, program.messages[m].dst);
      for (std::size_t i = 0; i < static_cast<std::size_t>(path.num_ports); ++i) {
        of_port_[static_cast<std::size_t>(path.port[i])].push_back(static_cast<std::int32_t>(m));
      }
    }
    for (std::vector<std::int32_t>& messages : of_port_) {
      std::ranges::stable_sort(messages, {}, [this](std::int32_t m) { return at(m).flow_us; });
    }
  }

  // Messages that crossed the binding port of `m` while it flowed.
  [[nodiscard]] std::vector<std::int32_t> beside(std::int32_t m) const {
    const MessageSpan& message = at(m);
    const bool is_flow = message.bound_by.kind == PortKind::kFlow;
    // Messages of one flow all cross the same ports.
    const std::int32_t port = is_flow ? ports_.path_between(message.src, message.dst).port[0]
                                      : ports_.number(message.bound_by);
    std::vector<std::int32_t> others;
    for (const std::int32_t other : of_port_[static_cast<std::size_t>(port)]) {
      if (at(other).flow_us >= message.end_us) break;
      if (is_flow && (at(other).src != message.src || at(other).dst != message.dst)) continue;
      if (other != m && at(other).end_us > message.flow_us) others.push_back(other);
    }
    return others;
  }

 private:
  [[nodiscard]] const MessageSpan& at(std::int32_t m) const {
    return program_.messages[static_cast<std::size_t>(m)];
  }

  const SimulatedProgram& program_;
  Ports ports_;
  std::vector<std::vector<std::int32_t>> of_port_;
};

double overlap_us(double a_start, double a_end, double b_start, double b_end) {
  return std::max(0.0, std::min(a_end, b_end) - std::max(a_start, b_start));
}

// Splits the wait by the phases of its message.
void split(const Dependencies& dependencies, const ActivitySpan& wait, WaitReason& reason) {
  const SimulatedProgram& program = dependencies.program();
  const MessageSpan& message = program.messages[static_cast<std::size_t>(reason.message)];
  reason.peer = message.src == wait.device ? message.dst : message.src;
  reason.transfer_us = overlap_us(wait.start_us, wait.end_us, message.flow_us, message.end_us);
  reason.latency_us = overlap_us(wait.start_us, wait.end_us, message.start_us, message.flow_us);
  reason.peer_us = std::max(0.0, message.launched_us - wait.start_us);
  reason.queued_us = overlap_us(wait.start_us, wait.end_us, message.launched_us, message.start_us);
  const auto [begin, end] = dependencies.spans_of(reason.peer);
  for (std::int32_t a = begin; a < end; ++a) {
    const ActivitySpan& span = program.activities[static_cast<std::size_t>(a)];
    reason.peer_was_us[static_cast<std::size_t>(span.activity)] +=
        overlap_us(wait.start_us, message.launched_us, span.start_us, span.end_us);
  }
}

}  // namespace

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::kAttention:
      return "attention";
    case StepKind::kMerge:
      return "merge";
    case StepKind::kLaunch:
      return "launch";
    case StepKind::kLatency:
      return "latency";
    case StepKind::kTransfer:
      return "transfer";
    case StepKind::kBarrier:
      return "barrier";
  }
  fail_argument("step kind: expected one of 6, found {}", static_cast<int>(kind));
}

std::vector<PathStep> critical_path(const SimulatedDirection& simulated) {
  std::vector<PathStep> path;
  double offset_us = 0;
  Rank slowest{0};
  // Programs run one after another, with a barrier between them. The path of each goes back from
  // its last end.
  for (std::size_t p = 0; p < simulated.programs.size(); ++p) {
    const SimulatedProgram& program = simulated.programs[p];
    const Dependencies dependencies(program);
    const auto last = std::ranges::find(program.activities, program.time_us, &ActivitySpan::end_us);
    CONTEXTILE_CHECK(program.time_us == 0 || last != program.activities.end(),
                     "critical path: expected a simulation with a timeline "
                     "(SimulateOptions::timeline), found none");
    if (p > 0) {
      path.push_back({.kind = StepKind::kBarrier,
                      .device = slowest,
                      .program = static_cast<std::int32_t>(p) - 1,
                      .start_us = offset_us,
                      .end_us = offset_us});
    }
    if (program.time_us > 0) {
      slowest = last->device;
      std::vector<PathStep> steps =
          dependencies.back_from(static_cast<std::int32_t>(last - program.activities.begin()), 0);
      std::ranges::reverse(steps);
      for (PathStep& step : steps) {
        step.program = static_cast<std::int32_t>(p);
        step.start_us += offset_us;
        step.end_us += offset_us;
        path.push_back(step);
      }
    }
    offset_us += program.time_us;
  }
  return path;
}

std::array<double, 6> path_times_us(const std::vector<PathStep>& path) {
  std::array<double, 6> us{};
  for (const PathStep& step : path) {
    us[static_cast<std::size_t>(step.kind)] += step.end_us - step.start_us;
  }
  return us;
}

const PathStep& WaitReason::root() const {
  CONTEXTILE_CHECK(!chain.empty(), "wait: expected a chain of steps, found none");
  return *std::ranges::max_element(
      chain, {}, [](const PathStep& step) { return step.end_us - step.start_us; });
}

std::vector<WaitReason> wait_reasons(const SimulatedProgram& program, const Cluster& cluster) {
  const Dependencies dependencies(program);
  const PortMessages of_ports(program, cluster);
  std::vector<WaitReason> reasons;
  for (std::size_t a = 0; a < program.activities.size(); ++a) {
    const ActivitySpan& wait = program.activities[a];
    if (wait.activity != Activity::kExposed) continue;
    WaitReason& reason = reasons.emplace_back();
    reason.activity = static_cast<std::int32_t>(a);
    reason.message = dependencies.last_message(wait.device, wait.launch);
    split(dependencies, wait, reason);
    reason.chain = dependencies.back_from(reason.activity, wait.start_us);
    std::ranges::reverse(reason.chain);
    reason.sharing = of_ports.beside(reason.message);
  }
  return reasons;
}

}  // namespace contextile

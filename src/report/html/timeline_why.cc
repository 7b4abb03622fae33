#include "report/html/timeline_why.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "report/wait_text.h"

namespace contextile {
namespace {

void add_wait(const SimulatedProgram& program, const WaitTexts& texts, const WaitReason& reason,
              VarintText& packed) {
  const MessageSpan& message = program.messages[static_cast<std::size_t>(reason.message)];
  packed.add(reason.peer.value);
  packed.add(reason.peer == message.src ? 1 : 0);
  packed.add(message.bytes);
  packed.add(texts.kinds(message));
  packed.add(static_cast<std::int64_t>(message.bound_by.kind));
  packed.add(message.bound_by.index);
  packed.add(static_cast<std::int64_t>(reason.sharing.size()));
  packed.add(timeline_ns(reason.peer_us));
  packed.add(timeline_ns(reason.queued_us));
  packed.add(timeline_ns(reason.latency_us));
  const PathStep& root = reason.root();
  packed.add(static_cast<std::int64_t>(root.kind));
  packed.add(root.device.value);
  packed.add(root.message < 0
                 ? 0
                 : program.messages[static_cast<std::size_t>(root.message)].src.value + 1);
  packed.add(timeline_ns(root.end_us - root.start_us));
}

}  // namespace

std::int64_t timeline_ns(double us) { return std::llround(us * 1e3); }

VarintText packed_path(const SimulatedDirection& simulated) {
  VarintText packed;
  std::int64_t last_ns = 0;
  for (const PathStep& step : critical_path(simulated)) {
    if (step.kind == StepKind::kBarrier) continue;
    packed.add(timeline_ns(step.end_us) - last_ns);
    packed.add(static_cast<std::int64_t>(step.kind));
    packed.add(step.device.value);
    if (step.message >= 0) {
      const SimulatedProgram& program = simulated.programs[static_cast<std::size_t>(step.program)];
      packed.add(program.messages[static_cast<std::size_t>(step.message)].src.value);
    }
    last_ns = timeline_ns(step.end_us);
  }
  return packed;
}

VarintText packed_waits(const Plan& plan, const Cluster& cluster, Direction direction,
                        const SimulatedDirection& simulated) {
  std::vector<VarintText> of_device(static_cast<std::size_t>(plan.num_devices()));
  for (const SimulatedProgram& program : simulated.programs) {
    const WaitTexts texts(plan, cluster, direction, program);
    for (const WaitReason& reason : wait_reasons(program, cluster)) {
      const ActivitySpan& wait = program.activities[static_cast<std::size_t>(reason.activity)];
      if (timeline_ns(wait.end_us - wait.start_us) == 0) continue;
      add_wait(program, texts, reason, of_device[wait.device.index()]);
    }
  }
  VarintText packed;
  for (const VarintText& waits : of_device) packed.append(waits);
  return packed;
}

}  // namespace contextile

// The timeline's account of waiting: the critical path, and the reason of every wait.
#pragma once

#include <cstdint>

#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "report/html/varint_text.h"

namespace contextile {

// A time on the timeline. Spans shorter than a nanosecond are left out of it.
[[nodiscard]] std::int64_t timeline_ns(double us);

// The steps, one after the other from the direction's start: ns, StepKind, device, and for latency
// and transfer the sender. Barriers are left out.
[[nodiscard]] VarintText packed_path(const SimulatedDirection& simulated);

// The waits in the order of the timeline's spans, each as these numbers:
// - peer, 1 if it sends, bytes, kinds (bit k: kind k);
// - kind and index of the port that bound the message, how many messages crossed it meanwhile;
// - ns for which the peer had not launched it, it queued, its latency took;
// - the longest step that led to the wait's end: StepKind, device, of a message the sender + 1,
//   else 0, and its ns.
[[nodiscard]] VarintText packed_waits(const Plan& plan, const Cluster& cluster, Direction direction,
                                      const SimulatedDirection& simulated);

}  // namespace contextile

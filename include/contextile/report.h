// Looking at plans: what people open in a viewer.
#pragma once

#include <iosfwd>

#include "contextile/plan.h"
#include "contextile/simulate.h"

namespace contextile {

// A simulation as Chrome trace events (JSON), which Perfetto and chrome://tracing open. One process
// for each device with the rows "compute" (instructions; waits are what communication costs),
// "send" and "receive" (messages; those that move at the same time lie on further rows, so that
// spans of a row never overlap), and one process "plan" with a span for each round, mask and
// direction. Forward comes first, backward after it. An arrow ties the two ends of a message. Spans
// carry what their instruction or message is about as arguments; times are µs with three digits.
//
// `simulation` is of `plan`, with SimulateOptions::timeline. Throws InvalidArgument when it has no
// timeline or other devices than the plan. Does not check the stream. O(events · log).
void write_trace(const Plan& plan, const Simulation& simulation, std::ostream& out);

}  // namespace contextile

// Views of plans for people: traces, reports and explanations.
//
//   const Plan plan = load_plan("batch.plan");
//   const Cluster cluster = load_cluster("dgx-h200:4x8");
//   const Simulation simulation = simulate(plan, cluster, {.timeline = true});
//   std::printf("%s", why_text(plan, cluster, simulation).c_str());
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>

#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"

namespace contextile {

// Writes a simulation as Chrome trace events (JSON), which Perfetto and chrome://tracing open.
// There is one process for each device with the rows "compute" (instructions; waits are the cost of
// communication), "send" and "receive" (messages; those that move at the same time lie on further
// rows, so that spans of a row never overlap). One process "plan" has a span for each round, mask
// and direction. Forward comes first, backward after it. An arrow ties the two ends of a message.
//
// Spans carry the details of their instruction or message as arguments. Waits also carry
// "waits_for": the message, link and peer, and what the peer was doing. The process "critical path"
// has the critical path (simulate.h), and spans on it are marked. Times are µs with three digits.
//
// `simulation` must be of `plan` on `cluster`, with SimulateOptions::timeline. Throws
// InvalidArgument when it has no timeline or other devices than the plan. Does not check the
// stream. O(events · log + waits · messages of a port).
void write_trace(const Plan& plan, const Cluster& cluster, const Simulation& simulation,
                 std::ostream& out);

// Explains, as text, why a plan takes its simulated time: the steps of the critical path, the
// causes that cost most and the gain of removing each, and the longest waits. `simulation` must be
// of `plan` on `cluster`, with SimulateOptions::timeline; otherwise throws InvalidArgument. Costs
// about ten simulations.
[[nodiscard]] std::string why_text(const Plan& plan, const Cluster& cluster,
                                   const Simulation& simulation);

// A plan to report on, with the results that the report shows.
struct ReportedPlan {
  std::string name;  // name of the plan on the page, such as its file; any text
  const Plan& plan;
  const Cluster& cluster;        // cluster of the simulation
  const Simulation& simulation;  // with SimulateOptions::timeline
  const VerifyReport& verified;
};

struct ReportOptions {
  // Approximate limit on the size of the page, in bytes. Beyond it pictures show less detail, and
  // the page says so where they do; tables keep their full detail.
  std::int64_t max_bytes = 3'000'000;
};

// Writes one HTML page about one plan, or two side by side: facts, statistics, times next to their
// lower bounds, the batch with its mask and the device that computes each part, timeline, traffic,
// and every device (docs/report.md). The page needs no other file and no network, forbids itself
// both, and carries no third-party script. Tables are readable without scripts. Names may hold any
// text.
//
// Throws InvalidArgument when there are no plans or more than two, when a plan is not valid (see
// verify), or when a simulation is not of its plan or has no timeline. It also throws as
// lower_bound does, and IoError when the stream fails. O(tiles + messages · log), and at most a few
// seconds for pictures.
void write_report(std::span<const ReportedPlan> plans, std::ostream& out,
                  const ReportOptions& options = {});

}  // namespace contextile

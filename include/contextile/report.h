// Looking at plans: what people open in a viewer.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>

#include "contextile/advanced/flight_record.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"

namespace contextile {

// A simulation as Chrome trace events (JSON), which Perfetto and chrome://tracing open. One process
// for each device with the rows "compute" (instructions; waits are what communication costs),
// "send" and "receive" (messages; those that move at the same time lie on further rows, so that
// spans of a row never overlap), and one process "plan" with a span for each round, mask and
// direction. Forward comes first, backward after it. An arrow ties the two ends of a message. Spans
// carry what their instruction or message is about as arguments; waits also "waits_for": message,
// link, peer, and what the peer was doing. The process "critical path" has the critical path
// (simulate.h), and spans on it say so. Times are µs with three digits.
//
// `simulation` is of `plan` on `cluster`, with SimulateOptions::timeline. Throws InvalidArgument
// when it has no timeline or other devices than the plan. Does not check the stream. O(events · log
// + waits · messages of a port).
void write_trace(const Plan& plan, const Cluster& cluster, const Simulation& simulation,
                 std::ostream& out);

// Why a plan takes its simulated time, as text: the steps of the critical path, the causes that
// cost most and what they are worth, the longest waits. `simulation` is of `plan` on `cluster`,
// with SimulateOptions::timeline, else InvalidArgument. Costs some ten simulations.
[[nodiscard]] std::string why_text(const Plan& plan, const Cluster& cluster,
                                   const Simulation& simulation);

// A plan to report on, with what is known of it.
struct ReportedPlan {
  std::string name;  // what the page calls it, such as its file; any text
  const Plan& plan;
  const Cluster& cluster;        // what the simulation is of
  const Simulation& simulation;  // with SimulateOptions::timeline
  const VerifyReport& verified;
};

struct ReportOptions {
  // About how large the page may become. Beyond it pictures show less detail, and the page says so
  // where they do; tables stay as they are.
  std::int64_t max_bytes = 3'000'000;
};

// One HTML page about one plan, or two side by side: facts, statistics, times beside their lower
// bounds, the batch with its mask and who computes what, timeline, traffic, every device
// (docs/report.md). It needs no other file and no network, forbids itself both, and carries no
// script of others. Tables are readable without scripts. Names may hold anything.
//
// Throws InvalidArgument when there are no or more than two plans, a plan is not valid (see
// verify), or a simulation is not of its plan or has no timeline; as lower_bound does; IoError when
// the stream fails. O(tiles + messages · log), and at most a few seconds for pictures.
void write_report(std::span<const ReportedPlan> plans, std::ostream& out,
                  const ReportOptions& options = {});

// One HTML page about a group that failed: who stopped it (`verdict` is judge_flight's of the
// records), what every rank did last, who waited for whom. No script. Beyond max_bytes it has fewer
// steps and ranks, and says so. Throws IoError when the stream fails.
void write_flight_report(std::span<const FlightRecord> records, const FlightVerdict& verdict,
                         std::ostream& out, const ReportOptions& options = {});

}  // namespace contextile

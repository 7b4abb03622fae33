// Chrome traces: of a plan whose times are computed by hand, and of every strategy's plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "support/plan_support.h"
#include "support/trace_support.h"

namespace contextile {
namespace {

using nlohmann::json;

Trace trace_of(const Plan& plan, const Cluster& cluster, const Simulation& simulation) {
  std::ostringstream out;
  write_trace(plan, cluster, simulation, out);
  return parse_trace(out.str());
}

Trace trace_of(const Plan& plan, const Cluster& cluster) {
  return trace_of(plan, cluster, simulate(plan, cluster, {.timeline = true}));
}

// Costs for example_plan(): a pair takes 1 µs, a call 5, a launch 1, a message 2 and 1 for every 16
// bytes, merging 1 for every 120 bytes.
Cluster round_numbers() {
  Cluster cluster;
  cluster.devices_per_node = 2;
  cluster.attention_tflops = 32e-6;  // 2 heads, 2 x (4 + 4) FLOPs a pair and head
  cluster.attention = {.q_rows = {1},
                       .kv_rows = {1},
                       .forward = {1},
                       .backward = {1},
                       .call_us = 5,
                       .kernel_tile_rows = 0};
  cluster.launch_us = 1;
  cluster.intra_latency_us = 2;
  cluster.intra_gbytes_per_s = 0.016;
  cluster.memory_gbytes_per_s = 0.120;
  return cluster;
}

struct Expected {
  std::string name;
  double start_us;
  double end_us;
  bool operator==(const Expected&) const = default;
};
void PrintTo(const Expected& span, std::ostream* out) {
  *out << span.name << " [" << span.start_us << ", " << span.end_us << "]";
}

// The spans of a row that begin before `end_us`, by time.
std::vector<Expected> spans_of(const Trace& trace, const TraceRow& row, double end_us) {
  std::vector<Expected> spans;
  if (!trace.rows.contains(row)) return spans;
  for (const TraceSpan& span : trace.rows.at(row)) {
    if (1e-3 * static_cast<double>(span.start_ns) >= end_us) continue;
    spans.push_back({span.event.at("name"), 1e-3 * static_cast<double>(span.start_ns),
                     1e-3 * static_cast<double>(span.end_ns)});
  }
  std::ranges::sort(spans, {}, &Expected::start_us);
  return spans;
}

std::int64_t row_named(const Trace& trace, std::int64_t process, const std::string& name) {
  for (const auto& [row, row_name] : trace.row_names) {
    if (row.first == process && row_name == name) return row.second;
  }
  return -1;
}

TEST(Trace, ShowsTheExamplePlanAsComputedByHand) {
  const Trace trace = trace_of(example_plan(), round_numbers());
  expect_well_formed(trace);
  constexpr double kForwardUs = 31.5;
  const auto row = [&](std::int64_t process, const std::string& name) {
    return spans_of(trace, {process, row_named(trace, process, name)}, kForwardUs);
  };
  using testing::ElementsAre;
  // The query of 16 bytes arrives while rank 0 computes its own tile of 10 pairs.
  EXPECT_THAT(row(0, "compute"),
              ElementsAre(Expected{"launch 0", 0, 1}, Expected{"attention", 1, 16},
                          Expected{"attention", 16, 25}, Expected{"launch 1", 25, 26},
                          Expected{"wait 1", 26, 30.5}));
  EXPECT_THAT(row(1, "compute"),
              ElementsAre(Expected{"launch 0", 0, 1}, Expected{"attention", 1, 13},
                          Expected{"launch 1", 13, 14}, Expected{"wait 1", 14, 30.5},
                          Expected{"reduce o", 30.5, 31.5}));
  EXPECT_THAT(row(1, "send"), ElementsAre(Expected{"1 q to 0", 1, 4}));
  EXPECT_THAT(row(0, "receive"), ElementsAre(Expected{"1 q from 1", 1, 4}));
  EXPECT_THAT(row(0, "send"), ElementsAre(Expected{"1 o to 1", 26, 30.5}));
  EXPECT_THAT(row(1, "receive"), ElementsAre(Expected{"1 o from 0", 26, 30.5}));
  EXPECT_THAT(row(2, "programs"), ElementsAre(Expected{"forward: causal, round 0", 0, 31.5}));
}

TEST(Trace, SpansSayWhatTheyAreAbout) {
  const Trace trace = trace_of(example_plan(), round_numbers());
  const std::vector<TraceSpan> attention = trace.of_category("attention");
  ASSERT_EQ(attention.size(), 6U);  // three calls a direction
  const json& first = attention.front().event.at("args");
  EXPECT_EQ(first.at("tiles"), 1);
  EXPECT_EQ(first.at("pairs"), 10);
  EXPECT_NEAR(first.at("gflops").get<double>(), 320e-9, 1e-15);
  const std::vector<TraceSpan> sends = trace.of_category("send");
  ASSERT_EQ(sends.size(), 4U);
  for (const TraceSpan& send : sends) {
    const json& about = send.event.at("args");
    EXPECT_EQ(about.at("link"), "intra");
    EXPECT_GT(about.at("bytes"), 0);
    EXPECT_TRUE(about.contains("sender_launch") && about.contains("receiver_launch"));
  }
  EXPECT_EQ(trace.process_names.at(2), "plan: example");
  EXPECT_EQ(trace.process_names.at(1), "device 1 (node 0)");
}

TEST(Trace, WaitsSayWhatTheyWaitFor) {
  const Trace trace = trace_of(example_plan(), round_numbers());
  const std::vector<TraceSpan> waits = trace.of_category("exposed");
  ASSERT_FALSE(waits.empty());
  for (const TraceSpan& wait : waits) {
    for (const char* key : {"message", "link", "peer", "peer_was"}) {
      EXPECT_NE(wait.event.at("args").at("waits_for").at(key), "") << key;
    }
  }
  // Rank 1 waits from 14 to 30.5 for the result that rank 0 launches at 26.
  const auto wait = std::ranges::find_if(waits, [](const TraceSpan& span) {
    return span.event.at("pid") == 1 && span.start_ns == 14000;
  });
  ASSERT_NE(wait, waits.end());
  const json& why = wait->event.at("args").at("waits_for");
  EXPECT_EQ(why.at("message"), "launch 1: 1 o of block 1, 40.00 B");
  EXPECT_EQ(why.at("link"), "device 0's port, out");
  EXPECT_EQ(why.at("peer"), "device 0, the sender");
  EXPECT_EQ(why.at("peer_was"),
            "computing attention for 11.00 µs and launching for 1.000 µs; then the message had "
            "2.000 µs of latency and moved for 2.500 µs");
}

TEST(Trace, MarksTheCriticalPathInARowOfItsOwn) {
  const Trace trace = trace_of(example_plan(), round_numbers());
  constexpr double kForwardUs = 31.5;
  using testing::ElementsAre;
  EXPECT_THAT(
      spans_of(trace, {3, 0}, kForwardUs),
      ElementsAre(Expected{"launch, device 0", 0, 1}, Expected{"attention, device 0", 1, 16},
                  Expected{"attention, device 0", 16, 25}, Expected{"launch, device 0", 25, 26},
                  Expected{"latency, 0 to 1", 26, 28}, Expected{"transfer, 0 to 1", 28, 30.5},
                  Expected{"merge, device 1", 30.5, 31.5}));
  EXPECT_EQ(trace.process_names.at(3), "critical path");
  std::int64_t critical_ns = 0;
  for (const char* category : {"attention", "merge", "launch"}) {
    for (const TraceSpan& span : trace.of_category(category)) {
      if (span.event.at("args").contains("critical")) critical_ns += span.end_ns - span.start_ns;
    }
  }
  std::int64_t path_ns = 0;
  for (const TraceSpan& step : trace.of_category("critical_path")) {
    if (!step.event.at("args").contains("sender")) path_ns += step.end_ns - step.start_ns;
  }
  EXPECT_EQ(critical_ns, path_ns);
}

TEST(Trace, PutsTheBackwardPassAfterTheForwardOne) {
  const std::vector<TraceSpan> programs =
      trace_of(example_plan(), round_numbers()).of_category("program");
  ASSERT_EQ(programs.size(), 2U);
  EXPECT_EQ(programs[1].event.at("name"), "backward: causal, round 0");
  EXPECT_EQ(programs[1].start_ns, programs[0].end_ns);
}

TEST(Trace, OfEveryStrategyIsWellFormedAndHoldsEveryByte) {
  Chance chance(11);
  for (int i = 0; i < 12; ++i) {
    const RandomBatch batch = random_batch_of(chance);
    SCOPED_TRACE(batch.text);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(named.name);
      const Simulation simulation = simulate(named.plan, batch.cluster, {.timeline = true});
      const Trace trace = trace_of(named.plan, batch.cluster, simulation);
      expect_well_formed(trace);
      std::int64_t sent = 0;
      std::int64_t last_ns = 0;
      for (const TraceSpan& send : trace.of_category("send")) {
        sent += send.event.at("args").at("bytes").get<std::int64_t>();
      }
      for (const TraceSpan& program : trace.of_category("program")) {
        last_ns = std::max(last_ns, program.end_ns);
      }
      std::int64_t moved = 0;
      for (const auto& [direction, simulated] : simulation.directions()) {
        moved += simulated->intra_bytes + simulated->inter_bytes;
      }
      EXPECT_EQ(sent, moved);
      std::int64_t path_end_ns = 0;
      std::vector<TraceSpan> path = trace.of_category("critical_path");
      std::ranges::stable_sort(path, {}, &TraceSpan::start_ns);
      for (const TraceSpan& step : path) {
        EXPECT_EQ(step.start_ns, path_end_ns);
        path_end_ns = step.end_ns;
      }
      EXPECT_NEAR(static_cast<double>(path_end_ns), static_cast<double>(last_ns), 2);
      EXPECT_NEAR(1e-3 * static_cast<double>(last_ns), simulation.time_us(), 0.01);
    }
  }
}

TEST(Trace, KeepsNamesThatAreNoPlainText) {
  Plan plan = example_plan();
  plan.strategy = "a \"b\"\n\xff";
  plan.rounds.front().masks.front().name = "m\\\"";
  const Trace trace = trace_of(plan, round_numbers());
  EXPECT_EQ(trace.of_category("program").front().event.at("name"), "forward: m\\\", round 0");
}

TEST(Trace, RefusesASimulationWithoutTimelineOrOfAnotherPlan) {
  const Plan plan = example_plan();
  std::ostringstream out;
  EXPECT_THROW(write_trace(plan, round_numbers(), simulate(plan, round_numbers()), out),
               InvalidArgument);
  Simulation other = simulate(plan, round_numbers(), {.timeline = true});
  other.forward->devices.resize(3);
  EXPECT_THROW(write_trace(plan, round_numbers(), other, out), InvalidArgument);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace contextile

// The critical path and the reasons of waits in a page's timeline, and their words.
#include "report/html/timeline_why.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "report/html/timeline_view.h"
#include "report/report_support.h"
#include "report/wait_text.h"
#include "report/why.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

TEST(TimelineWhy, HoldsThePathAndTheReasonOfEveryWait) {
  Chance chance(4);
  for (int i = 0; i < 4; ++i) {
    const RandomBatch batch = random_batch_of(chance);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(named.name);
      const Plan& plan = named.plan;
      const Cluster& cluster = batch.cluster;
      const Reported reported(plan, cluster);
      const TimelinePicture picture =
          timeline_picture(plan, cluster, reported.simulation, 10'000'000);
      std::size_t at = 0;
      for (const auto& [direction, simulated] : reported.simulation.directions()) {
        const ReportJson& json = picture.json[at++];
        PackedReader path(json["path"].get<std::string>());
        std::int64_t path_ns = 0;
        while (!path.done()) {
          path_ns += path.next();
          const std::int64_t kind = path.next();
          EXPECT_LT(path.next(), plan.num_devices());
          if (kind >= static_cast<std::int64_t>(StepKind::kLatency)) {
            EXPECT_LT(path.next(), plan.num_devices());
          }
        }
        EXPECT_NEAR(static_cast<double>(path_ns), simulated->time_us * 1e3, 1);
        std::vector<std::int64_t> wait_ns;
        PackedReader spans(json["spans"].get<std::string>());
        for (std::int32_t d = 0; d < plan.num_devices(); ++d) {
          for (std::int64_t left = spans.next(); left > 0; --left) {
            spans.next_signed();
            const std::int64_t ns = spans.next();
            if (spans.next() == 4) wait_ns.push_back(ns);
            for (int i = 0; i < 3; ++i) spans.next();
          }
        }
        PackedReader waits(json["waits"].get<std::string>());
        for (const std::int64_t ns : wait_ns) {
          for (int i = 0; i < 7; ++i) waits.next();
          std::int64_t before_ns = 0;
          for (int i = 0; i < 3; ++i) before_ns += waits.next();
          EXPECT_LE(before_ns, ns + 3);  // the rest is moving
          for (int i = 0; i < 3; ++i) waits.next();
          EXPECT_LE(waits.next(), ns + 1);
        }
        EXPECT_TRUE(waits.done());
      }
    }
  }
}

TEST(WaitTexts, NamePortsAfterWhatTheyBelongTo) {
  Cluster cluster;
  cluster.nodes = 2;
  EXPECT_EQ(port_text(cluster, {PortKind::kDeviceIn, 5}), "device 5's port, in");
  EXPECT_EQ(port_text(cluster, {PortKind::kNicOut, 1}), "node 1's uplink, out");
  cluster.nics_per_node = 4;
  EXPECT_EQ(port_text(cluster, {PortKind::kNicIn, 6}), "node 1's NIC 2, in");
  EXPECT_EQ(port_text(cluster, {PortKind::kFlow, 3}), "device 3's flow, out");
}

TEST(CauseText, SaysWhatEveryCauseIsAndWithWhatItWouldBeGone) {
  const Plan plan = example_plan();
  Cluster cluster;
  cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = 4}};
  for (int c = 0; c <= static_cast<int>(Cause::kSharedSlots); ++c) {
    TimeCause cause;
    cause.cause = static_cast<Cause>(c);
    cause.port = NetworkPort{PortKind::kNicOut, 0};
    SCOPED_TRACE(to_string(cause.cause));
    const CauseText text = cause_text(cause, plan, cluster);
    EXPECT_NE(text.what, "");
    EXPECT_NE(text.remedy, "");
  }
}

}  // namespace
}  // namespace contextile

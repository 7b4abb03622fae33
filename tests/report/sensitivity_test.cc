// Clusters with one constant changed, and the fastest strategies on them.
#include "contextile/advanced/sensitivity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "report/json.h"
#include "report/sensitivity_tables.h"
#include "support/batches.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::vector<std::string> constants_of(const std::vector<ChangedConstant>& clusters) {
  std::vector<std::string> names;
  for (const ChangedConstant& changed : clusters) names.push_back(changed.constant);
  return names;
}

const ChangedConstant& find(const std::vector<ChangedConstant>& clusters,
                            const std::string& constant, const std::string& is) {
  const auto found = std::ranges::find_if(clusters, [&](const ChangedConstant& changed) {
    return changed.constant == constant && changed.is == is;
  });
  if (found == clusters.end()) fail_argument("no {} of {}", constant, is);
  return *found;
}

// Restores a constant.
void restore(const std::string& constant, const Cluster& was, Cluster& cluster) {
  const std::map<std::string, std::function<void()>> restores = {
      {"call_us", [&] { cluster.attention.call_us = was.attention.call_us; }},
      {"attention_tflops", [&] { cluster.attention_tflops = was.attention_tflops; }},
      {"memory_gbytes_per_s", [&] { cluster.memory_gbytes_per_s = was.memory_gbytes_per_s; }},
      {"launch_us", [&] { cluster.launch_us = was.launch_us; }},
      {"latencies_us",
       [&] {
         cluster.intra_latency_us = was.intra_latency_us;
         cluster.inter_latency_us = was.inter_latency_us;
       }},
      {"intra_gbytes_per_s", [&] { cluster.intra_gbytes_per_s = was.intra_gbytes_per_s; }},
      {"inter_gbytes_per_s_per_node",
       [&] { cluster.inter_gbytes_per_s_per_node = was.inter_gbytes_per_s_per_node; }},
      {"nics_per_node", [&] { cluster.nics_per_node = was.nics_per_node; }},
      {"flow_gbytes_per_s", [&] { cluster.flow_gbytes_per_s = was.flow_gbytes_per_s; }},
      {"launches", [&] { cluster.launches = was.launches; }},
      {"sm_fraction", [&] { cluster.sm_fraction = was.sm_fraction; }},
      {"transfer_compute_us_per_mb",
       [&] { cluster.transfer_compute_us_per_mb = was.transfer_compute_us_per_mb; }},
      {"compute_slots_per_node",
       [&] { cluster.compute_slots_per_node = was.compute_slots_per_node; }}};
  const auto found = restores.find(constant);
  if (found != restores.end()) return found->second();
  const double call_us = cluster.attention.call_us;
  cluster.attention = was.attention;  // constants of the grid
  cluster.attention.call_us = call_us;
}

TEST(ChangedConstants, EachDiffersInNothingButItsConstant) {
  Cluster measured = cluster_of(2, 4);
  measured.attention.forward.front() *= 0.7;  // no closed form any more
  measured.sm_fraction = 0.2;
  measured.transfer_compute_us_per_mb = 3;
  measured.compute_slots_per_node = 2;
  measured.nics_per_node = 2;
  measured.flow_gbytes_per_s = {{2, 43}, {8, 26}};
  for (const Cluster& cluster : {load_cluster("p4de:2x4"), load_cluster("dgx-h100:1x8"),
                                 load_cluster("local:1x2"), measured}) {
    const std::vector<ChangedConstant> clusters = changed_constants(cluster);
    EXPECT_EQ(clusters.front().constant, "");
    EXPECT_EQ(to_json(clusters.front().cluster), to_json(cluster));
    std::set<std::string> different;
    for (std::size_t i = 1; i < clusters.size(); ++i) {
      SCOPED_TRACE(cluster.name + ": " + clusters[i].constant + " " + clusters[i].is);
      EXPECT_NO_THROW(check_cluster(clusters[i].cluster));
      EXPECT_TRUE(different.insert(to_json(clusters[i].cluster)).second);
      EXPECT_NE(to_json(clusters[i].cluster), to_json(cluster));
      Cluster restored = clusters[i].cluster;
      restore(clusters[i].constant, cluster, restored);
      EXPECT_EQ(to_json(restored), to_json(cluster));
    }
  }
}

TEST(ChangedConstants, GridsOfAClosedFormAreMadeAnew) {
  const Cluster cluster = load_cluster("dgx-h100:2x8");
  const std::vector<ChangedConstant> clusters = changed_constants(cluster);
  const auto expect = [&](const std::string& constant, const std::string& is,
                          const AttentionProfile& profile) {
    const AttentionProfile& found = find(clusters, constant, is).cluster.attention;
    ASSERT_EQ(found.forward.size(), profile.forward.size());
    for (std::size_t i = 0; i < profile.forward.size(); ++i) {
      EXPECT_NEAR(found.forward[i], profile.forward[i], 1e-9) << constant << ' ' << i;
      EXPECT_NEAR(found.backward[i], profile.backward[i], 1e-9) << constant << ' ' << i;
    }
    EXPECT_EQ(found.kernel_tile_rows, profile.kernel_tile_rows);
  };
  const auto made = [](double forward_keys, double backward_keys, double forward_pairs,
                       double backward_pairs, double share, std::int64_t tile = 128) {
    AttentionProfile profile =
        AttentionProfile::from_overheads(forward_keys, forward_pairs, share, tile);
    profile.backward =
        AttentionProfile::from_overheads(backward_keys, backward_pairs, share, tile).backward;
    return profile;
  };
  expect("row_keys", "x 0.5", made(109, 361, 9600, 11963, 0.9));
  expect("row_keys", "x 2", made(436, 1444, 9600, 11963, 0.9));
  expect("call_pairs", "x 0.5", made(218, 722, 4800, 5981.5, 0.9));
  expect("kernel_tile_rows", "64", made(218, 722, 9600, 11963, 0.9, 64));
  expect("backward_share", "0.45", made(218, 722, 9600, 11963, 0.45));
  EXPECT_EQ(find(clusters, "row_keys", "x 0.5").was, "");
}

// Both directions alike have one number.
TEST(ChangedConstants, AlikeDirectionsHaveOneNumber) {
  Cluster cluster = load_cluster("dgx-h100:2x8");
  cluster.attention = AttentionProfile::from_overheads(218, 9600, 0.86);
  EXPECT_EQ(find(changed_constants(cluster), "row_keys", "109").was, "218");
  cluster.attention = AttentionProfile::from_overheads(218, 9600, 2.0 / 3);
  EXPECT_EQ(find(changed_constants(cluster), "row_keys", "109").was, "218");
}

TEST(ChangedConstants, MeasuredGridsLoseHalfOrTwiceAsMuch) {
  Cluster cluster = load_cluster("p4de");
  AttentionProfile& profile = cluster.attention;
  profile.q_rows = {64, 4096};
  profile.kv_rows = {32, 512, 8192};
  profile.forward = {0.1, 0.2, 0.3, 0.2, 0.5, 0.8};
  profile.backward = {0.1, 0.1, 0.2, 0.2, 0.4, 0.6};
  const std::vector<ChangedConstant> clusters = changed_constants(cluster);
  EXPECT_THAT(constants_of(clusters), Not(testing::Contains("row_keys")));
  for (const double factor : {0.5, 2.0}) {
    const AttentionProfile& changed =
        find(clusters, "kernel_overheads", factor == 2 ? "x 2" : "x 0.5").cluster.attention;
    for (std::size_t i = 0; i < profile.forward.size(); ++i) {
      // Times of a pair are reciprocals of shares.
      EXPECT_NEAR(1 / changed.forward[i] - 1 / 0.8, factor * (1 / profile.forward[i] - 1 / 0.8),
                  1e-12);
      EXPECT_NEAR(1 / changed.backward[i] - 1 / 0.6, factor * (1 / profile.backward[i] - 1 / 0.6),
                  1e-12);
    }
  }
  EXPECT_DOUBLE_EQ(find(clusters, "backward_share", "x 2").cluster.attention.backward.back(), 1.2);
}

TEST(ChangedConstants, LeavesOutWhatWouldBeTheSameOrCannotBe) {
  Cluster cluster = load_cluster("dgx-h100:1x8");
  cluster.launch_us = 0;
  cluster.intra_latency_us = cluster.inter_latency_us = 0;
  std::vector<std::string> names = constants_of(changed_constants(cluster));
  for (const char* name : {"launch_us", "latencies_us", "transfer_compute_us_per_mb",
                           "compute_slots_per_node", "inter_gbytes_per_s_per_node"}) {
    EXPECT_THAT(names, Not(testing::Contains(name)));
  }
  EXPECT_EQ(std::ranges::count(names, "sm_fraction"), 1);
  EXPECT_THAT(names, Not(testing::Contains("transfer_sms")));
  cluster = load_cluster("dgx-h100:2x8");
  cluster.transfer_sms = 8;
  cluster.sm_fraction = 0.6;  // not twice
  const std::vector<ChangedConstant> clusters = changed_constants(cluster);
  names = constants_of(clusters);
  EXPECT_EQ(std::ranges::count(names, "sm_fraction"), 1);
  EXPECT_EQ(find(clusters, "sm_fraction", "0.3").cluster.sm_fraction, 0.3);
  EXPECT_EQ(find(clusters, "transfer_sms", "4").cluster.transfer_sms, 4);
  EXPECT_EQ(find(clusters, "transfer_sms", "16").cluster.transfer_sms, 16);
  EXPECT_EQ(std::ranges::count(names, "nics_per_node"), 1);  // 16 NICs would be more than devices
  EXPECT_THAT(names, IsSupersetOf({"inter_gbytes_per_s_per_node", "launches"}));
  EXPECT_EQ(find(clusters, "launches", "concurrent").cluster.launches, LaunchOrder::kConcurrent);
}

class SensitivityTest : public testing::Test {
 protected:
  [[nodiscard]] static Sensitivity kept(const PlanInput& input,
                                        const std::vector<StrategyChoice>& choices) {
    SensitivityOfPlans plans(input.cluster, choices, input.batches.size());
    ComparisonHooks hooks;
    hooks.planned = [&](std::size_t strategy, std::size_t batch, const PlannedBatch& planned) {
      plans.add(strategy, batch, *planned.plan);
    };
    (void)compare_strategies(input, choices, hooks);
    return plans.result();
  }

  const PlanInput input_{load_cluster("dgx-h200:2x2"),
                         {default_batch_of({9000, 300, 4100}), default_batch_of({6000, 6000})},
                         {}};
  const std::vector<StrategyChoice> choices_ = parse_strategies("zigzag,ulysses,magi,hybrid");
};

TEST_F(SensitivityTest, KeptPlansTakeWhatTheyAreSimulatedToTake) {
  const Sensitivity found = kept(input_, choices_);
  ASSERT_EQ(found.times_us.size(), found.clusters.size());
  for (std::size_t i = 0; i < found.clusters.size(); ++i) {
    for (std::size_t s = 0; s < choices_.size(); ++s) {
      double sum_us = 0;
      for (const Workload& workload : input_.batches) {
        const PlannedBatch planned =
            plan_batch(workload, input_.cluster, choices_[s], input_.options);
        sum_us += simulate(*planned.plan, found.clusters[i].cluster).time_us();
      }
      EXPECT_EQ(found.times_us[i][s], std::optional(sum_us / 2)) << found.clusters[i].constant;
    }
  }
}

TEST_F(SensitivityTest, ReplannedTimesAreThoseOfAComparisonOnTheChangedCluster) {
  const PlanInput input{load_cluster("p4de:1x2"), {default_batch_of({3000, 700})}, {}};
  const std::vector<StrategyChoice> choices = parse_strategies("ring,magi,auto:steps=1000");
  std::size_t told = 0;
  const Sensitivity found =
      replan_sensitivity(input, choices, [&](const ChangedConstant&, std::size_t) { ++told; });
  EXPECT_EQ(told, found.clusters.size() * choices.size());
  for (std::size_t i = 0; i < found.clusters.size(); ++i) {
    const std::vector<ComparedStrategy> compared =
        compare_strategies({found.clusters[i].cluster, input.batches, {}}, choices);
    for (std::size_t s = 0; s < choices.size(); ++s) {
      EXPECT_EQ(found.times_us[i][s], std::optional(compared[s].simulations.front().time_us()));
    }
  }
}

TEST_F(SensitivityTest, StrategiesThatDoNotApplyHaveNoTime) {
  const PlanInput input{load_cluster("p4de:2x6"), {default_batch_of({3000, 700})}, {}};
  const std::vector<StrategyChoice> choices = parse_strategies("zigzag,ulysses");  // 8 KV heads
  for (const Sensitivity& found : {kept(input, choices), replan_sensitivity(input, choices)}) {
    for (const auto& times_us : found.times_us) {
      EXPECT_TRUE(times_us[0]);
      EXPECT_FALSE(times_us[1]);
    }
    EXPECT_EQ(standing(found, 0).pairs, 0);
  }
}

// Makes two launches of every exchange, first the receives, then the sends: both ranks wait to
// receive before they send.
void receive_before_sending(Plan& plan) {
  for (PlanRound& round : plan.rounds) {
    for (auto& device : round.devices) {
      std::vector<Instruction>& instructions = device.programs[0].forward->instructions;
      std::vector<Instruction> split;
      for (Instruction& instruction : instructions) {
        split.push_back(instruction);
        auto* launch = std::get_if<LaunchOp>(&split.back());
        if (launch == nullptr || launch->sends.empty() || launch->recvs.empty()) continue;
        const LaunchOp sending{1000 + launch->id, std::exchange(launch->sends, {}), {}};
        split.emplace_back(sending);
      }
      instructions = std::move(split);
    }
  }
}

TEST_F(SensitivityTest, PlansThatWaitForeverOneLaunchAtATimeHaveNoTimeThere) {
  const Cluster cluster = load_cluster("dgx-h200:1x2");
  const PlannedBatch planned =
      plan_batch(default_batch_of({4000}), cluster, {"ring"}, {.backward = false});
  Plan plan = *planned.plan;
  receive_before_sending(plan);
  SensitivityOfPlans plans(cluster, parse_strategies("ring"), 1);
  plans.add(0, 0, plan);
  const Sensitivity found = plans.result();
  for (std::size_t i = 0; i < found.clusters.size(); ++i) {
    const bool grouped = found.clusters[i].cluster.launches == LaunchOrder::kGrouped;
    EXPECT_EQ(found.times_us[i][0].has_value(), !grouped) << found.clusters[i].constant;
  }
}

Sensitivity by_hand() {
  Sensitivity sensitivity{.plans = SensitivityPlans::kKept,
                          .choices = parse_strategies("ring,zigzag,hybrid,auto,auto:steps=1"),
                          .clusters = changed_constants(load_cluster("dgx-h200:1x4")),
                          .times_us = {}};
  sensitivity.clusters.resize(4);
  sensitivity.times_us = {{300, 200, 200, 220, 210},
                          {100, 200, 200, 150, 150},
                          {std::nullopt, 200, 240, 180, 190},
                          {std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt}};
  return sensitivity;
}

TEST(StandingTest, NamesTheFastestTheNextAndAuto) {
  const Sensitivity sensitivity = by_hand();
  const Standing as_is = standing(sensitivity, 0);
  EXPECT_THAT(as_is.fastest, ElementsAre(1, 2));  // the same time
  EXPECT_EQ(as_is.second, std::optional<std::size_t>(4));
  EXPECT_NEAR(*as_is.second_slower_by, 0.05, 1e-12);
  EXPECT_NEAR(*as_is.auto_slower_by, 0.05, 1e-12);
  EXPECT_TRUE(as_is.same_fastest);
  EXPECT_EQ(as_is.turned_pairs, 0);
  EXPECT_EQ(as_is.pairs, 10);

  const Standing turned = standing(sensitivity, 1);
  EXPECT_THAT(turned.fastest, ElementsAre(0));
  EXPECT_FALSE(turned.same_fastest);
  EXPECT_EQ(turned.second, std::optional<std::size_t>(3));
  EXPECT_DOUBLE_EQ(*turned.second_slower_by, 0.5);
  // ring passes all four, both autos pass zigzag and hybrid. The new tie of the autos changes
  // nothing.
  EXPECT_EQ(turned.turned_pairs, 8);

  const Standing missing = standing(sensitivity, 2);
  EXPECT_THAT(missing.fastest, ElementsAre(3));
  EXPECT_EQ(missing.auto_slower_by, std::optional(0.0));
  EXPECT_EQ(missing.pairs, 6);
  // Both autos pass zigzag and hybrid, and each other.
  EXPECT_EQ(missing.turned_pairs, 5);
}

TEST(StandingTest, OfNothingIsEmpty) {
  const Standing none = standing(by_hand(), 3);
  EXPECT_TRUE(none.fastest.empty());
  EXPECT_FALSE(none.time_us || none.second || none.auto_slower_by);
  EXPECT_FALSE(none.same_fastest);
  EXPECT_THAT(message_of<InvalidArgument>([] { (void)standing(by_hand(), 4); }),
              HasSubstr("expected one of 4 clusters, found 4"));
}

TEST(SensitivityTables, SayWhereAnotherIsFastest) {
  const Sensitivity sensitivity = by_hand();
  const std::string text = sensitivity_text(sensitivity, false);
  EXPECT_THAT(text, HasSubstr("zigzag +1"));
  EXPECT_THAT(text, HasSubstr("no strategy has a plan that ends here"));
  EXPECT_THAT(text,
              HasSubstr("under 0 of 3 changes, not under row_keys x 0.5\n(assumed); row_keys"));
  EXPECT_THAT(text, HasSubstr("made for the cluster as it is"));
  const Json json = sensitivity_json(sensitivity);
  EXPECT_EQ(json.at("plans"), "kept");
  const Json& rows = json.at("clusters");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].at("fastest"), Json({"zigzag", "hybrid"}));
  EXPECT_EQ(rows[0].at("second"), "auto:steps=1");
  EXPECT_FALSE(rows[1].contains("was"));
  EXPECT_EQ(rows[1].at("is"), "x 0.5");
  EXPECT_TRUE(rows[1].at("assumed").get<bool>());  // the preset has the chip of dgx-h100
  EXPECT_FALSE(rows[2].at("strategies")[0].contains("predicted_s"));
  EXPECT_DOUBLE_EQ(rows[2].at("strategies")[1].at("predicted_s").get<double>(), 200e-6);
  EXPECT_EQ(rows[3].at("fastest"), Json::array());
}

TEST(SensitivityTables, FitTheScreenWithTheLongestNames) {
  Sensitivity sensitivity{.plans = SensitivityPlans::kReplan,
                          .choices = parse_strategies("megatron_dynamic,megatron_packed,auto"),
                          .clusters = changed_constants(load_cluster("dgx-h100:4x8")),
                          .times_us = {}};
  sensitivity.times_us.assign(sensitivity.clusters.size(), {{99999.0, 99999.0, 123456.0}});
  std::istringstream lines(sensitivity_text(sensitivity, false));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST(SensitivityTables, NamesOfPlansAreReadBack) {
  for (const SensitivityPlans plans : {SensitivityPlans::kKept, SensitivityPlans::kReplan}) {
    EXPECT_EQ(parse_sensitivity_plans(to_string(plans)), plans);
  }
  EXPECT_THAT(message_of<InvalidArgument>([] { (void)parse_sensitivity_plans("all"); }),
              HasSubstr("expected kept or replan, found 'all'"));
}

}  // namespace
}  // namespace contextile

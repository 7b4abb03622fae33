// Rows of methods that are set up in several ways, and on batches of their own.
#include "labs/papers/times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/planner.h"
#include "contextile/workload.h"
#include "labs/papers/movement.h"
#include "labs/papers/paper_table.h"
#include "labs/papers/progress.h"

namespace contextile {
namespace {

constexpr std::size_t kTotal = 3;  // column of total_s behind one label
constexpr std::size_t kGain = 6;   // behind its spread

class PaperTimes : public testing::Test {
 protected:
  PaperTimes() { input_.cluster = load_cluster("p4de:4x8"); }

  [[nodiscard]] Table rows_of(const std::vector<TimedMethod>& methods) {
    Table table(time_columns({{"strategy", "strategy"}}));
    const TableOverrides overrides;
    Progress progress(overrides, 0);
    gain_ = add_times(methods, input_, batches_, {}, progress, table);
    return table;
  }
  [[nodiscard]] double total_s(const StrategyChoice& choice,
                               const std::vector<Workload>& batches) const {
    return predict_times(choice, input_, batches).total_s;
  }

  AttentionShape shape_{.q_heads = 8, .kv_heads = 2};
  PlanInput input_;
  std::vector<Workload> batches_ = {
      make_workload(std::vector<std::int64_t>{90000, 3000, 400}, shape_),
      make_workload(std::vector<std::int64_t>{20000, 70000}, shape_)};
  std::optional<Gain> gain_;
};

TEST_F(PaperTimes, ImbalanceIsOfABatchOrOfWhatDevicesAccumulate) {
  const StrategyChoice fcp{"fcp", {{"block", "1024"}}};
  const auto of_batch = [](const MeanMovement& movement) {
    return 1 - 2 * movement.device_bytes / movement.busiest_bytes;
  };
  const MeanMovement one = movement_of(fcp, input_, {batches_.data(), 1});
  EXPECT_NEAR(one.accumulated_compute_imbalance, 1 - 1 / (1 + one.compute_overload), 1e-9);
  EXPECT_NEAR(one.accumulated_traffic_imbalance, of_batch(one), 1e-9);
  // The most loaded devices of the two batches differ; the busiest are the same.
  const MeanMovement both = movement_of(fcp, input_, batches_);
  EXPECT_LT(both.accumulated_compute_imbalance, 1 - 1 / (1 + both.compute_overload));
  EXPECT_NEAR(both.accumulated_traffic_imbalance, of_batch(both), 1e-9);
}

TEST_F(PaperTimes, CountTheFastestOfSeveralWays) {
  std::vector<StrategyChoice> ways;
  for (const char* inner : {"1", "2", "4", "8"}) {
    ways.push_back(parse_strategies("double_ring:inner_ring=" + std::string(inner)).front());
  }
  const Table table = rows_of({{.ways = parse_strategies("zigzag")}, {.ways = ways}});
  double fastest_s = kInfinity;
  double slowest_s = 0;
  std::string name;
  for (const StrategyChoice& way : ways) {
    const double time_s = total_s(way, batches_);
    if (time_s < fastest_s) name = choice_text(way);
    fastest_s = std::min(fastest_s, time_s);
    slowest_s = std::max(slowest_s, time_s);
  }
  ASSERT_GT(slowest_s, 1.05 * fastest_s);
  ASSERT_EQ(table.num_rows(), 2U);
  EXPECT_EQ(std::get<std::string>(table.cells(1)[0]), name);
  EXPECT_EQ(std::get<double>(table.cells(1)[kTotal]), fastest_s);
  ASSERT_TRUE(gain_);
  EXPECT_EQ(gain_->mean, fastest_s / total_s(parse_strategies("zigzag").front(), batches_));
}

TEST_F(PaperTimes, TakeAMethodsOwnBatches) {
  std::vector<Workload> padded;
  padded.push_back(make_workload(std::vector<std::int64_t>(3, 90000), shape_));
  padded.push_back(make_workload(std::vector<std::int64_t>(2, 70000), shape_));
  const std::vector<StrategyChoice> zigzag = parse_strategies("zigzag");
  const Table table = rows_of({{.ways = zigzag}, {.ways = zigzag, .own_batches = padded}});
  EXPECT_EQ(std::get<double>(table.cells(0)[kTotal]), total_s(zigzag.front(), batches_));
  EXPECT_EQ(std::get<double>(table.cells(1)[kTotal]), total_s(zigzag.front(), padded));
  EXPECT_GT(std::get<double>(table.cells(1)[kGain]), 1.5);
}

TEST_F(PaperTimes, SkipAMethodOnlyWhereNoWayApplies) {
  const StrategyChoice bad = parse_strategies("double_ring:inner_ring=3").front();
  const StrategyChoice good = parse_strategies("double_ring:inner_ring=2").front();
  const Table some = rows_of({{.ways = parse_strategies("zigzag")}, {.ways = {bad, good}}});
  EXPECT_EQ(std::get<double>(some.cells(1)[kTotal]), total_s(good, batches_));
  EXPECT_TRUE(gain_);
  const Table none = rows_of({{.ways = parse_strategies("zigzag")}, {.ways = {bad}}});
  EXPECT_TRUE(std::holds_alternative<std::monostate>(none.cells(1)[kTotal]));
  EXPECT_FALSE(gain_);
}

TEST_F(PaperTimes, SpreadGainsOverTheirBatches) {
  const Table table =
      rows_of({{.ways = parse_strategies("zigzag")}, {.ways = parse_strategies("ring")}});
  std::vector<double> gains;
  for (const Workload& batch : batches_) {
    gains.push_back(total_s(parse_strategies("ring").front(), {batch}) /
                    total_s(parse_strategies("zigzag").front(), {batch}));
  }
  std::ranges::sort(gains);
  ASSERT_LT(gains.front(), gains.back());
  ASSERT_TRUE(gain_);
  EXPECT_NEAR(gain_->spread.p10, gains.front(), 1e-9);  // two batches: both count
  EXPECT_NEAR(gain_->spread.p90, gains.back(), 1e-9);
  EXPECT_EQ(std::get<double>(table.cells(1)[kGain - 2]), gain_->spread.p10);
  EXPECT_EQ(std::get<double>(table.cells(1)[kGain - 1]), gain_->spread.p90);
}

TEST(Spreads, LeaveOutATenthAtEitherEnd) {
  std::vector<double> values = {5};
  EXPECT_EQ(spread_of(values).p10, 5);
  EXPECT_EQ(spread_of(values).p90, 5);
  values.clear();
  for (int i = 20; i > 0; --i) values.push_back(i);
  EXPECT_EQ(spread_of(values).p10, 3);
  EXPECT_EQ(spread_of(values).p90, 18);
}

}  // namespace
}  // namespace contextile

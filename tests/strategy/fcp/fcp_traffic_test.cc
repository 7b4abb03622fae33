#include "strategy/fcp/fcp_traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "strategy/fcp/fcp.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

std::vector<std::int64_t> long_tail(Rng& rng, int documents) {
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < documents; ++i) {
    lengths.push_back(random_between(rng, 1, random_chance(rng, 0.05) ? 30000 : 1500));
  }
  return lengths;
}

TEST(FcpTraffic, UpdatesEqualWhatIsCountedAnew) {
  for (const bool with_home : {false, true}) {
    Rng rng(5);
    Workload workload = batch_of(long_tail(rng, 60));
    if (with_home) {
      const std::int64_t tokens = workload.num_tokens();
      for (std::int32_t r = 0; r < 6; ++r) {
        workload.home.push_back({{tokens * r / 6, tokens * (r + 1) / 6}, Rank{r}});
      }
    }
    const std::vector<Shard> shards = shard_documents(workload, 512);
    const auto anywhere = [&] { return static_cast<std::int32_t>(random_between(rng, 0, 5)); };
    ShardTraffic updated(workload, shards, 6);
    for (std::size_t s = 0; s < shards.size(); ++s) updated.place(s, anywhere());
    for (int change = 0; change < 500; ++change) {
      const auto s = static_cast<std::size_t>(random_between(rng, 0, std::ssize(shards) - 1));
      updated.take(s);
      updated.place(s, anywhere());
    }
    ShardTraffic anew(workload, shards, 6);
    for (std::size_t s = 0; s < shards.size(); ++s) anew.place(s, updated.position(s));
    for (std::int32_t p = 0; p < 6; ++p) EXPECT_EQ(updated.bytes(p), anew.bytes(p));
    EXPECT_NEAR(updated.unevenness() / anew.unevenness(), 1, 1e-9);
  }
}

TEST(FcpTraffic, CountsWhatThePlanMoves) {
  Rng rng(8);
  const Workload workload = batch_of(long_tail(rng, 100));
  const Cluster cluster = cluster_of(1, 8);
  const Arrangement arrangement =
      fcp_strategy().arrange(workload, cluster, request_with({{"block", "512"}}));
  const ArrangedRound& round = arrangement.rounds[0];
  std::vector<Shard> shards;
  for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
    Shard& shard = shards.emplace_back();
    const auto ranges = round.blocks.ranges(BlockId{b});
    shard.ranges.assign(ranges.begin(), ranges.end());
    shard.tokens = round.blocks.num_tokens(BlockId{b});
  }
  ShardTraffic traffic(workload, shards, 8);
  for (std::size_t s = 0; s < shards.size(); ++s) traffic.place(s, round.owners[s].value);
  const PlanStats stats = statistics(build_plan(workload, cluster, arrangement));
  for (std::int32_t r = 0; r < 8; ++r) {
    const DeviceStats& device = stats.forward->devices[static_cast<std::size_t>(r)];
    EXPECT_EQ(traffic.bytes(r), std::max(device.sent_bytes, device.received_bytes));
  }
}

TEST(FcpTraffic, IsEvenedAtNoMoreThanTheLoadOfTheHeaviest) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(seed);
    constexpr std::int32_t kPositions = 16;
    Rng rng(seed);
    const Workload workload = batch_of(long_tail(rng, 400));
    const std::vector<Shard> shards = shard_documents(workload, 256);
    std::vector<Shard> placed_shards;
    std::vector<std::int32_t> positions;
    for (const PlacedShard& placed :
         place_shards(shards, pair_shards(shards, kPositions), kPositions, {})) {
      placed_shards.push_back(placed.shard);
      positions.push_back(placed.position);
    }
    ShardTraffic traffic(workload, placed_shards, kPositions);
    for (std::size_t s = 0; s < positions.size(); ++s) traffic.place(s, positions[s]);
    const auto heaviest = [&] {
      std::vector<std::int64_t> loads(kPositions);
      for (std::size_t s = 0; s < positions.size(); ++s) {
        loads[static_cast<std::size_t>(traffic.position(s))] += placed_shards[s].cost;
      }
      return *std::max_element(loads.begin(), loads.end());
    };
    const auto busiest = [&] {
      std::int64_t bytes = 0;
      for (std::int32_t p = 0; p < kPositions; ++p) bytes = std::max(bytes, traffic.bytes(p));
      return static_cast<double>(bytes);
    };
    const std::int64_t load = heaviest();
    const double bytes = busiest();
    even_traffic(placed_shards, {}, load, kPositions, traffic);
    EXPECT_LE(heaviest(), load);
    EXPECT_LT(busiest(), 0.95 * bytes);
  }
}

}  // namespace
}  // namespace contextile

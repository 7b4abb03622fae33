// Servers of distca that pass keys on to each other, and how evenly tasks leave devices.
#include "strategy/distca/distca_relays.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "strategy/distca/distca.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using Options = std::map<std::string, std::string>;

std::vector<std::int32_t> parents(RelayRouter& router, std::int32_t owner,
                                  const std::vector<std::int32_t>& users) {
  std::vector<Rank> ranks;
  for (const std::int32_t user : users) ranks.push_back(Rank{user});
  std::vector<std::int32_t> result;
  for (const Rank parent : router.parents_of(Rank{owner}, ranks, 1 << 20)) {
    result.push_back(parent.value);
  }
  return result;
}

TEST(DistcaRelays, TheOwnerSendsLessThanTheUsersPassOn) {
  const Cluster cluster = cluster_of(8, 1);
  RelayRouter router(cluster);
  router.add(Rank{0}, Rank{1}, 1 << 20);  // the one copy that the owner sends in any case
  const std::vector<std::int32_t> of = parents(router, 0, {1, 2, 3, 4, 5, 6});
  const auto from_owner = std::count(of.begin(), of.end(), 0);
  EXPECT_GE(from_owner, 1);
  EXPECT_LE(from_owner, 3);
}

TEST(DistcaRelays, ANodeIsEnteredOnceWhereItHasSeveralUsers) {
  const Cluster cluster = cluster_of("dgx-h200", 3, 4);
  RelayRouter router(cluster);
  const std::vector<std::int32_t> users = {1, 2, 4, 5, 6, 8, 9, 10, 11};
  const std::vector<std::int32_t> of = parents(router, 0, users);
  std::map<std::int32_t, int> entries;
  for (std::size_t i = 0; i < users.size(); ++i) {
    if (of[i] / 4 != users[i] / 4) ++entries[users[i] / 4];
  }
  EXPECT_EQ(entries, (std::map<std::int32_t, int>{{1, 1}, {2, 1}}));
}

TEST(DistcaRelays, ABusyUserIsNoRelay) {
  const Cluster cluster = cluster_of(4, 1);
  RelayRouter router(cluster);
  router.add(Rank{1}, Rank{2}, 64 << 20);
  router.add(Rank{2}, Rank{1}, 64 << 20);
  EXPECT_EQ(parents(router, 0, {1, 2}), (std::vector<std::int32_t>{0, 0}));
}

Plan plan_of(const Workload& workload, const Cluster& cluster, const Options& options) {
  return build_plan(workload, cluster,
                    distca_strategy().arrange(workload, cluster, request_with(options)));
}

// A batch whose longest document exceeds what several devices own. Half of the devices own only
// short documents.
std::vector<std::int64_t> one_long_and_many_short() {
  std::vector<std::int64_t> lengths = {16000};
  lengths.insert(lengths.end(), 20, 1600);
  lengths.insert(lengths.end(), 100, 160);
  return lengths;
}

struct Traffic {
  std::int64_t total = 0;
  std::int64_t most_sent = 0;
  std::int64_t most_received = 0;
};
Traffic traffic_of(const Plan& plan) {
  const PlanStats stats = statistics(plan);
  Traffic traffic;
  for (const DeviceStats& device : stats.forward->devices) {
    traffic.total += device.sent_bytes;
    traffic.most_sent = std::max(traffic.most_sent, device.sent_bytes);
    traffic.most_received = std::max(traffic.most_received, device.received_bytes);
  }
  return traffic;
}

TEST(DistcaRelays, OwnersOfALongDocumentSendLessAndNoMoreBytesMove) {
  const Workload workload = batch_of(one_long_and_many_short(), "causal", grouped_heads());
  const Cluster cluster = cluster_of(16, 1);
  const auto traffic = [&](const char* relays) {
    const Plan plan =
        plan_of(workload, cluster, {{"nano_batches", "1"}, {"cost", "pairs"}, {"relays", relays}});
    EXPECT_TRUE(verify(plan).ok());
    return traffic_of(plan);
  };
  const Traffic direct = traffic("off");
  const Traffic relayed = traffic("on");
  EXPECT_LE(relayed.total, direct.total);
  EXPECT_LT(relayed.most_sent, 0.6 * direct.most_sent);
}

TEST(DistcaRelays, MakeValidPlansUnderAnyOptions) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Rng rng(seed);
    const Workload workload = batch_of(random_lengths(rng, 8, 400), "causal", grouped_heads());
    const Cluster cluster = cluster_of(static_cast<std::int32_t>(random_between(rng, 1, 5)),
                                       static_cast<std::int32_t>(random_between(rng, 1, 3)));
    Options options = {{"relays", "on"}, {"granularity", "1"}, {"tolerance", "0"}};
    options["nano_batches"] = fmt::format("{}", random_between(rng, 1, 3));
    options["kv_subrange"] = random_chance(rng, 0.5) ? "on" : "off";
    options["resend"] = random_chance(rng, 0.5) ? "on" : "off";
    if (options["resend"] == "on" && random_chance(rng, 0.5)) options["backward"] = "own";
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const VerifyReport report = verify(plan_of(workload, cluster, options));
    EXPECT_TRUE(report.ok()) << report.violations.front();
    EXPECT_TRUE(report.grouped_launches_ok);
    EXPECT_EQ(report.movement[0].redundant_transfers, 0);
    EXPECT_EQ(report.movement[1].redundant_transfers, 0);
  }
}

TEST(DistcaRelays, GradientsComeHomeAsKeysWentOut) {
  const Workload workload = batch_of(one_long_and_many_short(), "causal", grouped_heads());
  const Cluster cluster = cluster_of(8, 1);
  const Arrangement arrangement = distca_strategy().arrange(
      workload, cluster, request_with({{"relays", "on"}, {"resend", "on"}}));
  const ArrangedRound& round = arrangement.rounds[0];
  const auto relayed = [&](const ArrangedDirection& direction, Kind kind) {
    return std::ranges::count_if(direction.transfers, [&](const Transfer& t) {
      const Rank owner = round.owners[t.block.index()];
      return t.kind == kind && (kind == Kind::kKv ? t.src : t.dst) != owner;
    });
  };
  EXPECT_GT(relayed(*round.programs[0].forward, Kind::kKv), 0);
  EXPECT_GT(relayed(*round.programs[0].backward, Kind::kKv), 0);
  EXPECT_GT(relayed(*round.programs[0].backward, Kind::kDkv), 0);
  EXPECT_EQ(relayed(*round.programs[0].forward, Kind::kO), 0);
}

// Devices that took work up to the tolerance would leave the last ones with scraps of many
// documents, whose keys and rows all travel.
TEST(DistcaMigration, LeavesEveryTakerSomeOfTheLongDocuments) {
  const Workload workload = batch_of(one_long_and_many_short(), "causal", grouped_heads());
  for (const std::int32_t devices : {8, 16, 24}) {
    SCOPED_TRACE(devices);
    const Plan plan = plan_of(
        workload, cluster_of(devices, 1),
        {{"nano_batches", "1"}, {"cost", "pairs"}, {"granularity", "16"}, {"relays", "on"}});
    const Traffic traffic = traffic_of(plan);
    EXPECT_LT(static_cast<double>(traffic.most_received) * devices,
              2.6 * static_cast<double>(traffic.total));
    EXPECT_LE(statistics(plan).forward->compute_overload, 0.1);
  }
}

}  // namespace
}  // namespace contextile

// Properties of every strategy: it makes valid plans for any batch it accepts, and the same plan
// every time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "support/mask_support.h"
#include "support/plan_interpreter.h"

namespace contextile {
namespace {

struct Batch {
  Workload workload;
  Cluster cluster;
  StrategyRequest request;
};

// Some tokens lose their queries or keys at random; the masks lose the pairs that need them.
void add_roles(Rng& rng, Workload& workload) {
  for (std::int64_t at = 0; at < workload.num_tokens();) {
    const std::int64_t end = std::min(workload.num_tokens(), at + random_between(rng, 1, 60));
    if (random_chance(rng, 0.3)) {
      workload.roles.push_back({{at, end}, random_chance(rng, 0.5) ? Role::kKvOnly : Role::kQOnly});
    }
    at = end;
  }
  for (NamedMask& named : workload.masks) {
    std::vector<Band> bands;
    for (const Band& band : named.mask.bands) {
      std::vector<Range> queries;
      std::vector<Range> keys;
      for (const auto& [ranges, missing] :
           {std::pair{&queries, Role::kKvOnly}, {&keys, Role::kQOnly}}) {
        std::int64_t at = 0;
        for (const RoleRange& role : workload.roles) {
          if (role.role != missing) continue;
          ranges->push_back({at, role.tokens.begin});
          at = role.tokens.end;
        }
        ranges->push_back({at, workload.num_tokens()});
      }
      for (const Range& q : queries) {
        for (const Range& k : keys) {
          const Band piece = clip(band, q, k);
          if (num_pairs(piece) > 0) bands.push_back(piece);
        }
      }
    }
    named.mask.bands = std::move(bands);
  }
}

void add_home(Rng& rng, std::int32_t num_devices, Workload& workload) {
  for (std::int64_t at = 0; at < workload.num_tokens();) {
    const std::int64_t end = std::min(workload.num_tokens(), at + random_between(rng, 1, 150));
    workload.home.push_back(
        {{at, end}, Rank{static_cast<std::int32_t>(random_between(rng, 0, num_devices - 1))}});
    at = end;
  }
}

// With a multiple above 1, every device can own equally many tokens, a multiple of that.
Batch random_batch_of(std::uint64_t seed, std::int64_t multiple = 1) {
  Rng rng(seed);
  Batch batch;
  constexpr std::int32_t kNodes[] = {1, 1, 1, 2, 3};
  constexpr std::int32_t kDevices[] = {1, 2, 3, 4, 8};
  batch.cluster.nodes = kNodes[random_between(rng, 0, 4)];
  batch.cluster.devices_per_node = kDevices[random_between(rng, 0, 4)];
  AttentionShape shape;
  constexpr std::int32_t kHeads[][2] = {{8, 8}, {8, 4}, {32, 8}, {4, 1}, {6, 6}, {24, 24}};
  const auto& heads = kHeads[random_between(rng, 0, 5)];
  shape.q_heads = heads[0];
  shape.kv_heads = heads[1];
  shape.head_dim = shape.value_dim = 16;
  std::vector<MaskUse> masks(static_cast<std::size_t>(random_between(rng, 1, 2)));
  for (std::size_t m = 0; m < masks.size(); ++m) {
    masks[m].name = std::string(1, static_cast<char>('a' + m));
    masks[m].spec = random_mask_spec(rng, 200);
  }
  std::vector<std::int64_t> lengths = random_lengths(rng, 8, 300);
  if (multiple > 1) {
    const std::int64_t whole = multiple * batch.cluster.num_devices();
    const auto total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    lengths.back() += whole - total % whole;
  }
  batch.workload = make_workload(lengths, shape, masks);
  if (random_chance(rng, 0.3)) add_roles(rng, batch.workload);
  if (multiple == 1 && random_chance(rng, 0.4))
    add_home(rng, batch.cluster.num_devices(), batch.workload);
  if (random_chance(rng, 0.5)) batch.request.block_size = random_between(rng, 7, 120);
  if (random_chance(rng, 0.3)) batch.request.wire = Dtype::kF32;
  batch.request.backward = random_chance(rng, 0.9);
  return batch;
}

// Trees of different depths next to causal sequences, on the cluster of another batch.
Batch batch_of_trees(std::uint64_t seed) {
  Batch batch = random_batch_of(seed);
  Rng rng(seed);
  std::vector<std::int64_t> lengths = {10};
  std::vector<MaskSpec> rules = {parse_mask_spec("tree:[5,3,2],[-1,0,0]")};
  for (std::int64_t s = random_between(rng, 1, 5); s > 0; --s) {
    const bool is_tree = random_chance(rng, 0.7);
    rules.push_back(is_tree ? random_tree(rng, 10, 60) : MaskSpec{});
    const std::vector<std::int64_t>& segments = rules.back().lengths;
    lengths.push_back(is_tree ? std::accumulate(segments.begin(), segments.end(), std::int64_t{0})
                              : random_between(rng, 1, 200));
  }
  batch.workload = make_workload(lengths, batch.workload.shape);
  batch.workload.masks.front().mask = build_document_mask(rules, batch.workload.sequences);
  const Mask* const mask = &batch.workload.masks.front().mask;
  batch.workload.positions = infer_positions({&mask, 1}, batch.workload.sequences);
  return batch;
}

// `auto` tries all the others on every batch, so it gets every tenth only.
bool is_too_slow_for(const Strategy& strategy, std::uint64_t seed) {
  return strategy.name() == "auto" && seed % 10 != 0;
}

TEST(AllStrategies, MakeValidPlansForAnyBatchTheyAccept) {
  std::int64_t plans = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    const Batch batch = random_batch_of(seed);
    check_workload(batch.workload);
    for (const Strategy* strategy : strategies()) {
      SCOPED_TRACE(fmt::format("seed {} strategy {}", seed, strategy->name()));
      if (is_too_slow_for(*strategy, seed)) continue;
      if (strategy->unsupported(batch.workload, batch.cluster, batch.request)) continue;
      const Plan plan = build_plan(batch.workload, batch.cluster,
                                   strategy->arrange(batch.workload, batch.cluster, batch.request));
      const VerifyReport report = verify(plan);
      EXPECT_TRUE(report.ok()) << report.violations.front();
      ++plans;
    }
  }
  EXPECT_GE(plans, 500);
}

TEST(AllStrategies, MakeValidPlansOfTreesOrRefuseThem) {
  std::set<std::string_view> planned;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Batch batch = batch_of_trees(seed);
    check_workload(batch.workload);
    for (const Strategy* strategy : strategies()) {
      SCOPED_TRACE(fmt::format("seed {} strategy {}", seed, strategy->name()));
      if (is_too_slow_for(*strategy, seed)) continue;
      if (strategy->unsupported(batch.workload, batch.cluster, batch.request)) continue;
      const Plan plan = build_plan(batch.workload, batch.cluster,
                                   strategy->arrange(batch.workload, batch.cluster, batch.request));
      const VerifyReport report = verify(plan);
      EXPECT_TRUE(report.ok()) << report.violations.front();
      EXPECT_EQ(plan.positions, batch.workload.positions);
      planned.insert(strategy->name());
    }
  }
  // DistCA is causal only.
  EXPECT_EQ(std::ssize(planned), std::ssize(strategies()) - 1);
  EXPECT_FALSE(planned.contains("distca"));
}

TEST(AllStrategies, MakeTheSamePlanEveryTime) {
  for (std::uint64_t seed = 500; seed < 520; ++seed) {
    const Batch batch = random_batch_of(seed);
    for (const Strategy* strategy : strategies()) {
      SCOPED_TRACE(fmt::format("seed {} strategy {}", seed, strategy->name()));
      if (is_too_slow_for(*strategy, seed)) continue;
      if (strategy->unsupported(batch.workload, batch.cluster, batch.request)) continue;
      const auto digest = [&] {
        return build_plan(batch.workload, batch.cluster,
                          strategy->arrange(batch.workload, batch.cluster, batch.request))
            .digest;
      };
      EXPECT_EQ(digest(), digest());
    }
  }
}

TEST(AllStrategies, KeepEveryTokenAtHome) {
  for (std::uint64_t seed = 900; seed < 930; ++seed) {
    Batch batch = random_batch_of(seed);
    Rng rng(seed);
    batch.workload.home.clear();
    add_home(rng, batch.cluster.num_devices(), batch.workload);
    for (const Strategy* strategy : strategies()) {
      SCOPED_TRACE(fmt::format("seed {} strategy {}", seed, strategy->name()));
      if (is_too_slow_for(*strategy, seed)) continue;
      if (strategy->unsupported(batch.workload, batch.cluster, batch.request)) continue;
      const Arrangement arrangement =
          strategy->arrange(batch.workload, batch.cluster, batch.request);
      for (const ArrangedRound& round : arrangement.rounds) {
        for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
          for (const Range& range : round.blocks.ranges(BlockId{b})) {
            for (const HomeRange& home : batch.workload.home) {
              if (!intersect(range, home.tokens).empty()) {
                EXPECT_EQ(home.owner, round.owners[static_cast<std::size_t>(b)]);
              }
            }
          }
        }
      }
    }
  }
}

std::vector<std::int64_t> tokens_of_ranks(const Plan& plan) {
  std::vector<std::int64_t> owned(static_cast<std::size_t>(plan.num_devices()), 0);
  for (const PlanRound& round : plan.rounds) {
    for (const BlockId b : IdRange<BlockId>(round.blocks.num_blocks())) {
      owned[round.owners[b.index()].index()] += round.blocks.num_tokens(b);
    }
  }
  return owned;
}

// The same batches ask for multiples, and for as many tokens on every device. The values of some
// plans are compared with dense attention.
TEST(AllStrategies, LetDevicesOwnMultiplesOrEquallyManyTokens) {
  constexpr std::int64_t kMultiples[] = {2, 5, 16};
  std::int64_t plans = 0;
  std::int64_t moved = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::int64_t multiple = kMultiples[seed % 3];
    Batch batch = random_batch_of(seed, multiple);
    const std::int64_t mean = batch.workload.num_tokens() / batch.cluster.num_devices();
    for (const Strategy* strategy : strategies()) {
      if (is_too_slow_for(*strategy, seed)) continue;
      batch.request.tokens_multiple = 1;
      batch.request.equal_tokens = false;
      if (strategy->unsupported(batch.workload, batch.cluster, batch.request)) continue;
      const Plan plain =
          build_plan(batch.workload, batch.cluster,
                     strategy->arrange(batch.workload, batch.cluster, batch.request));
      for (const bool equal : {false, true}) {
        SCOPED_TRACE(fmt::format("seed {} strategy {} multiple {} equal {}", seed, strategy->name(),
                                 multiple, equal));
        batch.request.tokens_multiple = multiple;
        batch.request.equal_tokens = equal;
        const Plan plan =
            build_plan(batch.workload, batch.cluster,
                       strategy->arrange(batch.workload, batch.cluster, batch.request));
        const VerifyReport report = verify(plan);
        ASSERT_TRUE(report.ok()) << report.violations.front();
        for (const std::int64_t tokens : tokens_of_ranks(plan)) {
          EXPECT_EQ(tokens % multiple, 0);
          if (equal) {
            EXPECT_EQ(tokens, mean);
          }
        }
        ++plans;
        moved += tokens_of_ranks(plan) == tokens_of_ranks(plain) ? 0 : 1;
        if (seed % 10 == 1) {
          EXPECT_EQ(ToyBatch(plan, seed).difference(plan), std::nullopt);
        }
      }
    }
  }
  EXPECT_GE(plans, 250);
  EXPECT_GE(moved, 150);
}

}  // namespace
}  // namespace contextile

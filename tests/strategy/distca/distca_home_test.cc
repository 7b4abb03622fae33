// distca on tokens that are already on some devices: no data moves to where it is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "strategy/distca/distca.h"
#include "strategy/distca/distca_pipeline.h"
#include "strategy/distca/distca_tasks.h"
#include "strategy/schedule/rank_layout.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

enum class HomeKind : std::uint8_t { kContiguous, kZigzag, kScattered, kHeadTail };
constexpr HomeKind kHomeKinds[] = {HomeKind::kContiguous, HomeKind::kZigzag, HomeKind::kScattered,
                                   HomeKind::kHeadTail};

void add_home(HomeKind kind, std::int32_t owners, Rng& rng, Workload& workload) {
  const std::int64_t tokens = workload.num_tokens();
  const auto add = [&](Range range, std::int32_t owner) {
    if (!range.empty()) workload.home.push_back({range, Rank{owner}});
  };
  if (kind == HomeKind::kContiguous) {
    for (std::int32_t r = 0; r < owners; ++r) {
      add({tokens * r / owners, tokens * (r + 1) / owners}, r);
    }
  } else if (kind == HomeKind::kScattered) {
    for (std::int64_t at = 0; at < tokens;) {
      const std::int64_t end = std::min(tokens, at + random_between(rng, 1, 700));
      add({at, end}, static_cast<std::int32_t>(random_between(rng, 0, owners - 1)));
      at = end;
    }
  } else if (kind == HomeKind::kHeadTail) {
    std::vector<std::int64_t> lengths;
    for (const Range& sequence : workload.sequences) lengths.push_back(sequence.size());
    append_stage_home(lengths, Rank{0}, owners, workload.home);
  } else {
    const auto ranges = rank_ranges(TokenLayout::kZigzag, workload.sequences, owners);
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      for (const Range& range : ranges[r]) add(range, static_cast<std::int32_t>(r));
    }
    std::sort(workload.home.begin(), workload.home.end(),
              [](const HomeRange& a, const HomeRange& b) { return a.tokens < b.tokens; });
  }
}

Rank home_of(const Workload& workload, std::int64_t token) {
  for (const HomeRange& home : workload.home) {
    if (home.tokens.contains(token)) return home.owner;
  }
  return kInvalidRank;
}

// Lets about every other document begin with tokens that were computed earlier.
void cache_prefixes(Rng& rng, Workload& workload) {
  std::vector<Range> cached;
  for (const Range& sequence : workload.sequences) {
    if (sequence.size() < 2 || random_chance(rng, 0.5)) continue;
    cached.push_back(
        {sequence.begin, sequence.begin + random_between(rng, 1, sequence.size() - 1)});
  }
  drop_queries(workload, cached);
}

Plan plan_of(const Workload& workload, const Cluster& cluster, const StrategyRequest& request) {
  return build_plan(workload, cluster, distca_strategy().arrange(workload, cluster, request));
}

std::int64_t bytes_of(const DirectionStats& stats, Kind kind) {
  return stats.bytes_by_kind[static_cast<std::size_t>(kind)];
}

// Checks that every input comes from where it lives, once, to a device that lacks it and computes
// with it, and that every result goes home from a device that computed it.
void expect_nothing_needless(const ArrangedRound& round, const ArrangedDirection& direction) {
  std::set<std::tuple<Kind, BlockId, Rank>> used;
  for (const PlacedTile& tile : direction.tiles) {
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      used.insert({kind, is_of_kv(kind) ? tile.kv_block : tile.q_block, tile.device});
    }
  }
  std::set<std::tuple<Kind, BlockId, Rank>> moved;
  for (const Transfer& t : direction.transfers) {
    const Rank owner = round.owners[t.block.index()];
    const Rank away = is_result(t.kind) ? t.src : t.dst;
    EXPECT_EQ(is_result(t.kind) ? t.dst : t.src, owner);
    EXPECT_NE(away, owner);
    EXPECT_TRUE(used.contains({t.kind, t.block, away}));
    EXPECT_TRUE(moved.insert({t.kind, t.block, away}).second);
  }
}

TEST(DistcaHome, NoByteMovesThatHomeAlreadyHas) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for (const HomeKind kind : kHomeKinds) {
      SCOPED_TRACE(fmt::format("seed {} home {}", seed, static_cast<int>(kind)));
      Rng rng(seed);
      const auto devices = static_cast<std::int32_t>(random_between(rng, 2, 9));
      Workload workload = batch_of(random_lengths(rng, 10, 3000));
      add_home(kind, static_cast<std::int32_t>(random_between(rng, 1, devices)), rng, workload);
      if (random_chance(rng, 0.5)) cache_prefixes(rng, workload);
      StrategyRequest request =
          request_with({{"nano_batches", fmt::format("{}", random_between(rng, 1, 3))},
                        {"kv_subrange", random_chance(rng, 0.3) ? "on" : "off"},
                        {"tolerance", random_chance(rng, 0.5) ? "0" : "0.1"},
                        {"granularity", random_chance(rng, 0.5) ? "16" : "128"}});
      if (random_chance(rng, 0.3)) request.options.insert({{"resend", "on"}, {"backward", "own"}});
      const Arrangement arrangement =
          distca_strategy().arrange(workload, cluster_of(1, devices), request);
      const ArrangedRound& round = arrangement.rounds[0];
      for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
        for (const Range& range : round.blocks.ranges(BlockId{b})) {
          EXPECT_EQ(round.owners[static_cast<std::size_t>(b)], home_of(workload, range.begin));
          EXPECT_EQ(round.owners[static_cast<std::size_t>(b)], home_of(workload, range.end - 1));
        }
      }
      expect_nothing_needless(round, *round.programs[0].forward);
      expect_nothing_needless(round, *round.programs[0].backward);
      EXPECT_TRUE(verify(build_plan(workload, cluster_of(1, devices), arrangement)).ok());
    }
  }
}

// The last rows of a document are on device 1; their keys are cached on device 0 and needed once.
TEST(DistcaHome, CachedKeysComeFromWhereTheyAre) {
  Workload workload = batch_of({4096, 1024});
  workload.home = {{{0, 3072}, Rank{0}}, {{3072, 5120}, Rank{1}}};
  drop_queries(workload, std::vector<Range>{{0, 3072}});
  const StrategyRequest still = request_with({{"tolerance", "1000"}, {"nano_batches", "1"}});
  const Plan plan = plan_of(workload, cluster_of(1, 2), still);
  EXPECT_TRUE(verify(plan).ok());
  const DirectionStats forward = *statistics(plan).forward;
  EXPECT_EQ(bytes_of(forward, Kind::kKv),
            unit_bytes(Kind::kKv, 3072, workload.shape, 1, workload.shape.dtype));
  EXPECT_EQ(bytes_of(forward, Kind::kQ), 0);
}

TEST(DistcaHome, TokensWithoutQueriesNeedAHome) {
  Workload workload = batch_of({4096});
  drop_queries(workload, std::vector<Range>{{0, 100}});
  const auto reason = distca_strategy().unsupported(workload, cluster_of(1, 2), {});
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("[0, 100)"), std::string::npos) << *reason;
}

// The last rows of a document are where the second part is placed, and the rows before them are
// where the first part is.
TEST(DistcaHome, StageHomesOfALaterPartHaveTheRowsOfTheEarlierOne) {
  const StageParts parts = {{{0, {0, 600}}, {1, {0, 400}}}, {{0, {600, 1000}}, {2, {0, 600}}}};
  std::vector<HomeRange> home;
  append_stage_home(parts, 1, Rank{4}, 2, home);
  std::vector<HomeRange> first;
  append_stage_home(parts, 0, Rank{4}, 2, first);
  std::map<Rank, std::int64_t> computed;
  std::int64_t end = 0;
  for (const HomeRange& range : home) {
    EXPECT_EQ(range.tokens.begin, end);
    end = range.tokens.end;
    const bool is_cached = range.tokens.end <= 600;
    if (!is_cached) computed[range.owner] += range.tokens.size();
    for (const HomeRange& earlier : first) {
      if (is_cached && earlier.tokens.contains(range.tokens.begin)) {
        EXPECT_EQ(range.owner, earlier.owner);
      }
    }
  }
  EXPECT_EQ(end, 1600);
  EXPECT_EQ(computed, (std::map<Rank, std::int64_t>{{Rank{4}, 500}, {Rank{5}, 500}}));
}

TEST(DistcaHome, NothingButKeysMovesWhereNothingMigrates) {
  Rng rng(11);
  Workload workload = batch_of({9000, 300, 4000, 700});
  add_home(HomeKind::kScattered, 2, rng, workload);
  const StrategyRequest still = request_with({{"tolerance", "1000"}, {"nano_batches", "1"}});
  const PlanStats stats = statistics(plan_of(workload, cluster_of(1, 2), still));
  for (const Kind kind : {Kind::kQ, Kind::kO}) EXPECT_EQ(bytes_of(*stats.forward, kind), 0);
  EXPECT_GT(bytes_of(*stats.forward, Kind::kKv), 0);
  for (const Kind kind : {Kind::kDo, Kind::kDq}) EXPECT_EQ(bytes_of(*stats.backward, kind), 0);
}

// Two of four devices have half of the documents each, so two documents of each have to leave.
TEST(DistcaHome, EightEqualDocumentsOnHalfOfTheDevicesMoveHalfOfThem) {
  constexpr std::int64_t kLength = 1024;
  Workload workload = batch_of(std::vector<std::int64_t>(8, kLength));
  workload.home = {{{0, 4 * kLength}, Rank{0}}, {{4 * kLength, 8 * kLength}, Rank{1}}};
  for (const char* nano_batches : {"1", "2"}) {
    for (const char* balance : {"one_sided", "two_sided"}) {
      for (const char* cost : {"profile", "pairs"}) {
        SCOPED_TRACE(fmt::format("{} nano-batches, {}, {}", nano_batches, balance, cost));
        const DirectionStats forward =
            *statistics(plan_of(workload, cluster_of(1, 4),
                                request_with({{"nano_batches", nano_batches},
                                              {"balance", balance},
                                              {"cost", cost}})))
                 .forward;
        for (const Kind kind : {Kind::kQ, Kind::kKv}) {
          EXPECT_EQ(bytes_of(forward, kind),
                    unit_bytes(kind, 4096, workload.shape, 1, workload.shape.dtype));
        }
        EXPECT_NEAR(forward.compute_overload, 0, 1e-9);
      }
    }
  }
}

TEST(DistcaHome, PairsTheRowsOfADeviceFromTheOutsideIn) {
  const auto items_of = [](std::int64_t length, std::vector<HomeRange> home) {
    const Range sequence{0, length};
    return items_at_home({&sequence, 1}, home, 2, 1)[0];
  };
  const auto item = [](std::int32_t device, Range head, Range tail) {
    return CaItem{0, Rank{device}, Rank{device}, {head, {0, head.end}}, {tail, {0, tail.end}}};
  };
  // Head and tail.
  EXPECT_EQ(items_of(16, {{{0, 3}, Rank{0}}, {{3, 13}, Rank{1}}, {{13, 16}, Rank{0}}}),
            (std::vector<CaItem>{item(0, {0, 3}, {13, 16}), item(1, {3, 8}, {8, 13})}));
  // A long end and a short front: end rows without a partner in front become a tail alone.
  EXPECT_EQ(items_of(16, {{{0, 3}, Rank{0}}, {{3, 9}, Rank{1}}, {{9, 16}, Rank{0}}}),
            (std::vector<CaItem>{item(0, {0, 3}, {13, 16}), item(0, {9, 9}, {9, 13}),
                                 item(1, {3, 3}, {3, 9})}));
}

TEST(DistcaHome, EveryNanoBatchHasAnEqualShareOfEveryDevicesRows) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for (const HomeKind kind : kHomeKinds) {
      SCOPED_TRACE(fmt::format("seed {} home {}", seed, static_cast<int>(kind)));
      Rng rng(seed);
      Workload workload = batch_of(random_lengths(rng, 10, 3000));
      const auto devices = static_cast<std::int32_t>(random_between(rng, 1, 9));
      const auto nano_batches = static_cast<std::int32_t>(random_between(rng, 1, 4));
      add_home(kind, devices, rng, workload);
      std::vector<int> owners(static_cast<std::size_t>(workload.num_tokens()));
      std::map<Rank, std::vector<std::int64_t>> rows_of;
      std::vector<std::int64_t> rows(static_cast<std::size_t>(nano_batches));
      const auto parts = items_at_home(workload.sequences, workload.home, devices, nano_batches);
      for (std::size_t n = 0; n < parts.size(); ++n) {
        for (const CaItem& item : parts[n]) {
          const std::int64_t begin =
              workload.sequences[static_cast<std::size_t>(item.document)].begin;
          EXPECT_EQ(item.source, item.server);
          auto& of_device = rows_of[item.source];
          of_device.resize(parts.size());
          of_device[n] += num_rows(item);
          rows[n] += num_rows(item);
          for (const CaShard& shard : {item.head, item.tail}) {
            for (std::int64_t q = shard.queries.begin; q < shard.queries.end; ++q) {
              EXPECT_EQ(home_of(workload, begin + q), item.source);
              ++owners[static_cast<std::size_t>(begin + q)];
            }
          }
        }
      }
      EXPECT_TRUE(std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; }));
      const auto spread = [](const std::vector<std::int64_t>& counts) {
        const auto [low, high] = std::minmax_element(counts.begin(), counts.end());
        return *high - *low;
      };
      for (const auto& [device, counts] : rows_of) EXPECT_LE(spread(counts), 1);
      EXPECT_LE(spread(rows), nano_batches == 2 ? 1 : devices);
    }
  }
}

// The keys of a document that lies on every device are worth sending to one of them only.
TEST(DistcaHome, GathersDocumentsThatAreEverywhereWhereThatMovesFewerBytes) {
  Rng rng(3);
  Workload workload = default_batch_of(std::vector<std::int64_t>(64, 4096));
  add_home(HomeKind::kZigzag, 32, rng, workload);
  const auto bytes = [&](const std::string& balance) {
    const DirectionStats forward =
        *statistics(plan_of(workload, cluster_of(4, 8), request_with({{"balance", balance}})))
             .forward;
    EXPECT_LE(forward.compute_overload, 0.1);
    return forward.inter_bytes + forward.intra_bytes;
  };
  const std::int64_t everywhere =
      3 * 32 *
      unit_bytes(Kind::kKv, workload.num_tokens() / 4, workload.shape, 1, workload.shape.dtype);
  EXPECT_LT(bytes("two_sided"), everywhere / 2);
}

TEST(DistcaHome, TheOriginalNeedsHeadAndTailPieces) {
  Rng rng(5);
  Workload workload = default_batch_of(std::vector<std::int64_t>{16384, 8192, 40960});
  const StrategyRequest request = request_with({{"match_original", "on"}, {"nano_batches", "1"}});
  add_home(HomeKind::kContiguous, 4, rng, workload);
  const auto reason = distca_strategy().unsupported(workload, cluster_of(1, 4), request);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("as many rows from a sequence's front as from its end"),
            std::string::npos);
  workload.home.clear();
  const Plan placed = plan_of(workload, cluster_of(1, 4), request);
  add_home(HomeKind::kHeadTail, 4, rng, workload);
  const Plan at_home = plan_of(workload, cluster_of(1, 4), request);
  EXPECT_TRUE(verify(at_home).ok());
  EXPECT_EQ(statistics(at_home).forward->bytes_by_kind, statistics(placed).forward->bytes_by_kind);
}

TEST(DistcaHome, AttentionServersHaveNoTokensAtHome) {
  Rng rng(5);
  Workload workload = batch_of({900, 800});
  const StrategyRequest request = request_with({{"attention_servers", "1"}});
  const auto reason = [&](std::int32_t owners) {
    workload.home.clear();
    add_home(HomeKind::kContiguous, owners, rng, workload);
    return distca_strategy().unsupported(workload, cluster_of(1, 4), request);
  };
  EXPECT_FALSE(reason(3));
  ASSERT_TRUE(reason(4));
  EXPECT_NE(reason(4)->find("found [1275, 1700) on rank 3"), std::string::npos);
}

// Llama-8B, TP 8, 16 ranks in two or four stages, of which only the first has documents. Placing
// the documents again over all ranks would send nearly all Q, K, V and O there and back.
TEST(DistcaHome, AWarmUpTickMovesOnlyWhatFillsOtherStages) {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 1;
  const Cluster cluster = load_cluster("dgx-h200:16x8").group(8, 1);
  const StrategyRequest request = request_with({{"nano_batches", "1"}, {"resend", "on"}});
  const auto forward_bytes = [&](const Workload& workload) {
    const DirectionStats forward = *statistics(plan_of(workload, cluster, request)).forward;
    return forward.inter_bytes + forward.intra_bytes;
  };
  for (const char* dataset : {"prolong", "pretrain"}) {
    for (const std::int32_t stages : {2, 4}) {
      SCOPED_TRACE(fmt::format("{}, {} stages", dataset, stages));
      Rng rng(1);
      BatchOptions batch;
      batch.tokens = 1 << 20;
      Workload workload = batch_of(batches_from_dataset(dataset, batch)[0], "causal", shape);
      std::int64_t anew = forward_bytes(workload);
      for (const Kind kind : {Kind::kQ, Kind::kKv, Kind::kO}) {
        anew += unit_bytes(kind, workload.num_tokens(), shape, 1, shape.dtype);
      }
      add_home(HomeKind::kHeadTail, 16 / stages, rng, workload);
      const std::int64_t at_home = forward_bytes(workload);
      EXPECT_LE(at_home, 1'150'000'000);
      EXPECT_LE(3 * at_home, anew);
    }
  }
}

TEST(DistcaBackward, OfItsOwnNeedsInputsSentAgain) {
  Rng rng(2);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 400; ++i) lengths.push_back(random_between(rng, 100, i < 40 ? 60000 : 3000));
  const Workload workload = default_batch_of(lengths);
  const auto reason = distca_strategy().unsupported(workload, cluster_of(2, 8),
                                                    request_with({{"backward", "own"}}));
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("backward=own needs resend=on"), std::string::npos);
  StrategyRequest request = request_with({{"resend", "on"}});
  const auto devices_of = [&](Direction direction) {
    const ArrangedRound round =
        distca_strategy().arrange(workload, cluster_of(2, 8), request).rounds[0];
    const ArrangedMask& programs = round.programs[0];
    std::map<std::pair<BlockId, BlockId>, Rank> devices;
    for (const PlacedTile& tile :
         (direction == Direction::kForward ? programs.forward : programs.backward)->tiles) {
      devices[{tile.q_block, tile.kv_block}] = tile.device;
    }
    return devices;
  };
  EXPECT_TRUE(devices_of(Direction::kForward) == devices_of(Direction::kBackward));
  request.options["backward"] = "own";
  EXPECT_FALSE(devices_of(Direction::kForward) == devices_of(Direction::kBackward));
  EXPECT_TRUE(verify(plan_of(workload, cluster_of(2, 8), request)).ok());
}

}  // namespace
}  // namespace contextile

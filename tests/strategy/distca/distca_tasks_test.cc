// The engine of distca: placement, migration, volume, the plan of a batch, pipeline ticks.
#include "strategy/distca/distca_tasks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/workload.h"
#include "strategy/distca/distca_pipeline.h"
#include "strategy/distca/distca_plan.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

std::vector<DocumentRows> documents_of(const std::vector<std::int64_t>& lengths) {
  std::vector<DocumentRows> documents;
  for (const std::int64_t length : lengths) {
    documents.push_back({static_cast<std::int32_t>(documents.size()), {0, length}});
  }
  return documents;
}

CaItem item(std::int32_t document, std::int32_t source, std::int32_t server, Range head,
            Range tail) {
  return {document, Rank{source}, Rank{server}, {head, {0, head.end}}, {tail, {0, tail.end}}};
}

// Returns long-tailed lengths that fill `tokens`: many short documents, and a few of nearly a
// device's share.
std::vector<std::int64_t> long_tailed_lengths(Rng& rng, std::int64_t tokens) {
  std::vector<std::int64_t> lengths;
  while (tokens > 0) {
    const std::int64_t most = random_chance(rng, 0.1) ? 40000 : 4000;
    lengths.push_back(std::min(tokens, random_between(rng, 200, most)));
    tokens -= lengths.back();
  }
  return lengths;
}

double largest(const std::vector<double>& loads) {
  return *std::max_element(loads.begin(), loads.end());
}
double smallest(const std::vector<double>& loads) {
  return *std::min_element(loads.begin(), loads.end());
}
double mean(const std::vector<double>& loads) {
  return std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
}

MigrationOptions plain_options() {
  MigrationOptions options;
  options.granularity_tokens = 1;
  options.balance = TaskBalance::kOneSided;
  options.q_bytes_per_token = 8192;
  options.kv_bytes_per_token = 4096;
  return options;
}

TEST(DistcaPlacement, CutsHeadsAndTailsAsDevicesFill) {
  const std::vector<CaItem> expected = {
      item(0, 0, 0, {0, 3}, {5, 8}), item(0, 1, 1, {3, 4}, {4, 5}), item(1, 1, 1, {0, 2}, {8, 10}),
      item(1, 2, 2, {2, 5}, {5, 8})};
  EXPECT_EQ(place_documents(documents_of({8, 10}), 3), expected);
}

TEST(DistcaPlacement, GivesTheExtraRowOfAnOddPieceToTheTail) {
  const std::vector<CaItem> expected = {item(0, 0, 0, {0, 1}, {4, 5}),
                                        item(0, 1, 1, {1, 2}, {2, 4})};
  EXPECT_EQ(place_documents(documents_of({5}), 2), expected);
}

TEST(DistcaPlacement, GivesEveryDeviceEqualTokensAndEveryRowOneOwner) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const std::vector<std::int64_t> lengths = random_lengths(rng, 10, 200);
    const auto devices = static_cast<std::int32_t>(random_between(rng, 1, 12));
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(devices));
    std::map<std::int32_t, std::vector<int>> owners;
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      owners[static_cast<std::int32_t>(d)].resize(static_cast<std::size_t>(lengths[d]));
    }
    for (const CaItem& placed : place_documents(documents_of(lengths), devices)) {
      EXPECT_EQ(placed.source, placed.server);
      for (const CaShard& shard : {placed.head, placed.tail}) {
        tokens[placed.source.index()] += shard.queries.size();
        for (std::int64_t row = shard.queries.begin; row < shard.queries.end; ++row) {
          ++owners[placed.document][static_cast<std::size_t>(row)];
        }
      }
    }
    const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
    EXPECT_LE(*high - *low, 1);
    for (const auto& [document, rows] : owners) {
      EXPECT_TRUE(std::all_of(rows.begin(), rows.end(), [](int count) { return count == 1; }));
    }
  }
}

// One document of 16 tokens and four of 4. Device 0 computes 136 pairs and device 1 computes 40;
// the mean is 88. Two rows from either side of the middle have 34 pairs.
TEST(DistcaMigration, MovesTheRowsNearestTheMiddle) {
  std::vector<CaItem> items = place_documents(documents_of({16, 4, 4, 4, 4}), 2);
  MigrationOptions options = plain_options();
  options.tolerance = 0.2;
  migrate(items, 2, options);
  ASSERT_EQ(items.size(), 6U);
  EXPECT_EQ(items.front(), item(0, 0, 0, {0, 6}, {10, 16}));
  EXPECT_EQ(items.back(), item(0, 0, 1, {6, 8}, {8, 10}));
  EXPECT_EQ(server_loads(items, 2, options), (std::vector<double>{102, 74}));
}

TEST(DistcaMigration, UpstreamEndsATurnWhereARefinedMoveGoesOn) {
  // Device 1 lacks 46.5 pairs, and two rows from either side of the middle have 34. After that, no
  // pair of rows of the long document fits, but the whole short one does.
  const std::vector<CaItem> start = {item(0, 0, 0, {0, 8}, {8, 16}), item(1, 0, 0, {0, 1}, {1, 2}),
                                     item(2, 1, 1, {0, 4}, {4, 8}), item(3, 1, 1, {0, 2}, {2, 4})};
  MigrationOptions options = plain_options();
  options.tolerance = 0;
  options.kv = KvAccounting::kDocument;
  for (const auto& [fidelity, moves_short] :
       {std::pair(Fidelity::kUpstream, false), {Fidelity::kRefined, true}}) {
    options.fidelity = fidelity;
    std::vector<CaItem> items = start;
    migrate(items, 2, options);
    EXPECT_EQ(items[1].server == Rank{1}, moves_short);
  }
}

TEST(DistcaMigration, ComputesEveryPairOnceUnderAnyOptions) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const std::vector<std::int64_t> lengths = random_lengths(rng, 5, 60);
    const auto devices = static_cast<std::int32_t>(random_between(rng, 2, 7));
    MigrationOptions options = plain_options();
    options.tolerance = random_chance(rng, 0.5) ? 0 : 0.1;
    options.kv = random_chance(rng, 0.5) ? KvAccounting::kActual : KvAccounting::kDocument;
    options.balance = random_chance(rng, 0.5) ? TaskBalance::kOneSided : TaskBalance::kTwoSided;
    options.kv_subrange = random_chance(rng, 0.5);
    options.granularity_tokens = random_between(rng, 1, 5);
    std::vector<CaItem> items = place_documents(documents_of(lengths), devices);
    migrate(items, devices, options);
    std::map<std::pair<std::int32_t, std::pair<std::int64_t, std::int64_t>>, int> computed;
    for (const CaItem& moved : items) {
      for (const CaShard& shard : {moved.head, moved.tail}) {
        for (std::int64_t q = shard.queries.begin; q < shard.queries.end; ++q) {
          for (std::int64_t k = shard.keys.begin; k < std::min(shard.keys.end, q + 1); ++k) {
            ++computed[{moved.document, {q, k}}];
          }
        }
      }
    }
    std::int64_t pairs = 0;
    for (const std::int64_t length : lengths) pairs += length * (length + 1) / 2;
    EXPECT_EQ(std::ssize(computed), pairs);
    for (const auto& [pair, count] : computed) ASSERT_EQ(count, 1);
  }
}

TEST(DistcaMigration, SplitsAtMultiplesOfTheGranularity) {
  Rng rng(3);
  std::vector<CaItem> items =
      place_documents(documents_of(long_tailed_lengths(rng, 16 * 16384)), 16);
  const std::size_t placed = items.size();
  MigrationOptions options = plain_options();
  options.granularity_tokens = 128;
  migrate(items, 16, options);
  ASSERT_GT(items.size(), placed);
  for (std::size_t i = placed; i < items.size(); ++i) {
    EXPECT_EQ(items[i].head.queries.size() % 128, 0);
    EXPECT_EQ(items[i].head.queries.size(), items[i].tail.queries.size());
  }
}

TEST(DistcaMigration, TwoSidedKeepsTheToleranceWhereOneSidedDoesNot) {
  int beyond = 0;
  double one_sided_peak = 0;
  double two_sided_peak = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const auto documents = documents_of(long_tailed_lengths(rng, 16 * 16384));
    for (const TaskBalance balance : {TaskBalance::kOneSided, TaskBalance::kTwoSided}) {
      MigrationOptions options = plain_options();
      options.balance = balance;
      std::vector<CaItem> items = place_documents(documents, 16);
      migrate(items, 16, options);
      const std::vector<double> loads = server_loads(items, 16, options);
      EXPECT_GE(smallest(loads), 0.9 * mean(loads) * (1 - 1e-9));
      const std::vector<std::int64_t> sent = forward_volume(items, 16, 8192, 4096).input_sent_bytes;
      const auto peak = static_cast<double>(*std::max_element(sent.begin(), sent.end()));
      if (balance == TaskBalance::kTwoSided) {
        EXPECT_LE(largest(loads), 1.1 * mean(loads) * (1 + 1e-9));
        two_sided_peak += peak;
      } else {
        beyond += largest(loads) > 1.1 * mean(loads) ? 1 : 0;
        one_sided_peak += peak;
      }
    }
  }
  EXPECT_GE(beyond, 5);
  EXPECT_LT(two_sided_peak, one_sided_peak);
}

TEST(DistcaMigration, ChargingForActualKeysMovesFewerBytes) {
  std::int64_t actual = 0;
  std::int64_t document = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    const auto documents = documents_of(long_tailed_lengths(rng, 8 * 16384));
    for (const KvAccounting kv : {KvAccounting::kActual, KvAccounting::kDocument}) {
      MigrationOptions options = plain_options();
      options.kv = kv;
      std::vector<CaItem> items = place_documents(documents, 8);
      migrate(items, 8, options);
      const CaVolume volume = forward_volume(items, 8, 8192, 4096);
      (kv == KvAccounting::kActual ? actual : document) +=
          volume.q_bytes + volume.kv_bytes + volume.o_bytes;
    }
  }
  EXPECT_LT(actual, document);
}

TEST(DistcaMigration, ChargesOnlyKeysThatAreNotThereYet) {
  // Half of document 0, or the inner half of document 1, would restore balance. Device 1 reads all
  // keys of document 1 for the rows it owns.
  std::vector<CaItem> items = {item(0, 0, 0, {0, 8}, {8, 16}), item(1, 0, 0, {4, 8}, {8, 12}),
                               item(1, 1, 1, {0, 4}, {12, 16})};
  migrate(items, 2, plain_options());
  EXPECT_EQ(items[0].server, Rank{0});
  EXPECT_EQ(items[1].server, Rank{1});
  EXPECT_EQ(items.size(), 3U);
}

TEST(DistcaMigration, SplitsATailAloneFromItsFirstRows) {
  std::vector<CaItem> items = {item(0, 0, 0, {8, 8}, {8, 16}), item(0, 1, 1, {0, 0}, {0, 8})};
  MigrationOptions options = plain_options();
  options.tolerance = 0;
  migrate(items, 2, options);  // 100 pairs and 36
  EXPECT_EQ(items.front(), item(0, 0, 0, {8, 8}, {11, 16}));
  EXPECT_EQ(items.back(), item(0, 0, 1, {8, 8}, {8, 11}));
}

TEST(DistcaMigration, BalancesWhatAProfileSaysTasksCost) {
  // Every row costs something in addition to its pairs.
  const auto profile = [](std::int64_t q_tokens, std::int64_t kv_tokens) {
    const auto q = static_cast<double>(q_tokens);
    const auto kv = static_cast<double>(kv_tokens);
    return q * kv - q * (q - 1) / 2 + 5000 * q;
  };
  double slowest_by_time = 0;
  double slowest_by_pairs = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const std::vector<CaItem> placed =
        place_documents(documents_of(long_tailed_lengths(rng, 8 * 16384)), 8);
    MigrationOptions by_time = plain_options();
    by_time.tolerance = 0.02;
    by_time.cost = profile;
    by_time.balance = TaskBalance::kTwoSided;
    MigrationOptions by_pairs = by_time;
    by_pairs.cost = nullptr;
    const double target = 0.98 * mean(server_loads(placed, 8, by_time));
    std::vector<CaItem> items = placed;
    migrate(items, 8, by_time);
    EXPECT_GE(smallest(server_loads(items, 8, by_time)), target * (1 - 1e-9));
    slowest_by_time += largest(server_loads(items, 8, by_time));
    items = placed;
    migrate(items, 8, by_pairs);
    slowest_by_pairs += largest(server_loads(items, 8, by_time));
  }
  EXPECT_LT(slowest_by_time, 0.98 * slowest_by_pairs);
}

TEST(DistcaMigration, FillsServersThatOwnNothing) {
  Rng rng(5);
  std::vector<CaItem> items = place_documents(documents_of(long_tailed_lengths(rng, 6 * 16384)), 6);
  migrate(items, 8, plain_options());
  const std::vector<double> loads = server_loads(items, 8, plain_options());
  for (const double load : loads) EXPECT_GE(load, 0.9 * mean(loads));
  for (const CaItem& moved : items) EXPECT_LT(moved.source.value, 6);
}

TEST(DistcaVolume, CountsEachKeyOnceForEachServer) {
  // Rows 6 … 9 of 16 run on device 1 in two items, which need Q of four rows and keys 0 … 9 once.
  const std::vector<CaItem> items = {item(0, 0, 0, {0, 6}, {10, 16}), item(0, 0, 1, {7, 8}, {8, 9}),
                                     item(0, 0, 1, {6, 7}, {9, 10})};
  const CaVolume volume = forward_volume(items, 2, 100, 10);
  EXPECT_EQ(volume.q_bytes, 400);
  EXPECT_EQ(volume.o_bytes, 400);
  EXPECT_EQ(volume.kv_bytes, 100);
  EXPECT_EQ(volume.input_sent_bytes, (std::vector<std::int64_t>{500, 0}));
  EXPECT_EQ(volume.input_received_bytes, (std::vector<std::int64_t>{0, 500}));
  EXPECT_EQ(volume.output_sent_bytes, (std::vector<std::int64_t>{0, 400}));
  EXPECT_EQ(volume.largest_buffer_bytes(), 500);
}

TEST(DistcaPlan, RaisesTheToleranceUntilBuffersFit) {
  Rng rng(7);
  const std::vector<Range> sequences = sequences_from_lengths(long_tailed_lengths(rng, 8 * 16384));
  CaPlanOptions options;
  options.migration = plain_options();
  options.migration.tolerance = 0.05;
  options.nano_batches = 1;
  const auto buffer = [](const CaPlan& plan) {
    return forward_volume(plan.nano_batches[0], 8, 8192, 4096).largest_buffer_bytes();
  };
  const CaPlan unlimited = plan_tasks(sequences, {}, 8, options).value();
  EXPECT_EQ(unlimited.tolerance, 0.05);
  options.buffer_limit_bytes = buffer(unlimited) * 9 / 10;
  const CaPlan limited = plan_tasks(sequences, {}, 8, options).value();
  EXPECT_GT(limited.tolerance, 0.05);
  EXPECT_LE(buffer(limited), options.buffer_limit_bytes);
  options.migration.tolerance = limited.tolerance - 0.05;  // one step earlier did not fit
  options.buffer_limit_bytes = 0;
  EXPECT_GT(buffer(plan_tasks(sequences, {}, 8, options).value()), buffer(unlimited) * 9 / 10);
  options.buffer_limit_bytes = 1;  // documents that are cut send keys even when nothing moves
  EXPECT_FALSE(plan_tasks(sequences, {}, 8, options));
}

TEST(DistcaPlan, CutsNanoBatchesOfEqualTokensInTheirOrder) {
  CaPlanOptions options;
  options.nano_batches = 2;
  const std::vector<Range> sequences = sequences_from_lengths(std::vector<std::int64_t>{6, 20, 6});
  const CaPlan plan = plan_tasks(sequences, {}, 2, options).value();
  ASSERT_EQ(plan.nano_batches.size(), 2U);
  for (std::size_t n = 0; n < 2; ++n) {
    std::int64_t tokens = 0;
    for (const CaItem& placed : plan.nano_batches[n]) {
      for (const CaShard& shard : {placed.head, placed.tail}) {
        tokens += shard.queries.size();
        if (placed.document != 1) continue;
        // The front of the document comes first: no key is needed before its nano-batch.
        EXPECT_GE(shard.queries.begin, n == 0 ? 0 : 10);
        EXPECT_LE(shard.queries.end, n == 0 ? 10 : 20);
      }
    }
    EXPECT_EQ(tokens, 16);
  }
}

TEST(DistcaPlan, NanoBatchesHaveEqualTokensOfAnyLengths) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    const std::vector<Range> sequences = sequences_from_lengths(random_lengths(rng, 12, 5000));
    CaPlanOptions options;
    options.nano_batches = static_cast<std::int32_t>(random_between(rng, 1, 4));
    std::vector<std::int64_t> rows;
    const CaPlan plan = plan_tasks(sequences, {}, 6, options).value();
    for (const auto& items : plan.nano_batches) {
      std::int64_t& counted = rows.emplace_back();
      for (const CaItem& planned : items) counted += num_rows(planned);
    }
    const auto [low, high] = std::minmax_element(rows.begin(), rows.end());
    EXPECT_LE(*high - *low, 1);
  }
}

TEST(DistcaPipeline, HasTheClosedFormsOfItsPaper) {
  for (std::int32_t p = 1; p <= 6; ++p) {
    for (std::int32_t m = 1; m <= 12; ++m) {
      SCOPED_TRACE(fmt::format("{} stages {} micro-batches", p, m));
      const std::vector<SamePhaseTick> ticks = same_phase_ticks(p, m);
      EXPECT_EQ(std::ssize(ticks), 2 * (m + p - 1));
      for (std::int32_t r = 0; r < p; ++r) {
        EXPECT_EQ(peak_activations(ticks, r), std::min(m, 2 * (p - 1 - r) + 1));
      }
    }
  }
}

TEST(DistcaPipeline, KeepsThePipelinesDependencies) {
  constexpr std::int32_t kStages = 4;
  constexpr std::int32_t kMicroBatches = 7;
  std::map<std::pair<Direction, std::pair<std::int32_t, std::int32_t>>, std::ptrdiff_t> tick_of;
  const std::vector<SamePhaseTick> ticks = same_phase_ticks(kStages, kMicroBatches);
  for (std::size_t t = 0; t < ticks.size(); ++t) {
    for (std::int32_t r = 0; r < kStages; ++r) {
      const std::int32_t micro_batch = ticks[t].micro_batches[static_cast<std::size_t>(r)];
      if (micro_batch == kIdleStage) continue;
      EXPECT_TRUE(tick_of.emplace(std::pair(ticks[t].phase, std::pair(micro_batch, r)), t).second);
    }
  }
  EXPECT_EQ(tick_of.size(), 2U * kStages * kMicroBatches);
  for (std::int32_t i = 0; i < kMicroBatches; ++i) {
    const auto at = [&](Direction phase, std::int32_t r) { return tick_of.at({phase, {i, r}}); };
    for (std::int32_t r = 1; r < kStages; ++r) {
      EXPECT_GT(at(Direction::kForward, r), at(Direction::kForward, r - 1));
      EXPECT_GT(at(Direction::kBackward, r - 1), at(Direction::kBackward, r));
    }
    EXPECT_GT(at(Direction::kBackward, kStages - 1), at(Direction::kForward, kStages - 1));
  }
}

TEST(DistcaPipeline, LeavesIdleStagesToServeInWarmUpAndDrain) {
  const std::vector<SamePhaseTick> expected = {
      {Direction::kForward, {0, kIdleStage}},  {Direction::kForward, {1, 0}},
      {Direction::kBackward, {kIdleStage, 0}}, {Direction::kForward, {kIdleStage, 1}},
      {Direction::kBackward, {0, 1}},          {Direction::kBackward, {1, kIdleStage}}};
  EXPECT_EQ(same_phase_ticks(2, 2), expected);
}

}  // namespace
}  // namespace contextile

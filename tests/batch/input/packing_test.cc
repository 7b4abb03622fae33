#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "contextile/data.h"

namespace contextile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Documents = std::vector<Document>;

Documents documents_of(const std::vector<std::int64_t>& lengths, std::int64_t first_id = 0) {
  Documents documents;
  for (const std::int64_t length : lengths) documents.push_back({first_id++, length});
  return documents;
}

std::vector<std::int64_t> lengths_of(const Documents& documents) {
  std::vector<std::int64_t> lengths;
  for (const Document& document : documents) lengths.push_back(document.length_tokens);
  return lengths;
}
std::vector<std::int64_t> ids_of(const Documents& documents) {
  std::vector<std::int64_t> ids;
  for (const Document& document : documents) ids.push_back(document.id);
  return ids;
}

std::int64_t tokens_of(const MicroBatch& documents) {
  std::int64_t tokens = 0;
  for (const Document& document : documents) tokens += document.length_tokens;
  return tokens;
}

double workload_of(const MicroBatch& documents, std::int64_t balance_tokens) {
  double workload = 0;
  for (const Document& document : documents) {
    workload += packing_workload(document.length_tokens, balance_tokens);
  }
  return workload;
}

std::string message_of(const WlbPackingState& state, const Documents& arriving,
                       const WlbPackingOptions& options) {
  try {
    static_cast<void>(pack_wlb(state, arriving, options));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

// Two micro-batches of at most 12 tokens, outliers of 8 tokens or more, work L² / 16 + L / 4.
WlbPackingOptions small_options() {
  return {.micro_batches = 2,
          .max_tokens = 12,
          .outlier_levels_tokens = std::vector<std::int64_t>{8},
          .balance_tokens = 4};
}

TEST(Packing, WorkIsAttentionAndTheRest) {
  EXPECT_DOUBLE_EQ(packing_workload(4, 4), 2);
  EXPECT_DOUBLE_EQ(packing_workload(8, 4), 6);
  EXPECT_DOUBLE_EQ(packing_workload(131072, 131072), 2);
}

TEST(WlbPacking, FollowsTheWorkedExample) {
  // Step 1: the 9 waits (one outlier, two micro-batches). Sorted: 7, 6, 3, 2.
  //   7 → 0 (work 4.8125); 6 → 1 (3.75); 3 → 1 (work 5.0625, 9 tokens); 2 → 0 (5.5625).
  WlbPackingStep step = pack_wlb({}, documents_of({3, 9, 7, 2, 6}), small_options());
  EXPECT_THAT(ids_of(step.micro_batches[0]), ElementsAre(2, 3));
  EXPECT_THAT(ids_of(step.micro_batches[1]), ElementsAre(4, 0));
  EXPECT_THAT(step.state.queues, ElementsAre(ElementsAre(Document{1, 9})));
  EXPECT_THAT(step.state.remained, IsEmpty());
  // Step 2: the 10 fills the queue, both outliers come out. Sorted: 10, 9, 5, 5, 2.
  //   10 → 0 (8.75); 9 → 1 (7.3125); 5 fits neither; 5 neither; 2 → 1 (11 tokens).
  step = pack_wlb(std::move(step.state), documents_of({5, 10, 2, 5}, 5), small_options());
  EXPECT_THAT(ids_of(step.micro_batches[0]), ElementsAre(6));
  EXPECT_THAT(ids_of(step.micro_batches[1]), ElementsAre(1, 7));
  EXPECT_THAT(step.state.queues, ElementsAre(IsEmpty()));
  EXPECT_THAT(ids_of(step.state.remained), ElementsAre(5, 8));
  // Step 3: what remained comes first: 5 → 0, 5 → 1; then 7 → 0 (12 tokens), 6 → 1.
  step = pack_wlb(std::move(step.state), documents_of({6, 7}, 9), small_options());
  EXPECT_THAT(ids_of(step.micro_batches[0]), ElementsAre(5, 10));
  EXPECT_THAT(ids_of(step.micro_batches[1]), ElementsAre(8, 9));
  EXPECT_EQ(step.state.num_waiting(), 0U);
}

TEST(WlbPacking, TakesTheMicroBatchWithFewestTokensWhenTheOneWithLeastWorkIsFull) {
  // 7 → 0 (4.8125); eight of 1 (0.3125 each) → 1: 2.5 work but 8 tokens; 5: no room with the eight
  // (13 > 12), room with the seven.
  const Documents arriving = documents_of({7, 1, 1, 1, 1, 1, 1, 1, 1});
  WlbPackingStep step = pack_wlb({}, arriving, small_options());
  EXPECT_EQ(tokens_of(step.micro_batches[1]), 8);
  WlbPackingState state;
  state.remained = arriving;  // those first, so that the 5 comes last
  step = pack_wlb(std::move(state), documents_of({5}, 9), small_options());
  EXPECT_THAT(ids_of(step.micro_batches[0]), ElementsAre(0, 9));
}

TEST(WlbPacking, QueuesAreByTheHighestLevelReachedAndFirstInFirstOut) {
  WlbPackingOptions options = small_options();
  options.max_tokens = 100;
  options.outlier_levels_tokens = std::vector<std::int64_t>{10, 20};
  WlbPackingStep step = pack_wlb({}, documents_of({10, 19, 20, 15, 9, 35}), options);
  // Level 10 holds 0, 1, 3 and releases the first two; level 20 holds 2 and 5, and both leave.
  EXPECT_THAT(step.state.queues, ElementsAre(ElementsAre(Document{3, 15}), IsEmpty()));
  std::vector<std::int64_t> placed;
  for (const MicroBatch& micro_batch : step.micro_batches) {
    for (const Document& document : micro_batch) placed.push_back(document.id);
  }
  std::sort(placed.begin(), placed.end());
  EXPECT_THAT(placed, ElementsAre(0, 1, 2, 4, 5));
  step = pack_wlb(std::move(step.state), {}, options, OutlierRelease::kAll);
  EXPECT_THAT(lengths_of(step.micro_batches[0]), ElementsAre(15));
  EXPECT_EQ(step.state.num_waiting(), 0U);
}

TEST(WlbPacking, LevelsAreAQuarterOfTheLimitUnlessGiven) {
  WlbPackingOptions options = {.micro_batches = 2, .max_tokens = 40};
  EXPECT_THAT(pack_wlb({}, documents_of({10, 9}), options).state.queues,
              ElementsAre(ElementsAre(Document{0, 10})));
  options.outlier_levels_tokens.emplace();
  EXPECT_EQ(pack_wlb({}, documents_of({10, 9}), options).state.num_waiting(), 0U);
}

TEST(WlbPacking, RefusesADocumentThatFitsNoMicroBatch) {
  EXPECT_THAT(message_of({}, documents_of({3, 13}), small_options()),
              HasSubstr("expected documents of 1 to 12 tokens (what a micro-batch may hold), found "
                        "document 1 of 13 tokens"));
  EXPECT_THAT(message_of({}, documents_of({0}), small_options()), HasSubstr("document 0 of 0"));
  WlbPackingState state;
  state.queues = {documents_of({13})};
  EXPECT_THAT(message_of(state, {}, small_options()), HasSubstr("of 13 tokens"));
}

TEST(WlbPacking, RefusesBadOptionsAndAForeignState) {
  const auto with = [](auto change) {
    WlbPackingOptions options = small_options();
    change(options);
    return message_of({}, {}, options);
  };
  EXPECT_THAT(with([](auto& o) { o.micro_batches = 0; }), HasSubstr("micro-batches"));
  EXPECT_THAT(with([](auto& o) { o.max_tokens = 0; }), HasSubstr("tokens in a micro-batch"));
  EXPECT_THAT(with([](auto& o) { o.balance_tokens = 0; }), HasSubstr("balance length"));
  EXPECT_THAT(with([](auto& o) {
                o.outlier_levels_tokens = std::vector<std::int64_t>{8, 8};
              }),
              HasSubstr("found 8 after 8"));
  WlbPackingState state;
  state.queues.resize(2);
  EXPECT_THAT(message_of(state, {}, small_options()), HasSubstr("1 outlier queues, found 2"));
}

// The place in which a document waited at the end of a step, and how far back.
struct Place {
  bool in_queue = false;
  std::size_t position = 0;
  std::size_t queue_size = 0;
};

std::map<std::int64_t, Place> places(const WlbPackingState& state) {
  std::map<std::int64_t, Place> result;
  for (const Documents& queue : state.queues) {
    for (std::size_t i = 0; i < queue.size(); ++i) {
      result[queue[i].id] = {true, i, queue.size()};
    }
  }
  for (std::size_t i = 0; i < state.remained.size(); ++i) {
    result[state.remained[i].id] = {false, i, 0};
  }
  return result;
}

WlbPackingOptions random_options(std::mt19937_64& random) {
  WlbPackingOptions options;
  options.micro_batches = static_cast<std::int32_t>(1 + random() % 6);
  options.max_tokens = 20 + static_cast<std::int64_t>(random() % 100);
  options.outlier_levels_tokens.emplace();
  for (std::int64_t level = 1 + static_cast<std::int64_t>(random() % 30);
       options.outlier_levels_tokens->size() < random() % 4; level += 1 + random() % 30) {
    options.outlier_levels_tokens->push_back(level);
  }
  options.balance_tokens = 1 + static_cast<std::int64_t>(random() % 100);
  return options;
}

// A waiting document never falls back. In a full queue it moves up by the `n` documents that the
// queue releases.
void expect_moved_up(const std::map<std::int64_t, Place>& before,
                     const std::map<std::int64_t, Place>& after, std::size_t n, bool draining) {
  for (const auto& [id, now] : after) {
    const auto then = before.find(id);
    if (then == before.end()) continue;
    if (now.in_queue) {
      // Moves up by N whenever its queue holds N.
      EXPECT_TRUE(then->second.in_queue);
      if (then->second.queue_size >= n) {
        EXPECT_LE(now.position + n, then->second.position);
      }
      EXPECT_LE(now.position, then->second.position);
    } else if (!then->second.in_queue) {
      EXPECT_LE(now.position + n, then->second.position);  // N of those before it were placed
    } else {
      EXPECT_TRUE(then->second.position < n || draining);
    }
  }
}

TEST(WlbPacking, LosesDoublesCutsAndOverfillsNothingAndDefersNoLongerThanItSays) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const WlbPackingOptions options = random_options(random);
    const auto n = static_cast<std::size_t>(options.micro_batches);

    std::map<std::int64_t, std::int64_t> expected;  // id → length
    std::map<std::int64_t, std::int64_t> found;
    std::map<std::int64_t, Place> before;
    WlbPackingState state;
    std::int64_t next_id = 0;
    constexpr int kSteps = 12;
    for (int s = 0; s < kSteps || state.num_waiting() > 0; ++s) {
      ASSERT_LT(s, 500) << "what waits at the end never leaves";
      Documents arriving;
      if (s < kSteps) {
        for (std::size_t i = random() % (4 * n + 1); i > 0; --i) {
          const auto length =
              1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(
                                                           random() % 4 ? 12 : options.max_tokens));
          expected[next_id] = length;
          arriving.push_back({next_id++, length});
        }
      }
      WlbPackingStep step =
          pack_wlb(std::move(state), arriving, options,
                   s < kSteps ? OutlierRelease::kFullQueues : OutlierRelease::kAll);
      ASSERT_EQ(step.micro_batches.size(), n);
      for (const MicroBatch& micro_batch : step.micro_batches) {
        EXPECT_LE(tokens_of(micro_batch), options.max_tokens);
        for (const Document& document : micro_batch) {
          EXPECT_TRUE(found.emplace(document.id, document.length_tokens).second)
              << "document " << document.id << " twice";
        }
      }
      const std::map<std::int64_t, Place> after = places(step.state);
      expect_moved_up(before, after, n, s >= kSteps);
      before = after;
      state = std::move(step.state);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(WlbPacking, KeepsTheOrderOfWhatRemainsAndOfEveryQueue) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    WlbPackingOptions options = {.micro_batches = 3, .max_tokens = 30};
    options.outlier_levels_tokens = std::vector<std::int64_t>{20};
    WlbPackingState state;
    std::int64_t next_id = 0;
    for (int s = 0; s < 10; ++s) {
      const Documents remained = state.remained;
      std::vector<std::int64_t> lengths(random() % 15);
      for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(random() % 30);
      const Documents arriving = documents_of(lengths, next_id);
      next_id += static_cast<std::int64_t>(lengths.size());
      WlbPackingStep step = pack_wlb(std::move(state), arriving, options);
      const std::vector<std::int64_t> queued = ids_of(step.state.queues[0]);
      EXPECT_TRUE(std::is_sorted(queued.begin(), queued.end()));
      // Old ones first, in their order; then new ones, longest first.
      auto at = step.state.remained.begin();
      for (const Document& old : remained) {
        if (at != step.state.remained.end() && *at == old) ++at;
      }
      EXPECT_TRUE(std::is_sorted(
          at, step.state.remained.end(),
          [](const Document& a, const Document& b) { return a.length_tokens > b.length_tokens; }));
      for (auto left = at; left != step.state.remained.end(); ++left) {
        EXPECT_EQ(std::find(remained.begin(), remained.end(), *left), remained.end());
      }
      state = std::move(step.state);
    }
  }
}

TEST(WlbPackingWithoutDefer, ForcesWhatFitsNowhere) {
  WlbPackingOptions options = small_options();
  options.max_tokens = 10;
  const auto packed = pack_wlb_without_defer(documents_of({8, 3, 9, 8}), options);
  // 9 → 0; 8 → 1; neither the second 8 nor the 3 fits: at the end 8 → 1 (less work), 3 → 0.
  EXPECT_THAT(ids_of(packed[0]), ElementsAre(2, 1));
  EXPECT_THAT(ids_of(packed[1]), ElementsAre(0, 3));
  EXPECT_THAT(lengths_of(pack_wlb_without_defer(documents_of({50}), options)[0]), ElementsAre(50));
  EXPECT_THAT(pack_wlb_without_defer({}, options), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(WlbPackingWithoutDefer, PacksAsTheOriginalDoes) {
  const std::string path = std::string(CONTEXTILE_GOLDEN) + "/wlb_packing_nodefer.json";
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << path << " is missing";
  const nlohmann::json vectors = nlohmann::json::parse(file);
  ASSERT_GE(vectors["cases"].size(), 1U);
  for (const nlohmann::json& one : vectors["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    std::vector<std::int64_t> lengths;
    for (const auto& batch : one["batches"]) {
      for (const std::int64_t length : batch) lengths.push_back(length);
    }
    WlbPackingOptions options;
    options.micro_batches = one["dp"];
    options.max_tokens = one["Lmax"];
    options.balance_tokens = one["breakpoint"];
    const auto packed = pack_wlb_without_defer(documents_of(lengths), options);
    std::vector<std::vector<std::int64_t>> found;
    std::vector<std::int64_t> tokens;
    std::vector<double> workloads;
    for (const MicroBatch& micro_batch : packed) {
      found.push_back(lengths_of(micro_batch));
      tokens.push_back(tokens_of(micro_batch));
      workloads.push_back(workload_of(micro_batch, options.balance_tokens));
    }
    EXPECT_EQ(found, one["new_batch"].get<std::vector<std::vector<std::int64_t>>>());
    EXPECT_EQ(tokens, one["lengths"].get<std::vector<std::int64_t>>());
    EXPECT_EQ(workloads, one["workloads"].get<std::vector<double>>());  // to the last bit
  }
}

TEST(DpBalancedPacking, FillsMicroBatchesInOrderUpToAMultiple) {
  const Documents documents = documents_of({60, 50, 40, 30, 20, 10});
  const auto packed = [&](const DpBalancedPackingOptions& options) {
    std::vector<std::vector<std::int64_t>> ids;
    for (const MicroBatch& bin : pack_dp_balanced(documents, options)) ids.push_back(ids_of(bin));
    return ids;
  };
  using Ids = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(packed({.max_tokens = 100}), (Ids{{0}, {1, 2}, {3, 4, 5}}));
  EXPECT_EQ(packed({.max_tokens = 100, .multiple = 4}), (Ids{{0}, {1, 2}, {3, 4}, {5}}));
  EXPECT_EQ(packed({.max_tokens = 100, .multiple = 5}), (Ids{{0}, {1, 2}, {3}, {5}, {4}}));
  EXPECT_EQ(packed({.max_tokens = 1000, .max_documents = 4}), (Ids{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_THROW(packed({.max_tokens = 100, .multiple = 7}), InvalidArgument);
  EXPECT_THROW(packed({.max_tokens = 50}), InvalidArgument);
  EXPECT_THROW(packed({.max_tokens = 100, .multiple = 0}), InvalidArgument);
}

}  // namespace
}  // namespace contextile

// Prompts whose tokens context-parallel ranks share.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contextile/planner.h"
#include "contextile/serving/decoder_model.h"
#include "serving/model/reference_decoder.h"
#include "serving/model/small_decoders.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

struct Layout {
  std::int32_t ranks = 1;
  std::int32_t context_parallel = 1;
  std::int32_t kv_ranks = 1;
};

// Logits after every chunk of a sequence, the same on all ranks; and what every rank computed and
// sent.
struct Ran {
  std::vector<std::vector<float>> logits;
  std::vector<DecoderWork> work;  // by rank
  std::vector<DecoderTraffic> traffic;
};

Ran run(
    const DecoderConfig& config, const Layout& layout, DecoderOptions options,
    std::span<const std::int32_t> tokens, std::span<const std::int64_t> chunks,
    const std::function<void(DecoderWeights&)>& change = [](DecoderWeights&) {}) {
  options.layout = {layout.kv_ranks, 1, 4};
  options.num_pages = 40;
  const auto ranks = static_cast<std::size_t>(layout.ranks);
  std::vector<std::vector<std::vector<float>>> by_rank(ranks);
  Ran ran;
  ran.work.resize(ranks);
  ran.traffic.resize(ranks);
  run_inproc(layout.ranks, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(),
                              options.mode == DecodeMode::kQReplicated, layout.context_parallel,
                              layout.kv_ranks};
    DecoderWeights weights = random_weights(config, part, 5);
    change(weights);
    DecoderRank rank(transport, config, std::move(weights), options);
    std::vector<PageId> table;
    for (std::int32_t p = options.num_pages - 1; p >= 0; --p) table.emplace_back(p);
    std::int64_t first = 0;
    const std::size_t me = transport.rank().index();
    for (const std::int64_t count : chunks) {
      const StepRequest request = {
          tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), first,
          table, true};
      const HostTensor logits = rank.forward(std::span(&request, 1));
      const auto values = logits.values<float>();
      by_rank[me].emplace_back(values.begin(), values.end());
      first += count;
    }
    ran.work[me] = rank.work();
    ran.traffic[me] = rank.traffic();
  });
  for (const auto& its : by_rank) EXPECT_EQ(its, by_rank.front());
  ran.logits = by_rank.front();
  return ran;
}

double largest_difference(const DecoderConfig& config, std::span<const std::int32_t> tokens,
                          std::span<const std::int64_t> chunks, const Ran& ran) {
  const ReferenceDecoder reference(config, random_weights(config, {}, 5));
  double largest = 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    end += static_cast<std::size_t>(chunks[i]);
    const std::vector<double> expected = reference.logits(tokens.first(end));
    for (std::size_t v = 0; v < expected.size(); ++v) {
      largest = std::max(largest, std::abs(ran.logits[i][v] - expected[v]));
    }
  }
  return largest;
}

constexpr Layout kLayouts[] = {{2, 2, 2}, {3, 3, 3}, {4, 4, 4}, {4, 2, 2}, {8, 4, 4}, {8, 2, 2}};

// All layouts with every mode; ranks also share single tokens here.
TEST(SharedPrompt, IsTheModelOnOneDeviceInEveryLayoutAndMode) {
  const std::vector<std::int64_t> chunks = {1, 9, 1, 20, 2};
  for (const DecoderConfig& config : configs()) {
    const std::vector<std::int32_t> tokens = prompt(33, config.vocab_size);
    for (const Layout& layout : kLayouts) {
      const std::int32_t groups = layout.ranks / layout.context_parallel;
      if (config.q_heads % groups != 0) continue;
      const bool divides = config.q_heads % layout.ranks == 0;
      std::vector<std::optional<PrefillMode>> modes = {
          std::nullopt, PrefillMode::kPassKv, PrefillMode::kPassQ, PrefillMode::kAllGather};
      if (divides) modes.emplace_back(PrefillMode::kUlysses);
      for (const auto& mode : modes) {
        SCOPED_TRACE(fmt::format("{} heads, {} ranks, cp {}, {}", config.q_heads, layout.ranks,
                                 layout.context_parallel, mode ? to_string(*mode) : "auto"));
        DecoderOptions options;
        options.prefill.mode = mode;
        options.prefill.min_tokens = mode == PrefillMode::kPassKv ? 0 : 2;
        options.mode = divides ? DecodeMode::kA2a : DecodeMode::kQReplicated;
        options.prefill.chunks =
            mode == PrefillMode::kPassQ ? PrefillChunks::kCeil : PrefillChunks::kEven;
        const Ran ran = run(config, layout, options, tokens, chunks);
        EXPECT_LT(largest_difference(config, tokens, chunks, ran), 2e-5);
      }
    }
  }
}

// Heads split over groups of ranks that share the cache: tensor parallelism alone, and the groups
// of vLLM's decode context parallelism and of Helix.
TEST(SharedPrompt, GroupsOfHeadsAreTheModelOnOneDevice) {
  const std::vector<std::int64_t> chunks = {12, 1, 7, 1};
  for (const DecoderConfig& config : configs()) {
    const std::vector<std::int32_t> tokens = prompt(21, config.vocab_size);
    for (const Layout& layout : {Layout{2, 1, 1}, Layout{4, 1, 1}, Layout{4, 1, 2}, Layout{8, 1, 4},
                                 Layout{8, 1, 2}, Layout{8, 1, 1}}) {
      if (config.q_heads % layout.ranks != 0) continue;
      for (const DecodeMode mode : {DecodeMode::kAgRs, DecodeMode::kQReplicated}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} share tokens", layout.ranks, layout.kv_ranks));
        DecoderOptions options;
        options.mode = mode;
        const Ran ran = run(config, layout, options, tokens, chunks);
        EXPECT_LT(largest_difference(config, tokens, chunks, ran), 2e-5);
      }
    }
  }
}

TEST(SharedPrompt, RunsByAPlanOfAnyStrategy) {
  const std::vector<std::int64_t> chunks = {31, 1, 28};
  for (const DecoderConfig& config : {configs()[1], small_with_sinks(), small_with_latent()}) {
    const std::vector<std::int32_t> tokens = prompt(60, config.vocab_size);
    for (const char* strategy : {"zigzag", "dcp", "all_gather"}) {
      SCOPED_TRACE(strategy);
      DecoderOptions options;
      options.prefill.min_tokens = 8;
      std::int32_t num_planned = 0;
      options.prefill.plan = remembered_plans([&](const Workload& workload) {
        ++num_planned;
        const Cluster cluster = load_cluster("dgx-h200:1x2");
        return plan_batch(workload, cluster, parse_strategies(strategy).front()).plan;
      });
      // Both ranks, both chunks, both kinds of layers; later the same again.
      for (int i = 0; i < 2; ++i) {
        const Ran ran = run(config, {2, 2, 2}, options, tokens, chunks);
        EXPECT_LT(largest_difference(config, tokens, chunks, ran), 2e-5);
        EXPECT_EQ(num_planned, config.latent ? 2 : 4);
      }
    }
  }
}

// Rows of shared prompts go to the ranks of their experts, and back.
TEST(SharedPrompt, SendsRowsToTheirExperts) {
  DecoderConfig config = small_with_experts();
  config.experts->num_groups = config.experts->top_groups = 1;
  config.experts->num_experts = 4;
  config.experts->top_k = 4;  // so that every row goes to every rank
  const std::vector<std::int32_t> tokens = prompt(64, config.vocab_size);
  const std::vector<std::int64_t> chunks = {64};
  const Ran ran = run(config, {4, 4, 4}, {}, tokens, chunks);
  EXPECT_LT(largest_difference(config, tokens, chunks, ran), 2e-5);
  for (const DecoderTraffic& its : ran.traffic) {
    // 16 rows to 3 ranks, as many from them, and the counts; layer 1 has no experts.
    const std::int64_t there = 16 * 3 * (4 * config.hidden_size + 8 * 4);
    const std::int64_t back = 16 * 3 * 4 * config.hidden_size;
    EXPECT_EQ(its.expert_bytes, 2 * (there + back + 3 * 4 * 8));
  }
  // The experts' own work: all experts of 2 layers for each row, once.
  const DecoderWork all = run(config, {1, 1, 1}, {}, tokens, chunks).work.front();
  std::int64_t flops = 0;
  for (const DecoderWork& its : ran.work) flops += its.feed_forward_flops;
  EXPECT_EQ(flops, all.feed_forward_flops);
}

// Rates are measured before the first prompt, and not by ranks that do not choose.
TEST(SharedPrompt, SendsNothingToMeasureRates) {
  const std::vector<std::int32_t> tokens = prompt(64, small().vocab_size);
  const std::vector<std::int64_t> chunks = {64};
  const Ran ran = run(small(), {4, 4, 4}, {}, tokens, chunks);
  for (const DecoderTraffic& traffic : ran.traffic) {
    EXPECT_GT(traffic.prefill_bytes, 0);
    EXPECT_LT(traffic.prefill_bytes, 1 << 18);  // measuring takes megabytes
  }
}

TEST(RememberedPlans, AreOfTheSameBatchAndTheLatestOnes) {
  std::vector<std::int64_t> asked;  // new tokens
  const PrefillPlanner planner = remembered_plans(
      [&](const Workload& workload) -> std::shared_ptr<const Plan> {
        asked.push_back(workload.num_tokens());
        if (workload.num_tokens() == 7) throw InvalidArgument("not 7");
        return std::make_shared<const Plan>();
      },
      2);
  const PrefillPlanner copy = planner;
  AttentionShape shape;
  const auto plan_of = [&](const PrefillPlanner& its, std::int64_t tokens, MaskSpec mask = {}) {
    const PrefillSequence sequence = {0, tokens, {}};
    return its({{2, 1, 4}, std::span(&sequence, 1), PrefillChunks::kEven, std::move(mask)}, shape);
  };
  const auto first = plan_of(planner, 10);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(plan_of(copy, 10), first);
  EXPECT_EQ(plan_of(planner, 7), nullptr);
  EXPECT_EQ(plan_of(planner, 7), nullptr);
  EXPECT_EQ(plan_of(planner, 10), first);
  EXPECT_EQ(asked, (std::vector<std::int64_t>{10, 7}));
  EXPECT_NE(plan_of(planner, 10, window_mask(4)), first);  // forgets 7
  EXPECT_EQ(plan_of(planner, 10), first);
  EXPECT_EQ(plan_of(planner, 7), nullptr);
  EXPECT_EQ(asked, (std::vector<std::int64_t>{10, 7, 10, 7}));
  shape.q_heads = 2 * shape.q_heads;
  EXPECT_NE(plan_of(planner, 10), first);
}

// The largest difference of two runs' logits.
double largest_difference(const Ran& a, const Ran& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.logits.size(); ++i) {
    for (std::size_t v = 0; v < a.logits[i].size(); ++v) {
      largest = std::max(largest, double{std::abs(a.logits[i][v] - b.logits[i][v])});
    }
  }
  return largest;
}

// Logits of a prompt of 40 tokens, half of it in the cache: on four ranks that share it, on one,
// and on one that rounds no key.
struct RoundedKeys {
  RoundedKeys(const DecoderConfig& config, KvDtype dtype,
              const std::function<void(DecoderWeights&)>& change) {
    const std::vector<std::int32_t> tokens = prompt(40, config.vocab_size);
    const std::vector<std::int64_t> chunks = {20, 20};
    DecoderOptions options;
    options.prefill.min_tokens = 2;
    const Ran unrounded = run(config, {1, 1, 1}, options, tokens, chunks, change);
    options.kv_dtype = dtype;
    const Ran alone = run(config, {1, 1, 1}, options, tokens, chunks, change);
    const Ran shared = run(config, {4, 4, 4}, options, tokens, chunks, change);
    difference = largest_difference(shared, alone);
    rounding = largest_difference(alone, unrounded);
  }
  double difference = 0;  // of the ranks' logits from those of one
  double rounding = 0;    // what rounding the keys changes
};

// Each key and value is one element of its token's normed embedding, so no sum rounds it: its bits,
// and those that the cache keeps of it, are the same in products of any number of rows. The logits
// then differ by the rounding of fp32, as without a cache of fewer bits.
TEST(SharedPrompt, KeysRoundedByTheCacheAreSeenRounded) {
  DecoderConfig config = small();
  config.num_layers = 1;
  const auto choose = [&](DecoderWeights& weights) {
    DecoderWeights::Layer& layer = weights.layers.front();
    for (auto* matrix : {&layer.k, &layer.v}) {
      const auto inputs = static_cast<std::size_t>(config.hidden_size);
      for (std::size_t i = 0; i < matrix->size(); ++i) {
        matrix->set(i, i % inputs == 7 * (i / inputs) % inputs ? 1.0F : 0.0F);
      }
    }
  };
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF16}) {
    const RoundedKeys found(config, dtype, choose);
    EXPECT_LT(found.difference, 2e-5);
    EXPECT_GT(found.rounding, 1e-4);  // so keys that are not rounded would show
  }
}

// With random weights a product of other rows may round a sum differently, and the cache may then
// round this key to its other neighbor. It moves one key by as much as rounding moves every key at
// most, so it changes less than rounding does.
TEST(SharedPrompt, AKeyThatTheCacheRoundsToItsOtherNeighborChangesLessThanRounding) {
  for (const DecoderConfig& config : {small(), configs()[1], small_with_latent()}) {
    for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF16}) {
      const RoundedKeys found(config, dtype, [](DecoderWeights&) {});
      EXPECT_LT(found.difference, 2e-5 + found.rounding / 2);
    }
  }
}

std::int64_t layer_flops(const DecoderWork& work) {
  return work.projection_flops + work.attention_flops + work.feed_forward_flops;
}

// Every part of a layer: 1/C of one rank's work, on every rank.
TEST(SharedPrompt, RanksSplitTheWorkOfEveryPart) {
  DecoderConfig config = small();
  const std::vector<std::int32_t> tokens = prompt(128, config.vocab_size);
  const std::vector<std::int64_t> chunks = {128};
  const DecoderWork all = run(config, {1, 1, 1}, {}, tokens, chunks).work.front();
  EXPECT_EQ(all.attention_flops, 4 * 128 * 129 / 2 * 8 * 8 * config.num_layers);
  EXPECT_EQ(all.feed_forward_flops, 2 * 3 * 128 * 48 * 50 * config.num_layers);
  EXPECT_EQ(all.projection_flops, 2 * 128 * 48 * (2 * 64 + 2 * 16) * config.num_layers);
  for (const Layout& layout : {Layout{2, 2, 2}, Layout{4, 4, 4}, Layout{4, 2, 2}}) {
    for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kAllGather}) {
      DecoderOptions options;
      options.prefill.mode = mode;
      const Ran ran = run(config, layout, options, tokens, chunks);
      for (const DecoderWork& its : ran.work) {
        EXPECT_EQ(its.projection_flops * layout.ranks, all.projection_flops);
        EXPECT_EQ(its.feed_forward_flops * layout.ranks, all.feed_forward_flops);
        // Zigzag chunks have the same pairs on all ranks.
        EXPECT_EQ(its.attention_flops * layout.ranks, all.attention_flops);
      }
    }
  }
  // As decoding does it, each rank projects keys of its tokens, and all rows' outputs.
  DecoderOptions off;
  off.prefill.min_tokens = 1000;
  const Ran ran = run(config, {4, 4, 4}, off, tokens, chunks);
  EXPECT_GT(layer_flops(ran.work.front()) * 4, layer_flops(all));
}

TEST(SharedPrompt, SendsWhatTheModeSays) {
  const DecoderConfig config = small();
  const std::vector<std::int32_t> tokens = prompt(64, config.vocab_size);
  const std::vector<std::int64_t> chunks = {64};
  const PrefillSequence sequence = {0, 64, {}};
  const PrefillBatch batch = {{4, 1, 4}, std::span(&sequence, 1), PrefillChunks::kEven, {}};
  const PrefillWork work = prefill_work(batch);
  AttentionShape shape;
  shape.q_heads = config.q_heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = shape.value_dim = config.head_dim;
  shape.dtype = Dtype::kF32;
  const auto check = [&](PrefillMode mode, KvDtype dtype, Dtype kv_wire) {
    DecoderOptions options;
    options.prefill.mode = mode;
    options.kv_dtype = dtype;
    const Ran ran = run(config, {4, 4, 4}, options, tokens, chunks);
    for (std::int32_t r = 0; r < 4; ++r) {
      // A rank has 16 rows, in chunks of 8 of which each rank keeps 2: 12 go to others.
      const std::int64_t to_cache = 12 * 2 * 2 * 8 * bytes_per_element(dtype);
      const std::int64_t sent = ran.traffic[static_cast<std::size_t>(r)].prefill_bytes;
      const std::int64_t layer =
          prefill_bytes(mode, work, Rank(r), shape, Dtype::kF32, kv_wire) + to_cache;
      EXPECT_GE(sent, config.num_layers * layer);
      EXPECT_LT(sent, config.num_layers * layer + 4096) << "beside the comparison of calls";
      EXPECT_EQ(ran.traffic[static_cast<std::size_t>(r)].reduction_bytes, 0);
    }
  };
  for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kPassQ, PrefillMode::kAllGather,
                                 PrefillMode::kUlysses}) {
    check(mode, KvDtype::kF32, Dtype::kF32);
    check(mode, KvDtype::kBf16, Dtype::kBf16);
  }
}

// Requests of one step of which a later one reads what an earlier one writes.
TEST(SharedPrompt, ReadsWhatTheSameStepWrites) {
  const DecoderConfig config = small();
  const std::vector<std::int32_t> tokens = prompt(50, config.vocab_size);
  const ReferenceDecoder reference(config, random_weights(config, {}, 5));
  std::vector<float> found;
  run_inproc(2, [&](Transport& transport) {
    DecoderOptions options;
    options.layout = {2, 1, 4};
    options.num_pages = 20;
    options.prefill.min_tokens = 4;
    DecoderRank rank(transport, config,
                     random_weights(config, {transport.rank(), 2, true, 2, 2}, 5), options);
    std::vector<PageId> first;
    std::vector<PageId> second;
    for (std::int32_t p = 0; p < 7; ++p) first.emplace_back(p);
    for (std::int32_t p = 0; p < 7; ++p) second.emplace_back(p < 3 ? p : p + 7);
    const std::vector<StepRequest> step = {
        {std::span(tokens).first(30), 0, first, false},
        {std::span(tokens).subspan(24, 26), 24, second, true},
    };
    const HostTensor logits = rank.forward(step);
    if (transport.rank().value == 0) {
      found.assign(logits.values<float>().begin(), logits.values<float>().end());
    }
  });
  const std::vector<double> expected = reference.logits(tokens);
  for (std::size_t v = 0; v < expected.size(); ++v) EXPECT_NEAR(found[v], expected[v], 2e-5);
}

TEST(SharedPrompt, UlyssesSaysWhatDoesNotDivide) {
  DecoderConfig config = small();
  config.q_heads = 6;
  config.kv_heads = 3;
  DecoderOptions options;
  options.prefill.mode = PrefillMode::kUlysses;
  const std::vector<std::int32_t> tokens = prompt(64, config.vocab_size);
  const std::vector<std::int64_t> chunks = {64};
  try {
    static_cast<void>(run(config, {4, 4, 4}, options, tokens, chunks));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("ulysses: expected query heads that 4 ranks divide"));
  }
}

}  // namespace
}  // namespace contextile

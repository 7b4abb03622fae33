#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/half.h"
#include "contextile/serving/decoder_model.h"
#include "serving/model/reference_decoder.h"
#include "serving/model/small_decoders.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

// Logits of rank 0 after every chunk of a sequence that is computed in chunks; those of all ranks
// are compared with them.
std::vector<std::vector<float>> run(const DecoderConfig& config, const DecoderOptions& options,
                                    std::span<const std::int32_t> tokens,
                                    std::span<const std::int64_t> chunks) {
  std::vector<std::vector<std::vector<float>>> by_rank(
      static_cast<std::size_t>(options.layout.num_ranks));
  run_inproc(options.layout.num_ranks, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(),
                              options.mode == DecodeMode::kQReplicated};
    DecoderRank rank(transport, config, random_weights(config, part, 5), options);
    std::vector<PageId> table;
    for (std::int32_t p = options.num_pages - 1; p >= 0; --p) table.emplace_back(p);
    std::int64_t first = 0;
    for (const std::int64_t count : chunks) {
      StepRequest request;
      request.tokens =
          tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      request.position = first;
      request.table = table;
      const HostTensor logits = rank.forward(std::span(&request, 1));
      const auto values = logits.values<float>();
      by_rank[transport.rank().index()].emplace_back(values.begin(), values.end());
      first += count;
    }
  });
  for (const auto& its : by_rank) EXPECT_EQ(its, by_rank.front());
  return by_rank.front();
}

TEST(Decoder, IsTheModelOnOneDeviceOnAnyNumberOfRanks) {
  const std::vector<std::int64_t> chunks = {1, 9, 1, 1, 20, 1};
  for (const DecoderConfig& config : configs()) {
    const ReferenceDecoder reference(config, random_weights(config, {}, 5));
    const std::vector<std::int32_t> tokens = prompt(33, config.vocab_size);
    for (const std::int32_t ranks : {1, 2, 3, 4, 8}) {
      for (const std::int32_t interleave : {1, 4}) {
        SCOPED_TRACE(
            fmt::format("{} heads, {} ranks, interleave {}", config.q_heads, ranks, interleave));
        DecoderOptions options;
        options.layout = {ranks, interleave, 4};
        options.num_pages = 10;
        const auto found = run(config, options, tokens, chunks);
        std::size_t end = 0;
        for (std::size_t i = 0; i < chunks.size(); ++i) {
          end += static_cast<std::size_t>(chunks[i]);
          const std::vector<double> expected = reference.logits(std::span(tokens).first(end));
          for (std::size_t v = 0; v < expected.size(); ++v) {
            ASSERT_NEAR(found[i][v], expected[v], 2e-5) << "token " << v << " behind " << end;
          }
        }
      }
    }
  }
}

TEST(Decoder, EveryModeAndDtypeComesClose) {
  const DecoderConfig config = small();
  const std::vector<std::int32_t> tokens = prompt(21, config.vocab_size);
  const std::vector<std::int64_t> chunks = {20, 1};
  const auto expected = ReferenceDecoder(config, random_weights(config, {}, 5)).logits(tokens);
  for (const DecodeMode mode : {DecodeMode::kAgRs, DecodeMode::kA2a, DecodeMode::kQReplicated}) {
    for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kF16}) {
      DecoderOptions options;
      options.layout = {4, 1, 2};
      options.num_pages = 10;
      options.mode = mode;
      options.kv_dtype = dtype;
      const auto found = run(config, options, tokens, chunks);
      const double most = dtype == KvDtype::kF32 ? 2e-5 : dtype == KvDtype::kF16 ? 5e-3 : 4e-2;
      for (std::size_t v = 0; v < expected.size(); ++v) {
        ASSERT_NEAR(found.back()[v], expected[v], most) << to_string(mode) << to_string(dtype);
      }
    }
  }
}

TEST(Decoder, CountsWhatItSends) {
  const DecoderConfig config = small();
  const std::int64_t rows = 3;
  run_inproc(4, [&](Transport& transport) {
    DecoderOptions options;
    options.layout = {4, 1, 4};
    options.num_pages = 1;
    options.mode = DecodeMode::kA2a;
    DecoderRank rank(transport, config, random_weights(config, {transport.rank(), 4, false}, 1),
                     options);
    const std::vector<std::int32_t> tokens = prompt(rows, config.vocab_size);
    const std::vector<PageId> table = {PageId(0)};
    const StepRequest request = {tokens, 0, table, true};
    static_cast<void>(rank.forward(std::span(&request, 1)));
    EXPECT_EQ(rank.traffic().attention_bytes,
              config.num_layers * decode_bytes(DecodeMode::kA2a, 4, rows, 2, 8, 8, Dtype::kF32));
    EXPECT_EQ(rank.traffic().reduction_bytes,
              config.num_layers * 2 * (2 * 3 * rows * config.hidden_size * 4 / 4));
    const auto mine = DecoderPart{transport.rank(), 4}.of(config.vocab_size).size();
    EXPECT_EQ(rank.traffic().logits_bytes, 3 * mine * 4);
    EXPECT_EQ(rank.kv_bytes(), 4 * kv_bytes_per_token(config, KvDtype::kF32));
    EXPECT_EQ(rank.traffic().attention_bytes + rank.traffic().reduction_bytes +
                  rank.traffic().logits_bytes,
              transport.sent_bytes());
  });
}

// Computes a step of every request's tokens, each with pages of its own except the last one's first
// page. That is the first request's page: its tokens are written in the same step.
struct HopBStep {
  DecoderConfig config;
  std::vector<std::int64_t> lengths;

  // Logits of all requests on rank 0, the same on every rank; bytes are those without HOP-B.
  [[nodiscard]] std::vector<float> logits(DecoderOptions options) const {
    std::vector<std::vector<float>> found(4);
    run_inproc(
        4,
        [&](Transport& transport) {
          DecoderRank rank(transport, config,
                           random_weights(config, {transport.rank(), 4, true}, 5), options);
          const std::int64_t block = options.layout.block_tokens();
          std::vector<std::vector<PageId>> tables(lengths.size());
          std::vector<std::vector<std::int32_t>> tokens;
          std::vector<StepRequest> requests;
          std::int32_t page = 0;
          for (std::size_t i = 0; i < lengths.size(); ++i) {
            const bool is_reader = i + 1 == lengths.size();
            const std::int64_t first = is_reader ? block : 0;
            tokens.push_back(prompt(first + lengths[i], config.vocab_size));
            if (is_reader) tables[i].push_back(tables[0][0]);
            const std::int64_t pages = options.layout.num_blocks(first + lengths[i]);
            while (static_cast<std::int64_t>(tables[i].size()) < pages)
              tables[i].emplace_back(page++);
            requests.push_back({std::span(tokens[i]).subspan(static_cast<std::size_t>(first)),
                                first, tables[i], i != 1});
          }
          const HostTensor all = rank.forward(requests);
          const auto values = all.values<float>();
          found[transport.rank().index()].assign(values.begin(), values.end());
          std::int64_t rows = 0;
          for (const std::int64_t length : lengths) rows += length;
          EXPECT_EQ(rank.traffic().attention_bytes,
                    config.num_layers * decode_bytes(options.mode, 4, rows, 2, config.head_dim,
                                                     config.head_dim, Dtype::kF32));
        },
        {.max_delay_us = 200, .delay_seed = 3});
    for (const auto& its : found) EXPECT_EQ(its, found.front());
    return found.front();
  }
};

TEST(Decoder, HopBChangesNoLogits) {
  const HopBStep step = {small(), {17, 1, 1, 3, 1, 9}};
  DecoderOptions options;
  options.layout = {4, 1, 4};
  options.num_pages = 20;
  const std::vector<float> expected = step.logits(options);
  const auto tokens = prompt(25, step.config.vocab_size);
  const auto reader =
      ReferenceDecoder(step.config, random_weights(step.config, {}, 5)).logits(std::span(tokens));
  ASSERT_EQ(expected.size(), 5 * reader.size());
  for (const HopBReading reading : {HopBReading::kAttention, HopBReading::kFeedForward}) {
    for (const std::int32_t groups : {1, 2, 3, 6, 9}) {
      SCOPED_TRACE(fmt::format("{}, {} groups", to_string(reading), groups));
      options.hop_b = reading;
      options.hop_b_groups = groups;
      const std::vector<float> found = step.logits(options);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t v = 0; v < found.size(); ++v) ASSERT_NEAR(found[v], expected[v], 1e-5);
      for (std::size_t v = 0; v < reader.size(); ++v) {
        ASSERT_NEAR(found[4 * reader.size() + v], reader[v], 2e-5);
      }
    }
  }
}

TEST(Decoder, RanksHoldPartsOfTheSameWeights) {
  const DecoderConfig config = configs()[1];
  const DecoderWeights whole = random_weights(config, {}, 3);
  std::int64_t inner = 0;
  std::vector<float> gate;
  std::vector<float> logits;
  for (std::int32_t r = 0; r < 3; ++r) {
    const DecoderWeights part = random_weights(config, {Rank(r), 3}, 3);
    inner += static_cast<std::int64_t>(part.layers[1].down.size());
    const std::vector<float> its_gate = part.layers[1].gate.values();
    gate.insert(gate.end(), its_gate.begin(), its_gate.end());
    const std::vector<float> its_logits = part.logits.values();
    logits.insert(logits.end(), its_logits.begin(), its_logits.end());
    EXPECT_EQ(part.layers[1].q, whole.layers[1].q);
  }
  EXPECT_EQ(gate, whole.layers[1].gate.values());
  EXPECT_EQ(logits, whole.logits.values());
  EXPECT_EQ(inner, static_cast<std::int64_t>(whole.layers[1].down.size()));
  for (const DecoderConfig& its : configs()) {
    const std::int64_t tied = its.tied_embeddings ? its.vocab_size * its.hidden_size : 0;
    EXPECT_EQ(random_weights(its, {}, 3).size_bytes(), 4 * (num_parameters(its) + tied));
  }
  EXPECT_NE(random_weights(config, {}, 4).logits, whole.logits);
}

// Rounds the matrices to bf16, and keeps them as such or widened again.
DecoderWeights rounded(DecoderWeights weights, bool widened) {
  const auto round = [widened](WeightElements& elements) {
    std::vector<std::uint16_t> bits;
    for (const float value : elements.values()) bits.push_back(float_to_bf16(value));
    const WeightElements narrow(std::move(bits));
    elements = widened ? WeightElements(narrow.values()) : narrow;
  };
  round(weights.embeddings);
  round(weights.logits);
  for (DecoderWeights::Layer& layer : weights.layers) {
    for (auto* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up,
                         &layer.down, &layer.q_a, &layer.kv_a, &layer.kv_b, &layer.router}) {
      round(*matrix);
    }
    for (auto& expert : layer.experts) {
      for (auto* matrix : {&expert.gate, &expert.up, &expert.down}) round(*matrix);
    }
  }
  return weights;
}

// Compares the logits of weights in bf16 with those of the same weights in fp32.
void check_bf16(const DecoderConfig& config) {
  const std::vector<std::int32_t> tokens = prompt(21, config.vocab_size);
  run_inproc(2, [&](Transport& transport) {
    DecoderOptions options;
    options.layout = {2, 1, 4};
    options.num_pages = 4;
    const std::vector<PageId> table = {PageId(0), PageId(1), PageId(2)};
    std::vector<std::vector<float>> logits;
    for (const bool widened : {false, true}) {
      const DecoderWeights weights =
          rounded(random_weights(config, {transport.rank(), 2, true, 2}, 5), widened);
      const WeightElements& gate =
          config.experts ? weights.layers[2].experts[0].gate : weights.layers[2].gate;
      const std::int64_t size = config.experts ? config.experts->ffn_size : config.ffn_size;
      EXPECT_EQ(gate.size_bytes(), (widened ? 4 : 2) * size * config.hidden_size);
      DecoderRank rank(transport, config, weights, options);
      for (const Range some : {Range{0, 20}, Range{20, 21}}) {
        const StepRequest request = {
            std::span(tokens).subspan(static_cast<std::size_t>(some.begin),
                                      static_cast<std::size_t>(some.size())),
            some.begin, table, true};
        const HostTensor found = rank.forward(std::span(&request, 1));
        logits.emplace_back(found.values<float>().begin(), found.values<float>().end());
      }
    }
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t v = 0; v < logits[i].size(); ++v) {
        EXPECT_NEAR(logits[i][v], logits[i + 2][v], 2e-6);
      }
    }
  });
}

TEST(Decoder, WeightsOfBf16AreMultipliedAsTheyAre) {
  for (const DecoderConfig& config :
       {small(), small_with_experts(), small_with_sinks(), small_with_latent()}) {
    check_bf16(config);
  }
}

TEST(Decoder, RandomWeightsAreNormal) {
  const DecoderConfig config = small();
  const DecoderWeights weights = random_weights(config, {}, 3);
  double sum = 0;
  double squares = 0;
  for (const float x : weights.layers[0].gate.values()) {
    sum += x;
    squares += x * x;
  }
  const auto count = static_cast<double>(weights.layers[0].gate.size());
  EXPECT_NEAR(sum / count, 0, 4 / std::sqrt(count * config.hidden_size));
  EXPECT_NEAR(squares / count * config.hidden_size, 1, 0.15);
}

std::string error_of(const DecoderConfig& config, DecoderOptions options, const DecoderPart& part,
                     std::vector<std::int32_t> tokens = {1}) {
  std::string message;
  run_inproc(1, [&](Transport& transport) {
    try {
      DecoderRank rank(transport, config, random_weights(config, part, 1), options);
      const std::vector<PageId> table = {PageId(0)};
      const StepRequest request = {tokens, 0, table, true};
      static_cast<void>(rank.forward(std::span(&request, 1)));
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(Decoder, SaysWhatDoesNotFit) {
  DecoderOptions options;
  options.layout = {1, 1, 4};
  options.num_pages = 2;
  EXPECT_EQ(error_of(small(), options, {}), "");
  EXPECT_THAT(error_of(small(), options, {}, {67}),
              HasSubstr("expected tokens of 0 to 66, found 67"));
  EXPECT_THAT(error_of(small(), options, {}, {-1}), HasSubstr("found -1"));
  EXPECT_THAT(error_of(small(), options, {}, {1, 2, 3, 4, 5}), HasSubstr("table"));
  EXPECT_THAT(error_of(small(), options, {Rank(0), 1, false}),
              HasSubstr("expected queries of all heads for mode q_replicated"));
  EXPECT_THAT(error_of(small(), options, {Rank(1), 2, true}), HasSubstr("found rank 1 of 2"));
  EXPECT_THAT(error_of(small(), options, {Rank(0), 9, true}),
              HasSubstr("as query heads, 8, found 9"));
  options.hop_b_groups = 0;
  EXPECT_THAT(error_of(small(), options, {}), HasSubstr("hop_b_groups: expected at least 1"));
  options.hop_b_groups = 2;
  options.hop_b = HopBReading::kOff;
  EXPECT_THAT(error_of(small(), options, {}), HasSubstr("hop_b off: expected 1 group, found 2"));
  options.hop_b_groups = 1;
  options.kv_dtype = KvDtype::kFp8;
  EXPECT_THAT(error_of(small(), options, {}), HasSubstr("expected f32, bf16 or f16, found fp8"));
  options.layout.num_ranks = 2;
  EXPECT_THAT(error_of(small(), options, {}), HasSubstr("expected the group's 1 ranks, found 2"));
  DecoderConfig config = small();
  config.head_dim = 7;
  EXPECT_THAT(error_of(config, options, {}), HasSubstr("head_dim: expected an even number"));
  config = small();
  config.kv_heads = 3;
  EXPECT_THAT(error_of(config, options, {}), HasSubstr("divisor of 8 query heads, found 3"));
}

}  // namespace
}  // namespace contextile

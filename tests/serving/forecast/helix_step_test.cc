// Steps of decoding: the paper's goldens, every term by hand, timelines, capacity, refused layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "contextile/serving/helix.h"
#include "serving/forecast/models.h"
#include "serving/forecast/timeline.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

constexpr HopB kHopBOff = {HopBReading::kOff};
constexpr HelixLoad kMillion = {.batch = 8, .context = 1'000'000};

TEST(HelixStep, ReadsMemoryAsLongAsThePapersFormulasSay) {
  struct Golden {
    HelixLayout layout;
    double kv_us;
    double weights_us;
  };
  for (const Golden& golden : {Golden{{1, 8, 8}, 128.0, 29.6}, Golden{{1, 64, 64}, 128.0, 3.9},
                               Golden{{8, 8, 64}, 16.0, 5.8}}) {
    const HelixStep step =
        helix_step(dense_model(), test_hardware(), golden.layout, kMillion, kHopBOff);
    EXPECT_NEAR(step.kv_us, golden.kv_us, 0.05) << to_string(golden.layout);
    EXPECT_NEAR(step.weights_us, golden.weights_us, 0.05) << to_string(golden.layout);
  }
}

TEST(HelixStep, MovesWhatTheFormulasSay) {
  const HelixStep helix =
      helix_step(dense_model(), test_hardware(), {8, 8, 64}, kMillion, kHopBOff);
  EXPECT_NEAR(helix.exchange_us, 5 + 7 * 8 * 2 * (128 * 2 + 8) / 900e3, 1e-9);
  EXPECT_NEAR(helix.all_reduce_us, 2 * (5 + 2.0 * 63 / 64 * 8 * 16384 * 2 / 900e3), 1e-9);
  EXPECT_DOUBLE_EQ(helix.exposed_us, helix.exchange_us);

  const HelixStep tied = helix_step(dense_model(), test_hardware(), {8, 8, 8}, kMillion, kHopBOff);
  EXPECT_NEAR(tied.exchange_us - helix.exchange_us, 5 + 7 * 8 * 2 * (128 * 2) / 900e3, 1e-9);
  EXPECT_NEAR(tied.all_reduce_us, 2 * (5 + 2.0 * 7 / 8 * 8 * 16384 * 2 / 900e3), 1e-9);

  const HelixStep tensor = helix_step(dense_model(), test_hardware(), {1, 64, 64}, kMillion);
  EXPECT_EQ(tensor.exchange_us, 0);
  const HelixStep alone = helix_step(dense_model(), test_hardware(), {1, 1, 1}, kMillion);
  EXPECT_EQ(alone.all_reduce_us, 0);
}

TEST(HelixStep, ReadsALatentOnceForAllHeadsAndExchangesIt) {
  const HelixModel model = load_helix_model("deepseek-r1");
  const HelixStep step = helix_step(model, test_hardware(), {64, 1, 8, 8}, kMillion, kHopBOff);
  EXPECT_NEAR(step.kv_us, 61 * 8 * 576 * (1e6 / 64) * 0.5 / 8e6, 1e-6);
  EXPECT_NEAR(step.exchange_us, 61 * (5 + 63 * 8 * 2 * (512 * 2 + 8) / 900e3), 1e-6);
  const HelixStep tensor = helix_step(model, test_hardware(), {1, 64, 64, 1}, kMillion);
  EXPECT_NEAR(tensor.kv_us, 64 * step.kv_us, 1e-6);
}

TEST(HelixStep, ReadsTheExpertsThatTokensReach) {
  HelixModel model = load_helix_model("deepseek-r1");
  model.shape.layers = 1;
  model.experts->dense_layers = 0;
  const auto weights_us = [&](std::int32_t batch, const HelixLayout& layout) {
    return helix_step(model, test_hardware(), layout, {batch, 1000}, kHopBOff).weights_us;
  };
  const double expert_us = 3.0 * 7168 * 2048 * 0.5 / 8e6;
  EXPECT_NEAR(weights_us(2, {1, 1, 1, 1}) - weights_us(1, {1, 1, 1, 1}),
              (8 - 8 * 8 / 256.0) * expert_us, 1e-6)
      << "the second token's eight, without those that it shares with the first";
  EXPECT_NEAR(weights_us(100'000, {1, 1, 1, 1}) - weights_us(1, {1, 1, 1, 1}), 248 * expert_us,
              1e-6);
  EXPECT_NEAR(weights_us(8, {64, 1, 1, 64}), weights_us(8, {64, 1, 64, 1}), 1e-9)
      << "spread evenly either way";
}

TEST(HelixStep, OfAnyRowsIsThatOfDecodingWhereArithmeticIsFree) {
  HelixHardware hardware = test_hardware();
  hardware.tflops = 1e12;
  for (const HelixModel& model : some_models()) {
    for (const HelixLayout& layout : some_layouts(model)) {
      if (layout.dp > 1) continue;
      const HelixStep decoding = helix_step(model, hardware, layout, {12, 70'000}, kHopBOff);
      const HelixStep mixed =
          helix_mixed_step(model, hardware, layout,
                           {.rows = 12, .logits = 12, .keys = 12 * 70'000, .pairs = 12 * 70'000.0});
      const double tolerance = 1e-9 * decoding.total_us();
      EXPECT_NEAR(mixed.kv_us, decoding.kv_us, tolerance) << to_string(layout);
      EXPECT_NEAR(mixed.weights_us, decoding.weights_us, tolerance) << to_string(layout);
      EXPECT_NEAR(mixed.all_reduce_us, decoding.all_reduce_us, tolerance) << to_string(layout);
      EXPECT_NEAR(mixed.exposed_us, decoding.exposed_us, tolerance) << to_string(layout);
    }
  }
}

TEST(HelixStep, OfManyRowsTakesItsArithmetic) {
  const HelixHardware hardware = test_hardware();  // 2500 TFLOP/s
  const HelixRows chunk = {.rows = 8192, .logits = 0, .keys = 8192, .pairs = 8192.0 * 8193 / 2};
  const HelixStep dense = helix_mixed_step(dense_model(), hardware, {2, 4, 8}, chunk);
  EXPECT_NEAR(dense.kv_us, 2 * (128 + 128) * 128 / 8.0 * chunk.pairs / 2.5e9, 1e-6);
  const double before = 16384.0 * 128 * 128 / 4 + 2 * 16384.0 * 2 * 128;
  const double after = (16384.0 * 128 * 128 + 3 * 16384.0 * 65536) / 8;
  EXPECT_NEAR(dense.weights_us, 2 * 8192 * (before + after) / 2.5e9, 1e-6);

  HelixModel model = load_helix_model("deepseek-r1");
  model.shape.layers = 1;
  model.experts->dense_layers = 0;
  const HelixStep experts = helix_mixed_step(model, hardware, {1, 1, 1, 1}, chunk);
  EXPECT_NEAR(experts.kv_us, 2 * (576 + 512) * 128 * chunk.pairs / 2.5e9, 1e-6);
  const double attention = 7168.0 * (1536 + 576) + 128 * (1536 * 192.0 + 512 * 128);
  const double output = 128 * 128.0 * (7168 + 512);
  EXPECT_NEAR(experts.weights_us, 2 * 8192 * (attention + output + 9 * 3.0 * 7168 * 2048) / 2.5e9,
              1e-6)
      << "eight experts of a token, and the one that all share";
}

TEST(HelixStep, OfAnyRowsRefusesWhatMakesNoSense) {
  const auto message = [](const HelixLayout& layout, const HelixRows& rows) {
    return message_of<InvalidArgument>(
        [&] { static_cast<void>(helix_mixed_step(dense_model(), test_hardware(), layout, rows)); });
  };
  EXPECT_THAT(message({1, 8, 8}, {}), HasSubstr("expected 1 to 4294967296 of a step, found 0"));
  EXPECT_THAT(message({1, 8, 8}, {.rows = 2, .logits = 3}), HasSubstr("at most 2 rows, found 3"));
  EXPECT_THAT(message({1, 8, 8}, {.rows = 2, .keys = -1}), HasSubstr("found -1 and 0"));
  EXPECT_THAT(message({1, 4, 8, 1, 2}, {.rows = 1}), HasSubstr("expected DP 1"));
}

TEST(HelixStep, GivesRequestsToGroupsOfDevices) {
  const HelixStep shared =
      helix_step(dense_model(), test_hardware(), {1, 8, 64, 1, 8}, kMillion, kHopBOff);
  const HelixStep tensor = helix_step(dense_model(), test_hardware(), {1, 8, 8}, kMillion);
  EXPECT_NEAR(shared.kv_us, tensor.kv_us / 8, 1e-9) << "one request each";
  EXPECT_NEAR(
      shared.weights_us,
      (2 * 16384.0 * 128 * 128 / 8 + 2 * 16384 * 128 + 3 * 16384.0 * 65536 / 64 + 16384.0 / 64) *
          0.5 / 8e6,
      1e-9);
  EXPECT_NEAR(shared.all_reduce_us, 3 * 5 + (2.0 * 7 / 8 + 2.0 * 63 / 64 * 8) * 16384 * 2 / 900e3,
              1e-9);
  EXPECT_EQ(shared.exchange_us, 0);
  const HelixStep single =
      helix_step(dense_model(), test_hardware(), {1, 1, 8, 1, 8}, kMillion, kHopBOff);
  EXPECT_NEAR(single.all_reduce_us, 2 * 5 + 2.0 * 7 / 8 * 8 * 16384 * 2 / 900e3, 1e-9)
      << "groups of one device have nothing to sum up";
  const auto kv_us = [](std::int32_t batch) {
    return helix_step(dense_model(), test_hardware(), {1, 8, 64, 1, 8}, {batch, 1000}).kv_us;
  };
  EXPECT_DOUBLE_EQ(kv_us(9), 2 * kv_us(8)) << "the busiest group has two of nine";
  EXPECT_DOUBLE_EQ(kv_us(1), kv_us(8));
}

TEST(HelixStep, CountsTheMatricesOfALatentByHand) {
  const HelixModel model = load_helix_model("deepseek-r1");
  const std::int64_t attention = 7168 * 1536 + 1536 * 128 * (128 + 64) + 7168 * (512 + 64) +
                                 512 * 128 * (128 + 128) + 128 * 128 * 7168;
  const std::int64_t expert = 3 * 7168 * 2048;
  EXPECT_EQ(num_weights(model), 61 * attention + 3 * std::int64_t{3} * 7168 * 18432 +
                                    58 * 257 * expert + 2 * std::int64_t{129280} * 7168);
}

TEST(HelixStep, LoadsModelsOfTheSizeTheirNamesSay) {
  EXPECT_NEAR(static_cast<double>(num_weights(load_helix_model("llama-3-405b"))), 405.8e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(num_weights(load_helix_model("deepseek-r1"))), 671e9, 1e9);
}

TEST(HelixModels, HaveTheExpertsAndLatentsOfTheirSpecs) {
  HelixModel model = load_helix_model("deepseek-v3");
  const HelixModel same = load_helix_model("deepseek-r1");
  EXPECT_EQ(model.latent, same.latent);
  EXPECT_EQ(model.experts, same.experts);
  EXPECT_EQ(num_weights(model), num_weights(same));
  check_helix_model(model);
  model = load_helix_model("mixtral-8x7b");
  check_helix_model(model);
  EXPECT_NEAR(static_cast<double>(num_weights(model)), 46.7e9, 0.1e9);
}

TEST(HelixModels, RefuseWhatPredictionsDoNotKnow) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "helix_models.json";
  const auto refused = [&](const char* keys) {
    std::ofstream(path) << R"({"model_type": "mistral", "hidden_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 64,
        "vocab_size": 10, )"
                        << keys << "}";
    return message_of([&] { static_cast<void>(load_helix_model(path.string())); });
  };
  EXPECT_EQ(refused(R"("sliding_window": null)"), "no error");
  EXPECT_THAT(refused(R"("sliding_window": 9)"),
              HasSubstr("expected full attention in all layers, found sliding_window:9 in 4"));
  EXPECT_THAT(refused(R"("tie_word_embeddings": true)"), HasSubstr("found tied embeddings"));
  std::filesystem::remove(path);
}

TEST(HelixStep, TakesLongerWithTheContextAndLessWithMoreShards) {
  for (const HelixModel& model : some_models()) {
    for (const HelixLayout& layout : some_layouts(model)) {
      for (const HopBReading reading :
           {HopBReading::kOff, HopBReading::kAttention, HopBReading::kFeedForward}) {
        const auto step = [&](std::int64_t context) {
          return helix_step(model, test_hardware(), layout, {8, context}, {reading});
        };
        EXPECT_LT(step(1000).total_us(), step(2000).total_us()) << to_string(layout);
        EXPECT_LT(step(2000).total_us(), step(1'000'000).total_us()) << to_string(layout);
        EXPECT_NEAR(step(2000).kv_us / step(1000).kv_us, 2, 1e-9);
      }
      const HelixLayout half = {layout.kvp / 2, layout.tpa, layout.tpa, 1};
      if (layout.kvp % 2 == 1 || layout.ffn_devices() != layout.tpa || layout.ep != 1) continue;
      EXPECT_NEAR(helix_step(model, test_hardware(), half, kMillion).kv_us,
                  2 * helix_step(model, test_hardware(), layout, kMillion).kv_us, 1e-6);
    }
  }
}

TEST(HelixStep, HopBExposesNoMoreThanIsExchangedAndNeverCostsTime) {
  for (const HelixModel& model : some_models()) {
    for (const HelixLayout& layout : some_layouts(model)) {
      for (const std::int32_t batch : {1, 2, 6, 64}) {
        const HelixLoad load = {batch, 500'000};
        const HelixStep off = helix_step(model, test_hardware(), layout, load, kHopBOff);
        for (const HopBReading reading : {HopBReading::kAttention, HopBReading::kFeedForward}) {
          const HelixStep step = helix_step(model, test_hardware(), layout, load, {reading});
          EXPECT_GE(step.exposed_us, -1e-9) << to_string(layout);
          EXPECT_LE(step.exposed_us, step.exchange_us + 1e-9) << to_string(layout);
          EXPECT_LE(step.total_us(), off.total_us()) << to_string(layout);
          EXPECT_EQ(batch % step.groups, 0);
        }
      }
    }
  }
}

// The parts of a layer's time for a group of requests, for the dense model with KVP 8 x TPA 8.
struct Parts {
  double kv, before, exchange, after;

  explicit Parts(double requests)
      : kv(2 * requests * 128 * (50'000 / 8.0) * 0.5 / 8e6),
        before((16384.0 * 128 * 128 / 8 + 2 * 16384 * 128) * 0.5 / 8e6),
        exchange(5 + 7 * requests * 2 * (128 * 2 + 8) / 900e3),
        after((16384.0 * 128 * 128 / 64 + 3 * 16384.0 * 65536 / 64) * 0.5 / 8e6 +
              2 * (5 + 2.0 * 63 / 64 * requests * 16384 * 2 / 900e3)) {}
};

TEST(HelixStep, TakesAsLongAsATimelineOfItsParts) {
  HelixModel model = dense_model();
  model.shape.layers = 3;
  const double head_us = 16384.0 / 64 * 0.5 / 8e6;
  for (const std::int32_t groups : {1, 2, 4, 8, 16}) {
    const auto total_us = [&](HopBReading reading) {
      return helix_step(model, test_hardware(), {8, 8, 64}, {16, 50'000}, {reading, groups})
          .total_us();
    };
    const Parts group(16.0 / groups);
    const Parts all(16);
    const double layer_us =
        all.before + attention_timeline(groups, group.kv, group.exchange) + all.after;
    EXPECT_NEAR(total_us(HopBReading::kAttention), 3 * layer_us + head_us, 1e-9) << groups;
    const std::vector<double> feed_forward(3, group.after);
    EXPECT_NEAR(
        total_us(HopBReading::kFeedForward),
        feed_forward_timeline(groups, group.before + group.kv, group.exchange, feed_forward) +
            head_us,
        1e-9)
        << groups;
  }
}

TEST(HelixMemory, HoldsWhatIsCountedToTheByte) {
  const HelixModel model = dense_model();
  const HelixMemory memory = helix_memory(model, {8, 8, 64}, {3, 1001});
  EXPECT_DOUBLE_EQ(memory.kv, 3 * 1 * 256 * 126 * 0.5) << "126 of 1001 tokens on the fullest";
  EXPECT_DOUBLE_EQ(memory.weights,
                   (16384.0 * 128 * 128 / 8 + 2 * 16384 * 128 + 16384.0 * 128 * 128 / 64 +
                    3 * 16384.0 * 65536 / 64 + 2 * 16384.0 / 64) *
                       0.5);
  const HelixModel experts = load_helix_model("deepseek-r1");
  EXPECT_NEAR(helix_memory(experts, {1, 1, 1, 1}, {}).weights,
              0.5 * static_cast<double>(num_weights(experts)), 1);
  EXPECT_NEAR(helix_memory(experts, {64, 1, 8, 8}, {}).weights,
              helix_memory(experts, {64, 1, 1, 64}, {}).weights, 1);
}

TEST(HelixMemory, CapacityIsTheLastThatFits) {
  HelixHardware hardware = test_hardware();
  for (const HelixModel& model : some_models()) {
    for (const HelixLayout& layout : some_layouts(model)) {
      const auto fits = [&](std::int32_t batch, std::int64_t context) {
        return helix_memory(model, layout, {batch, context}).total() <=
               static_cast<double>(hardware.memory_bytes - hardware.reserve_bytes);
      };
      const std::int64_t context = helix_max_context(model, hardware, layout, 5);
      if (context > 0) {
        EXPECT_TRUE(fits(5, context)) << to_string(layout);
      }
      EXPECT_FALSE(fits(5, context + 1)) << to_string(layout);
      const std::int32_t batch = helix_max_batch(model, hardware, layout, 300'000);
      if (batch > 0) {
        EXPECT_TRUE(fits(batch, 300'000)) << to_string(layout);
      }
      EXPECT_FALSE(fits(batch + 1, 300'000)) << to_string(layout);
    }
  }
  hardware.memory_bytes = 1;
  EXPECT_EQ(helix_max_context(dense_model(), hardware, {1, 1, 1}, 1), 0);
  EXPECT_EQ(helix_max_batch(dense_model(), hardware, {1, 1, 1}, 1), 0);
}

TEST(HelixMemory, TokensSharedByMoreDevicesMakeRoomForAsMuchMore) {
  const HelixModel model = load_helix_model("llama-3-405b");
  const HelixHardware hardware = load_helix_hardware("gb200");
  const std::int64_t tensor = helix_max_context(model, hardware, {1, 64, 64}, 8);
  const std::int64_t helix = helix_max_context(model, hardware, {8, 8, 64}, 8);
  EXPECT_GT(helix, 7 * tensor);
  EXPECT_LE(helix, 8 * tensor + 8) << "a little less: projections are split over TPA alone";
}

TEST(HelixStep, RefusesWhatIsNoStep) {
  const auto refused = [](const HelixModel& model, const HelixHardware& hardware,
                          const HelixLayout& layout, const HelixLoad& load, const HopB& hop_b) {
    return message_of([&] { static_cast<void>(helix_step(model, hardware, layout, load, hop_b)); });
  };
  const auto changed = [&](const auto& change) {
    HelixModel model = load_helix_model("deepseek-r1");
    HelixHardware hardware = test_hardware();
    HelixLayout layout = {8, 1, 8, 1};
    HelixLoad load = {8, 1000};
    HopB hop_b;
    change(model, hardware, layout, load, hop_b);
    return refused(model, hardware, layout, load, hop_b);
  };
#define CHANGED(...)                                                                       \
  changed([]([[maybe_unused]] HelixModel& model, [[maybe_unused]] HelixHardware& hardware, \
             [[maybe_unused]] HelixLayout& layout, [[maybe_unused]] HelixLoad& load,       \
             [[maybe_unused]] HopB& hop_b) { __VA_ARGS__; })
  EXPECT_EQ(CHANGED(), "no error");
  EXPECT_THAT(CHANGED(model.kv_bytes = 0), HasSubstr("cached element: expected more than 0"));
  EXPECT_THAT(CHANGED(model.weight_bytes = NAN), HasSubstr("weight: expected more than 0"));
  EXPECT_THAT(CHANGED(model.activation_bytes = -1), HasSubstr("activation: expected more than 0"));
  EXPECT_THAT(CHANGED(model.shape.layers = 0), HasSubstr("layers: expected 1"));
  EXPECT_THAT(CHANGED(model.shape.kv_heads = 2), HasSubstr("KV heads with a latent"));
  EXPECT_THAT(CHANGED(model.latent->kv_rank = 0), HasSubstr("KV rank: expected 1"));
  EXPECT_THAT(CHANGED(model.experts->active = 257), HasSubstr("active experts: expected 1 to 256"));
  EXPECT_THAT(CHANGED(model.experts->dense_layers = 62), HasSubstr("dense layers: expected 0 to"));
  EXPECT_THAT(CHANGED(hardware.memory_gbytes_per_s = 0), HasSubstr("memory in GB/s"));
  EXPECT_THAT(CHANGED(hardware.network_gbytes_per_s = INFINITY), HasSubstr("network in GB/s"));
  EXPECT_THAT(CHANGED(hardware.latency_us = -1), HasSubstr("latency in microseconds"));
  EXPECT_THAT(CHANGED(hardware.max_devices = 4), HasSubstr("at most 4 devices"));
  EXPECT_THAT(CHANGED(load.batch = 0), HasSubstr("batch: expected 1 to"));
  EXPECT_THAT(CHANGED(load.context = 0), HasSubstr("context: expected 1 to"));
  EXPECT_THAT(CHANGED(hop_b.groups = 3),
              HasSubstr("groups that divide 8 requests, found 3 groups"));
  EXPECT_THAT(CHANGED(hop_b = (HopB{HopBReading::kOff, 2})), HasSubstr("no groups, found 2"));
  EXPECT_THAT(CHANGED(layout.tpf = 4), HasSubstr("TPF x EP of KVP x TPA = 8 or of TPA = 1"));
  EXPECT_THAT(CHANGED(layout.dp = 2), HasSubstr("DP 1 with KVP 8, found 2"));
  EXPECT_THAT(CHANGED(layout = (HelixLayout{1, 2, 2, 1, 4})), HasSubstr("all 8 devices, found 2"));
  EXPECT_THAT(CHANGED(layout = (HelixLayout{1, 1 << 16, 1, 1, 2})), HasSubstr("at most 65536"));
  EXPECT_THAT(CHANGED(layout = (HelixLayout{0, 1, 1, 1})), HasSubstr("sizes of 1 to"));
  EXPECT_THAT(CHANGED(layout = (HelixLayout{4, 2, 8, 1})),
              HasSubstr("divides 1 KV heads, found 2"));
  EXPECT_THAT(CHANGED(layout = (HelixLayout{3, 1, 3, 1})), HasSubstr("divides 128 query heads"));
  EXPECT_THAT(CHANGED(model.shape.ffn = 18433), HasSubstr("divides the feed-forward of 18433"));
  EXPECT_THAT(CHANGED(model.experts->ffn = 2049), HasSubstr("expert's feed-forward of 2049"));
  EXPECT_THAT(
      CHANGED(model.experts->shared = 0; model.experts->ffn = 2049; layout.ep = 8; layout.tpf = 1),
      testing::Eq("no error"))
      << "with routed experts alone only TPF divides them";
  EXPECT_THAT(CHANGED(model.experts.reset(); layout.ep = 8; layout.tpf = 1),
              HasSubstr("EP 1 without experts, found 8"));
  EXPECT_THAT(CHANGED(model.experts->routed = 12; layout.ep = 8; layout.tpf = 1),
              HasSubstr("EP that divides 12 experts, found 8"));
#undef CHANGED
}

TEST(HelixPresets, AreFoundByName) {
  for (const std::string& name : helix_model_names()) {
    EXPECT_EQ(load_helix_model(name).shape.name, name);
  }
  for (const HelixHardware& preset : helix_hardware_presets()) {
    EXPECT_EQ(load_helix_hardware(preset.name), preset);
  }
  EXPECT_THAT(message_of([] { static_cast<void>(load_helix_model("deepseek-r2")); }),
              HasSubstr("did you mean 'deepseek-r1'?"));
  EXPECT_THAT(message_of([] { static_cast<void>(load_helix_hardware("gb100")); }),
              HasSubstr("expected one of gb200, h200, h100, found 'gb100'"));
}

}  // namespace
}  // namespace contextile

// Models: weights and FLOPs by hand, presets, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "contextile/advanced/training.h"
#include "contextile/base.h"
#include "predict/layer/simple_model.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

TEST(Models, PresetsHaveTheWeightsTheirNamesSay) {
  const std::pair<const char*, double> expected[] = {
      {"llama-3-8b", 8.03e9},    {"llama-34b", 34.55e9}, {"llama-3-70b", 70.6e9},
      {"llama-3-405b", 405.8e9}, {"gpt-8b", 8.03e9},     {"mixtral-8x7b", 46.7e9},
      {"qwen3-30b-a3b", 30.5e9}, {"deepseek-v3", 671e9}};
  ASSERT_EQ(model_presets().size(), std::size(expected));
  for (const auto& [name, weights] : expected) {
    const ModelSpec model = load_model(name);
    EXPECT_NEAR(static_cast<double>(weights_of(model).total(model.layers)) / weights, 1, 0.01)
        << name;
  }
}

TEST(Models, CountWeightsAndFlopsOfOneLayerByHand) {
  const ModelSpec model = simple_model();
  const std::int64_t matrices = 4'000'000 + 2 * 1'000'000 + 4'000'000 + 3 * 8'000'000;
  EXPECT_EQ(weights_of(model).layer, matrices + 2 * 2000);
  EXPECT_EQ(weights_of(model).embedding, 20'000'000);
  EXPECT_EQ(weights_of(model).head, 20'000'000 + 2000);
  EXPECT_DOUBLE_EQ(linear_flops_of(model).before_attention, 2 * 6e6);
  EXPECT_DOUBLE_EQ(linear_flops_of(model).after_attention, 2 * 28e6);
  EXPECT_DOUBLE_EQ(linear_flops_of(model).head, 2 * 20e6);
  ModelSpec plain = model;
  plain.gated_ffn = false;
  EXPECT_EQ(weights_of(plain).layer, weights_of(model).layer - 8'000'000);
}

TEST(Models, ComeFromFilesWithEveryKeyOrNot) {
  const ModelSpec model = parse_model_json(
      R"({"name": "simple", "layers": 4, "hidden": 2000, "heads": 20, "kv_heads": 5,
          "head_dim": 100, "ffn": 4000, "vocabulary": 10000, "gated_ffn": true})",
      "m.json");
  EXPECT_EQ(model, simple_model());
  const auto broken = [](const std::string& text) {
    return message_of([&] { static_cast<void>(parse_model_json(text, "m.json")); });
  };
  EXPECT_THAT(broken(R"({"layers": 4})"), HasSubstr("m.json: hidden: expected a value"));
  EXPECT_THAT(broken(R"({"layer": 4})"), HasSubstr("did you mean 'layers'"));
  EXPECT_THAT(broken("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(broken(R"({"layers": 4, "hidden": 2000, "heads": 20, "kv_heads": 3,
                         "head_dim": 100, "ffn": 4000, "vocabulary": 10000})"),
              HasSubstr("KV heads that divide 20 query heads, found 3"));
  EXPECT_THAT(broken(R"({"layers": 0, "hidden": 2000, "heads": 20, "kv_heads": 5,
                         "head_dim": 100, "ffn": 4000, "vocabulary": 10000})"),
              HasSubstr("layers: expected 1 to 4096, found 0"));
  EXPECT_THAT(broken(R"({"layers": 18446744073709551615, "hidden": 2000, "heads": 20,
                         "kv_heads": 5, "head_dim": 100, "ffn": 4000, "vocabulary": 10000})"),
              HasSubstr("layers: expected an integer of at most 2147483647, found "
                        "'18446744073709551615'"));
  EXPECT_THAT(message_of([] { static_cast<void>(load_model("llama-3-8")); }),
              HasSubstr("did you mean 'llama-3-8b'"));
}

TEST(Models, FilesMayHaveExperts) {
  const std::string sizes = R"({"layers": 4, "hidden": 2000, "heads": 20, "kv_heads": 5,
      "head_dim": 100, "vocabulary": 10000, )";
  const ModelSpec model = parse_model_json(
      sizes + R"("experts": 8, "experts_per_token": 2, "expert_ffn": 1000, "tied_embeddings": true,
                 "shared_expert_ffn": 500, "value_dim": 50})",
      "m.json");
  EXPECT_EQ(model.experts,
            (ModelExperts{.experts = 8, .per_token = 2, .ffn = 1000, .shared_ffn = 500}));
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_EQ(attention_shape_of(model, 1).value_dim, 50);
  const auto broken = [&](const std::string& more) {
    return message_of([&] { static_cast<void>(parse_model_json(sizes + more, "m.json")); });
  };
  EXPECT_THAT(broken(R"("experts": 8, "expert_ffn": 9})"),
              HasSubstr("experts_per_token: expected a value, found none"));
  EXPECT_THAT(
      broken(R"("experts": 8, "experts_per_token": 2, "expert_ffn": 9, "dense_layers": 1})"),
      HasSubstr("ffn: expected a value, found none"));
  EXPECT_THAT(broken(R"("ffn": 9, "expert_ffn": 9})"),
              HasSubstr("expected sizes of experts only with experts, found 0 experts"));
}

TEST(Models, GiveATensorParallelRankItsHeads) {
  const AttentionShape shape = attention_shape_of(simple_model(), 5);
  EXPECT_EQ(shape.q_heads, 4);
  EXPECT_EQ(shape.kv_heads, 1);
  EXPECT_EQ(shape.head_dim, 100);
  EXPECT_EQ(shape.value_dim, 100);
  EXPECT_EQ(shape.dtype, Dtype::kBf16);
  EXPECT_THAT(message_of([] { static_cast<void>(attention_shape_of(simple_model(), 2)); }),
              HasSubstr("5 KV heads, found 2"));
}

}  // namespace
}  // namespace contextile

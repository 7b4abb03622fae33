// config.json of every family, and the fields that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "contextile/serving/decoder_model.h"

namespace contextile {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const json kDense = {{"vocab_size", 100},        {"hidden_size", 64},
                     {"intermediate_size", 96},  {"num_hidden_layers", 4},
                     {"num_attention_heads", 8}, {"num_key_value_heads", 2}};

json family(const char* name, const json& changes) {
  json config = kDense;
  config["model_type"] = name;
  config.merge_patch(changes);
  return config;
}

json latent(const char* name, const json& changes) {
  json config = family(name, {{"num_key_value_heads", 8},
                              {"kv_lora_rank", 32},
                              {"qk_nope_head_dim", 12},
                              {"qk_rope_head_dim", 8},
                              {"v_head_dim", 10},
                              {"n_routed_experts", 16},
                              {"num_experts_per_tok", 3},
                              {"moe_intermediate_size", 40},
                              {"n_shared_experts", 2},
                              {"first_k_dense_replace", 1}});
  config.merge_patch(changes);
  return config;
}

DecoderConfig read(const json& config) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "model_config";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump();
  return read_decoder_config(folder.string());
}

std::string error_of(const json& config) {
  try {
    static_cast<void>(read(config));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

TEST(ModelConfig, WindowsAreThoseOfTheFamily) {
  EXPECT_THAT(read(family("mistral", {{"sliding_window", 9}})).windows, ElementsAre(9, 9, 9, 9));
  EXPECT_THAT(read(family("mixtral", {{"sliding_window", nullptr},
                                      {"num_local_experts", 4},
                                      {"num_experts_per_tok", 2}}))
                  .windows,
              IsEmpty());
  EXPECT_THAT(read(family("qwen2", {{"sliding_window", 9}})).windows, IsEmpty());
  EXPECT_THAT(
      read(family("qwen2",
                  {{"sliding_window", 9}, {"use_sliding_window", true}, {"max_window_layers", 3}}))
          .windows,
      ElementsAre(0, 0, 0, 9));
  const json oss = family("gpt_oss", {{"sliding_window", 9},
                                      {"num_local_experts", 4},
                                      {"num_experts_per_tok", 2},
                                      {"rope_parameters", {{"rope_theta", 1e4}}}});
  EXPECT_THAT(read(oss).windows, ElementsAre(9, 0, 9, 0));
  EXPECT_TRUE(read(oss).sinks);
  json typed = oss;
  typed["layer_types"] = {"full_attention", "sliding_attention", "full_attention",
                          "full_attention"};
  EXPECT_THAT(read(typed).windows, ElementsAre(0, 9, 0, 0));
  typed["layer_types"][2] = "chunked_attention";
  EXPECT_THAT(error_of(typed), HasSubstr("layer_types: expected full_attention or "
                                         "sliding_attention, found"));
  EXPECT_THAT(error_of(family("llama", {{"layer_types",
                                         {"sliding_attention", "full_attention", "full_attention",
                                          "full_attention"}}})),
              HasSubstr("expected full_attention without a window"));
}

// Keys that a file leaves out have the values of the family's class in transformers.
TEST(ModelConfig, AbsentKeysHaveTheValuesOfTheFamily) {
  EXPECT_THAT(read(family("mistral", json::object())).windows, ElementsAre(4096, 4096, 4096, 4096));
  json without = family("mistral", json::object());
  without["sliding_window"] = nullptr;
  EXPECT_THAT(read(without).windows, IsEmpty());
  const json uses = {{"use_sliding_window", true}, {"num_hidden_layers", 30}};
  const std::vector<std::int32_t> windows = read(family("qwen3", uses)).windows;
  EXPECT_EQ(std::ranges::count(windows, 0), 28);
  EXPECT_EQ(windows.back(), 4096);
  const json experts = {{"num_local_experts", 4}, {"num_experts_per_tok", 2}};
  EXPECT_EQ(read(family("mixtral", experts)).norm_epsilon, 1e-5);
  EXPECT_THAT(read(family("mixtral", experts)).windows, IsEmpty());
  EXPECT_EQ(read(family("llama", json::object())).norm_epsilon, 1e-6);
  EXPECT_THAT(error_of(family("gpt_oss", experts)), HasSubstr("expected a key rope_parameters"));
  for (const auto& [name, shared] : {std::pair("deepseek_v2", 2), std::pair("deepseek_v3", 1)}) {
    json config = latent(name, json::object());
    config.erase("n_shared_experts");
    if (shared == 1) config["n_group"] = 4;
    EXPECT_EQ(read(config).experts->shared_size, 40 * shared);
    config["n_shared_experts"] = nullptr;
    EXPECT_EQ(read(config).experts->shared_size, 0);
  }
  EXPECT_THAT(error_of(latent("deepseek_v2", {{"topk_method", "group_limited_greedy"}})),
              HasSubstr("expected a key n_group"));
  // Transformers takes the older one of two objects.
  const DecoderConfig both = read(
      family("llama",
             {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
              {"rope_parameters", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 7}}}}));
  EXPECT_EQ(both.rope.factor, 2);
  EXPECT_EQ(both.rope.theta, 10'000);
}

TEST(ModelConfig, ExpertsAreThoseOfTheFamily) {
  const DecoderConfig qwen = read(family("qwen3_moe", {{"num_experts", 16},
                                                       {"num_experts_per_tok", 4},
                                                       {"moe_intermediate_size", 24},
                                                       {"mlp_only_layers", {1}},
                                                       {"decoder_sparse_step", 2}}));
  ASSERT_TRUE(qwen.experts);
  EXPECT_FALSE(qwen.experts->norm_weights);
  EXPECT_THAT(qwen.dense_layers, ElementsAre(0, 1, 2));
  EXPECT_TRUE(qwen.has_experts(3));
  EXPECT_EQ(qwen.dense_size(3), 0);
  EXPECT_EQ(qwen.dense_size(2), 96);
  const DecoderConfig v3 = read(latent("deepseek_v3", {{"n_group", 4}, {"topk_group", 2}}));
  EXPECT_EQ(v3.experts->weights, ExpertsConfig::Weights::kSigmoid);
  EXPECT_EQ(v3.experts->weight_factor, 2.5);
  EXPECT_EQ(v3.dense_size(1), 80);
  EXPECT_THAT(v3.dense_layers, ElementsAre(0));
  const DecoderConfig v2 = read(latent(
      "deepseek_v2", {{"topk_method", "group_limited_greedy"}, {"n_group", 4}, {"topk_group", 2}}));
  EXPECT_EQ(v2.experts->weights, ExpertsConfig::Weights::kSoftmax);
  EXPECT_FALSE(v2.experts->norm_weights);
  EXPECT_EQ(v2.experts->top_groups, 2);
  EXPECT_FALSE(read(latent("deepseek_v3", {{"first_k_dense_replace", 4}})).experts);
}

TEST(ModelConfig, LatentKeysHaveOneHead) {
  const DecoderConfig config = read(latent("deepseek_v2", {{"q_lora_rank", nullptr}}));
  EXPECT_EQ(config.latent->q_rank, 0);
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.head_dim, 20);
  EXPECT_EQ(config.key_dim(), 40);
  EXPECT_EQ(config.value_dim(), 32);
  EXPECT_EQ(config.output_dim(), 10);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_EQ(kv_bytes_per_token(config, KvDtype::kBf16), 4 * 40 * 2);
}

TEST(ModelConfig, YarnScalesScoresOfLatentKeys) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 40.0},
                     {"mscale", 1.0},       {"mscale_all_dim", 1.0},
                     {"rope_theta", 500.0}, {"original_max_position_embeddings", 64}};
  const DecoderConfig v3 = read(latent("deepseek_v3", {{"rope_scaling", yarn}, {"n_group", 4}}));
  const double m = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(v3.scale, m * m / std::sqrt(20.0), 1e-12);
  EXPECT_EQ(v3.rope.yarn->attention_factor, 1);
  EXPECT_EQ(v3.rope.theta, 500);
  const DecoderConfig llama = read(family(
      "llama", {{"rope_scaling",
                 {{"type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 64}}}}));
  EXPECT_EQ(llama.scale, 0);
  EXPECT_NEAR(llama.rope.yarn->attention_factor, m, 1e-12);
}

TEST(ModelConfig, RefusesWhatItDoesNotHonour) {
  const auto with = [](const char* key, const json& value) {
    return error_of(family("llama", {{key, value}}));
  };
  EXPECT_EQ(error_of(family("llama", json::object())), "none");
  EXPECT_THAT(with("model_type", "gemma3"), HasSubstr("model_type: expected one of deepseek_v2, "));
  EXPECT_THAT(with("hidden_act", "gelu"), HasSubstr("hidden_act: expected \"silu\", found"));
  EXPECT_THAT(with("mlp_bias", true), HasSubstr("mlp_bias: expected false, found"));
  EXPECT_THAT(with("partial_rotary_factor", 0.5), HasSubstr("expected 1.0, found"));
  EXPECT_THAT(with("final_logit_softcapping", 30.0), HasSubstr("expected null, found"));
  EXPECT_THAT(with("is_causal", false), HasSubstr("is_causal: expected true, found"));
  EXPECT_THAT(with("sliding_window", 9), HasSubstr("sliding_window: expected null, found"));
  EXPECT_THAT(with("max_window_layers", 2), HasSubstr("max_window_layers: expected null, found"));
  EXPECT_THAT(with("quantization_config", json::object()), HasSubstr("not quantized"));
  EXPECT_THAT(with("rope_scaling", json({{"rope_type", "longrope"}})),
              HasSubstr("rope_type: expected default, linear, llama3 or yarn, found"));
  const auto latent_with = [](const char* family, const char* key, const json& value) {
    return error_of(latent(family, {{key, value}}));
  };
  EXPECT_THAT(latent_with("deepseek_v2", "norm_topk_prob", true), HasSubstr("expected false"));
  EXPECT_THAT(latent_with("deepseek_v2", "scoring_func", "sigmoid"), HasSubstr("\"softmax\""));
  EXPECT_THAT(latent_with("deepseek_v2", "topk_method", "noaux_tc"),
              HasSubstr("expected greedy or group_limited_greedy, found"));
  EXPECT_THAT(latent_with("deepseek_v3", "topk_method", "greedy"), HasSubstr("noaux_tc, found"));
  EXPECT_THAT(latent_with("deepseek_v3", "n_group", 5),
              HasSubstr("divisor of 16 experts, found 5"));
  EXPECT_THAT(latent_with("deepseek_v3", "attention_bias", true), HasSubstr("expected false"));
  EXPECT_THAT(latent_with("deepseek_v3", "moe_layer_freq", 2), HasSubstr("expected 1, found"));
  EXPECT_THAT(latent_with("deepseek_v3", "num_key_value_heads", 2),
              HasSubstr("as many as query heads, 8, found 2"));
  EXPECT_THAT(latent_with("deepseek_v3", "num_experts_per_tok", 17),
              HasSubstr("experts of a token: expected 1 to "));
  EXPECT_THAT(latent_with("deepseek_v3", "qk_rope_head_dim", 7),
              HasSubstr("rope_dim: expected an even number"));
}

}  // namespace
}  // namespace contextile

// config.json of Hugging Face: parameters of published models, masks, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/model.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The values that the files on the Hugging Face Hub have, and the parameters that the models' cards
// or reports name.
struct Published {
  const char* name;
  const char* config;
  double total;
  double active;  // 0: that of a dense model, or counted in another way
};

constexpr const char* kMixtral = R"({"architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null,
    "vocab_size": 32000, "tie_word_embeddings": false, "hidden_act": "silu",
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "output_router_logits": false,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "bos_token_id": 1})";

constexpr const char* kDeepseekV3 = R"({"model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_shared_experts": 1, "n_routed_experts": 256, "ep_size": 1, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4,
    "num_experts_per_tok": 8, "moe_layer_freq": 1, "first_k_dense_replace": 3,
    "norm_topk_prob": true, "scoring_func": "sigmoid", "aux_loss_alpha": 0.001, "seq_aux": true,
    "hidden_act": "silu", "tie_word_embeddings": false, "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8"}})";

constexpr const char* kGemma2 = R"({"model_type": "gemma2", "hidden_size": 3584,
    "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "intermediate_size": 14336, "vocab_size": 256000, "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0,
    "query_pre_attn_scalar": 256, "cache_implementation": "hybrid"})";

// Sizes that the file leaves out have the defaults of the family.
constexpr const char* kGemma3 = R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3", "image_token_index": 262144, "mm_tokens_per_image": 256,
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0}, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152}})";

std::vector<Published> published() {
  return {
      {"Llama-3-8B", R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 128256, "tie_word_embeddings": false, "pretraining_tp": 1})",
       8.03e9, 0},
      {"Llama-3-70B", R"({"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
        "vocab_size": 128256})",
       70.6e9, 0},
      {"Mistral-7B", R"({"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "sliding_window": 4096})",
       7.24e9, 0},
      {"Mixtral-8x7B", kMixtral, 46.7e9, 12.9e9},
      {"Qwen2.5-7B", R"({"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "vocab_size": 152064, "tie_word_embeddings": false, "use_sliding_window": false,
        "sliding_window": 131072, "max_window_layers": 28, "use_mrope": false})",
       7.62e9, 0},
      {"Qwen2-57B-A14B", R"({"model_type": "qwen2_moe", "hidden_size": 3584,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "intermediate_size": 18944, "moe_intermediate_size": 2560, "num_experts": 64,
        "shared_expert_intermediate_size": 20480, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936})",
       57.4e9, 14.2e9},
      {"Qwen3-30B-A3B", R"({"model_type": "qwen3_moe", "hidden_size": 2048,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
        "max_window_layers": 48})",
       30.5e9, 3.3e9},
      {"Gemma-2-9B", kGemma2, 9.24e9, 0},
      {"Gemma-3-4B, text", kGemma3, 3.88e9, 0},
      {"Phi-3-mini", R"({"model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 8192,
        "vocab_size": 32064, "sliding_window": 2047, "embd_pdrop": 0.0})",
       3.82e9, 0},
      {"gpt-oss-20b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 2880, "num_local_experts": 32, "experts_per_token": 4,
        "vocab_size": 201088, "sliding_window": 128, "swiglu_limit": 7.0})",
       20.9e9, 0},
      {"DeepSeek-V2-Lite", R"({"model_type": "deepseek_v2", "hidden_size": 2048,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
        "kv_lora_rank": 512, "q_lora_rank": null, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "vocab_size": 102400})",
       15.7e9, 0},
      {"DeepSeek-V3", kDeepseekV3, 671e9, 37e9},
  };
}

LoadedModel parse(const std::string& config) { return parse_model_config(config, "config.json"); }

// The message for the sizes of a small Llama with `more` keys.
std::string refused(const std::string& more) {
  return message_of([&] {
    static_cast<void>(parse(R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1000, )" +
                            more + "}"));
  });
}

std::vector<std::string> masks_of(const std::string& config) {
  std::vector<std::string> masks;
  for (const MaskUse& use : parse(config).masks) {
    masks.push_back(to_string(use.spec) + "@" + std::to_string(use.layers));
  }
  return masks;
}

TEST(ModelConfig, CountsTheParametersThatModelsWerePublishedWith) {
  for (const auto& [name, config, total, active] : published()) {
    const ModelSpec model = parse(config).model;
    const ModelWeights weights = weights_of(model);
    EXPECT_NEAR(static_cast<double>(weights.total(model.layers)) / total, 1, 0.003) << name;
    const double all = active > 0 ? active : static_cast<double>(weights.total(model.layers));
    if (active > 0 || !model.has_experts()) {
      EXPECT_NEAR(static_cast<double>(weights.active(model.layers)) / all, 1, 0.02) << name;
    }
  }
}

TEST(ModelConfig, GivesPresetsTheSizesOfTheirFiles) {
  const std::pair<const char*, const char*> files[] = {{"mixtral-8x7b", kMixtral},
                                                       {"deepseek-v3", kDeepseekV3}};
  for (const auto& [name, config] : files) {
    ModelSpec model = parse(config).model;
    model.name = name;
    EXPECT_EQ(model, load_model(name));
  }
}

TEST(ModelConfig, KeepsTheWindowsOfLayers) {
  EXPECT_THAT(masks_of(kMixtral), IsEmpty());
  EXPECT_THAT(masks_of(kGemma2), ElementsAre("causal@21", "sliding_window:4096@21"));
  EXPECT_THAT(masks_of(kGemma3), ElementsAre("causal@5", "sliding_window:1024@29"));
  const std::vector<Published> models = published();
  EXPECT_THAT(masks_of(models[2].config), ElementsAre("sliding_window:4096@32"));
  EXPECT_THAT(masks_of(models[4].config), IsEmpty());
  const std::string sizes = R"(, "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 10,
      "num_attention_heads": 8, "intermediate_size": 1024})";
  EXPECT_THAT(masks_of(R"({"model_type": "qwen2", "use_sliding_window": true,
                           "sliding_window": 99, "max_window_layers": 3)" +
                       sizes),
              ElementsAre("causal@3", "sliding_window:99@1"));
  EXPECT_THAT(masks_of(R"({"model_type": "olmo3", "sliding_window": 7, "layer_types":
      ["full_attention", "sliding_attention", "full_attention", "sliding_attention"])" +
                       sizes),
              ElementsAre("causal@2", "sliding_window:7@2"));
  const std::string broken = R"({"model_type": "olmo3", "sliding_window": 7, "layer_types": )";
  const auto message = [&](const std::string& types) {
    return message_of([&] { static_cast<void>(parse(broken + types + sizes)); });
  };
  EXPECT_THAT(message(R"(["full_attention"])"), HasSubstr("layer_types: expected a list of 4"));
  EXPECT_THAT(message(R"(["full_attention", "linear_attention", "x", "y"])"),
              HasSubstr("sliding_attention, found '\"linear_attention\"' in place 1"));
}

TEST(ModelConfig, HasLatentAttentionWithAllHeads) {
  const AttentionShape shape = attention_shape_of(load_model("deepseek-v3"), 8);
  EXPECT_EQ(shape.q_heads, 16);
  EXPECT_EQ(shape.kv_heads, 16);
  EXPECT_EQ(shape.head_dim, 192);
  EXPECT_EQ(shape.value_dim, 128);
  // Down and up to queries, down and up to keys and values.
  const double weights =
      7168.0 * 1536 + 1536 * 128 * 192.0 + 7168 * (512 + 64) + 512 * 128 * (128.0 + 128);
  EXPECT_DOUBLE_EQ(linear_flops_of(load_model("deepseek-v3")).before_attention, 2 * weights);
}

TEST(ModelConfig, SaysWhatItLeavesOut) {
  EXPECT_THAT(parse(kDeepseekV3).left_out, ElementsAre(HasSubstr("num_nextn_predict_layers: "),
                                                       HasSubstr("quantization_config: ")));
  EXPECT_THAT(parse(kGemma3).left_out, ElementsAre(HasSubstr("vision_config: ")));
  EXPECT_THAT(parse(kMixtral).left_out, IsEmpty());
}

TEST(ModelConfig, RefusesKeysThatMayMatterByName) {
  EXPECT_THAT(refused(R"("sliding_window": 4096)"),
              HasSubstr("config.json: expected only keys of a llama model whose effect on time and "
                        "memory is known, found 'sliding_window'"));
  EXPECT_THAT(refused(R"("state_size": 1, "attention_chunk_size": 2)"),
              HasSubstr("found 'attention_chunk_size', 'state_size'"));
  EXPECT_EQ(refused(R"("sliding_window": null, "rope_scaling": {}, "eos_token_id": [1])"),
            "no error");
  EXPECT_THAT(refused(R"("hidden_act": "relu2")"), HasSubstr("hidden_act: expected silu"));
  EXPECT_THAT(refused(R"("is_encoder_decoder": true)"), HasSubstr("expected false"));
  EXPECT_THAT(refused(R"("tie_word_embeddings": 1)"), HasSubstr("expected true or false"));
  const auto message = [](const std::string& text) {
    return message_of([&] { static_cast<void>(parse(text)); });
  };
  EXPECT_THAT(message(R"({"model_type": "mamba2"})"), HasSubstr("expected one of llama, mistral"));
  EXPECT_THAT(message(R"({"architectures": ["X"]})"), HasSubstr("model_type: expected one of"));
  EXPECT_THAT(message(R"({"model_type": 7})"), HasSubstr("model_type: expected text, found '7'"));
  EXPECT_THAT(message(R"({"text_config": 1, "model_type": "gemma3"})"),
              HasSubstr("text_config: expected a JSON object"));
  EXPECT_THAT(message(R"({"text_config": {}, "model_type": "gemma3"})"),
              HasSubstr("num_hidden_layers: expected a value"));
  EXPECT_THAT(message("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(message("{"), HasSubstr("config.json"));
}

TEST(ModelConfig, RefusesSizesOutOfRange) {
  const auto broken = [](const std::string& from, const std::string& to) {
    std::string text = kDeepseekV3;
    text.replace(text.find(from), from.size(), to);
    return message_of([&] { static_cast<void>(parse(text)); });
  };
  EXPECT_THAT(broken("\"num_hidden_layers\": 61", "\"num_hidden_layers\": 1e99"),
              HasSubstr("num_hidden_layers: expected an integer of at most 2147483647"));
  EXPECT_THAT(broken("\"qk_nope_head_dim\": 128", "\"qk_nope_head_dim\": 2147483647"),
              HasSubstr("qk_nope_head_dim: expected at most 2147483647, found 2147483711"));
  EXPECT_THAT(broken("\"n_shared_experts\": 1", "\"n_shared_experts\": 2147483647"),
              HasSubstr("n_shared_experts: expected at most"));
  EXPECT_THAT(broken("\"n_routed_experts\": 256", "\"n_routed_experts\": 2147483647"),
              HasSubstr("experts: expected 1 to"));
  EXPECT_THAT(broken("\"n_routed_experts\": 256", "\"n_routed_experts\": -1"),
              HasSubstr("number of experts: expected 0 or more, found -1"));
  EXPECT_THAT(broken("\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 257"),
              HasSubstr("experts_per_token: expected 1 to 256, found 257"));
  EXPECT_THAT(broken("\"first_k_dense_replace\": 3", "\"first_k_dense_replace\": 61"),
              HasSubstr("dense_layers: expected 0 to 60, found 61"));
  EXPECT_THAT(broken("\"moe_layer_freq\": 1", "\"moe_layer_freq\": 2"),
              HasSubstr("moe_layer_freq: expected 1, found 2"));
  EXPECT_THAT(broken("\"num_attention_heads\": 128", "\"num_attention_heads\": 0"),
              HasSubstr("heads: expected 1 to"));
  EXPECT_THAT(broken("\"kv_lora_rank\": 512", "\"kv_lora_rank\": 0"),
              HasSubstr("expected 1 or more, found 0, 128, 128"));
}

TEST(ModelConfig, NamesLayersWithoutExpertsInQwensWay) {
  const auto model = [](const std::string& more) {
    return parse(R"({"model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 8, "moe_intermediate_size": 64, "num_experts": 8, "vocab_size": 10,
        "num_experts_per_tok": 2, "intermediate_size": 1024, )" +
                 more + "}")
        .model;
  };
  EXPECT_EQ(model(R"("mlp_only_layers": [0, 1])").experts.dense_layers, 2);
  EXPECT_EQ(model(R"("mlp_only_layers": [0, 1])").ffn, 1024);
  EXPECT_EQ(model(R"("mlp_only_layers": [])").ffn, 0);
  EXPECT_THAT(message_of([&] { static_cast<void>(model(R"("mlp_only_layers": [2])")); }),
              HasSubstr("mlp_only_layers: expected the first layers in order, found '2'"));
  EXPECT_THAT(message_of([&] { static_cast<void>(model(R"("decoder_sparse_step": 2)")); }),
              HasSubstr("decoder_sparse_step: expected 1"));
}

TEST(ModelConfig, LoadsFromAFileOrItsFolder) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "model_config_test";
  const std::filesystem::path model = folder / "gemma-2-9b";
  std::filesystem::create_directories(model);
  std::ofstream(model / "config.json") << kGemma2;
  for (const std::string& text :
       {model.string(), (model / "config.json").string(), model.string() + "/"}) {
    const LoadedModel loaded = load_described_model(text);
    EXPECT_EQ(loaded.model.name, "gemma-2-9b");
    EXPECT_EQ(loaded.masks.size(), 2U);
    EXPECT_EQ(load_model(text), loaded.model);
  }
  EXPECT_THAT(message_of<IoError>([&] { static_cast<void>(load_model(folder.string())); }),
              HasSubstr("model_config_test/config.json"));
  std::ofstream(model / "config.json") << R"({"model_type": "llama"})";
  EXPECT_THAT(message_of([&] { static_cast<void>(load_model(model.string())); }),
              HasSubstr("gemma-2-9b/config.json: num_hidden_layers: expected a value"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace contextile

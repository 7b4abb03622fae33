// contextile iterate: steps and sweeps as tables, CSV and JSON; what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kModel =
    R"({"name": "small", "layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64,
        "ffn": 1024, "vocabulary": 1000})";

class IterateCommand : public ProgramTest {
 protected:
  // `iterate` of a small model on two nodes of four devices, unless `more` says otherwise.
  [[nodiscard]] Outcome iterate(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = joined({"iterate", "--tokens", "1000"}, more);
    const std::pair<const char*, std::string> usual[] = {
        {"--model", file("m.json", kModel)},
        {"--lengths", file("l", "600\n300\n100\n900\n50\n50\n1000\n700\n200\n100\n")},
        {"--cluster", "dgx-h200:2x4"},
        {"--strategy", "magi:chunk=64"}};
    for (const auto& [option, value] : usual) {
      if (std::find(more.begin(), more.end(), option) != more.end()) continue;
      arguments = joined(std::move(arguments), {option, value});
    }
    return contextile(arguments);
  }
  [[nodiscard]] json steps(const std::vector<std::string>& more) const {
    const Outcome outcome = iterate(joined(more, {"--json"}));
    EXPECT_NE(outcome.exit_code, 2) << outcome.err;
    return json::parse(outcome.out);
  }
};

void expect_at_most_80_columns(const std::string& text) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 80U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST_F(IterateCommand, PrintsOneStepWithItsTimesAndMemory) {
  const Outcome outcome = iterate({"--tp", "2", "--pp", "2", "--micro-batches", "4", "--strategy",
                                   "magi:chunk=64,distca:nano_batches=1,resend=on,tolerance=0.15,"
                                   "double_ring:head_parallel=2,inner_ring=1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("4000 tokens in 4 micro-batches, longest document 1000"));
  EXPECT_THAT(outcome.out, HasSubstr("TP 2, CP 2, DP 1, PP 2"));
  EXPECT_THAT(outcome.out, HasSubstr("2x2x1x2"));
  expect_at_most_80_columns(outcome.out);
}

TEST_F(IterateCommand, PartsOfAStageAddUpToTheStep) {
  for (const auto& [schedule, chunks] : std::vector<std::pair<std::string, std::string>>{
           {"1f1b", "1"}, {"interleaved", "2"}, {"same_phase", "1"}, {"same_phase", "2"}}) {
    const json document =
        steps({"--pp", "2", "--micro-batches", "4", "--schedule", schedule, "--chunks", chunks});
    ASSERT_EQ(document.at("steps").size(), 1U);
    const json& step = document.at("steps")[0];
    EXPECT_EQ(step.at("schedule"), schedule);
    EXPECT_EQ(step.at("verdict"), "fits");
    ASSERT_EQ(step.at("stages").size(), 2U);
    for (const json& stage : step.at("stages")) {
      double sum = 0;
      for (const char* key :
           {"linear_s", "attention_s", "exposed_attention_s", "tensor_parallel_s",
            "expert_parallel_s", "gradients_s", "recompute_s", "optimizer_s", "bubble_s"}) {
        sum += stage.at(key).get<double>();
      }
      EXPECT_NEAR(sum, step.at("time_s").get<double>(), 1e-9) << schedule;
      EXPECT_LE(stage.at("total_bytes"), step.at("memory_bytes"));
    }
    EXPECT_EQ(document.at("tokens"), 4000);
  }
}

TEST_F(IterateCommand, ReplicasShareTheMicroBatchesOfAStep) {
  const json by_tokens = steps({"--cp", "4", "--batch-tokens", "4000"});
  const json by_count = steps({"--dp", "2", "--micro-batches", "2"});
  EXPECT_EQ(by_tokens.at("steps"), by_count.at("steps"));
  EXPECT_EQ(by_tokens.at("steps")[0].at("dp"), 2);
  EXPECT_EQ(by_tokens.at("micro_batches"), 4);
}

TEST_F(IterateCommand, OptionsOfTrainingChangeTimeAndMemoryAsTheySay) {
  const std::vector<std::string> base = {"--tp", "2", "--micro-batches", "2"};
  const auto step = [&](const std::vector<std::string>& more) {
    return steps(joined(base, more)).at("steps")[0];
  };
  const json plain = step({});
  EXPECT_GT(step({"--recompute", "full"}).at("time_s"), plain.at("time_s"));
  EXPECT_LT(step({"--recompute", "full"}).at("stages")[0].at("activations_bytes"),
            plain.at("stages")[0].at("activations_bytes"));
  EXPECT_GT(step({"--optimizer", "replicated"}).at("memory_bytes"), plain.at("memory_bytes"));
  EXPECT_LT(step({"--optimizer", "fsdp"}).at("memory_bytes"), plain.at("memory_bytes"));
  EXPECT_GT(step({"--gradient-overlap", "off"}).at("time_s"), plain.at("time_s"));
  EXPECT_LT(step({"--linear-mfu", "0.9"}).at("time_s"), plain.at("time_s"));
  EXPECT_LT(step({"--tp-overlap", "1"}).at("time_s"), plain.at("time_s"));
  EXPECT_EQ(step({"--reserve", "0"}).at("memory_bytes").get<std::int64_t>() + 4'000'000'000,
            plain.at("memory_bytes").get<std::int64_t>());
  EXPECT_EQ(step({"--ping-pong"}).at("ping_pong"), true);
}

TEST_F(IterateCommand, SortsStrategiesByTime) {
  const Outcome outcome =
      iterate({"--strategy", "ring,magi:chunk=64,hybrid:head_parallel=8,zigzag", "--csv"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = steps({"--strategy", "ring,magi:chunk=64,hybrid:head_parallel=8,zigzag"});
  const json& rows = document.at("steps");
  ASSERT_EQ(rows.size(), 4U);
  for (std::size_t i = 0; i + 2 < rows.size(); ++i) {
    EXPECT_LE(rows[i].at("time_s"), rows[i + 1].at("time_s"));
  }
  // Eight ranks cannot split four KV heads.
  EXPECT_EQ(rows[3].at("strategy"), "hybrid");
  EXPECT_EQ(rows[3].at("verdict"), "impossible");
  EXPECT_THAT(rows[3].at("reason").get<std::string>(), HasSubstr("KV heads (4), found 8"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 5);
  EXPECT_THAT(outcome.out, HasSubstr("strategy,placement,tp,cp,dp,pp,ep,time_s"));
}

TEST_F(IterateCommand, SweepsEveryPlacementAndSaysWhyOneDoesNotFit) {
  const std::string tiny =
      file("tiny.json", R"({"preset": "dgx-h200:2x4", "memory_bytes": 4085000000})");
  const Outcome outcome =
      iterate({"--sweep", "--batch-tokens", "4000", "--cluster", tiny, "--top", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("slower ones that fit are left out"));
  EXPECT_THAT(outcome.out, HasSubstr("out of memory"));
  expect_at_most_80_columns(outcome.out);

  const json rows = steps({"--sweep", "--batch-tokens", "4000", "--cluster", tiny}).at("steps");
  std::vector<std::string> placements;
  double before_s = 0;
  bool fits = true;
  for (const json& row : rows) {
    placements.push_back(row.at("placement"));
    EXPECT_EQ(row.at("tp").get<int>() * row.at("cp").get<int>() * row.at("dp").get<int>() *
                  row.at("pp").get<int>(),
              8);
    if (row.at("verdict") == "fits") {
      EXPECT_TRUE(fits) << "a placement that fits stands after one that does not";
      EXPECT_GE(row.at("time_s"), before_s);
      EXPECT_LE(row.at("memory_bytes"), 4'085'000'000);
      before_s = row.at("time_s");
    } else {
      fits = false;
      EXPECT_GT(row.at("memory_bytes"), 4'085'000'000);
      EXPECT_THAT(row.at("reason").get<std::string>(), HasSubstr("out of memory on stage"));
    }
  }
  EXPECT_FALSE(fits);
  // TP 1, 2, 4; CP x DP x PP the rest, DP at most the 4 micro-batches, PP at most the layers.
  EXPECT_EQ(placements.size(), 8U + 6U + 3U);
  std::sort(placements.begin(), placements.end());
  EXPECT_EQ(std::unique(placements.begin(), placements.end()), placements.end());
}

TEST_F(IterateCommand, ASweepKeepsTheSizesThatAreGiven) {
  const json rows =
      steps({"--sweep", "--batch-tokens", "4000", "--tp", "2", "--pp", "1"}).at("steps");
  EXPECT_EQ(rows.size(), 3U);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("tp"), 2);
    EXPECT_EQ(row.at("pp"), 1);
  }
}

TEST_F(IterateCommand, ExitsWith1WhenNothingFits) {
  const std::string tiny =
      file("tiny.json", R"({"preset": "dgx-h200:2x4", "memory_bytes": 1000000})");
  const Outcome outcome = iterate({"--cluster", tiny});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("out of memory"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("tokens/s")));
}

TEST_F(IterateCommand, TakesAnyNumberOfDevicesOfAPreset) {
  EXPECT_EQ(steps({"--cluster", "dgx-h200", "--gpus", "16"}).at("steps")[0].at("cp"), 16);
  EXPECT_EQ(steps({"--cluster", "dgx-h200", "--gpus", "2"}).at("steps")[0].at("cp"), 2);
  expect_bad_input(iterate({"--cluster", "dgx-h200", "--gpus", "12"}),
                   {"--gpus", "whole nodes of 8", "found 12"});
}

constexpr const char* kConfig =
    R"({"model_type": "gpt_oss", "num_hidden_layers": 4, "hidden_size": 512,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
        "intermediate_size": 256, "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 1000, "sliding_window": 100, "quantization_config": {}})";

TEST_F(IterateCommand, PredictsAConfigWithTheWindowsOfItsLayers) {
  const std::string config = file("small.json", kConfig);
  const Outcome outcome = iterate({"--model", config});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("experts   2 of 8 for a token"));
  EXPECT_THAT(outcome.out, HasSubstr("masks     causal (2 layers), sliding_window:100 (2 layers)\n"
                                     "          masks of the model's file (--mask gives others)"));
  EXPECT_THAT(outcome.out, HasSubstr("left out: quantization_config: weights are predicted in"));
  expect_at_most_80_columns(outcome.out);
  const Outcome masked = iterate({"--model", config, "--mask", "causal"});
  EXPECT_THAT(masked.out, HasSubstr("masks     causal\n"
                                    "          masks of --mask, not those of the model's file"));
  const json own = steps({"--model", config});
  EXPECT_EQ(own.at("masks_of_model"), true);
  EXPECT_EQ(own.at("masks").size(), 2U);
  EXPECT_EQ(own.at("left_out").size(), 1U);
  const json causal = steps({"--model", config, "--mask", "causal"});
  EXPECT_EQ(causal.at("masks_of_model"), false);
  EXPECT_LT(own.at("steps")[0].at("model_flops"), causal.at("steps")[0].at("model_flops"));
  expect_bad_input(iterate({"--model", file("odd.json", R"({"model_type": "llama", "hidden_size": 8,
          "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
          "vocab_size": 8, "conv_kernel": 4})")}),
                   {"odd.json", "effect on time and memory", "found 'conv_kernel'"});
}

TEST_F(IterateCommand, SpreadsExpertsOverDevices) {
  const std::string config = file("small.json", kConfig);
  const json one = steps({"--model", config}).at("steps")[0];
  const json four = steps({"--model", config, "--ep", "4"}).at("steps")[0];
  EXPECT_EQ(four.at("ep"), 4);
  EXPECT_EQ(four.at("placement"), "1x8x1x1/4");
  EXPECT_EQ(one.at("stages")[0].at("expert_parallel_s"), 0);
  EXPECT_GT(four.at("stages")[0].at("expert_parallel_s"), 0);
  EXPECT_LT(four.at("memory_bytes"), one.at("memory_bytes"));
  const Outcome text = iterate({"--model", config, "--ep", "4"});
  EXPECT_THAT(text.out, HasSubstr("TPxCPxDPxPP/EP"));
  EXPECT_THAT(text.out, HasSubstr("TP 1, CP 8, DP 1, PP 1, EP 4"));
  expect_at_most_80_columns(text.out);
  EXPECT_THAT(iterate({}).out, Not(HasSubstr("EP")));
  const std::vector<std::string> sweep = {"--sweep", "--batch-tokens", "1000", "--cp", "8"};
  EXPECT_EQ(steps(joined(sweep, {"--model", config})).at("steps").size(), 4U);  // EP 1, 2, 4, 8
  EXPECT_EQ(steps(joined(sweep, {"--model", config, "--ep", "2"})).at("steps").size(), 1U);
  expect_bad_input(iterate({"--ep", "2"}), {"EP 2 of a model without experts"});
  expect_bad_input(iterate({"--model", config, "--ep", "3"}), {"EP 3 does not divide 8 experts"});
}

TEST_F(IterateCommand, RefusesWhatMakesNoSense) {
  expect_bad_input(iterate({"--model", "llama-9b"}), {"llama-3-8b", "found 'llama-9b'"});
  expect_bad_input(iterate({"--tp", "3"}), {"product of 8 devices", "TP 3"});
  expect_bad_input(iterate({"--tp", "8"}), {"TP 8", "4 devices of a node"});
  expect_bad_input(iterate({"--pp", "8"}), {"4 layers are fewer than 8 stages"});
  expect_bad_input(iterate({"--cp", "2", "--dp", "2"}), {"product of 8 devices"});
  expect_bad_input(iterate({"--schedule", "gpipe"}), {"pipeline schedule", "1f1b"});
  expect_bad_input(iterate({"--pp", "2", "--chunks", "2"}), {"1 chunk a stage"});
  expect_bad_input(iterate({"--schedule", "interleaved"}), {"at least 2 chunks", "stages"});
  expect_bad_input(
      iterate({"--schedule", "same_phase", "--pp", "2", "--chunks", "2", "--micro-batches", "3"}),
      {"the last of at least 2"});
  expect_bad_input(iterate({"--recompute", "some"}), {"none, selective, full"});
  expect_bad_input(iterate({"--optimizer", "zero2"}), {"optimizer", "replicated, zero1, fsdp"});
  expect_bad_input(iterate({"--gradient-overlap", "1"}), {"gradient overlap", "off, on"});
  expect_bad_input(iterate({"--linear-mfu", "1.5"}), {"linear MFU", "found 1.5"});
  expect_bad_input(iterate({"--micro-batches", "2", "--batch-tokens", "2000"}), {"found both"});
  expect_bad_input(iterate({"--batch-tokens", "1500"}), {"multiple of 1000", "found 1500"});
  expect_bad_input(iterate({"--batch-tokens", "3000", "--cp", "4"}), {"2 replicas", "found 3"});
  expect_bad_input(iterate({"--sweep"}), {"--batch-tokens"});
  expect_bad_input(iterate({"--sweep", "--batch-tokens", "4000", "--tp", "3"}), {"found none"});
  expect_bad_input(iterate({"--micro-batches", "9"}), {"lengths"});
  expect_bad_input(iterate({"--strategy", "zigzig"}), {"zigzag"});
  expect_bad_input(iterate({"--json", "--csv"}), {"either --json or --csv"});
}

}  // namespace
}  // namespace contextile

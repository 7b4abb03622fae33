// contextile advise: its answer as text and JSON, the set-up of today, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kNow =
    "--tensor-model-parallel-size 1 --context-parallel-size 8 --seq-length 32768 "
    "--micro-batch-size 1 --global-batch-size 8 --lr 1e-4";

class AdviseCommand : public ProgramTest {
 protected:
  [[nodiscard]] Outcome advise(const std::vector<std::string>& more) const {
    return contextile(joined({"advise", "--dataset", "prolong", "--gpus", "8xh100", "--model",
                              "llama-3-8b", "--seconds", "0", "--batch-tokens", "262144"},
                             more));
  }
};

TEST_F(AdviseCommand, AnswersWithSetUpsGainsAndFlags) {
  const Outcome outcome =
      advise({"--now", kNow, "--engine", "megatron", "--price", "2", "--best", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("now: TP 1, CP 8 (p2p), DP 1, PP 1"), HasSubstr("of it is lost"),
                    HasSubstr("without effect on time and memory: --lr 1e-4"),
                    HasSubstr("times as fast"), HasSubstr("for megatron: "),
                    HasSubstr("--context-parallel-size "), HasSubstr("price")));
}

TEST_F(AdviseCommand, IsJson) {
  const Outcome outcome = advise({"--now", kNow, "--tokens", "32768", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["devices"], 8);
  EXPECT_EQ(answer["now"]["cp"], 8);
  const json& best = answer["engines"][0];
  EXPECT_NEAR(best["gain"].get<double>(),
              best["tokens_per_s"].get<double>() / answer["now"]["tokens_per_s"].get<double>(),
              1e-9);
  EXPECT_GE(best["step_s"], best["bound_s"]);
  EXPECT_EQ(answer["now"]["without_effect"][0]["key"], "--lr");
  EXPECT_NEAR(best["device_hours_per_billion_tokens"].get<double>(),
              8e9 / best["tokens_per_s"].get<double>() / 3600, 1e-6);
  const json& search = answer["search"];
  EXPECT_EQ(search["considered"],
            search["predicted"].get<int>() + search["above_bound"].get<int>() +
                search["out_of_memory"].get<int>() + search["impossible"].get<int>() +
                search["unsupported"].get<int>() + search["left"].get<int>());
}

TEST_F(AdviseCommand, FitsThePredictionToAMeasuredStep) {
  const json plain = json::parse(advise({"--now", kNow, "--json"}).out);
  const double predicted = plain["now"]["step_s"];
  const json fitted = json::parse(
      advise({"--now", kNow, "--json", "--measured", std::to_string(1.1 * predicted)}).out);
  EXPECT_NEAR(fitted["now"]["step_s"].get<double>(), 1.1 * predicted, 0.01 * predicted);
  const Outcome refused = advise({"--now", kNow, "--measured", "0.001"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("measured step: expected "));
}

TEST_F(AdviseCommand, HasFlagsInJson) {
  const json answer = json::parse(
      advise({"--tokens", "32768", "--plans", "magi", "--engine", "megatron", "--json"}).out);
  EXPECT_EQ(answer["flags"]["engine"], "megatron");
  EXPECT_EQ(answer["flags"]["setup"], answer["engines"][0]["text"]);
  EXPECT_THAT(answer["flags"]["text"].get<std::string>(),
              HasSubstr("--tensor-model-parallel-size"));
  EXPECT_EQ(answer["flags"]["script"], "");
}

TEST_F(AdviseCommand, WritesContextilesFlagsOfTheFastestSetUp) {
  const json answer = json::parse(
      advise({"--tokens", "32768", "--plans", "magi", "--engine", "contextile", "--json"}).out);
  const double engines = answer["engines"][0]["tokens_per_s"];
  const double own = answer["own"][0]["tokens_per_s"];
  EXPECT_EQ(answer["flags"]["setup"], answer[own > engines ? "own" : "engines"][0]["text"]);
}

TEST_F(AdviseCommand, SaysWhatTheFlagsOfTodayLeaveOpen) {
  const std::string none =
      "--tensor-model-parallel-size 1 --context-parallel-size 8 --seq-length 32768 "
      "--micro-batch-size 1 --use-distributed-optimizer";
  const Outcome outcome = advise({"--now", none, "--best", "1", "--plans", "magi"});
  EXPECT_THAT(outcome.out,
              HasSubstr("predicted with 262144 tokens per step, which the flags do not"));
  EXPECT_THAT(outcome.out, HasSubstr("of one 8B model on 64 A100"));
}

TEST_F(AdviseCommand, SaysThatTodaysSetUpIsTheBest) {
  const std::string model = file("small.json",
                                 R"({"num_hidden_layers": 4, "hidden_size": 1024,
    "num_attention_heads": 8, "intermediate_size": 4096, "vocab_size": 32000,
    "model_type": "llama", "architectures": ["LlamaForCausalLM"]})");
  const Outcome outcome =
      contextile({"advise", "--dataset", "prolong", "--gpus", "1xh200", "--seconds", "0", "--model",
                  model, "--now",
                  "--seq-length 8192 --micro-batch-size 1 --global-batch-size 1 "
                  "--use-distributed-optimizer"});
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr("Keep the set-up of today: no other one"));
}

TEST_F(AdviseCommand, RefusesInputByName) {
  const auto error = [&](const std::vector<std::string>& more) {
    const Outcome outcome = advise(more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, Not(HasSubstr("\n\n")));
    return outcome.err;
  };
  EXPECT_THAT(error({file("l", "5\n")}), HasSubstr("either LENGTHS or --dataset NAME, found both"));
  EXPECT_THAT(error({"--measured", "3"}), HasSubstr("--measured: expected --now"));
  EXPECT_THAT(error({"--now", kNow, "--measured", "-1"}),
              HasSubstr("--measured: expected more than 0 seconds, found -1"));
  EXPECT_THAT(error({"--price", "-2"}), HasSubstr("--price: expected at least 0, found -2"));
  EXPECT_THAT(error({"--now", kNow, "--tokens", "16384"}),
              HasSubstr("expected 16384 tokens a micro-batch, as given for the job, found 32768"));
  EXPECT_THAT(error({"--now", "job.toml"}), HasSubstr("--now: expected Megatron-LM's arguments"));
  EXPECT_THAT(error({"--now", "--context-paralel-size 8"}), HasSubstr("--context-paralel-size"));
  EXPECT_THAT(error({"--now", "--context-parallel-size 8 --num-layers 80"}),
              HasSubstr("expected layers 32, as predicted for the model llama-3-8b, found 80"));
  EXPECT_THAT(error({"--tokens", "32K", "--plans", "zigzga"}), HasSubstr("zigzag"));
  EXPECT_THAT(error({"--engine", "megatorn"}), HasSubstr("megatron"));
  for (const auto& [gpus, expected] :
       {std::pair{"12xh100", "expected whole nodes of 8 devices"}, std::pair{"8xv100", "v100"},
        std::pair{"0xh100", "--gpus"}}) {
    const Outcome outcome = contextile({"advise", "--dataset", "prolong", "--gpus", gpus});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(expected));
  }
}

}  // namespace
}  // namespace contextile

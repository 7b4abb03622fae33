// The tables of the DistCA paper and Megatron-LM's example, at small sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class DistcaTables : public ProgramTest {
 protected:
  [[nodiscard]] json table(const std::string& name,
                           const std::vector<std::string>& more = {}) const {
    const Outcome outcome = contextile(joined({"table", name, "--json"}, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
};

const std::vector<std::string> kSmall = {"--tokens", "2K", "--batches", "1"};
const std::vector<std::string> kSmallSteps = {"--tokens", "256K", "--batches", "1"};

TEST_F(DistcaTables, SharesOfTheGatherAreThoseOfTheStepThatIteratePredicts) {
  const json document = table("distca-fig3", kSmall);
  ASSERT_EQ(document["rows"].size(), 10U);
  const json& row = document["rows"][0];
  ASSERT_EQ(row["nodes"], 2);
  // Two nodes of 2K tokens, documents up to 4K: 1/32 of the dataset's.
  const Outcome outcome = started(CONTEXTILE_PRODUCT, {"iterate",
                                                       "--model",
                                                       "llama-3-8b",
                                                       "--dataset",
                                                       "pretrain",
                                                       "--tokens",
                                                       "4K",
                                                       "--max-length",
                                                       "4K",
                                                       "--scale",
                                                       "0.03125",
                                                       "--gpus",
                                                       "16",
                                                       "--tp",
                                                       "8",
                                                       "--cp",
                                                       "2",
                                                       "--recompute",
                                                       "selective",
                                                       "--strategy",
                                                       "all_gather:layout=per_document",
                                                       "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json step = json::parse(outcome.out)["steps"][0];
  const json& stage = step["stages"][0];
  EXPECT_NEAR(row["again_latency"].get<double>(),
              stage["exposed_attention_s"].get<double>() / step["time_s"].get<double>(), 1e-9);
  const double staged = stage["attention_bytes"];
  const double total = stage["total_bytes"];
  EXPECT_NEAR(row["again_memory"].get<double>(), staged / total, 1e-9);
  // Keys and values of the other node's 2K tokens: 8 heads of 128 over TP 8, bf16, 32 layers.
  const double gathered = 32.0 * 2048 * 2 * 128 * 2;
  EXPECT_NEAR(row["kept_memory"].get<double>(), gathered / (gathered + total - staged), 1e-6);
}

TEST_F(DistcaTables, TheGatherGrowsWithTheNodes) {
  const json document = table("distca-fig3", kSmall);
  double latency = 0;
  double memory = 0;
  for (const json& row : document["rows"]) {
    if (row["nodes"] == 2) latency = memory = 0;
    EXPECT_GT(row["kept_latency"], latency) << row;
    EXPECT_GT(row["kept_memory"], memory) << row;
    EXPECT_LT(row["kept_latency"], row["again_latency"]) << row;
    EXPECT_GT(row["kept_memory"], row["again_memory"]) << row;
    latency = row["kept_latency"];
    memory = row["kept_memory"];
  }
}

TEST_F(DistcaTables, ActivationsOfVariableChunksGrowAsTheLargestChunk) {
  const json document = table("distca-fig4", {"--tokens", "128K", "--batches", "2"});
  ASSERT_EQ(document["rows"].size(), 6U);
  for (const json& row : document["rows"]) {
    EXPECT_GE(row["longest_chunk"].get<double>(), 1) << row;
    EXPECT_NEAR(row["activation_ratio"].get<double>(), row["longest_chunk"].get<double>(), 1e-4)
        << row;
    EXPECT_LT(row["variable_idle"], row["fixed_idle"]) << row;
  }
}

TEST_F(DistcaTables, AKernelWithoutOverheadsRunsShardsOfAnyLengthAtItsPeak) {
  const std::string flat = file("flat.json", R"({"preset": "dgx-h200", "attention_tflops": 100,
      "attention": {"q_rows": [1], "kv_rows": [1], "forward": [1], "backward": [0.5],
                    "call_us": 0, "kernel_tile_rows": 0}})");
  const json document = table("distca-fig5", {"--cluster", flat});
  ASSERT_EQ(document["rows"].size(), 3U * 8);
  for (const json& row : document["rows"]) {
    EXPECT_NEAR(row["forward_tflops"].get<double>(), 100, 1e-6) << row;
    EXPECT_NEAR(row["backward_tflops"].get<double>(), 50, 1e-6) << row;
    EXPECT_NEAR(row["forward_share"].get<double>(), 1, 1e-9) << row;
  }
  EXPECT_EQ(document["findings"][0]["agrees"], true);
  EXPECT_EQ(document["findings"][1]["agrees"], false);
}

TEST_F(DistcaTables, APresetsKernelIsNoEvidence) {
  const std::string same = file("same.json", R"({"preset": "dgx-h200", "attention_tflops": 100})");
  for (const std::string& cluster : {std::string("dgx-h200"), std::string("p4de"), same}) {
    const json document = table("distca-fig5", {"--cluster", cluster});
    EXPECT_TRUE(document["findings"].empty()) << cluster;
    EXPECT_THAT(document["differences"].dump(), HasSubstr("No verdict")) << cluster;
    EXPECT_THAT(document["differences"].dump(), HasSubstr("tiles of 128 rows")) << cluster;
  }
}

TEST_F(DistcaTables, SaysHowFarBatchesVary) {
  const std::vector<std::string> tokens = {"--tokens", "256K", "--batches"};
  const json document = table("distca-fig12", joined(tokens, {"3"}));
  ASSERT_EQ(document["findings"].size(), 5U);
  for (const json& finding : document["findings"]) {
    EXPECT_THAT(finding["ours"].get<std::string>(), HasSubstr("±"));
    EXPECT_THAT(finding["criterion"].get<std::string>(), HasSubstr("standard errors"));
  }
  EXPECT_TRUE(table("distca-fig12", joined(tokens, {"1"}))["findings"].empty());
}

TEST_F(DistcaTables, OneStreamIsSlowerThanPingPongAndThatThanSignals) {
  const json document = table("distca-fig11", kSmallSteps);
  ASSERT_EQ(document["rows"].size(), 2U * 2);
  for (const json& row : document["rows"]) {
    EXPECT_GT(row["signal_s"], 0) << row;
    EXPECT_GE(row["ping_pong_s"], row["signal_s"]) << row;
    EXPECT_GT(row["single_s"], row["ping_pong_s"]) << row;
  }
}

TEST_F(DistcaTables, WithAFreeNetworkAllThreeTakeTheSame) {
  const std::string free =
      file("free.json", R"({"preset": "dgx-h200", "inter_gbytes_per_s_per_node": 1e9,
      "intra_gbytes_per_s": 1e9, "intra_latency_us": 0, "inter_latency_us": 0})");
  for (const json& row : table("distca-fig11", joined(kSmallSteps, {"--cluster", free}))["rows"]) {
    EXPECT_NEAR(row["over_signal"].get<double>(), 0, 2e-3) << row;
    EXPECT_NEAR(row["single_slower"].get<double>(), 0, 5e-3) << row;
  }
}

TEST_F(DistcaTables, ZeroToleranceBalancesAndLooserOnesNeedSmallerBuffers) {
  const json document = table("distca-fig12", {"--tokens", "256K", "--batches", "2"});
  ASSERT_EQ(document["rows"].size(), 2U * 2 * 6);
  double buffer = 0;
  for (const json& row : document["rows"]) {
    if (row["tolerance"] == 0) {
      EXPECT_LT(row["overload"].get<double>(), 0.01) << row;
      EXPECT_EQ(row["buffer_saved"], 0) << row;
      buffer = row["buffer_bytes"];
    }
    EXPECT_LE(row["buffer_bytes"].get<double>(), buffer) << row;
    EXPECT_GE(row["step_change"].get<double>(), 0) << row;
    buffer = row["buffer_bytes"];
  }
}

TEST_F(DistcaTables, CountsTheShardsOfAppendixAAsByHand) {
  const json document = table("distca-appa");
  const json& paper = document["rows"][0];
  EXPECT_EQ(paper["model"], "llama-34b");
  // 2 · (8192·8192 for Q and for O, 8192·2048 for K and for V, 3 · 8192·22016)
  EXPECT_DOUBLE_EQ(paper["linear_flops"].get<double>(), 1417.674752);
  EXPECT_EQ(paper["q_bytes"], 16384);
  EXPECT_EQ(paper["kv_bytes"], 8192);
  // 1417.67e6 / 495e12 s · 50e9 B/s = 143199 B; 16384 + (s - 1) / 2 · 8192 <= 143199
  EXPECT_NEAR(paper["hidden_bytes"].get<double>(), 143199, 1);
  EXPECT_EQ(paper["most_shards"], 31);
  EXPECT_EQ(document["findings"][0]["agrees"], true);
  EXPECT_EQ(document["findings"][1]["agrees"], true);  // 8B, 34B, 70B
  // 8 devices share 42 GB/s, 312 TFLOP/s: 47710 B, s - 1 = floor(7.65).
  const json slower = table("distca-appa", {"--cluster", "p4de"});
  EXPECT_EQ(slower["rows"][0]["most_shards"], 8);
  EXPECT_EQ(slower["findings"][0]["agrees"], false);
  // Not even the queries hide.
  const std::string slow = file("slow.json", R"({"preset": "p4de",
      "inter_gbytes_per_s_per_node": 1})");
  EXPECT_EQ(table("distca-appa", {"--cluster", slow})["rows"][0]["most_shards"], 1);
}

TEST_F(DistcaTables, PlansMegatronsExampleInTwoRounds) {
  const json document = table("megatron-example");
  std::vector<std::tuple<int, std::string, std::string, int, double>> rounds;
  for (const json& row : document["rows"]) {
    if (row["strategy"] != "megatron_dynamic") continue;
    EXPECT_GT(row["round_s"], 0);
    rounds.emplace_back(row["round"], row["ranks"], row["sequences"], row["rank_tokens"],
                        row["rank_work"]);
  }
  // Groups of 8, 4, 2 and 1 ranks take L²/c. Among the short ones the first goes to rank 6, the
  // next to rank 7, and so on: each to the lower load.
  const std::vector<std::tuple<int, std::string, std::string, int, double>> expected = {
      {1, "0-7", "32K", 4096, 134.217728},
      {2, "0-3", "16K", 4096, 67.108864},
      {2, "4-5", "8K", 4096, 33.554432},
      {2, "6", "4K 4K 2K", 10240, 37.748736},
      {2, "7", "4K 4K", 8192, 33.554432}};
  EXPECT_EQ(rounds, expected);
  EXPECT_EQ(document["findings"][0]["ours"], "megatron_dynamic: 2 rounds");
  EXPECT_EQ(document["findings"][1]["ours"], "the same");
  EXPECT_EQ(document["findings"][2]["ours"], "the same");  // zigzag
  EXPECT_EQ(document["findings"][0]["agrees"], true);
}

TEST_F(DistcaTables, ListsItsTables) {
  const Outcome list = contextile({"table", "--list"});
  for (const char* name : {"distca-fig3", "distca-fig4", "distca-fig5", "distca-fig11",
                           "distca-fig12", "distca-appa", "megatron-example"}) {
    EXPECT_THAT(list.out, HasSubstr(name));
  }
}

TEST_F(DistcaTables, RefusesWhatATableCannotFollow) {
  const std::map<std::string, std::vector<std::string>> refused = {
      {"distca-fig3", {"--heads", "8"}},         {"distca-fig4", {"--wire", "bf16"}},
      {"distca-fig5", {"--dataset", "prolong"}}, {"distca-fig11", {"--kv-heads", "8"}},
      {"distca-fig12", {"--head-dim", "64"}},    {"distca-appa", {"--tokens", "8K"}},
      {"megatron-example", {"--wire", "f16"}},   {"distca-fig9", {"--tokens", "8K"}},
      {"distca-fig10", {"--heads", "8"}}};
  for (const auto& [name, option] : refused) {
    expect_bad_input(contextile(joined({"table", name}, option)), {name, option[0]});
  }
  const std::string small = file("small.json", R"({"preset": "p4de", "devices_per_node": 4})");
  for (const char* name : {"distca-fig3", "distca-fig4", "distca-fig9", "distca-fig10",
                           "distca-fig11", "distca-fig12"}) {
    expect_bad_input(contextile({"table", name, "--cluster", small}),
                     {"--cluster", "nodes of 8 devices", "found 4"});
    expect_bad_input(contextile({"table", name, "--cluster", "dgx-h200:1x8"}),
                     {name, "--cluster", "number of nodes", "'dgx-h200:1x8'"});
  }
  expect_bad_input(contextile({"table", "megatron-example", "--cluster", "p4de:2x8"}),
                   {"8 devices", "found 16"});
  expect_bad_input(contextile({"table", "distca-fig5", "--tokens", "1000"}),
                   {"multiple of 4096", "1000"});
  expect_bad_input(contextile({"table", "distca-fig12", "--tokens", "160", "--batches", "1"}),
                   {"two documents", "more --tokens"});
}

}  // namespace
}  // namespace contextile

// `contextile plan --schedule`: the files it writes, its table and its JSON, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PlanSchedules : public ProgramTest {
 protected:
  PlanSchedules() {
    std::ofstream(path("lengths.txt")) << "500\n90000\n40572\n1000\n";
    input_ = {"--lengths", path("lengths.txt"), "--cluster", "dgx-h200:1x8"};
  }
  [[nodiscard]] std::vector<std::string> schedule(const std::string& strategy) const {
    return joined({"plan", "-o", path("s.json"), "--schedule", "--strategy", strategy}, input_);
  }

  std::vector<std::string> input_;
};

TEST_F(PlanSchedules, WriteTheScheduleAndAPlanForEveryGroup) {
  const std::string text = output(schedule("megatron_dynamic"));
  EXPECT_THAT(text, HasSubstr("megatron_dynamic, 2 rounds, 4 micro-batches, 4 different plans"));
  EXPECT_THAT(text, HasSubstr("A rank holds at most 11250 tokens at a time"));
  std::ifstream file(path("s.json"));
  const json written = json::parse(file);
  EXPECT_EQ(written.at("format"), "contextile schedule");
  EXPECT_EQ(written.at("num_ranks"), 8);
  EXPECT_EQ(written.at("options").at("cap"), "16509");
  const json& micro_batch = written.at("rounds").at(1).at(0);
  EXPECT_EQ(micro_batch.at("num_ranks"), 4);
  EXPECT_EQ(micro_batch.at("sequences"), json({2}));
  const json& entry = written.at("plans").at(micro_batch.at("plan").get<std::size_t>());
  const Plan plan = load_plan(entry.at("file").get<std::string>());
  EXPECT_EQ(plan.num_devices(), 4);
  EXPECT_EQ(plan.num_tokens(), 40'572);
  EXPECT_THAT(output({"verify", entry.at("file").get<std::string>()}), HasSubstr("verified: ok"));
}

TEST_F(PlanSchedules, TellTheSameInJsonAndCsv) {
  const json one = document(schedule("bytescale")).at("schedules").at(0);
  EXPECT_EQ(one.at("strategy"), "bytescale");
  EXPECT_TRUE(one.at("written").get<bool>());
  EXPECT_EQ(one.at("predicted").at("ranks").size(), 8U);
  EXPECT_EQ(one.at("predicted").at("rounds_s").size(), one.at("rounds").size());
  EXPECT_THAT(output(joined(schedule("bytescale"), {"--csv"})),
              HasSubstr("round,micro_batches,sequences,tokens,groups,time_s"));
}

TEST_F(PlanSchedules, PlanInsideTheGroupsByAnotherStrategy) {
  const json one =
      document(joined(schedule("megatron_packed"), {"--group-strategy", "magi"})).at("schedules");
  const std::string file = one.at(0).at("plans").at(0).at("file");
  EXPECT_EQ(load_plan(file).strategy, "magi");
}

TEST_F(PlanSchedules, RefuseWhatTheyCannotHonour) {
  const auto refused = [&](const std::vector<std::string>& arguments,
                           const std::vector<std::string>& words) {
    expect_bad_input(contextile(arguments), words);
    EXPECT_FALSE(std::filesystem::exists(path("s.json")));
  };
  refused(schedule("zigzag"), {"--schedule", "schedules micro-batches", "'zigzag'"});
  refused(joined(schedule("auto"), {"--explain"}), {"--explain", "found --schedule"});
  refused(joined({"plan", "-o", "-", "--schedule", "--strategy", "bytescale"}, input_),
          {"--output", "with --schedule"});
  refused(joined({"plan", "-o", path("s.json"), "--group-strategy", "zigzag"}, input_),
          {"--group-strategy", "--schedule as well"});
  refused(joined(schedule("bytescale"), {"--group-strategy", "zigzag,ring"}),
          {"--group-strategy", "expected one strategy, found 2"});
  refused(joined(schedule("megatron_dynamic:cap=10"), {}), {"option cap"});
}

TEST_F(PlanSchedules, AreNoPlanFilesAndNameThem) {
  static_cast<void>(output(schedule("megatron_dynamic")));
  const std::string found =
      "expected a plan file, found a schedule; its plans are " + path("s.json") + ".0";
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"verify", path("s.json")},
                                             {"run", path("s.json")},
                                             {"simulate", path("s.json")},
                                             {"export", path("s.json")},
                                             {"report", path("s.json"), "-o", path("r.html")}}) {
    EXPECT_THAT(contextile(command).err, HasSubstr(found)) << command.front();
  }
}

TEST_F(PlanSchedules, DoNotReplaceWhatTheyRead) {
  std::filesystem::rename(path("lengths.txt"), path("s.json.1"));
  const std::vector<std::string> plan = {
      "plan",      "-o",        path("s.json"),   "--schedule", "--strategy",
      "bytescale", "--lengths", path("s.json.1"), "--cluster",  "dgx-h200:1x8"};
  expect_bad_input(contextile(plan), {"--output", "s.json.1"});
  EXPECT_EQ(std::filesystem::file_size(path("s.json.1")), 21U);
}

TEST_F(PlanSchedules, NameTheMicroBatchThatBreaksALimit) {
  const Outcome outcome =
      contextile(joined(schedule("megatron_dynamic"), {"--token-limit", "10200"}));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("round 0, sequence 1 on ranks 0 to 7: "));
  EXPECT_FALSE(std::filesystem::exists(path("s.json")));
}

TEST_F(PlanSchedules, AreWhatCompareAndIterateCount) {
  const std::vector<std::string> compare =
      joined({"compare", "--strategy", "zigzag,megatron_dynamic"}, input_);
  EXPECT_THAT(output(compare), HasSubstr("megatron_dynamic: peak of one micro-batch at a time"));
  const json rows = document(compare).at("strategies");
  EXPECT_EQ(rows.at(1).at("batches").at(0).at("schedule").at("micro_batches"), 4);
  EXPECT_FALSE(rows.at(0).at("batches").at(0).contains("schedule"));
  EXPECT_THAT(output(joined(compare, {"--one-plan"})), testing::Not(HasSubstr("micro-batch")));
  const std::vector<std::string> iterate =
      joined({"iterate", "--recompute", "selective", "--strategy", "megatron_dynamic"}, input_);
  EXPECT_THAT(output(iterate), HasSubstr("megatron_dynamic: sequences of the step scheduled"));
  EXPECT_TRUE(document(iterate).at("steps").at(0).at("scheduled").get<bool>());
  const json other = document(joined(iterate, {"--group-strategy", "magi"}));
  EXPECT_NE(other.at("steps").at(0).at("time_s"), document(iterate).at("steps").at(0).at("time_s"));
  const Outcome many = contextile(joined(iterate, {"--group-strategy", "hybrid:head_parallel=3"}));
  EXPECT_EQ(many.exit_code, 1);
  EXPECT_THAT(many.out, HasSubstr("splits heads over 3 ranks"));
}

TEST_F(PlanSchedules, AreWantedByTheOptionsOfCompareAndIterate) {
  const auto refused = [&](const std::string& command, const std::vector<std::string>& more,
                           const std::vector<std::string>& words) {
    expect_bad_input(contextile(joined(joined({command}, input_), more)), words);
  };
  const std::string known = "schedules micro-batches (";
  for (const char* command : {"compare", "iterate"}) {
    refused(command, {"--one-plan", "--strategy", "zigzag,ring"},
            {"--one-plan", known, "found 'zigzag,ring'"});
  }
  refused("iterate", {"--group-strategy", "magi", "--strategy", "zigzag"},
          {"--group-strategy", known, "found 'zigzag'"});
  const std::vector<std::string> dynamic = {"--strategy", "megatron_dynamic"};
  refused("iterate", joined(dynamic, {"--group-strategy", "magi", "--one-plan"}),
          {"--group-strategy", "found --one-plan"});
  refused("iterate", joined(dynamic, {"--group-strategy", "magi,ring"}),
          {"--group-strategy", "expected one strategy, found 2"});
  refused("iterate", joined(dynamic, {"--group-strategy", "magic"}), {"magic"});
  refused("iterate", joined(dynamic, {"--one-plan", "--ping-pong"}),
          {"--one-plan", "found --ping-pong"});
  refused("iterate", joined(dynamic, {"--group-strategy", "magi", "--schedule", "same_phase"}),
          {"--group-strategy", "found --schedule same_phase"});
}

}  // namespace
}  // namespace contextile

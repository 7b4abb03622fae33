// `contextile simulate`, end to end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "support/trace_support.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const char* const kDirections[] = {"forward", "backward"};

class SimulateCommand : public ProgramTest {
 protected:
  [[nodiscard]] std::string output(const std::vector<std::string>& arguments) const {
    const Outcome outcome = contextile(joined({"simulate"}, arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }
  [[nodiscard]] json document(const std::vector<std::string>& arguments) const {
    return json::parse(output(joined(arguments, {"--json"})));
  }
};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void expect_narrow(const std::string& text) {
  for (const std::string& line : lines_of(text)) EXPECT_LE(line.size(), 80U) << line;
}

TEST_F(SimulateCommand, PrintsTimesAndWhereTheyGo) {
  const std::string text = output({small_plan("s.plan")});
  for (const char* words : {"on        dgx-h200, 2 x 2 devices", "one layer of every mask",
                            "forward", "backward", "time ", "MFU", "attention of the time",
                            "exposed, mean / max", "between nodes", "peak memory"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  expect_narrow(text);
}

TEST_F(SimulateCommand, PrintsEveryDeviceWhenAsked) {
  const std::string plan = small_plan("s.plan", {"--strategy", "dcp"});
  const std::string text = output({plan, "--per-device"});
  expect_narrow(text);
  EXPECT_THAT(text, HasSubstr("backward, every device"));
  // Each direction has a blank line, a title, two lines of header and four devices.
  EXPECT_EQ(lines_of(text).size(), lines_of(output({plan})).size() + 2 * (4 + 4));
}

TEST_F(SimulateCommand, WhyPrintsCausesWithWhatTheTimeWouldBeWithoutThem) {
  const std::string text = output({small_plan("s.plan"), "--why"});
  for (const char* words : {"\nwhy ", "critical path, forward: attention ",
                            "critical path, backward: ", "largest causes", "of the critical path",
                            "% less", "longest waits", "link: "}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  for (const std::string& line : lines_of(text)) {
    const auto columns = std::ranges::count_if(
        line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
    EXPECT_LE(columns, 80) << line;
  }
}

TEST_F(SimulateCommand, WhyDocumentAddsUp) {
  const json document = this->document({small_plan("s.plan"), "--why"});
  const json& why = document.at("why");
  double path_s = 0;
  for (const char* name : kDirections) {
    for (const json& part : why.at("critical_path").at(name)) path_s += part.get<double>();
  }
  const double time_s = document.at("time_s");
  EXPECT_NEAR(path_s, time_s, 1e-9 * time_s);
  ASSERT_FALSE(why.at("causes").empty());
  EXPECT_LE(why.at("causes").size(), 5U);
  double last_s = time_s;
  for (const json& cause : why.at("causes")) {
    const double gain_s = cause.at("gain_s");
    EXPECT_LE(gain_s, last_s);
    EXPECT_NEAR(gain_s + cause.at("without_s").get<double>(), time_s, 1e-9 * time_s);
    EXPECT_NE(cause.at("what"), "");
    EXPECT_NE(cause.at("remedy"), "");
    last_s = gain_s;
  }
  for (const json& wait : why.at("longest_waits")) {
    EXPECT_GT(wait.at("wait_s"), 0);
    EXPECT_NE(wait.at("peer_was"), "");
  }
}

TEST_F(SimulateCommand, WhyIsNoTable) {
  const Outcome outcome = contextile({"simulate", small_plan("s.plan"), "--why", "--csv"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--why: expected text or --json, found --csv"));
}

TEST_F(SimulateCommand, DocumentAddsUp) {
  const std::string plan = small_plan("s.plan");
  const json document = this->document({plan});
  EXPECT_EQ(document.at("command"), "simulate");
  EXPECT_EQ(document.at("file"), plan);
  EXPECT_EQ(document.at("cluster").at("name"), "dgx-h200");
  EXPECT_EQ(document.at("plan").at("strategy"), "dcp");
  const PlanStats stats = statistics(load_plan(plan));
  double total_s = 0;
  for (const char* name : kDirections) {
    SCOPED_TRACE(name);
    const json& direction = document.at(name);
    const double time_s = direction.at("time_s");
    total_s += time_s;
    EXPECT_GT(time_s, 0);
    EXPECT_GT(direction.at("mfu"), 0);
    EXPECT_LT(direction.at("mfu"), 1);
    EXPECT_EQ(direction.at("programs").size(), 1U);
    ASSERT_EQ(direction.at("devices").size(), 4U);
    double attention_s = 0;
    for (const json& device : direction.at("devices")) {
      double sum_s = 0;
      for (const char* activity : {"attention_s", "merge_s", "launch_s", "exposed_s", "idle_s"}) {
        sum_s += device.at(activity).get<double>();
      }
      EXPECT_NEAR(sum_s, time_s, 1e-9 * time_s);
      attention_s += device.at("attention_s").get<double>();
    }
    EXPECT_NEAR(direction.at("attention_mean_s").get<double>(), attention_s / 4, 1e-9 * time_s);
    EXPECT_NEAR(direction.at("attention_share").get<double>(), attention_s / 4 / time_s, 1e-9);
    const auto& of_plan = name == std::string("forward") ? stats.forward : stats.backward;
    EXPECT_EQ(direction.at("inter_bytes"), of_plan->inter_bytes);
    EXPECT_EQ(direction.at("intra_bytes"), of_plan->intra_bytes);
    EXPECT_EQ(direction.at("peak_memory_bytes"), of_plan->peak_memory_bytes);
    EXPECT_DOUBLE_EQ(direction.at("flops").get<double>(), of_plan->flops);
  }
  EXPECT_DOUBLE_EQ(document.at("time_s").get<double>(), total_s);
}

TEST_F(SimulateCommand, IsTheSameEveryTime) {
  const std::string plan = small_plan("s.plan");
  EXPECT_EQ(output({plan, "--json"}), output({plan, "--json"}));
}

TEST_F(SimulateCommand, CsvHasOneRowADirectionOrDevice) {
  const std::string plan = small_plan("s.plan");
  const std::vector<std::string> directions = lines_of(output({plan, "--csv"}));
  ASSERT_EQ(directions.size(), 3U);
  EXPECT_EQ(directions[0].rfind("direction,time_s,mfu,flops,attention_share,", 0), 0U);
  EXPECT_EQ(directions[1].rfind("forward,", 0), 0U);
  EXPECT_EQ(directions[2].rfind("backward,", 0), 0U);
  const std::vector<std::string> devices = lines_of(output({plan, "--csv", "--per-device"}));
  ASSERT_EQ(devices.size(), 1U + 2 * 4);
  EXPECT_EQ(devices[0],
            "direction,device,attention_s,merge_s,launch_s,exposed_s,idle_s,sent_bytes,"
            "received_bytes,memory_bytes");
  EXPECT_EQ(devices[4].rfind("forward,3,", 0), 0U);
  for (const std::string& line : devices) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), 9) << line;
  }
}

TEST_F(SimulateCommand, ForwardOnlyPlansHaveNoBackwardTimes) {
  const std::string plan = small_plan("f.plan", {"--forward-only"});
  const json document = this->document({plan});
  EXPECT_TRUE(document.contains("forward"));
  EXPECT_FALSE(document.contains("backward"));
  EXPECT_EQ(lines_of(output({plan, "--csv"})).size(), 2U);
  EXPECT_EQ(output({plan}).find("backward"), std::string::npos);  // nor a schedule of it
}

TEST_F(SimulateCommand, SeveralMasksAreSeveralPrograms) {
  const std::string plan =
      small_plan("m.plan", {"--mask", "local=sliding_window:32@3", "--mask", "causal"});
  const json document = this->document({plan});
  for (const char* name : kDirections) {
    double sum_s = 0;
    ASSERT_EQ(document.at(name).at("programs").size(), 2U);
    for (const json& program : document.at(name).at("programs")) {
      sum_s += program.at("time_s").get<double>();
    }
    EXPECT_NEAR(sum_s, document.at(name).at("time_s").get<double>(), 1e-12);
  }
}

TEST_F(SimulateCommand, AnotherMachineTakesAnotherTime) {
  const std::string plan = small_plan("s.plan");
  const std::string fast = file("fast.json", R"({"preset": "dgx-h200:2x2", "name": "fast",
      "intra_latency_us": 0, "inter_latency_us": 0, "launch_us": 0, "attention": {"call_us": 0}})");
  const json faster = document({plan, "--cluster", fast});
  EXPECT_EQ(faster.at("cluster").at("name"), "fast");
  EXPECT_LT(faster.at("time_s"), document({plan}).at("time_s"));
  EXPECT_THAT(output({plan, "--cluster", "p4de:2x2"}), HasSubstr("on        p4de, 2 x 2 devices"));
}

TEST_F(SimulateCommand, TakesTheGroupOfATensorParallelPlan) {
  const std::string plan = small_plan("tp.plan", {"--tp", "2"});
  const json document = this->document({plan, "--cluster", "dgx-h200:2x2", "--tp", "2"});
  EXPECT_EQ(document.at("cluster").at("devices_per_node"), 1);
  EXPECT_EQ(document.at("forward").at("devices").size(), 2U);
  expect_bad_input(contextile({"simulate", plan, "--tp", "2"}), {"--cluster", "found none"});
  expect_bad_input(contextile({"simulate", plan, "--cluster", "dgx-h200:2x2"}),
                   {"another cluster", "2 x 2", "2 x 1"});
}

TEST_F(SimulateCommand, WritesATraceThatIsWellFormed) {
  for (const char* strategy : {"ring", "magi", "dcp", "distca"}) {
    SCOPED_TRACE(strategy);
    const std::string plan = small_plan("t.plan", {"--strategy", strategy});
    const json document = this->document({plan, "--trace", path("t.json")});
    EXPECT_EQ(document.at("trace"), path("t.json"));
    const Trace trace = parse_trace(read(path("t.json")));
    expect_well_formed(trace);
    std::int64_t sent = 0;
    for (const TraceSpan& send : trace.of_category("send")) {
      sent += send.event.at("args").at("bytes").get<std::int64_t>();
    }
    std::int64_t moved = 0;
    std::int64_t end_ns = 0;
    for (const char* name : kDirections) {
      moved += document.at(name).at("inter_bytes").get<std::int64_t>() +
               document.at(name).at("intra_bytes").get<std::int64_t>();
    }
    for (const TraceSpan& program : trace.of_category("program")) {
      end_ns = std::max(end_ns, program.end_ns);
    }
    EXPECT_EQ(sent, moved);
    EXPECT_NEAR(1e-9 * static_cast<double>(end_ns), document.at("time_s").get<double>(), 2e-9);
  }
}

TEST_F(SimulateCommand, RefusesWhatItCannotSimulate) {
  const std::string plan = small_plan("s.plan");
  expect_bad_input(contextile({"simulate"}), {"expected PLAN, found none"});
  expect_bad_input(contextile({"simulate", path("missing.plan")}), {"missing.plan: cannot read"});
  expect_bad_input(contextile({"simulate", file("no.plan", "something")}), {"not a plan file"});
  expect_bad_input(
      contextile({"simulate", plan, "--cluster", "dgx-h200:1x4"}),
      {"--cluster dgx-h200:1x4", "expected one for 1 x 4 devices, found one for 2 x 2"});
  expect_bad_input(contextile({"simulate", plan, "--cluster", "dgx-h20:2x2"}),
                   {"did you mean 'dgx-h200'?"});
  expect_bad_input(contextile({"simulate", plan, "--cluster", path("none.json")}),
                   {"none.json: cannot read"});
  expect_bad_input(contextile({"simulate", plan, "--json", "--csv"}),
                   {"expected either --json or --csv, found both"});
  expect_bad_input(contextile({"simulate", plan, "--per-devices"}), {"did you mean"});
}

TEST_F(SimulateCommand, PlansOfAMachineThatIsNoPresetNeedOne) {
  const std::string machine =
      file("machine.json", R"({"preset": "local:2x2", "name": "my machine"})");
  const std::string lengths = file("l.txt", "100\n60\n");
  const Outcome planned = contextile({"plan", "-o", path("own.plan"), "--lengths", lengths,
                                      "--cluster", machine, "--block-size", "16"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  expect_bad_input(contextile({"simulate", path("own.plan")}),
                   {"--cluster", "2 x 2", "'my machine', is no preset"});
  EXPECT_EQ(document({path("own.plan"), "--cluster", machine}).at("cluster").at("name"),
            "my machine");
}

TEST_F(SimulateCommand, BrokenPlansAreNotSimulated) {
  Plan plan = load_plan(small_plan("broken.plan"));
  plan.rounds[0].devices[1].programs[0].forward->instructions.clear();
  plan.digest = compute_digest(plan);
  save_plan(plan, path("broken.plan"));
  const Outcome text = contextile({"simulate", path("broken.plan")});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out, HasSubstr("violation: "));
  const Outcome as_json = contextile({"simulate", path("broken.plan"), "--json"});
  EXPECT_EQ(as_json.exit_code, 1);
  EXPECT_FALSE(json::parse(as_json.out).at("ok").get<bool>());
}

TEST_F(SimulateCommand, ATraceThatCannotBeWrittenIsTheEnvironmentsFault) {
  const std::string plan = small_plan("s.plan");
  for (const std::string& trace : {path("no/such/trace.json"), std::string("/dev/full")}) {
    const Outcome outcome = contextile({"simulate", plan, "--trace", trace});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(trace + ": cannot write"));
  }
}

}  // namespace
}  // namespace contextile

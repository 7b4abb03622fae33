// `contextile report`, end to end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class ReportCommand : public ProgramTest {};

TEST_F(ReportCommand, WritesAPageBesideThePlan) {
  const std::string plan = small_plan("a.plan");
  const Outcome outcome = contextile({"report", plan});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(plan + ".html: "));
  const std::string page = read(plan + ".html");
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0U);
  EXPECT_THAT(page, HasSubstr("256 tokens in 3 documents of 37 to 119"));
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST_F(ReportCommand, PutsTwoPlansOnOnePage) {
  const std::string a = small_plan("a.plan");
  const std::string b = small_plan("b.plan", {"--strategy", "zigzag"});
  const Outcome outcome = contextile({"report", a, b, "-o", path("both.html"), "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(outcome.out);
  EXPECT_EQ(document["command"], "report");
  EXPECT_EQ(document["ok"], true);
  EXPECT_EQ(document["files"], json({a, b}));
  EXPECT_EQ(document["page"], path("both.html"));
  EXPECT_EQ(document["size_bytes"], std::filesystem::file_size(path("both.html")));
  EXPECT_THAT(read(path("both.html")), HasSubstr("A: dcp and B: zigzag"));
  EXPECT_FALSE(std::filesystem::exists(a + ".html"));
}

TEST_F(ReportCommand, ShowsTheStatisticsThatPlanPrints) {
  const std::string lengths = file("lengths.txt", "100\n37\n119\n");
  const Outcome planned =
      contextile(joined({"plan", "-o", path("a.plan"), "--json"}, small_batch(lengths)));
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const json stats = json::parse(planned.out)["plans"][0]["statistics"];
  ASSERT_EQ(contextile({"report", path("a.plan")}).exit_code, 0);
  const std::string page = read(path("a.plan.html"));
  for (const char* direction : {"forward", "backward"}) {
    for (const char* key : {"tiles", "pairs", "inter_bytes", "intra_bytes", "transfers",
                            "peak_memory_bytes", "max_node_uplink_bytes"}) {
      EXPECT_THAT(page, HasSubstr("<data value=\"" + stats[direction][key].dump() + "\">")) << key;
    }
  }
}

TEST_F(ReportCommand, NeedsTheClusterOfAPlanForNoPreset) {
  const std::string cluster = file(
      "c.json",
      R"({"preset": "p4de", "name": "</script><script>alert(1)</script>", "nodes": 2, "devices_per_node": 2})");
  const std::string plan = path("a.plan");
  ASSERT_EQ(
      contextile({"plan", "-o", plan, "--lengths", file("l.txt", "200\n"), "--cluster", cluster})
          .exit_code,
      0);
  expect_bad_input(contextile({"report", plan}), {"--cluster", "is no preset"});
  EXPECT_FALSE(std::filesystem::exists(plan + ".html"));
  EXPECT_EQ(contextile({"report", plan, "--cluster", cluster}).exit_code, 0);
  EXPECT_THAT(read(plan + ".html"), HasSubstr("&lt;/script&gt;&lt;script&gt;alert(1)"));
  EXPECT_THAT(read(plan + ".html"), Not(HasSubstr("<script>alert(1)")));
}

TEST_F(ReportCommand, KeepsToTheSizeAskedFor) {
  const std::string plan = small_plan("a.plan");
  const Outcome outcome = contextile({"report", plan, "--max-size", "1K"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(read(plan + ".html"), HasSubstr("To keep the page small"));
}

TEST_F(ReportCommand, SaysWhoStoppedAGroup) {
  const std::string record = flight_record("p.flight", "<script>alert(1)</script>");
  const Outcome outcome = contextile({"report", path("p.flight/")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Rank 1 wrote no record"));
  EXPECT_THAT(outcome.out, HasSubstr("wait, backward of mask 0, round 0, instruction 4"));
  EXPECT_THAT(outcome.out,
              HasSubstr("from rank 1: 4096 bytes (kv of block 3, group 0 and 4 more)"));
  const std::string page = read(path("p.flight.html"));
  EXPECT_THAT(page, HasSubstr("rank 0 waits for 4096 bytes from rank 1"));
  EXPECT_THAT(page, HasSubstr("2 s, never ended"));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  const Outcome with_json =
      contextile({"report", path("p.flight"), "--json", "-o", path("x.html")});
  const json document = json::parse(with_json.out);
  EXPECT_EQ(document["culprits"][0]["rank"], 1);
  EXPECT_EQ(document["records"][0], json::parse(read(record)));
  expect_bad_input(contextile({"report", path("p.flight"), path("p.flight")}), {"no second plan"});
  expect_bad_input(contextile({"report", path("p.flight"), "-o", record}), {"--output"});
  static_cast<void>(file("p.flight/rank-1.json", "{}"));
  expect_bad_input(contextile({"report", path("p.flight")}), {"rank-1.json", "contextile_flight"});
  expect_bad_input(contextile({"report", path("")}), {"expected flight records", "found none"});
}

TEST_F(ReportCommand, OfALargeGroupIsAsShortAsItsRecords) {
  const std::string path_of_record = flight_record("p.flight", "host");
  json record = json::parse(read(path_of_record));
  record["num_ranks"] = 65536;
  json step = record["steps"][0];
  for (int i = 0; i < 500; ++i) {
    step["began_us"] = 7'000'000 + 4000 * i;
    step["ended_us"] = 7'004'000 + 4000 * i;
    record["steps"].push_back(step);
  }
  static_cast<void>(file("p.flight/rank-0.json", record.dump()));
  const Outcome text = contextile({"report", path("p.flight")});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("1-65535 "));
  EXPECT_LT(text.out.size(), 4000U);
  const std::string whole = read(path("p.flight.html"));
  EXPECT_THAT(whole, Not(HasSubstr("To keep the page small")));
  const Outcome small = contextile({"report", path("p.flight"), "--max-size", "20K", "--json"});
  const std::string page = read(path("p.flight.html"));
  EXPECT_THAT(page, HasSubstr("To keep the page small"));
  EXPECT_LT(page.size(), 40'000U);
  EXPECT_GT(whole.size(), 2 * page.size());
  const json document = json::parse(small.out);
  EXPECT_EQ(document["num_culprits"], 65535);
  EXPECT_LE(document["culprits"].size(), 256U);
  EXPECT_EQ(document["ranks"].size(), 2U);
}

TEST_F(ReportCommand, ExplainsBadInput) {
  const std::string plan = small_plan("a.plan");
  expect_bad_input(contextile({"report"}), {"PLAN"});
  expect_bad_input(contextile({"report", plan, plan, plan}), {"expected no more arguments"});
  expect_bad_input(contextile({"report", path("none.plan")}), {"none.plan"});
  expect_bad_input(contextile({"report", plan, file("no.plan", "no plan")}), {"no.plan"});
  expect_bad_input(contextile({"report", plan, "--cluster", "dgx-h200:4x8"}),
                   {"expected one for 4 x 8 devices", "2 x 2"});
  expect_bad_input(contextile({"report", plan, "--max-size", "0"}), {"--max-size"});
}

TEST_F(ReportCommand, FailsWhenThePageCannotBeWritten) {
  const std::string plan = small_plan("a.plan");
  const Outcome outcome = contextile({"report", plan, "-o", path("no/such/folder.html")});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write"));
  if (std::filesystem::exists("/dev/full")) {
    EXPECT_EQ(contextile({"report", plan, "-o", "/dev/full"}).exit_code, 3);
  }
}

}  // namespace
}  // namespace contextile

// `contextile partition`, end to end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using testing::HasSubstr;

// Two triangles that share one net; two vertex weights.
constexpr const char* kTriangles =
    "5 6 11 2\n"
    "4 1 2\n4 2 3\n4 1 3\n8 4 5 6\n1 3 4\n"
    "2 1\n2 1\n2 1\n2 1\n2 1\n2 1\n";

class PartitionCommand : public ProgramTest {
 protected:
  [[nodiscard]] Outcome partition(const std::vector<std::string>& more,
                                  std::string_view hgr = kTriangles) const {
    return contextile(joined({"partition", file("t.hgr", hgr)}, more));
  }
};

TEST_F(PartitionCommand, CutsWhereItIsCheapest) {
  const Outcome outcome = partition({"--parts", "2", "-o", path("t.part")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("6 vertices, 5 nets"));
  EXPECT_THAT(outcome.out, HasSubstr("connectivity     1 (1 net cut)"));
  const std::string parts = read(path("t.part"));
  EXPECT_TRUE(parts == "0\n0\n0\n1\n1\n1\n" || parts == "1\n1\n1\n0\n0\n0\n") << parts;
}

TEST_F(PartitionCommand, WritesBesideTheHypergraphByDefault) {
  EXPECT_EQ(partition({"--parts", "3"}).exit_code, 0);
  EXPECT_EQ(read(path("t.hgr.part.3")).size(), 12U);
}

TEST_F(PartitionCommand, PrintsJson) {
  const Outcome outcome = partition({"--parts", "2", "--traffic", "0.5", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto document = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(document["command"], "partition");
  EXPECT_EQ(document["parts"], 2);
  EXPECT_EQ(document["connectivity"], 1);
  EXPECT_EQ(document["max_part_traffic"], 1);
  EXPECT_EQ(document["objective"], 2.0);
  EXPECT_EQ(document["feasible"], true);
  EXPECT_EQ(document["compute_overload"], 0.0);
  EXPECT_GE(document["partition_s"], 0.0);
}

TEST_F(PartitionCommand, KeepsFixedVerticesAndImprovesAStart) {
  const std::string fix = file("fix", "1\n-1\n-1\n-1\n-1\n0\n");
  EXPECT_EQ(partition({"--parts", "2", "--fix", fix, "-o", path("p")}).exit_code, 0);
  EXPECT_EQ(read(path("p")), "1\n1\n1\n0\n0\n0\n");
  const std::string start = file("start", "0\n1\n0\n1\n0\n1\n");
  const Outcome outcome = partition({"--parts", "2", "--start", start, "--json"});
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["connectivity"], 1) << outcome.err;
}

TEST_F(PartitionCommand, IsTheSameForTheSameSeed) {
  std::string hgr = "60 60\n";
  for (int e = 0; e < 60; ++e) {
    hgr += std::to_string(e + 1) + " " + std::to_string((e * 7 + 3) % 60 + 1) + "\n";
  }
  const Outcome first = partition({"--parts", "4", "--seed", "9", "-o", path("a")}, hgr);
  const Outcome second = partition({"--parts", "4", "--seed", "9", "-o", path("b")}, hgr);
  EXPECT_EQ(first.exit_code, second.exit_code);
  EXPECT_EQ(read(path("a")), read(path("b")));
}

TEST_F(PartitionCommand, FailsTheCheckWhenFixedVerticesOverloadAPart) {
  const std::string fix = file("fix", "0\n0\n0\n0\n0\n-1\n");
  const Outcome outcome = partition({"--parts", "2", "--fix", fix, "--eps", "0.1,0.5"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("above the capacity of a part"));
}

TEST_F(PartitionCommand, RefusesBadInput) {
  expect_bad_input(contextile({"partition"}), {"expected FILE, found none"});
  expect_bad_input(partition({}), {"expected --parts, found none"});
  expect_bad_input(partition({"--parts", "0"}), {"--parts", "at least 1", "'0'"});
  expect_bad_input(partition({"--parts", "1G"}), {"num_parts: expected 1 to 65536"});
  expect_bad_input(partition({"--parts", "2", "--eps", "-1"}), {"--eps", "at least 0", "'-1'"});
  expect_bad_input(partition({"--parts", "2", "--eps", "0.1,x"}), {"--eps", "'x'"});
  expect_bad_input(partition({"--parts", "2", "--effort", "0"}), {"--effort", "above 0"});
  expect_bad_input(partition({"--parts", "2", "--fix", file("f", "0\n")}),
                   {"line 1", "6 vertices"});
  expect_bad_input(partition({"--parts", "2"}, "1 2\n1 3\n"), {"t.hgr: line 2", "'3'"});
  expect_bad_input(contextile({"partition", path("missing.hgr"), "--parts", "2"}), {"missing.hgr"});
}

TEST_F(PartitionCommand, SaysWhenItCannotWrite) {
  const Outcome outcome = partition({"--parts", "2", "-o", path("no/folder/p")});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("no/folder/p: cannot write"));
}

}  // namespace
}  // namespace contextile

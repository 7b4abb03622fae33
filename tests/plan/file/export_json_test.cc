#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "plan/file/exported.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using Json = nlohmann::ordered_json;

Json forward_of(const Plan& plan, std::size_t rank) {
  return Json::parse(exported(plan))["rounds"][0]["devices"][rank]["programs"][0]["forward"];
}

// example_plan() as a user who knows the format would write it.
constexpr const char* kExample = R"json({
"format": "contextile-plan", "version": 1, "strategy": "example", "options": {},
"digest": "0000000000000000",
"shape": {"q_heads": 2, "kv_heads": 1, "head_dim": 4, "value_dim": 4, "dtype": "bf16",
          "partial_wire": "f32", "scale": 0.5, "softcap": null, "sink": false,
          "scale_given": true},
"cluster": {"name": "local", "nodes": 1, "devices_per_node": 2},
"sequences": [[0, 5], [5, 8]],
"positions": [],
"rounds": [{
 "head_groups": 1,
 "blocks": [{"ranges": [[0, 4]], "owner": 0, "role": "both"},
            {"ranges": [[4, 5]], "owner": 1, "role": "both"},
            {"ranges": [[5, 8]], "owner": 1, "role": "both"}],
 "masks": [{"name": "causal", "layers": 1,
            "bands": [[0, 5, 0, 5, null, 0], [5, 8, 5, 8, null, 0]]}],
 "token_limit": 4, "memory_limit_bytes": null,
 "devices": [
  {"rank": 0, "local_blocks": [0], "programs": [{"mask": 0,
   "forward": {
    "staging": {"q": [[0, 1]], "kv": [], "o": [[0, 1]]},
    "retain": [["q", 1, 1]],
    "instructions": [
     {"op": "launch", "id": 0, "sends": [], "recvs": [
      {"kind": "q", "block": 1, "group": 0, "slot": 1, "peer": 1, "wire": "bf16"}]},
     {"op": "attention", "tiles": [
      {"q_block": 0, "kv_block": 0, "group": 0, "q": 0, "kv": 0, "o": [0, 1], "pairs": 10}]},
     {"op": "wait", "id": 0},
     {"op": "attention", "tiles": [
      {"q_block": 1, "kv_block": 0, "group": 0, "q": 1, "kv": 0, "o": [1, 1], "pairs": 4}]},
     {"op": "launch", "id": 1, "sends": [
      {"kind": "o", "block": 1, "group": 0, "slot": 1, "peer": 1, "wire": "f32"}], "recvs": []},
     {"op": "wait", "id": 1}]},
   "backward": {
    "staging": {"q": [[0, 1]], "kv": [], "do": [[0, 1]], "dq": [[0, 1]], "dkv": []},
    "instructions": [
     {"op": "launch", "id": 0, "sends": [], "recvs": [
      {"kind": "do", "block": 1, "group": 0, "slot": 1, "peer": 1, "wire": "bf16"}]},
     {"op": "attention", "tiles": [
      {"q_block": 0, "kv_block": 0, "group": 0, "q": 0, "do": 0, "kv": 0, "dq": [0, 1],
       "dkv": [0, 1], "pairs": 10}]},
     {"op": "wait", "id": 0},
     {"op": "attention", "tiles": [
      {"q_block": 1, "kv_block": 0, "group": 0, "q": 1, "do": 1, "kv": 0, "dq": [1, 1],
       "dkv": [0, 0], "pairs": 4}]},
     {"op": "launch", "id": 1, "sends": [
      {"kind": "dq", "block": 1, "group": 0, "slot": 1, "peer": 1, "wire": "f32"}], "recvs": []},
     {"op": "wait", "id": 1}]}}]},
  {"rank": 1, "local_blocks": [1, 2], "programs": [{"mask": 0,
   "forward": {
    "staging": {"q": [], "kv": [], "o": [[0, 1]]},
    "retain": [],
    "instructions": [
     {"op": "launch", "id": 0, "sends": [
      {"kind": "q", "block": 1, "group": 0, "slot": 0, "peer": 0, "wire": "bf16"}], "recvs": []},
     {"op": "attention", "tiles": [
      {"q_block": 1, "kv_block": 1, "group": 0, "q": 0, "kv": 0, "o": [0, 1], "pairs": 1},
      {"q_block": 2, "kv_block": 2, "group": 0, "q": 1, "kv": 1, "o": [1, 1], "pairs": 6}]},
     {"op": "wait", "id": 0},
     {"op": "launch", "id": 1, "sends": [], "recvs": [
      {"kind": "o", "block": 1, "group": 0, "slot": 2, "peer": 0, "wire": "f32"}]},
     {"op": "wait", "id": 1},
     {"op": "reduce", "kind": "o", "block": 1, "group": 0, "dst": 0, "srcs": [0, 2]}]},
   "backward": {
    "staging": {"q": [], "kv": [], "do": [], "dq": [[0, 1]], "dkv": []},
    "instructions": [
     {"op": "launch", "id": 0, "sends": [
      {"kind": "do", "block": 1, "group": 0, "slot": 0, "peer": 0, "wire": "bf16"}], "recvs": []},
     {"op": "attention", "tiles": [
      {"q_block": 1, "kv_block": 1, "group": 0, "q": 0, "do": 0, "kv": 0, "dq": [0, 1],
       "dkv": [0, 1], "pairs": 1},
      {"q_block": 2, "kv_block": 2, "group": 0, "q": 1, "do": 1, "kv": 1, "dq": [1, 1],
       "dkv": [1, 1], "pairs": 6}]},
     {"op": "wait", "id": 0},
     {"op": "launch", "id": 1, "sends": [], "recvs": [
      {"kind": "dq", "block": 1, "group": 0, "slot": 2, "peer": 0, "wire": "f32"}]},
     {"op": "wait", "id": 1},
     {"op": "reduce", "kind": "dq", "block": 1, "group": 0, "dst": 0, "srcs": [0, 2]}]}}]}]}]})json";

TEST(JsonExport, IsTheDocumentedDocumentInTheDocumentedOrder) {
  EXPECT_EQ(Json::parse(exported(example_plan())).dump(1), Json::parse(kExample).dump(1));
}

TEST(JsonExport, OfOneRankHoldsThatDeviceAlone) {
  Json expected = Json::parse(kExample);
  expected["rounds"][0]["devices"].erase(0);
  EXPECT_EQ(Json::parse(exported(example_plan(), Rank{1})).dump(1), expected.dump(1));
}

TEST(JsonExport, RefusesARankThePlanLacks) {
  EXPECT_THROW(exported(example_plan(), Rank{2}), InvalidArgument);
  EXPECT_THROW(exported(example_plan(), Rank{-1}), InvalidArgument);
}

TEST(JsonExport, EscapesTexts) {
  Plan plan = example_plan();
  const std::string hostile = "a\"b\\c\nd\te\x01 ü";
  plan.strategy = plan.cluster_name = plan.rounds[0].masks[0].name = hostile;
  plan.options = {{hostile, hostile}, {"plain", "8"}};
  const Json json = Json::parse(exported(plan));
  EXPECT_EQ(json["strategy"], hostile);
  EXPECT_EQ(json["cluster"]["name"], hostile);
  EXPECT_EQ(json["rounds"][0]["masks"][0]["name"], hostile);
  EXPECT_EQ(json["options"][hostile], hostile);
  EXPECT_EQ(json["options"].size(), 2U);
}

TEST(JsonExport, ReplacesWhatIsNoUtf8) {
  Plan plan = example_plan();
  const auto name_of = [&](const std::string& name) {
    plan.cluster_name = name;
    return Json::parse(exported(plan))["cluster"]["name"].get<std::string>();
  };
  const std::string bad = "\xef\xbf\xbd";  // U+FFFD
  for (const std::string good : {"plain", "caf\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf",
                                 "\xf0\x9f\x9a\x80", "\xf4\x8f\xbf\xbf", "\x7f"}) {
    EXPECT_EQ(name_of(good), good);
  }
  EXPECT_EQ(name_of("a\xff\xfe z"), "a" + bad + bad + " z");
  EXPECT_EQ(name_of("\xc3"), bad);                                // cut short
  EXPECT_EQ(name_of("\xe2\x82"), bad + bad);                      // cut short
  EXPECT_EQ(name_of("\xe2\x82\"q"), bad + bad + "\"q");           // the quote is still escaped
  EXPECT_EQ(name_of("\xc0\xaf"), bad + bad);                      // longer form of '/'
  EXPECT_EQ(name_of("\xe0\x80\xaf"), bad + bad + bad);            // the same in three bytes
  EXPECT_EQ(name_of("\xed\xa0\x80"), bad + bad + bad);            // surrogate
  EXPECT_EQ(name_of("\xf4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
  EXPECT_EQ(name_of("\xf5\x80\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(name_of("\x80"), bad);
}

TEST(JsonExport, RefusesAPlanWithoutAnOwnerForEveryBlock) {
  Plan plan = example_plan();
  plan.rounds[0].owners.pop_back();
  EXPECT_EQ(message_of<InvalidPlan>([&] { return exported(plan); }),
            "plan export: round 0: expected 3 owners, one for every block, found 2");
}

TEST(JsonExport, KeepsEveryDigitOfScaleAndSoftcap) {
  Plan plan = example_plan();
  plan.shape.scale = 0;
  plan.shape.head_dim = 192;
  plan.shape.softcap = 0.1 + 0.2;
  const Json shape = Json::parse(exported(plan))["shape"];
  EXPECT_EQ(shape["scale"].get<double>(), plan.shape.effective_scale());
  EXPECT_EQ(shape["softcap"].get<double>(), plan.shape.softcap);
}

TEST(JsonExport, WritesNullForNoLimitAndNoBound) {
  Plan plan = example_plan();
  PlanRound& round = plan.rounds[0];
  round.limits.tokens.reset();
  round.limits.memory_bytes = std::int64_t{1} << 40;
  round.masks[0].mask.bands = {{{0, 5}, {0, 5}, -3, kUnbounded},
                               {{5, 8}, {5, 8}, std::numeric_limits<std::int64_t>::min(), 7}};
  const Json json = Json::parse(exported(plan))["rounds"][0];
  EXPECT_TRUE(json["token_limit"].is_null());
  EXPECT_EQ(json["memory_limit_bytes"], std::int64_t{1} << 40);
  EXPECT_EQ(json["masks"][0]["bands"].dump(), "[[0,5,0,5,-3,null],[5,8,5,8,null,7]]");
}

TEST(JsonExport, LeavesOutAnAbsentDirection) {
  Plan plan = example_plan();
  for (DeviceProgram& device : plan.rounds[0].devices) device.programs[0].backward.reset();
  const Json program = Json::parse(exported(plan))["rounds"][0]["devices"][0]["programs"][0];
  EXPECT_TRUE(program.contains("forward"));
  EXPECT_FALSE(program.contains("backward"));
}

TEST(JsonExport, NamesRolesDtypesAndEveryOperation) {
  Plan plan = example_plan();
  plan.shape.dtype = Dtype::kF16;
  plan.rounds[0].blocks = {};
  plan.rounds[0].blocks.add({0, 4}, Role::kKvOnly);
  const Range two[] = {{6, 8}, {4, 5}};
  plan.rounds[0].blocks.add(two, Role::kQOnly);
  plan.rounds[0].blocks.add({5, 6});
  plan.rounds[0].devices[1].programs[0].forward->instructions.emplace_back(
      CopyOp{Kind::kKv, BlockId{0}, GroupId{0}, SlotId{3}, SlotId{4}});
  const Json round = Json::parse(exported(plan))["rounds"][0];
  EXPECT_EQ(round["blocks"][0]["role"], "kv_only");
  EXPECT_EQ(round["blocks"][1].dump(), R"({"ranges":[[6,8],[4,5]],"owner":1,"role":"q_only"})");
  EXPECT_EQ(Json::parse(exported(plan))["shape"]["dtype"], "f16");
  EXPECT_EQ(forward_of(plan, 1)["instructions"].back().dump(),
            R"({"op":"copy","kind":"kv","block":0,"group":0,"dst":3,"src":4})");
}

TEST(JsonExport, IsValidForThePlansOfEveryStrategy) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance);
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(name);
      const Json json = Json::parse(exported(plan));
      EXPECT_EQ(json["digest"], digest_text(plan.digest));
      ASSERT_EQ(json["rounds"].size(), plan.rounds.size());
      std::int64_t pairs = 0;
      for (const Json& round : json["rounds"]) {
        for (const Json& device : round["devices"]) {
          for (const Json& program : device["programs"]) {
            if (!program.contains("forward")) continue;
            for (const Json& op : program["forward"]["instructions"]) {
              if (op["op"] != "attention") continue;
              for (const Json& tile : op["tiles"]) {
                if (tile["group"] == 0) pairs += tile["pairs"].get<std::int64_t>();
              }
            }
          }
        }
      }
      const PlanStats stats = statistics(plan);
      EXPECT_EQ(pairs, stats.forward ? stats.forward->pairs : 0);
    }
  }
}

TEST(JsonExport, ReportsAStreamThatFails) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  EXPECT_THROW(export_json(example_plan(), out), IoError);
}

}  // namespace
}  // namespace contextile

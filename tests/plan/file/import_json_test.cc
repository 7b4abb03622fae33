#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "plan/file/exported.h"
#include "support/message_of.h"
#include "support/plan_mutations.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using Json = nlohmann::ordered_json;

Plan digested(Plan plan) {
  plan.digest = compute_digest(plan);
  return plan;
}

// The example, without a digest, so that it may be changed.
std::string example() {
  Json json = Json::parse(exported(example_plan()));
  json.erase("digest");
  return json.dump();
}

std::string error_of(const std::string& json) {
  return message_of<InvalidPlan>([&] { return import_json(json, "a.json"); });
}

// The text with the first `from` replaced.
std::string edited(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// A plan file and a document of the plan are the same after a round trip through the other.
void expect_round_trip(const Plan& plan) {
  const std::string json = exported(plan);
  const Plan imported = import_json(json, "a.json");
  EXPECT_EQ(imported.digest, plan.digest);
  EXPECT_EQ(serialize(imported), serialize(plan));
  EXPECT_EQ(exported(imported), json);
}

TEST(JsonImport, GivesBackThePlanOfEveryStrategy) {
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << name << " of " << batch.text);
      expect_round_trip(digested(plan));
    }
  }
}

TEST(JsonImport, GivesBackWhatFewPlansHave) {
  Plan plan = example_plan();
  plan.strategy = "a\"b\\c\nd\te\x01 \xc3\xbc \xe2\x82\xac \xf0\x9f\x9a\x80";
  plan.options = {{"key \"1\"", "\n"}, {"plain", "8"}};
  plan.home = {{{0, 4}, Rank{0}}, {{4, 8}, Rank{1}}};
  plan.positions = {
      {{0, 4}, 0, 3}, {{4, 5}, 0, 1, kOrderUnknown}, {{5, 7}, 1, 0}, {{7, 8}, 1, 1, 5}};
  plan.padded_bytes_factor = 1.25;
  plan.padded_pairs_factor = 1 / 3.0;
  plan.shape.softcap = 0.1 + 0.2;
  plan.shape.scale = -1e-300;
  plan.shape.sink = true;
  plan.partial_wire = Dtype::kF16;
  plan.rounds[0].limits.memory_bytes = std::int64_t{1} << 50;
  plan.rounds[0].masks[0].mask.bands[1].lo = -3;
  expect_round_trip(digested(plan));
}

TEST(JsonImport, TellsAScaleThatWasGivenFromThatOfTheHeadDim) {
  Plan plan = example_plan();
  plan.shape.scale = 0.5;  // what 4 dims have anyway
  expect_round_trip(digested(plan));
  plan.shape.scale = 0;
  expect_round_trip(digested(plan));
}

TEST(JsonImport, TellsPositionsFromZeroFromNone) {
  Plan plan = example_plan();
  expect_round_trip(digested(plan));
  plan.positions = {{{0, 5}, 0, 0}, {{5, 8}, 1, 0}};
  expect_round_trip(digested(plan));
  EXPECT_FALSE(Json::parse(exported(plan)).contains("positions"));
}

TEST(JsonImport, GivesBackAPlanOfOneDirection) {
  Plan plan = example_plan();
  for (DeviceProgram& device : plan.rounds[0].devices) device.programs[0].backward.reset();
  expect_round_trip(digested(plan));
}

TEST(JsonImport, NeedsNoDigestAndNoPairsAndNoOrderOfKeys) {
  const Plan plan = digested(example_plan());
  // Keys in the order of the alphabet, as nlohmann::json writes them: "op" behind "id" and "kind".
  nlohmann::json json = nlohmann::json::parse(exported(plan));
  json.erase("digest");
  for (auto& device : json["rounds"][0]["devices"]) {
    for (const char* direction : {"forward", "backward"}) {
      for (auto& op : device["programs"][0][direction]["instructions"]) {
        if (op["op"] != "attention") continue;
        for (auto& tile : op["tiles"]) tile.erase("pairs");
      }
    }
  }
  for (const int indent : {-1, 0, 3}) {
    const Plan imported = import_json(json.dump(indent), "a.json");
    EXPECT_EQ(serialize(imported), serialize(plan));
  }
}

TEST(JsonImport, TakesADocumentThatWasWrittenBeforeItsDigest) {
  EXPECT_EQ(import_json(exported(example_plan()), "a.json").digest, compute_digest(example_plan()));
}

TEST(JsonImport, TakesTheExampleOfTheDesign) {
  std::ifstream file(CONTEXTILE_GOLDEN "/example-plan.json");
  if (!file) GTEST_SKIP() << "no example-plan.json in " CONTEXTILE_GOLDEN;
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const Plan plan = import_json(json, "example-plan.json");
  EXPECT_TRUE(verify(plan).ok());
  EXPECT_EQ(plan.rounds[0].devices, example_plan().rounds[0].devices);
}

TEST(JsonImport, LeavesWrongProgramsToVerify) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {R"("q":1,"kv":0,"o":[1,1])", R"("q":77,"kv":0,"o":[1,1])"},   // a slot beyond the table
      {R"({"op":"wait","id":0})", R"({"op":"wait","id":5})"},        // no such launch
      {R"("peer":1,"wire":"bf16")", R"("peer":0,"wire":"bf16")"},    // from itself
      {R"("srcs":[0,2])", R"("srcs":[])"},                           // nothing to reduce
      {R"("staging":{"q":[[0,1]],)", R"("staging":{"q":[[7,0]],)"},  // no room
      {R"("ranges":[[4,5]])", R"("ranges":[[3,5]])"},                // blocks that overlap
      {R"("bands":[)", R"("bands":[[0,1,0,1,null,null],)"},          // bands that overlap
  };
  EXPECT_TRUE(verify(import_json(example(), "a.json")).ok());
  for (const auto& [from, to] : changes) {
    const Plan plan = import_json(edited(example(), from, to), "a.json");
    EXPECT_FALSE(verify(plan).ok()) << to;
  }
}

struct BadDocument {
  const char* from;
  const char* to;
  const char* message;  // behind "a.json: "
};

void expect_messages(const std::vector<BadDocument>& documents) {
  for (const BadDocument& bad : documents) {
    EXPECT_EQ(error_of(edited(example(), bad.from, bad.to)), std::string("a.json: ") + bad.message);
  }
}

TEST(JsonImport, SaysWhichValueIsWrong) {
  expect_messages({
      {R"("format":"contextile-plan")", R"("format":"other")",
       "format: expected one of contextile-plan, found 'other'"},
      {R"("version":1)", R"("version":2)", "version: expected version 1, found 2"},
      {R"("q_heads":2)", R"("q_heads":0)",
       "shape.q_heads: expected query heads in [1, 1048577), found '0'"},
      {R"("q_heads":2)", R"("q_heads":2.0)",
       "shape.q_heads: expected query heads in [1, 1048577), found '2.0'"},
      {R"("q_heads":2)", R"("q_heads":"2")",
       "shape.q_heads: expected query heads in [1, 1048577), found '2'"},
      {R"("kv_heads":1)", R"("kv_heads":3)",
       "shape.q_heads: expected a multiple of the 3 KV heads, found 2"},
      {R"("dtype":"bf16")", R"("dtype":"bf17")",
       "shape.dtype: expected one of f32, bf16, f16, found 'bf17'"},
      {R"("scale":0.5)", R"("scale":0)", "shape.scale: expected a scale other than 0, found 0"},
      {R"("scale":0.5)", R"("scale":1e999)",
       "shape.scale: expected a scale, a finite number, found '1e999'"},
      {R"("softcap":null)", R"("softcap":-1)",
       "shape.softcap: expected a softcap above 0 or null, found -1"},
      {R"("sink":false)", R"("sink":0)", "shape.sink: expected true or false, found '0'"},
      {R"("nodes":1)", R"("nodes":2147483647)",
       "cluster: expected fewer than 2^31 devices, found 4294967294"},
      {R"("nodes":1)", R"("nodes":2)",
       "rounds[0].devices: expected 4 devices, all of the cluster (which an export of one rank "
       "lacks), found 2"},
      {R"([[0,5],[5,8]])", R"([[0,5],[6,8]])",
       "sequences[1]: expected tokens from 5 on, at least one and none beyond 2147483648, found "
       "[6, 8]"},
      {R"("sequences")", R"("home":[[0,8,2]],"sequences")",
       "home[0][2]: expected an owner in [0, 2), found 2"},
      {R"("positions":[])", R"("positions":[[0,7,0,0]])",
       "positions: expected the last to end at 8, found 7"},
      {R"("positions":[])", R"("positions":[[0,5,0,0],[5,8,1,0,5]])",
       "positions[1][4]: expected a token before 5, found 5"},
      {R"("positions":[])", R"("positions":[[0,5,0,0],[5,8,1,0,4,0]])",
       "positions[1]: expected 5 elements, found more"},
      {R"("positions":[])", R"("padding":{"bytes_factor":1,"pairs_factor":0})",
       "padding.pairs_factor: expected a factor in (0, 1000000], found 0"},
  });
}

TEST(JsonImport, SaysWhichValueOfARoundIsWrong) {
  expect_messages({
      {R"("head_groups":1)", R"("head_groups":2)",
       "rounds[0].head_groups: expected a divisor of the 1 KV heads, found 2"},
      {R"("ranges":[[0,4]])", R"("ranges":[])",
       "rounds[0].blocks[0]: expected a block of at least one range, found none"},
      {R"("ranges":[[0,4]])", R"("ranges":[[0,9]])",
       "rounds[0].blocks[0].ranges[0]: expected tokens inside [0, 8), found [0, 9]"},
      {R"("ranges":[[0,4]])", R"("ranges":[[0]])",
       "rounds[0].blocks[0].ranges[0]: expected 2 elements, found 1"},
      {R"("ranges":[[0,4]])", R"("ranges":[[0,4,5]])",
       "rounds[0].blocks[0].ranges[0]: expected 2 elements, found more"},
      {R"("owner":0)", R"("owner":2)",
       "rounds[0].blocks[0].owner: expected an owner in [0, 2), found 2"},
      {R"("role":"both")", R"("role":null)",
       "rounds[0].blocks[0].role: expected one of both, kv_only, q_only, found 'null'"},
      {R"("layers":1)", R"("layers":0)",
       "rounds[0].masks[0].layers: expected layers in [1, 1048577), found '0'"},
      {R"([0,5,0,5,null,0])", R"([0,5,0,5,null,"0"])",
       "rounds[0].masks[0].bands[0][5]: expected an upper bound in [-1099511627776, "
       "1099511627777), "
       "found '0'"},
      {R"([0,5,0,5,null,0])", R"([0,5,0,9,null,0])",
       "rounds[0].masks[0].bands[0]: expected tokens inside [0, 8), found [0, 9]"},
      {R"("token_limit":4)", R"("token_limit":-1)",
       "rounds[0].token_limit: expected a limit in [0, 9223372036854775807), found '-1'"},
      {R"("rounds":[)", R"("rounds":[{}, )", "rounds[0]: expected a key 'head_groups', found none"},
      {R"("local_blocks":[0])", R"("local_blocks":[3])",
       "rounds[0].devices[0].local_blocks[0]: expected a block in [0, 3), found 3"},
      {R"("rank":0)", R"("rank":1)",
       "rounds[0].devices[0].rank: expected rank 0 (all of them stand in order, which an export of "
       "one rank lacks), found 1"},
      {R"("mask":0)", R"("mask":1)",
       "rounds[0].devices[0].programs[0].mask: expected mask 0 (all of them stand in order, which "
       "an "
       "export of one rank lacks), found 1"},
      {R"("programs":[)", R"("programs":[{"mask":0},)",
       "rounds[0].devices[0].programs[1].mask: expected mask 1 (all of them stand in order, which "
       "an "
       "export of one rank lacks), found 0"},
      {R"("retain":[["q",1,1]])", R"("retain":[["q",1]])",
       "rounds[0].devices[0].programs[0].forward.retain[0]: expected 3 elements, found 2"},
      {R"("o":[[0,1]])", R"("o":[[0,1]],"dq":[])",
       "rounds[0].devices[0].programs[0].forward.staging: expected a key of this object, found "
       "'dq'; did you mean 'q'?"},
  });
}

TEST(JsonImport, SaysWhichValueOfAnInstructionIsWrong) {
  expect_messages({
      {R"("op":"wait")", R"("op":"weight")",
       "rounds[0].devices[0].programs[0].forward.instructions[2].op: expected one of attention, "
       "reduce, copy, launch, wait, found 'weight'"},
      {R"("op":"wait")", R"("op":"copy")",
       "rounds[0].devices[0].programs[0].forward.instructions[2]: expected no key 'id' in this "
       "operation (copy), found one"},
      {R"("op":"launch","id":0,)", R"("op":"launch",)",
       "rounds[0].devices[0].programs[0].forward.instructions[0]: expected a key 'id' in this "
       "operation (launch), found none"},
      {R"("peer":1)", R"("peer":2)",
       "rounds[0].devices[0].programs[0].forward.instructions[0].recvs[0].peer: expected a peer in "
       "[0, 2), found 2"},
      {R"("kv_block":0,"group":0)", R"("kv_block":3,"group":0)",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0].kv_block: expected a "
       "block in [0, 3), found 3"},
      {R"("kv_block":0,"group":0)", R"("kv_block":0,"group":1)",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0].group: expected a head "
       "group in [0, 1), found 1"},
      {R"("kv":0,"o")", R"("kv":-1,"o")",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0].kv: expected a slot in "
       "[0, 2147483648), found '-1'"},
      {R"("o":[0,1],)", R"("o":[0,2],)",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0].o[1]: expected an init "
       "flag in [0, 2), found '2'"},
      {R"("o":[0,1],)", "",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0]: expected a key 'o', "
       "found none"},
      {R"("pairs":10)", R"("pairs":11)",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0].pairs: expected 10 (of "
       "the mask's bands in the two blocks), found 11"},
      {R"("pairs":10)", R"("pair":10)",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0]: expected a key of this "
       "object, found 'pair'; did you mean 'pairs'?"},
      {R"("q_block":0)", R"("q_block":0,"q_block":0)",
       "rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0]: expected every key "
       "once, "
       "found 'q_block' twice"},
  });
}

TEST(JsonImport, SaysWhereADocumentIsNoJson) {
  const auto message = [](const std::string& json) {
    const std::string text = error_of(json);
    return text.substr(0, 6) == "a.json" ? text.substr(6) : text;
  };
  EXPECT_EQ(message(""), ": expected an object, found the end of the document");
  EXPECT_EQ(message("[]"), ": expected an object, found an array");
  EXPECT_EQ(message("{"), ", line 1, column 2: expected a key, found the end of the document");
  EXPECT_EQ(message("{\n \"version\" 1}"), ", line 2, column 12: expected ':', found '1'");
  EXPECT_EQ(message("{\"version\": 1,\n}"), ", line 2, column 1: expected a key, found '}'");
  EXPECT_EQ(message("{\"version\": 1 \"strategy\": \"x\"}"),
            ", line 1, column 15: expected ',' or '}', found 'strategy'");
  EXPECT_EQ(message(R"({"version": 01})"),
            ": version: expected a version in [0, "
            "9223372036854775807), found '01'");
  EXPECT_EQ(
      message("{\"strategy\": \"a\nb\"}"),
      ": strategy, line 1, column 16: expected no control character in a string, found '\\x0a'");
  EXPECT_EQ(message("{\"strategy\": \"a\xff\"}"),
            ": strategy, line 1, column 16: expected UTF-8, found '\\xff'");
  EXPECT_EQ(message(R"({"strategy": "\x"})"),
            ": strategy, line 1, column 16: expected an escape, found 'x'");
  EXPECT_EQ(
      message(R"({"strategy": "\ud800 "})"),
      ": strategy, line 1, column 21: expected the second half of a surrogate pair, found ' '");
  EXPECT_EQ(message(R"({"strategy": "\u12g4"})"),
            ": strategy, line 1, column 17: expected four hexadecimal digits, found '12g4'");
  EXPECT_EQ(message(R"({"strategy": "open)"),
            ": strategy, line 1, column 19: expected the end of a string, found the end of the "
            "document");
  EXPECT_EQ(message(example() + " x"), ", line 1, column " + std::to_string(example().size() + 2) +
                                           ": expected the end of the document, found 'x'");
  EXPECT_THAT(message("{\"options\": {\"a\": \"1\", \"\\u0061\": \"2\"}}"),
              testing::HasSubstr("options: expected every key once, found 'a' twice"));
}

TEST(JsonImport, ReadsEveryEscape) {
  const std::string text = edited(example(), R"("strategy":"example")",
                                  R"("strategy":"\"\\\/\b\f\n\r\t\u0041\u00fc\u20ac\ud83d\ude80")");
  EXPECT_EQ(import_json(text, "a.json").strategy,
            "\"\\/\b\f\n\r\tA\xc3\xbc\xe2\x82\xac\xf0\x9f\x9a\x80");
}

TEST(JsonImport, RefusesAnExportOfOneRank) {
  const Plan plan = digested(example_plan());
  EXPECT_EQ(error_of(exported(plan, Rank{0})),
            "a.json: rounds[0].devices: expected 2 devices, all of the cluster (which an export of "
            "one rank lacks), found 1");
  EXPECT_EQ(error_of(exported(plan, Rank{1})),
            "a.json: rounds[0].devices[0].rank: expected rank 0 (all of them stand in order, which "
            "an export of one rank lacks), found 1");
}

TEST(JsonImport, RefusesTheDigestOfAnotherPlan) {
  const Plan plan = digested(example_plan());
  EXPECT_EQ(error_of(edited(exported(plan), R"("token_limit": 4)", R"("token_limit": 5)")),
            "a.json: digest: expected " + digest_text([&] {
              Plan other = plan;
              other.rounds[0].limits.tokens = 5;
              return compute_digest(other);
            }()) +
                ", that of the plan in this document, found " + digest_text(plan.digest) +
                ": the document was changed after it was written (leave the digest out to import "
                "it as it is)");
  EXPECT_EQ(error_of(edited(exported(plan), digest_text(plan.digest), "12AB")),
            "a.json: digest: expected 16 hexadecimal digits in lower case, found '12AB'");
}

TEST(JsonImport, RefusesToGuessPairsWhereBlocksOverlap) {
  std::string text = edited(example(), R"("ranges":[[4,5]])", R"("ranges":[[3,5]])");
  text = edited(text, R"(,"pairs":10)", "");
  EXPECT_EQ(error_of(text),
            "a.json: rounds[0].devices[0].programs[0].forward.instructions[1].tiles[0]: expected "
            "pairs, which cannot be counted where blocks or bands overlap or the mask has too many "
            "tiles, found none");
}

// Drops, doubles, replaces or exchanges one to three bytes of the document.
std::string mutated(std::string text, Chance& chance) {
  constexpr std::string_view kBytes = "0123456789-+.eE[]{},:\"\\ntfu \x01\xff";
  for (std::int64_t n = chance.between(1, 3); n > 0 && !text.empty(); --n) {
    const std::size_t at = chance.below(text.size());
    switch (chance.below(5)) {
      case 0:
        text.erase(at, 1);
        break;
      case 1:
        text.insert(at, 1, kBytes[chance.below(kBytes.size())]);
        break;
      case 2:
        text[at] = kBytes[chance.below(kBytes.size())];
        break;
      case 3:
        text.resize(at);
        break;
      default: {  // a piece of the document somewhere else
        const std::string piece =
            text.substr(chance.below(text.size()), static_cast<std::size_t>(chance.between(1, 40)));
        text.insert(at, piece);
      }
    }
  }
  return text;
}

// An imported plan is one that every reader survives, that can be kept, and that comes back.
void expect_refused_or_whole(const std::string& text) {
  Plan plan;
  try {
    plan = import_json(text, "a.json");
  } catch (const InvalidPlan& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with("a.json")) << error.what();
    return;
  }
  static_cast<void>(verify(plan));
  static_cast<void>(statistics(plan));
  const Plan loaded = deserialize(serialize(plan), "own bytes");
  EXPECT_EQ(exported(loaded), exported(plan));
}

TEST(JsonImport, SurvivesRandomChangesOfItsText) {
  const std::string compact = example();
  for (std::uint64_t seed = 1; seed <= 6000; ++seed) {
    Chance chance(seed);
    SCOPED_TRACE(seed);
    expect_refused_or_whole(mutated(compact, chance));
  }
}

TEST(JsonImport, SurvivesRandomChangesOfItsNumbers) {
  const Json original = Json::parse(example());
  const std::vector<std::string> numbers = {"0",
                                            "1",
                                            "-1",
                                            "2",
                                            "3",
                                            "7",
                                            "8",
                                            "2147483647",
                                            "2147483648",
                                            "9223372036854775807",
                                            "1099511627776"};
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Chance chance(seed);
    Json document = original;
    const Json flat = document.flatten();
    for (std::int64_t n = chance.between(1, 3); n > 0; --n) {
      auto at = flat.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(chance.below(flat.size())));
      if (!at->is_number()) continue;
      document[Json::json_pointer(at.key())] = Json::parse(chance.pick(numbers));
    }
    SCOPED_TRACE(seed);
    expect_refused_or_whole(document.dump());
  }
}

TEST(JsonImport, GivesBackMutantsThatAPlanFileCanHold) {
  std::int64_t kept = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.max_tokens = 24, .ranks = {2, 3}});
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      for (const PlanMutation& mutation : all_mutations()) {
        Plan mutant = plan;
        if (!mutation.apply(mutant, chance)) continue;
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << name << ", " << mutation.name);
        std::vector<std::uint8_t> bytes;
        try {
          bytes = serialize(digested(mutant));
          mutant = deserialize(bytes, "mutant");
        } catch (const InvalidPlan&) {
          continue;
        }
        const std::string json = exported(mutant);
        try {
          EXPECT_EQ(serialize(import_json(json, "a.json")), bytes);
          ++kept;
        } catch (const InvalidPlan& error) {  // the one thing that the document says twice
          EXPECT_THAT(error.what(), testing::HasSubstr("].pairs: expected "));
        }
      }
    }
  }
  EXPECT_GT(kept, 100);
}

}  // namespace
}  // namespace contextile

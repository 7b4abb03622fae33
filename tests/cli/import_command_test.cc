// contextile import: exported plans come back, and errors are reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/shell.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ImportCommand : public ShellTest {};

TEST_F(ImportCommand, GivesBackThePlanThatWasExported) {
  const std::string plan = small_plan("all.plan", {"--mask", "shared_question:0.2,4"});
  const std::string exported = path("all.json");
  EXPECT_EQ(output({"export", plan, "-o", exported}), "");
  const std::string text = output({"import", exported, "-o", path("again.plan")});
  EXPECT_EQ(read(path("again.plan")), read(plan));
  for (const char* words : {"strategy  dcp", "between nodes", "imported in", "verified: ok"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  EXPECT_EQ(output({"export", path("again.plan")}), read(exported));
  const json imported =
      json::parse(output({"import", exported, "-o", path("again.plan"), "--json"}));
  EXPECT_EQ(imported.at("file"), path("again.plan"));
  EXPECT_TRUE(imported.at("verify").at("ok").get<bool>());
  EXPECT_EQ(imported.at("digest"), json::parse(read(exported)).at("digest"));
}

TEST_F(ImportCommand, WritesAPlanThatDoesNotVerifyAndSaysSo) {
  json document = json::parse(output({"export", small_plan("p.plan")}));
  document.erase("digest");
  document["rounds"][0]["token_limit"] = 1;
  const std::string imported = path("tight.plan");
  const Outcome outcome =
      contextile({"import", file("tight.json", document.dump()), "-o", imported});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("the limit is 1"));
  EXPECT_EQ(contextile({"verify", imported}).exit_code, 1);
}

TEST_F(ImportCommand, ReadsStdin) {
  const std::string plan = small_plan("p.plan");
  const Outcome outcome = bash("contextile export p.plan | contextile import - -o again.plan");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(read(path("again.plan")), read(plan));
  const Outcome refused = bash("echo '[]' | contextile import - -o none.plan");
  expect_bad_input(refused, {"standard input: expected a plan as JSON, an object, found"});
}

}  // namespace
}  // namespace contextile

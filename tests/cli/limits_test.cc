// --token-limit and --memory-limit: the promises of plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using testing::HasSubstr;

class Limits : public ProgramTest {};

TEST_F(Limits, AreProvedByVerification) {
  EXPECT_EQ(document(joined({"plan", "-o", path("p.plan"), "--token-limit", "256", "--memory-limit",
                             "1G"},
                            small()))
                .at("plans")
                .at(0)
                .at("verify")
                .at("ok"),
            true);
  const Outcome outcome =
      contextile(joined({"plan", "-o", path("limit.plan"), "--token-limit", "3"}, small()));
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("(broken, not written)"));
  EXPECT_THAT(outcome.out, HasSubstr("violation:"));
  EXPECT_THAT(outcome.out, HasSubstr("verified: BROKEN"));
  EXPECT_FALSE(std::filesystem::exists(path("limit.plan")));
}

TEST_F(Limits, AutoKeepsToTheMemoryLimitThatItSaysCanBeKept) {
  const auto with_limit = [&](const std::string& bytes) {
    return contextile(joined(
        {"plan", "-o", path("p.plan"), "--strategy", "auto:steps=100000", "--memory-limit", bytes},
        small()));
  };
  const Outcome refused = with_limit("1000");
  EXPECT_EQ(refused.exit_code, 2);
  const std::string text = "at most 1000 bytes of a device (the memory limit), found ";
  ASSERT_THAT(refused.err, HasSubstr(text));
  const std::string least = refused.err.substr(refused.err.find(text) + text.size());
  const Outcome kept = with_limit(least.substr(0, least.find(' ')));
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_THAT(kept.out, HasSubstr("verified: ok"));
}

TEST_F(Limits, AllowTokensInMultiplesOrEquallyMany) {
  const auto overload_of = [&](const std::vector<std::string>& options) {
    const nlohmann::json plan = document(
        joined({"plan", "-o", path("p.plan"), "--strategy", "wlb"}, joined(options, small())));
    EXPECT_EQ(plan.at("plans").at(0).at("verify").at("ok"), true);
    return plan.at("plans").at(0).at("statistics").at("token_overload").get<double>();
  };
  EXPECT_GE(overload_of({"--tokens-multiple", "16"}), 0.0);
  EXPECT_EQ(overload_of({"--equal-tokens"}), 0.0);
  const Outcome refused =
      contextile(joined({"plan", "-o", path("p.plan"), "--tokens-multiple", "1000"}, small()));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("tokens_multiple: expected a batch of a multiple of 1000"));
}

}  // namespace
}  // namespace contextile

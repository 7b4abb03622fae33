#include "strategy/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

TEST(Strategies, HaveDistinctNamesAndDocumentedOptions) {
  std::set<std::string_view> names;
  for (const Strategy* strategy : strategies()) {
    EXPECT_TRUE(names.insert(strategy->name()).second) << strategy->name();
    EXPECT_FALSE(strategy->summary().empty()) << strategy->name();
    for (const OptionSpec& option : strategy->options()) {
      EXPECT_FALSE(option.help.empty()) << strategy->name() << ':' << option.name;
      EXPECT_FALSE(option.default_value.empty()) << strategy->name() << ':' << option.name;
    }
  }
}

TEST(Strategies, AreFoundByNameAndUnknownOnesListTheKnown) {
  for (const Strategy* strategy : strategies()) {
    EXPECT_EQ(&find_strategy(strategy->name()), strategy);
  }
  const std::string message = message_of([] { static_cast<void>(find_strategy("zigzg")); });
  EXPECT_THAT(message, HasSubstr("expected one of ring, zigzag"));
  EXPECT_THAT(message, HasSubstr("found 'zigzg'"));
  EXPECT_THAT(message, HasSubstr("did you mean 'zigzag'?"));
}

TEST(Strategies, RejectUnknownKeysAndBadValues) {
  const auto workload = make_workload(std::vector<std::int64_t>{64}, {}, std::vector<MaskUse>(1));
  Cluster cluster;
  const auto reason = [&](const char* name, const char* key, const char* value) {
    StrategyRequest request;
    request.options[key] = value;
    return message_of(
        [&] { static_cast<void>(find_strategy(name).unsupported(workload, cluster, request)); });
  };
  EXPECT_THAT(reason("magi", "chnk", "5"), HasSubstr("did you mean 'chunk'?"));
  EXPECT_THAT(reason("magi", "chunk", "0"), HasSubstr("expected an integer from 1"));
  EXPECT_THAT(reason("magi", "chunk", "12x"), HasSubstr("found '12x'"));
  EXPECT_THAT(reason("magi", "stages", ""), HasSubstr("found ''"));
  EXPECT_THAT(reason("all_gather", "algorithm", "tree"), HasSubstr("expected one of ring, direct"));
  EXPECT_THAT(reason("zigzag", "count_padding", "yes"), HasSubstr("expected one of off, on"));
}

TEST(Strategies, EveryDefaultValueIsAccepted) {
  const auto workload = make_workload(std::vector<std::int64_t>{64}, {}, std::vector<MaskUse>(1));
  Cluster cluster;
  for (const Strategy* strategy : strategies()) {
    StrategyRequest request;
    for (const OptionSpec& option : strategy->options()) {
      request.options[option.name] = option.default_value;
    }
    EXPECT_NO_THROW(static_cast<void>(strategy->unsupported(workload, cluster, request)))
        << strategy->name();
  }
}

TEST(StrategyChoices, ItemsWithoutEqualsStartTheNextStrategy) {
  const auto choices = parse_strategies("magi:chunk=256,stages=2,zigzag,fcp:mode=some:4,x=1");
  ASSERT_EQ(choices.size(), 3U);
  EXPECT_EQ(choices[0].name, "magi");
  EXPECT_EQ(choices[0].options,
            (std::map<std::string, std::string>{{"chunk", "256"}, {"stages", "2"}}));
  EXPECT_EQ(choices[1].name, "zigzag");
  EXPECT_TRUE(choices[1].options.empty());
  EXPECT_EQ(choices[2].name, "fcp");
  EXPECT_EQ(choices[2].options.at("mode"), "some:4");
  EXPECT_EQ(choices[2].options.at("x"), "1");
}

TEST(StrategyChoices, AllStandsForTheRegistry) {
  EXPECT_EQ(parse_strategies("all").size(), strategies().size());
}

TEST(StrategyChoices, RejectWhatIsNoList) {
  for (const char* text :
       {"", ",", "ring,", "a=1", "magi:chunk", "magi:chunk=1,chunk=2", "ring:=3"}) {
    SCOPED_TRACE(text);
    EXPECT_NE(message_of([&] { static_cast<void>(parse_strategies(text)); }), "no error");
  }
}

}  // namespace
}  // namespace contextile

// Traces: files, refused files, made traces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "contextile/serving/serve_simulation.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Trace, FilesHaveARequestALine) {
  const auto trace = parse_trace(
      "{\"arrival_s\": 0, \"prompt_tokens\": 10, \"output_tokens\": 3}\r\n\n"
      "{\"arrival_s\": 0.5, \"prompt_tokens\": 9, \"output_tokens\": 1, \"prefix\": 2, "
      "\"prefix_tokens\": 9}",
      "t");
  EXPECT_EQ(trace, (std::vector<TraceRequest>{{0, 10, 3, 0, 0}, {0.5, 9, 1, 2, 9}}));
}

TEST(Trace, FilesThatAreNoneAreRefusedWithTheirLine) {
  const std::string good = "{\"arrival_s\": 1, \"prompt_tokens\": 8, \"output_tokens\": 3}\n";
  const auto refused = [&](const std::string& line) {
    return message_of([&] { return parse_trace(good + line, "t"); });
  };
  EXPECT_THAT(refused("{"), HasSubstr("t, line 2"));
  EXPECT_THAT(refused("[1]"), AllOf(HasSubstr("t, line 2"), HasSubstr("JSON object")));
  EXPECT_THAT(refused("{\"arrival_s\": 2, \"prompt_tokens\": 8}"),
              HasSubstr("line 2: expected the key output_tokens, found none"));
  EXPECT_THAT(refused("{\"arrival\": 2}"), HasSubstr("found 'arrival'"));
  EXPECT_THAT(refused("{\"arrival_s\": 0.5, \"prompt_tokens\": 8, \"output_tokens\": 3}"),
              HasSubstr("line 2: arrival_s: expected at least 1, found 0.5"));
  EXPECT_THAT(refused("{\"arrival_s\": 2, \"prompt_tokens\": 0, \"output_tokens\": 3}"),
              HasSubstr("prompt_tokens: expected 1 to"));
  EXPECT_THAT(refused("{\"arrival_s\": 2, \"prompt_tokens\": 1.5, \"output_tokens\": 3}"),
              HasSubstr("found 1.5"));
  EXPECT_THAT(refused("{\"arrival_s\": \"2\", \"prompt_tokens\": 1, \"output_tokens\": 3}"),
              HasSubstr("expected seconds"));
  EXPECT_THAT(refused("{\"arrival_s\": 2, \"prompt_tokens\": 8, \"output_tokens\": 3, "
                      "\"prefix\": 1, \"prefix_tokens\": 9}"),
              HasSubstr("prefix_tokens: expected 0 to the prompt's 8, found 9"));
  EXPECT_THAT(refused("{\"arrival_s\": 2, \"prompt_tokens\": 8, \"output_tokens\": 3, "
                      "\"prefix\": 1}"),
              HasSubstr("expected both prefix and prefix_tokens"));
  EXPECT_THAT(message_of([] { return parse_trace(" \n", "t"); }), HasSubstr("found none"));
}

TEST(Trace, SpecsSayWhatTheyChange) {
  EXPECT_EQ(parse_trace_spec("poisson"), TraceSpec{});
  EXPECT_EQ(parse_trace_spec("poisson:requests=10,rate=2.5,prompt=1K,output=20,shared=1,"
                             "prefixes=3,prefix=512,seed=7"),
            (TraceSpec{10, 2.5, 1024, 20, 1, 3, 512, 7}));
  EXPECT_THAT(message_of([] { return parse_trace_spec("uniform"); }), HasSubstr("'uniform'"));
  EXPECT_THAT(message_of([] { return parse_trace_spec("poisson:rate"); }), HasSubstr("'rate'"));
  EXPECT_THAT(message_of([] { return parse_trace_spec("poisson:load=2"); }), HasSubstr("'load'"));
  EXPECT_THAT(message_of([] { return parse_trace_spec("poisson:rate=0"); }), HasSubstr("found 0"));
  EXPECT_THAT(message_of([] { return parse_trace_spec("poisson:shared=2"); }),
              HasSubstr("0 to 1, found 2"));
}

TEST(Trace, MadeOnesHaveTheMeansThatWereAskedFor) {
  const TraceSpec spec = {.num_requests = 20'000,
                          .requests_per_s = 4,
                          .prompt_tokens = 1000,
                          .output_tokens = 100,
                          .shared = 0.25,
                          .num_prefixes = 3,
                          .prefix_tokens = 64,
                          .seed = 3};
  const auto trace = make_trace(spec);
  EXPECT_EQ(trace, make_trace(spec));
  ASSERT_EQ(trace.size(), 20'000U);
  EXPECT_TRUE(std::ranges::is_sorted(trace, {}, &TraceRequest::arrival_s));
  EXPECT_NEAR(trace.back().arrival_s, 20'000 / 4.0, 150);
  double own = 0;
  double output = 0;
  double shared = 0;
  std::set<std::int32_t> prefixes;
  for (const TraceRequest& request : trace) {
    own += static_cast<double>(request.prompt_tokens - request.prefix_tokens);
    output += request.output_tokens;
    if (request.prefix_tokens == 0) continue;
    ++shared;
    prefixes.insert(request.prefix);
    EXPECT_EQ(request.prefix_tokens, 64);
  }
  EXPECT_NEAR(own / 20'000, 1000.5, 30);
  EXPECT_NEAR(output / 20'000, 100.5, 3);
  EXPECT_NEAR(shared / 20'000, 0.25, 0.01);
  EXPECT_EQ(prefixes, (std::set<std::int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace contextile

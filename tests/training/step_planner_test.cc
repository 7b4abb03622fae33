// Ping-pong halves have equal tokens if keys have a home.
#include "contextile/advanced/step_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "strategy/stage_home.h"
#include "training/ping_pong.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

class PingPongSteps : public ::testing::Test {
 protected:
  PingPongSteps() {
    job_.model = {.name = "small",
                  .layers = 4,
                  .hidden = 512,
                  .q_heads = 8,
                  .kv_heads = 4,
                  .head_dim = 64,
                  .ffn = 1024,
                  .vocabulary = 1000};
    job_.cluster = load_cluster("dgx-h200:1x4");
  }

  // Plans a step of one stage; notices[i] names the subject of the i-th plan.
  StepOutcome predict(PipelineSchedule schedule) {
    notices_.clear();
    StepPlanner planner(job_, [&](const std::string& what) { notices_.push_back(what); });
    return planner.predict({.sizes = {.tp = 1, .cp = 4, .dp = 1, .pp = 1},
                            .schedule = schedule,
                            .nano_batches = NanoBatches::kPingPong,
                            .strategy = {"distca", {{"nano_batches", "1"}, {"resend", "on"}}}});
  }

  TrainingJob job_;
  std::vector<std::string> notices_;
};

TEST_F(PingPongSteps, CutADocumentWhereKeysHaveAHome) {
  job_.micro_batches = {{65536}};
  EXPECT_EQ(predict(PipelineSchedule::kSamePhase).verdict, Verdict::kFits);
  EXPECT_EQ(notices_.size(), 2U);
  EXPECT_EQ(predict(PipelineSchedule::k1F1B).verdict, Verdict::kFits);
  EXPECT_EQ(notices_.size(), 1U);
}

TEST_F(PingPongSteps, KeepDocumentsWholeWhereTheMaskNeedsIt) {
  job_.micro_batches = {{65536}};
  job_.masks = {parse_mask_use("shared_question")};
  StepPlanner planner(job_, [&](const std::string& what) { notices_.push_back(what); });
  const StepOutcome outcome = planner.predict({.sizes = {.tp = 1, .cp = 4, .dp = 1, .pp = 1},
                                               .schedule = PipelineSchedule::kSamePhase,
                                               .nano_batches = NanoBatches::kPingPong,
                                               .strategy = {"dcp", {}}});
  EXPECT_EQ(outcome.verdict, Verdict::kFits) << outcome.reason;
  EXPECT_EQ(notices_.size(), 1U);
}

TEST_F(PingPongSteps, HaveAPlanForEveryTickOfSeveralChunks) {
  job_.micro_batches = {{4096}, {4096}};
  for (const std::int32_t chunks : {1, 2}) {
    notices_.clear();
    StepPlanner planner(job_, [&](const std::string& what) { notices_.push_back(what); });
    const StepOutcome outcome = planner.predict({.sizes = {.tp = 1, .cp = 2, .dp = 1, .pp = 2},
                                                 .schedule = PipelineSchedule::kSamePhase,
                                                 .chunks = chunks,
                                                 .nano_batches = NanoBatches::kPingPong,
                                                 .strategy = {"distca", {{"nano_batches", "1"}}}});
    EXPECT_EQ(outcome.verdict, Verdict::kFits) << outcome.reason;
    // Two nano-batches in each of the ticks of a direction.
    EXPECT_EQ(notices_.size(), 2U * static_cast<std::size_t>(2 * chunks + 1));
  }
}

TEST(NanoBatches, AreTheHalvesOfSamePhasePingPong) {
  const BatchLengths lengths = {5000, 3001};
  const auto nano_batches = nano_batches_of(lengths, {});
  ASSERT_EQ(nano_batches.size(), 2U);
  // The longer document is cut; its first rows come first.
  ASSERT_EQ(nano_batches[0].size(), 1U);
  EXPECT_EQ(nano_batches[0][0].document, 0);
  EXPECT_EQ(nano_batches[0][0].rows, (Range{0, 4001}));
  ASSERT_EQ(nano_batches[1].size(), 2U);
  EXPECT_EQ(nano_batches[1][0].rows, (Range{4001, 5000}));
  EXPECT_EQ(nano_batches[1][1].rows, (Range{0, 3001}));
  EXPECT_THROW(static_cast<void>(nano_batches_of(BatchLengths{0}, {})), InvalidArgument);
}

// The earlier part has a document's first rows.
TEST(PingPongParts, HaveEveryRowOnceAndEqualTokens) {
  const std::vector<BatchLengths> batches = {{4096}, {5000, 3001}, {900, 100, 7000}, {128, 128}};
  for (const BatchLengths& lengths : batches) {
    const StageParts parts = ping_pong_parts(lengths, PipelineSchedule::kSamePhase, {});
    ASSERT_EQ(parts.size(), 2U);
    BatchLengths seen(lengths.size(), 0);
    for (const std::vector<DocumentRows>& documents : parts) {
      for (const DocumentRows& document : documents) {
        std::int64_t& end = seen[static_cast<std::size_t>(document.document)];
        EXPECT_EQ(document.rows.begin, end);
        end = document.rows.end;
      }
    }
    EXPECT_EQ(seen, lengths);
    EXPECT_LE(std::abs(computed_tokens(parts[0]) - computed_tokens(parts[1])), 1);
  }
}

}  // namespace
}  // namespace contextile

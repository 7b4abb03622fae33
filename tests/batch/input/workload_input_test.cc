// Batches as users describe them become the workload of one rank.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "contextile/data.h"

namespace contextile {
namespace {

const std::vector<std::int64_t> kLengths = {100, 60};

std::string message_of(const WorkloadInput& input) {
  try {
    static_cast<void>(load_workload(kLengths, input, 4));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(WorkloadInput, IsCausalWithoutMasksAndLeavesOwnersToThePlan) {
  const Workload workload = load_workload(kLengths, {}, 4);
  ASSERT_EQ(workload.masks.size(), 1U);
  EXPECT_EQ(workload.masks[0].mask.num_pairs(), 100 * 101 / 2 + 60 * 61 / 2);
  EXPECT_EQ(workload.num_tokens(), 160);
  EXPECT_TRUE(workload.home.empty());
}

TEST(WorkloadInput, TensorParallelRanksShareTheHeads) {
  WorkloadInput input;
  input.shape.q_heads = 32;
  input.shape.kv_heads = 8;
  input.tp = 4;
  const Workload workload = load_workload(kLengths, input, 4);
  EXPECT_EQ(workload.shape.q_heads, 8);
  EXPECT_EQ(workload.shape.kv_heads, 2);
  EXPECT_EQ(shape_of_rank(input.shape, 1), input.shape);
}

TEST(WorkloadInput, RefusesHeadsThatDoNotDivide) {
  WorkloadInput input;
  input.shape.q_heads = 12;
  input.shape.kv_heads = 4;
  input.tp = 8;
  EXPECT_EQ(message_of(input),
            "--tp: expected a divisor of 12 query heads and 4 KV heads, found 8");
  EXPECT_THROW(static_cast<void>(shape_of_rank(input.shape, 0)), InvalidArgument);
}

TEST(WorkloadInput, RefusesAShapeThatCannotBe) {
  WorkloadInput input;
  input.shape.head_dim = 0;
  EXPECT_EQ(message_of(input), "attention shape: head_dim: expected 1 to 4096, found 0");
  input.shape = {};
  input.shape.q_heads = -4;
  EXPECT_EQ(message_of(input), "attention shape: q_heads: expected at least 1, found -4");
}

TEST(WorkloadInput, RefusesHomesThatLeaveTokensOut) {
  const std::string path = ::testing::TempDir() + "/some_homes.json";
  std::ofstream(path) << R"({"home": [[0, 100, 1]]})";
  WorkloadInput input;
  input.layout = path;
  EXPECT_EQ(message_of(input), "workload: home: expected to end at token 160, found 100");
}

TEST(WorkloadInput, TakesMasksFromOnePlaceOnly) {
  WorkloadInput input;
  input.masks.emplace_back();
  input.mask_path = "mask.json";
  EXPECT_EQ(message_of(input), "expected either --mask or --mask-file, found both");
}

TEST(WorkloadInput, GivesTokensTheHomesOfTheLayout) {
  WorkloadInput input;
  input.layout = "contiguous";
  const Workload workload = load_workload(kLengths, input, 4);
  ASSERT_EQ(workload.home.size(), 4U);
  EXPECT_EQ(workload.home[3].owner, Rank{3});
  EXPECT_EQ(workload.home[3].tokens, (Range{120, 160}));
}

}  // namespace
}  // namespace contextile

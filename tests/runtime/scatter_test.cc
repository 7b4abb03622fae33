// Tensors of the batch to every rank and back, for the plans of every strategy.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/plan.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array<Dtype, 3> kDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

// Every byte pattern counts, NaN included: no row may be converted on its way.
std::vector<std::byte> random_bytes(Chance& chance, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(chance.between(0, 255));
  return bytes;
}

const std::byte* row_of(const TensorView& view, std::int64_t token, std::int32_t head) {
  return static_cast<const std::byte*>(view.data) +
         (token * view.token_stride + head * view.head_stride) * bytes_per_element(view.dtype);
}

bool same_rows(const TensorView& a, std::int64_t a_token, const TensorView& b,
               std::int64_t b_token) {
  for (std::int32_t h = 0; h < a.heads; ++h) {
    const auto row_bytes = static_cast<std::size_t>(a.dim * bytes_per_element(a.dtype));
    if (std::memcmp(row_of(a, a_token, h), row_of(b, b_token, h), row_bytes) != 0) return false;
  }
  return true;
}

struct Homes {
  int several_rounds = 0;
  int empty_ranks = 0;
  int homes = 0;
};

// Rows of every rank are those of its tokens, and all of them together are the batch.
void expect_round_trip(const Plan& plan, Chance& chance, Dtype dtype, Homes& seen) {
  const auto heads = static_cast<std::int32_t>(chance.between(1, 3));
  const auto dim = static_cast<std::int32_t>(chance.between(1, 9));
  const std::int64_t tokens = plan.num_tokens();
  const std::vector<std::byte> bytes =
      random_bytes(chance, tokens * heads * dim * bytes_per_element(dtype));
  const TensorView batch = view_of(bytes, dtype, tokens, heads, dim);
  const std::vector<HostTensor> local = scatter(plan, batch);
  ASSERT_EQ(std::ssize(local), plan.num_devices());
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    const TensorView mine = local[static_cast<std::size_t>(r)].view();
    const std::vector<std::int64_t> rows = local_tokens(plan, Rank{r});
    ASSERT_EQ(mine.tokens, std::ssize(rows));
    if (rows.empty()) ++seen.empty_ranks;
    for (std::size_t n = 0; n < rows.size(); ++n) {
      EXPECT_TRUE(same_rows(mine, static_cast<std::int64_t>(n), batch, rows[n]))
          << "rank " << r << " row " << n << " is not token " << rows[n];
    }
  }
  const HostTensor back = gather(plan, local);
  EXPECT_EQ(back.tokens(), tokens);
  EXPECT_EQ(std::memcmp(back.view().data, bytes.data(), bytes.size()), 0);
  if (plan.rounds.size() > 1) ++seen.several_rounds;
  if (!plan.home.empty()) ++seen.homes;
}

TEST(Scatter, AndGatherGiveTheBatchBackForEveryStrategy) {
  Homes seen;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Chance chance(seed);
    BatchLimits limits;
    limits.homes = true;
    const RandomBatch batch = random_batch_of(chance, limits);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      for (const Dtype dtype : kDtypes) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ", " +
                     std::string(to_string(dtype)) + ": " + batch.text);
        expect_round_trip(named.plan, chance, dtype, seen);
      }
    }
  }
  EXPECT_GT(seen.several_rounds, 0);
  EXPECT_GT(seen.empty_ranks, 0);
  EXPECT_GT(seen.homes, 0);
}

TEST(Scatter, TakesAnyStridesAndLeavesTheRestAlone) {
  const Plan plan = example_plan();  // 8 tokens, 4 on each of two ranks
  // The batch inside rows that are too wide, heads apart; the rank's likewise, the other way round.
  std::vector<float> wide(8 * 40, -1.0F);
  std::vector<float> local(2 * 100, -1.0F);
  const TensorView batch = {wide.data(), Dtype::kF32, 8, 2, 3, 40, 20};
  const TensorView mine = {local.data(), Dtype::kF32, 4, 2, 3, 7, 100};
  for (std::size_t t = 0; t < 8; ++t) {
    for (std::size_t h = 0; h < 2; ++h) {
      for (std::size_t d = 0; d < 3; ++d) {
        wide[t * 40 + h * 20 + d] = static_cast<float>(100 * t + 10 * h + d);
      }
    }
  }
  const std::vector<float> before = wide;
  scatter(plan, Rank{1}, batch, mine);
  EXPECT_EQ(wide, before);
  std::vector<float> expected(2 * 100, -1.0F);
  for (std::size_t n = 0; n < 4; ++n) {
    for (std::size_t h = 0; h < 2; ++h) {
      for (std::size_t d = 0; d < 3; ++d) {
        expected[n * 7 + h * 100 + d] = static_cast<float>(100 * (n + 4) + 10 * h + d);
      }
    }
  }
  EXPECT_EQ(local, expected);
  for (float& value : local) value *= 2;
  gather(plan, Rank{1}, mine, batch);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const bool is_mine = i >= 4 * 40 && i % 20 < 3;
    EXPECT_EQ(wide[i], is_mine ? 2 * before[i] : before[i]) << i;
  }
}

TEST(Scatter, RefusesTensorsThatDoNotFitThePlan) {
  const Plan plan = example_plan();
  const std::vector<float> batch(8 * 6);
  std::vector<float> local(4 * 6);
  const TensorView whole = view_of(batch, 8, 2, 3);
  const TensorView mine = view_of(local, 4, 2, 3);
  const auto scattered = [&](Rank rank, const TensorView& from, const TensorView& to) {
    return message_of([&] {
      scatter(plan, rank, from, to);
      return 0;
    });
  };
  EXPECT_EQ(scattered(Rank{1}, whole, mine), "no error");
  EXPECT_THAT(scattered(Rank{1}, view_of(batch, 6, 2, 4), mine),
              AllOf(HasSubstr("scatter, rank 1: expected the batch's tensor of shape [8, 2, 4]"),
                    HasSubstr("found [6, 2, 4]")));
  EXPECT_THAT(scattered(Rank{0}, whole, view_of(local, 4, 1, 6)),
              AllOf(HasSubstr("rank 0: expected the rank's tensor of shape [4, 2, 3]"),
                    HasSubstr("found [4, 1, 6]")));
  TensorView narrow = mine;
  narrow.dtype = Dtype::kF16;
  EXPECT_THAT(scattered(Rank{0}, whole, narrow), HasSubstr("as f32, found f16"));
  TensorView nowhere = mine;
  nowhere.data = nullptr;
  EXPECT_THAT(scattered(Rank{0}, whole, nowhere), HasSubstr("data of the rank's tensor"));
  EXPECT_THAT(scattered(Rank{2}, whole, mine), HasSubstr("a rank among 0 … 1, found 2"));
  std::vector<HostTensor> one_rank(1);
  EXPECT_THAT(message_of([&] { return gather(plan, one_rank); }),
              HasSubstr("the tensors of 2 ranks, found 1"));
  std::vector<HostTensor> unlike = scatter(plan, whole);
  unlike[1] = HostTensor(Dtype::kF32, 4, 3, 2);
  EXPECT_THAT(message_of([&] { return gather(plan, unlike); }),
              HasSubstr("gather, rank 1: expected the rank's tensor of shape [4, 2, 3]"));
}

TEST(Scatter, RefusesAPlanWhoseTablesWouldLeadOutsideTheBatch) {
  const std::vector<float> batch(8 * 6);
  Plan plan = example_plan();
  plan.rounds[0].devices[0].local_blocks[0] = BlockId{7};
  EXPECT_THROW(static_cast<void>(scatter(plan, view_of(batch, 8, 2, 3))), InvalidPlan);
  plan = example_plan();
  plan.sequences = {{0, 5}};  // blocks reach to token 8
  EXPECT_THROW(static_cast<void>(scatter(plan, view_of({batch.data(), 30}, 5, 2, 3))), InvalidPlan);
  plan = example_plan();
  plan.rounds[0].devices.pop_back();
  EXPECT_THROW(static_cast<void>(scatter(plan, view_of(batch, 8, 2, 3))), InvalidPlan);
}

}  // namespace
}  // namespace contextile

// Reductions that run as one list, compared with a look at every pair of them.
#include "runtime/executor/reduce_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "contextile/planner.h"
#include "kernel/cpu/reference_kernel.h"
#include "runtime/executor/prepared_plan.h"
#include "runtime/executor/program_views.h"
#include "support/batches.h"

namespace contextile {
namespace {

// The addresses of the first element of every token and head of a unit's parts.
std::vector<const std::byte*> rows_of(const UnitView& unit) {
  std::vector<const std::byte*> rows;
  for (std::size_t p = 0; p < unit.num_parts; ++p) {
    const TensorView& view = unit.parts[p];
    const std::int64_t element = bytes_per_element(view.dtype);
    for (std::int64_t n = 0; n < view.tokens; ++n) {
      for (std::int32_t h = 0; h < view.heads; ++h) {
        rows.push_back(static_cast<const std::byte*>(view.data) +
                       (n * view.token_stride + h * view.head_stride) * element);
      }
    }
  }
  std::ranges::sort(rows);
  return rows;
}

bool meet(const UnitView& a, const UnitView& b) {
  const std::vector<const std::byte*> of_a = rows_of(a);
  const std::vector<const std::byte*> of_b = rows_of(b);
  std::vector<const std::byte*> both;
  std::ranges::set_intersection(of_a, of_b, std::back_inserter(both));
  return !both.empty();
}

class BatchesOf : public ::testing::TestWithParam<std::string> {};

// Within a list nothing touches what another reduction writes. If a list ends before a reduction,
// that is the reason.
TEST_P(BatchesOf, ReductionsAreAsLargeAsTheyCanBe) {
  const Workload workload = batch_of({300, 37, 190}, "causal", grouped_heads());
  const auto plan =
      plan_and_check(workload, cluster_of(1, 4), parse_strategies(GetParam()).at(0), {}).plan;
  std::size_t together = 0;
  for (std::int32_t r = 0; r < plan->num_devices(); ++r) {
    const PreparedPlan prepared = prepare_plan(plan, Rank{r}, reference_kernel());
    for (const LocalRound& round : prepared.rounds) {
      for (const Direction direction : kDirections) {
        const auto& local = round.masks[0].programs[static_cast<std::size_t>(direction)];
        if (!local) continue;
        const StandIns there = stand_ins(plan->shape, round, direction);
        const ProgramViews views(plan->shape, round, *local, direction, there.inputs, there.buffer);
        const auto& all = local->program->instructions;
        const auto conflict = [&](std::size_t a, std::size_t b) {
          const auto& x = std::get<ReduceOp>(all[a]);
          const auto& y = std::get<ReduceOp>(all[b]);
          const auto unit = [&](const ReduceOp& op, SlotId slot) {
            return views.unit(op.kind, op.block, op.group, slot);
          };
          bool found = meet(unit(x, x.dst), unit(y, y.dst));
          for (const SlotId src : y.srcs) found = found || meet(unit(x, x.dst), unit(y, src));
          for (const SlotId src : x.srcs) found = found || meet(unit(y, y.dst), unit(x, src));
          return found;
        };
        for (std::size_t first = 0; first < all.size();) {
          const std::size_t end = local->batch_end[first];
          ASSERT_GT(end, first);
          for (std::size_t i = first; i < end; ++i) {
            EXPECT_EQ(local->batch_end[i], end);
            for (std::size_t j = first; j < i; ++j) EXPECT_FALSE(conflict(j, i)) << j << ' ' << i;
          }
          together += end - first - 1;
          if (std::holds_alternative<ReduceOp>(all[first]) && end < all.size() &&
              std::holds_alternative<ReduceOp>(all[end])) {
            bool is_needed = end - first == 64;
            for (std::size_t j = first; j < end; ++j) is_needed = is_needed || conflict(j, end);
            EXPECT_TRUE(is_needed) << end;
          }
          first = end;
        }
      }
    }
  }
  EXPECT_GT(together, 0U);
}

INSTANTIATE_TEST_SUITE_P(Strategies, BatchesOf,
                         ::testing::Values("hybrid", "magi:chunk=64", "distca:granularity=16"));

}  // namespace
}  // namespace contextile

#include "predict/simulate/part_runs.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TEST(PartRuns, AreWhatAnOrderedMapAddsUpInOneCallAfterAnother) {
  Rng rng(1);
  PartRuns runs;
  for (int call = 0; call < 200; ++call) {
    std::map<std::tuple<std::size_t, std::int64_t, std::int64_t>, double> expected;
    const std::int64_t pieces = random_between(rng, 0, call % 10 == 0 ? 3000 : 40);
    for (std::int64_t p = 0; p < pieces; ++p) {
      const auto run = static_cast<std::size_t>(random_between(rng, 0, 3));
      const std::int64_t begin = random_between(rng, 0, 30);
      const Range q{begin, begin + random_between(rng, 1, 3)};
      const auto pairs = static_cast<double>(random_between(rng, 1, 1000));
      runs.add(run, q, pairs);
      expected[std::tuple(run, q.begin, q.end)] += pairs;
    }
    const auto found = runs.sorted();
    ASSERT_EQ(found.size(), expected.size());
    auto at = expected.begin();
    for (const PartRun& part : found) {
      EXPECT_EQ(std::tuple(part.run, part.q.begin, part.q.end), at->first);
      EXPECT_EQ(part.computed_pairs, at->second);
      ++at;
    }
    runs.clear();
  }
}

}  // namespace
}  // namespace contextile

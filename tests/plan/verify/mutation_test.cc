// Every mutant of a valid plan is flagged by verify, or executing it changes nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "support/plan_interpreter.h"
#include "support/plan_mutations.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

struct Tally {
  std::int64_t flagged = 0;
  std::int64_t harmless = 0;
};
using Tallies = std::map<std::string_view, Tally>;

bool ask_the_same(const Plan& a, const Plan& b) {
  return std::ranges::equal(a.rounds, b.rounds, [](const PlanRound& x, const PlanRound& y) {
    return std::ranges::equal(x.masks, y.masks, [](const NamedMask& m, const NamedMask& n) {
      return m.mask.bands == n.mask.bands;
    });
  });
}

// One mutant of a plan by each of the mutations.
void try_all(const Plan& original, Chance& chance, Tallies& tallies) {
  const auto seed = static_cast<std::uint64_t>(chance.between(1, 1 << 30));
  const ToyBatch batch(original, seed);
  const auto unchanged = batch.difference(original);
  ASSERT_FALSE(unchanged.has_value()) << "valid plan: " << *unchanged;
  for (const PlanMutation& mutation : all_mutations()) {
    Plan mutant = original;
    if (!mutation.apply(mutant, chance)) continue;
    if (!verify(mutant).ok()) {
      ++tallies[mutation.name].flagged;
      continue;
    }
    // A mutant with other masks is right if it computes those. If two masks have the same tiles
    // with the same pairs, nothing in a plan says which was meant.
    const auto difference = ask_the_same(original, mutant)
                                ? batch.difference(mutant)
                                : ToyBatch(mutant, seed).difference(mutant);
    EXPECT_FALSE(difference.has_value()) << mutation.name << " passes verify, but " << *difference;
    ++tallies[mutation.name].harmless;
  }
}

// For other mutants than the default ones: --gtest_random_seed=N. (UnitTest takes its own random
// seed from the clock if the flag is absent.)
std::uint64_t first_seed() {
  return 1000 * static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed));
}

TEST(Mutants, AreFlaggedOrHarmless) {
  constexpr std::uint64_t kBatches = 60;
  Tallies tallies;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + kBatches; ++seed) {
    Chance chance(seed);
    const RandomBatch batch =
        random_batch_of(chance, {.max_tokens = 24, .ranks = {1, 2, 3, 4, 6}, .homes = true});
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(fmt::format("seed {}: {} of {}", seed, named.name, batch.text));
      try_all(named.plan, chance, tallies);
    }
  }
  // The rows of a block in another order, partials summed in another order, rounds in another
  // order.
  const std::vector<std::string_view> always_harmless = {"rotate_ranges", "reverse_sources",
                                                         "swap_rounds", "swap_bands"};
  for (const PlanMutation& mutation : all_mutations()) {
    const Tally& tally = tallies[mutation.name];
    fmt::print("{:26} flagged {:5} harmless {:5}\n", mutation.name, tally.flagged, tally.harmless);
    if (testing::Value(mutation.name, testing::AnyOfArray(always_harmless))) {
      EXPECT_GT(tally.harmless, 0) << mutation.name;
    } else {
      EXPECT_GT(tally.flagged, 0) << mutation.name;
    }
  }
}

}  // namespace
}  // namespace contextile

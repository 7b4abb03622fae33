// Every mutant of a valid plan is flagged by verify, or executing it changes nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/plan.h"
#include "support/plan_interpreter.h"
#include "support/plan_mutations.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

struct Tally {
  std::int64_t flagged = 0;
  std::int64_t harmless = 0;
};

class Mutations : public testing::TestWithParam<std::uint64_t> {
 protected:
  // Several mutants of a plan by each of the mutations.
  void try_all(const NamedPlan& original, Chance& chance, const std::string& trace) {
    const ToyBatch batch(original.plan, static_cast<std::uint64_t>(chance.between(1, 1 << 30)));
    const auto unchanged = batch.difference(original.plan);
    ASSERT_FALSE(unchanged.has_value()) << trace << ": valid plan: " << *unchanged;
    for (const auto mutations : {program_mutations(), round_mutations()}) {
      for (const PlanMutation& mutation : mutations) {
        Plan mutant = original.plan;
        if (!mutation.apply(mutant, chance)) continue;
        if (!verify(mutant).ok()) {
          ++tallies_[mutation.name].flagged;
          continue;
        }
        const auto difference = batch.difference(mutant);
        EXPECT_FALSE(difference.has_value())
            << mutation.name << " of " << trace << " passed verify, but " << *difference;
        ++tallies_[mutation.name].harmless;
      }
    }
  }

  std::map<std::string_view, Tally> tallies_;
};

TEST_P(Mutations, AreFlaggedOrHarmless) {
  constexpr std::uint64_t kBatches = 60;
  std::int64_t plans = 0;
  for (std::uint64_t n = 0; n < kBatches; ++n) {
    const std::uint64_t seed = GetParam() * 1000 + n;
    Chance chance(seed);
    const RandomBatch batch =
        random_batch_of(chance, {.max_tokens = 24, .ranks = {1, 2, 3, 4, 6}, .homes = true});
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      const std::string trace = fmt::format("seed {}: {} of {}", seed, named.name, batch.text);
      try_all(named, chance, trace);
      ++plans;
    }
  }
  for (const auto mutations : {program_mutations(), round_mutations()}) {
    for (const PlanMutation& mutation : mutations) {
      const Tally& tally = tallies_[mutation.name];
      EXPECT_GT(tally.flagged + tally.harmless, 0) << mutation.name << " was never applied";
      fmt::print("{:26} flagged {:5} harmless {:5}\n", mutation.name, tally.flagged,
                 tally.harmless);
    }
  }
  fmt::print("{} plans\n", plans);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Mutations, testing::Values(1));

}  // namespace
}  // namespace contextile

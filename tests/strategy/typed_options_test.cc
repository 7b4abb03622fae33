// Options as types: every strategy reads what choice_of prints.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/strategies.h"
#include "contextile/planner.h"
#include "strategy/typed_strategy.h"
#include "support/mask_support.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Sets a field to any value or leaves its default.
class Setter {
 public:
  explicit Setter(std::uint64_t seed) : rng_(seed) {}

  void set(bool& field) {
    if (random_chance(rng_, 0.5)) field = random_chance(rng_, 0.5);
  }
  template <typename Int>
  void set(Int& field, std::int64_t low, std::int64_t high) {
    if (random_chance(rng_, 0.5)) field = static_cast<Int>(random_between(rng_, low, high));
  }
  void set_real(double& field, double low, double high) {
    constexpr std::int64_t kSteps = 999'983;
    const auto step = static_cast<double>(random_between(rng_, 0, kSteps));
    if (random_chance(rng_, 0.5)) field = low + (high - low) * step / kSteps;
  }
  template <typename Enum>
  void set_enum(Enum& field, std::int64_t num_values) {
    if (random_chance(rng_, 0.5))
      field = static_cast<Enum>(random_between(rng_, 0, num_values - 1));
  }

 private:
  Rng rng_;
};

void randomize(Setter& setter, RingOptions& options) { setter.set(options.count_padding); }
void randomize(Setter& setter, ZigzagOptions& options) {
  setter.set(options.count_padding);
  setter.set(options.count_stashed);
}
void randomize(Setter& setter, UlyssesOptions& options) {
  setter.set_enum(options.layout, 4);
  setter.set(options.count_padding);
}
void randomize(Setter& setter, HybridOptions& options) {
  setter.set(options.head_parallel, 0, 64);
  setter.set(options.count_padding);
  setter.set(options.count_stashed);
}
void randomize(Setter& setter, DoubleRingOptions& options) {
  setter.set(options.inner_ring, 0, 64);
  setter.set(options.head_parallel, 0, 64);
  setter.set(options.count_padding);
}
void randomize(Setter& setter, AllGatherOptions& options) {
  setter.set_enum(options.algorithm, 2);
  setter.set_enum(options.layout, 4);
  setter.set(options.count_padding);
}
void randomize(Setter& setter, WlbOptions& options) {
  setter.set_enum(options.sharding, 3);
  setter.set_enum(options.algorithm, 2);
}
void randomize(Setter& setter, BytescaleOptions& options) {
  setter.set(options.cap, 0, 1 << 20);
  setter.set(options.balanced);
  setter.set_enum(options.sync, 2);
}
void randomize(Setter& setter, MegatronDynamicOptions& options) {
  setter.set(options.cap, 0, 1 << 20);
  setter.set(options.match_original);
}
void randomize(Setter& setter, MegatronPackedOptions& options) {
  setter.set_enum(options.scheduler, 2);
  setter.set(options.cap, 0, 1 << 20);
  setter.set(options.min_cp, 1, 64);
  setter.set(options.cp, 0, 64);
  setter.set(options.vpp_multiple, 1, 8);
  setter.set(options.max_num_seqs, 0, 64);
}
void randomize(Setter& setter, MagiOptions& options) {
  setter.set(options.chunk, 0, 1 << 20);
  setter.set_enum(options.algorithm, 5);
  setter.set_real(options.top_p, 0, 1);
  setter.set(options.stages, 0, 64);
  setter.set(options.keys_per_element, 1, 1 << 20);
  setter.set(options.max_elements, 1, 1 << 10);
  setter.set_enum(options.launch, 2);
  setter.set(options.hierarchical);
}
void randomize(Setter& setter, DcpOptions& options) {
  setter.set(options.divisions, 2, 64);
  setter.set_real(options.eps_node, 0, 10);
  setter.set_real(options.eps_device, 0, 10);
  setter.set_real(options.data_tolerance, 0, 10);
  setter.set(options.head_groups, 0, 64);
  setter.set_enum(options.share, 2);
  setter.set_enum(options.results, 2);
  setter.set(options.relays);
  setter.set_enum(options.cuts, 2);
  setter.set_real(options.effort, 0.01, 100);
  setter.set_enum(options.partitioner, 2);
}
void randomize(Setter& setter, FcpOptions& options) {
  setter.set(options.block, 0, 1 << 20);
  setter.set(options.coalesce, 1, 64);
  setter.set(options.buffers, 1, 64);
  setter.set(options.head_parallel, 1, 64);
  setter.set(options.token_cap, 0, 1 << 20);
  setter.set(options.pipelining);
  setter.set(options.congestion_free);
  setter.set_enum(options.cost, 2);
  setter.set(options.cut_heavy);
  setter.set_enum(options.reshuffle, 2);
}
void randomize(Setter& setter, DistcaOptions& options) {
  setter.set_real(options.tolerance, 0, 10);
  setter.set_enum(options.kv, 2);
  setter.set(options.granularity, 1, 1 << 20);
  setter.set_enum(options.balance, 2);
  setter.set_enum(options.cost, 2);
  setter.set_enum(options.backward, 2);
  setter.set(options.attention_servers, 0, 64);
  setter.set(options.kv_subrange);
  setter.set(options.nano_batches, 1, 64);
  setter.set(options.resend);
  setter.set(options.relays);
  setter.set(options.buffer_limit, 0, std::int64_t{1} << 40);
  setter.set(options.match_original);
}
void randomize(Setter& setter, AutoOptions& options) {
  setter.set_real(options.effort, 0.1, 100);
  setter.set_enum(options.retain, 3);
  setter.set_enum(options.candidates, 2);
  setter.set_enum(options.objective, 2);
  setter.set_enum(options.tokens, 3);
  setter.set(options.steps, 0, 1 << 20);
  setter.set(options.steps_per_device, 0, 1 << 20);
  setter.set(options.budget_ms, 0, 1 << 20);
}

template <typename Options>
class TypedOptions : public testing::Test {
 public:
  TypedOptions()
      : strategy(
            dynamic_cast<const TypedStrategy<Options>&>(find_strategy(choice_of(Options{}).name))) {
  }

  const TypedStrategy<Options>& strategy;
};
using AllOptions = testing::Types<RingOptions, ZigzagOptions, UlyssesOptions, HybridOptions,
                                  DoubleRingOptions, AllGatherOptions, WlbOptions, BytescaleOptions,
                                  MegatronDynamicOptions, MegatronPackedOptions, MagiOptions,
                                  DcpOptions, FcpOptions, DistcaOptions, AutoOptions>;
TYPED_TEST_SUITE(TypedOptions, AllOptions);

TYPED_TEST(TypedOptions, AreReadAsTheyArePrintedWhateverTheirValues) {
  std::set<std::string> printed;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Setter setter(seed);
    TypeParam options;
    randomize(setter, options);
    const StrategyChoice choice = choice_of(options);
    EXPECT_EQ(choice.name, this->strategy.name());
    EXPECT_TRUE(this->strategy.parse(choice.options) == options) << choice_text(choice);
    const std::vector<StrategyChoice> reread = parse_strategies(choice_text(choice));
    ASSERT_EQ(reread.size(), 1U);
    EXPECT_EQ(reread[0].name, choice.name);
    EXPECT_EQ(reread[0].options, choice.options);
    for (const auto& [key, value] : choice.options) printed.insert(key);
  }
  std::set<std::string> listed;
  for (const OptionSpec& option : this->strategy.options()) listed.insert(option.name);
  EXPECT_EQ(printed, listed) << "every option of the text form is a field, and the other way round";
}

TYPED_TEST(TypedOptions, SayNothingOfDefaultsAndReadThem) {
  EXPECT_TRUE(choice_of(TypeParam{}).options.empty());
  std::map<std::string, std::string> defaults;
  for (const OptionSpec& option : this->strategy.options()) {
    defaults[option.name] = option.default_value;
  }
  EXPECT_TRUE(this->strategy.parse(defaults) == TypeParam{});
}

template <typename... Options>
std::set<std::string> names_of(testing::Types<Options...>) {
  return {choice_of(Options{}).name...};
}

TEST(TypedOptionsOfAll, CoverEveryStrategy) {
  std::set<std::string> registered;
  for (const Strategy* strategy : strategies()) registered.emplace(strategy->name());
  EXPECT_EQ(names_of(AllOptions{}), registered);
}

Workload small_batch() {
  return make_workload(std::vector<std::int64_t>{900, 300, 4100, 250, 40},
                       {.q_heads = 8, .kv_heads = 4}, std::vector<MaskUse>(1));
}

TEST(ChoiceOf, PlansAsTheTextFormDoes) {
  const Workload workload = small_batch();
  const Cluster cluster = load_cluster("dgx-h200:1x4");
  const auto digest = [&](const StrategyChoice& choice) {
    return plan_and_check(workload, cluster, choice, {.block_size = 256}).plan->digest;
  };
  const std::vector<std::pair<StrategyChoice, const char*>> cases = {
      {choice_of(HybridOptions{.head_parallel = 2, .count_padding = true}),
       "hybrid:head_parallel=2,count_padding=on"},
      {choice_of(DcpOptions{.divisions = 6, .results = ResultTiming::kEarly, .relays = true}),
       "dcp:divisions=6,results=early,relays=on"},
      {choice_of(FcpOptions{.head_parallel = 2, .reshuffle = Reshuffle::kBefore}),
       "fcp:head_parallel=2,reshuffle=before"},
      {choice_of(DistcaOptions{.attention_servers = 1, .nano_batches = 1}),
       "distca:attention_servers=1,nano_batches=1"},
  };
  for (const auto& [typed, text] : cases) {
    SCOPED_TRACE(text);
    EXPECT_EQ(digest(typed), digest(parse_strategies(text).front()));
    EXPECT_NE(digest(typed), digest({typed.name}));
  }
}

TEST(ChoiceOf, LeavesTheBlockSizeToWhoAsksForOne) {
  const PlannedBatch planned =
      plan_and_check(small_batch(), load_cluster("dgx-h200:1x4"),
                     choice_of(MagiOptions{.stages = 2}), {.block_size = 128});
  EXPECT_EQ(planned.plan->options.at("chunk"), "128");
  EXPECT_EQ(planned.plan->options.at("stages"), "2");
}

TEST(ChoiceOf, RefusesValuesOutOfRangeWhereTheyAreUsed) {
  const StrategyChoice choice = choice_of(DcpOptions{.divisions = 1});
  EXPECT_THAT(
      message_of([&] { return plan_batch(small_batch(), load_cluster("dgx-h200:1x4"), choice); }),
      HasSubstr("option divisions: expected an integer from 2 to 1024, found '1'"));
}

// ----------------------------------------------------------------------------------- the frame

struct ToyOptions {
  std::int32_t size = 0;  // 0 means 7; 13 is unsupported, 14 unplannable
};

class ToyStrategy : public TypedStrategy<ToyOptions> {
 public:
  explicit ToyStrategy(PartialWire wire)
      : TypedStrategy({"toy", "for this test", wire}, option_table()) {}

  mutable int num_plannings = 0;

 protected:
  [[nodiscard]] std::optional<std::string> unsupported_with(
      const Workload&, const Cluster&, const ToyOptions& options) const override {
    if (options.size == 13) return "cannot be 13";
    return std::nullopt;
  }
  [[nodiscard]] std::optional<std::string> unplannable_with(
      const Workload&, const Cluster&, const ToyOptions& options) const override {
    ++num_plannings;
    if (options.size == 14) return "cannot be planned";
    return std::nullopt;
  }
  [[nodiscard]] Arrangement arrange_with(const Workload&, const Cluster&, const StrategyRequest&,
                                         ToyOptions& options) const override {
    ++num_plannings;
    if (options.size == 14) refuse("cannot be planned");
    if (options.size == 0) options.size = 7;
    Arrangement arrangement;
    arrangement.options["found"] = "much";
    arrangement.partial_wire = Dtype::kF16;
    return arrangement;
  }

 private:
  static OptionTable<ToyOptions> option_table() {
    OptionTable<ToyOptions> table;
    return table.integer("size", &ToyOptions::size, 0, 100, "a number");
  }
};

StrategyRequest toy_request(const std::string& size) {
  StrategyRequest request;
  request.options["size"] = size;
  return request;
}

TEST(TypedStrategies, SayInTheArrangementWhatTheyDecidedAndFound) {
  const ToyStrategy strategy(PartialWire::kF32);
  const Arrangement arrangement = strategy.arrange(small_batch(), Cluster{}, toy_request("0"));
  EXPECT_EQ(arrangement.strategy, "toy");
  EXPECT_EQ(arrangement.options,
            (std::map<std::string, std::string>{{"found", "much"}, {"size", "7"}}));
}

TEST(TypedStrategies, SendPartialResultsAsTheOriginalUnlessAskedOtherwise) {
  const Workload workload = small_batch();
  const auto wire = [&](PartialWire original, std::optional<Dtype> asked) {
    StrategyRequest request;
    request.wire = asked;
    return ToyStrategy(original).arrange(workload, Cluster{}, request).partial_wire;
  };
  EXPECT_EQ(wire(PartialWire::kF32, {}), Dtype::kF32);
  EXPECT_EQ(wire(PartialWire::kActivations, {}), workload.shape.dtype);
  EXPECT_EQ(wire(PartialWire::kArranged, {}), Dtype::kF16);
  EXPECT_EQ(wire(PartialWire::kF32, Dtype::kBf16), Dtype::kBf16);
  EXPECT_EQ(wire(PartialWire::kActivations, Dtype::kF32), Dtype::kF32);
}

TEST(TypedStrategies, RefuseWithTheirNameAndPlanOnce) {
  const ToyStrategy strategy(PartialWire::kF32);
  const auto unsupported = [&](const char* size) {
    return strategy.unsupported(small_batch(), Cluster{}, toy_request(size));
  };
  const auto refusal = [&](const char* size) {
    return message_of(
        [&] { return strategy.arrange(small_batch(), Cluster{}, toy_request(size)); });
  };
  EXPECT_EQ(unsupported("13"), "cannot be 13");
  EXPECT_EQ(refusal("13"), "strategy toy: cannot be 13");
  EXPECT_EQ(strategy.num_plannings, 0);
  EXPECT_EQ(unsupported("14"), "cannot be planned");
  EXPECT_EQ(strategy.num_plannings, 1);
  EXPECT_EQ(refusal("14"), "strategy toy: cannot be planned");
  EXPECT_EQ(strategy.num_plannings, 2);
  EXPECT_EQ(refusal("101"), "strategy option size: expected an integer from 0 to 100, found '101'");
}

// ------------------------------------------------------------------------------------- names

TEST(OptionNames, HaveNoSecondForm) {
  struct Refused {
    const char* strategy;
    const char* key;
  };
  for (const auto& [strategy, key] : {Refused{"hybrid", "A"},
                                      {"fcp", "ulysses"},
                                      {"dcp", "T"},
                                      {"double_ring", "inner"},
                                      {"magi", "element"},
                                      {"distca", "pool"},
                                      {"zigzag", "padded"},
                                      {"zigzag", "stashed"},
                                      {"distca", "upstream"},
                                      {"megatron_dynamic", "upstream"}}) {
    StrategyRequest request;
    request.options = {{key, "2"}};
    EXPECT_THAT(message_of([&, name = strategy] {
                  return find_strategy(name).unsupported(small_batch(), Cluster{}, request);
                }),
                HasSubstr("expected an option among"))
        << strategy << ":" << key;
  }
}

}  // namespace
}  // namespace contextile

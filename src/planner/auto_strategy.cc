#include "planner/auto_strategy.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "planner/search.h"
#include "strategy/options.h"

namespace contextile {
namespace {

enum class Candidates : std::uint8_t { kAll, kOwn };

struct AutoOptions {
  double effort = 1;
  RetainInputs retain = RetainInputs::kAuto;
  Candidates candidates = Candidates::kAll;
  std::int64_t budget_ms = 0;
};

// Source: ours (docs/auto.md). Steps: placements by the grid partitioner, fed with the cost model's
// times and weighing a byte by how long it takes; stages of equal compute that inputs arrive in
// evenly from every sender and that results leave from as soon as they are complete; every other
// strategy as a candidate; the least predicted time wins. Bytes and memory: those of the winner;
// with retained inputs forward's q and kv stay for backward. Loses where the prediction is wrong.
class AutoStrategy : public Strategy {
 public:
  AutoStrategy() {
    table_.real("effort", &AutoOptions::effort, 0.1, 100,
                "placements tried and partitioning steps, in multiples of the default");
    table_.choice(
        "retain", &AutoOptions::retain, {"auto", "on", "off"},
        "received q and kv stay for backward: auto (where that takes at most 5% of a known "
        "device memory), on, off");
    table_.choice("candidates", &AutoOptions::candidates, {"all", "own"},
                  "what is tried: all (every other strategy with its defaults as well), own");
    table_.integer("budget_ms", &AutoOptions::budget_ms, 0, std::int64_t{1} << 40,
                   "milliseconds after which no candidate is started; plans then depend on the "
                   "machine; 0: no limit");
  }

  [[nodiscard]] std::string_view name() const override { return "auto"; }
  [[nodiscard]] std::string_view summary() const override {
    return "the least predicted time: own placements and every other strategy, simulated";
  }
  [[nodiscard]] std::vector<OptionSpec> options() const override { return table_.specs(); }

  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload&, const Cluster& cluster, const StrategyRequest& request) const override {
    static_cast<void>(table_.parse(name(), request.options));
    constexpr std::int32_t kMaxDevicesPerNode = 64;
    if (cluster.devices_per_node > kMaxDevicesPerNode) {
      return fmt::format("places on at most {} devices a node, found {}", kMaxDevicesPerNode,
                         cluster.devices_per_node);
    }
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    if (const auto reason = unsupported(workload, cluster, request)) {
      fail_argument("strategy {}: {}", name(), *reason);
    }
    const AutoOptions options = table_.parse(name(), request.options);
    SearchResult result = search(workload, cluster, request,
                                 {.effort = options.effort,
                                  .retain = options.retain,
                                  .published = options.candidates == Candidates::kAll,
                                  .budget_ms = options.budget_ms});
    Arrangement arrangement = std::move(result.arrangement);
    std::map<std::string, std::string> used = table_.print(options);
    for (const auto& [key, value] : arrangement.options) used["chosen." + key] = value;
    used["chosen"] = result.chosen;
    used["binding"] = result.binding;
    used["predicted_us"] = fmt::format("{:.1f}", result.predicted_us);
    used["tried"] = fmt::format("{}", result.candidates);
    arrangement.strategy = name();
    arrangement.options = std::move(used);
    return arrangement;
  }

 private:
  OptionTable<AutoOptions> table_;
};

}  // namespace

const Strategy& auto_strategy() {
  static const AutoStrategy kStrategy;
  return kStrategy;
}

}  // namespace contextile

#include "planner/auto/auto_strategy.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contextile/extend/strategies.h"
#include "planner/auto/search.h"
#include "planner/auto/search_phases.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

// Source: ours (docs/auto.md).
// Steps: the grid partitioner makes placements from the cost model's times, with a byte weighted by
// the time it takes. Stages have equal compute; inputs arrive in them evenly from every sender, and
// results leave as soon as they are complete. Tokens are leveled where they have a price
// (token_leveling.h). Every other strategy is a candidate as well. The least predicted time wins:
// of attention, and of the linear layers that wait for the fullest device.
// Bytes and memory: those of the winner; with retained inputs forward's q and kv stay for backward.
// Loses if the prediction is wrong.
class AutoStrategy : public TypedStrategy<AutoOptions> {
 public:
  AutoStrategy()
      : TypedStrategy(
            {"auto", "the least predicted time: own placements and every other strategy, simulated",
             PartialWire::kArranged},  // the winner's
            option_table()) {}

  [[nodiscard]] std::vector<SearchPhase> search_phases() const override {
    return contextile::search_phases();
  }

 protected:
  [[nodiscard]] std::optional<std::string> unsupported_with(const Workload&, const Cluster& cluster,
                                                            const AutoOptions&) const override {
    constexpr std::int32_t kMaxDevicesPerNode = 64;
    if (cluster.devices_per_node > kMaxDevicesPerNode) {
      return fmt::format("places on at most {} devices a node, found {}", kMaxDevicesPerNode,
                         cluster.devices_per_node);
    }
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         AutoOptions& options) const override {
    SearchResult result = search(workload, cluster, request, options);
    Arrangement arrangement = std::move(result.arrangement);
    std::map<std::string, std::string> found;
    for (const auto& [key, value] : arrangement.options) found["chosen." + key] = value;
    found["chosen"] = result.chosen;
    if (!result.binding.empty()) found["binding"] = result.binding;
    found["predicted_us"] = fmt::format("{:.1f}", result.predicted_us);
    if (result.layer_us) found["predicted_layer_us"] = fmt::format("{:.1f}", *result.layer_us);
    found["tried"] = fmt::format("{}", result.candidates);
    arrangement.options = std::move(found);
    if (request.searched) request.searched(result.report);
    return arrangement;
  }

 private:
  static OptionTable<AutoOptions> option_table() {
    OptionTable<AutoOptions> table;
    return table
        .real("effort", &AutoOptions::effort, 0.1, 100,
              "placements tried and partitioning steps, in multiples of the default")
        .choice("retain", &AutoOptions::retain, {"auto", "on", "off"},
                "received q and kv stay for backward: auto (where that takes at most 5% of a "
                "known device memory), on, off")
        .choice("candidates", &AutoOptions::candidates, {"all", "own"},
                "what is tried: all (every other strategy with its defaults as well), own")
        .choice("objective", &AutoOptions::objective, {"layer", "attention"},
                "the time that decides: layer (attention, and the linear layers of the device "
                "that owns most tokens), attention alone")
        .choice("tokens", &AutoOptions::tokens, {"auto", "even", "free"},
                "tokens that a device may own: even (at most the mean and 1024), free; auto: even "
                "for attention alone, free for the layer")
        .integer("steps", &AutoOptions::steps, 0, std::int64_t{1} << 50,
                 "a search of about that many microseconds of one core, counted, not timed: the "
                 "same plan on any machine; 0: 120 million, which only the largest batches need")
        .integer(
            "steps_per_device", &AutoOptions::steps_per_device, 0, std::int64_t{1} << 30,
            "steps for each device; if `steps` is given, too, the larger limit counts; 0: none")
        .integer("budget_ms", &AutoOptions::budget_ms, 0, std::int64_t{1} << 40,
                 "milliseconds by which candidates are expected to end; plans then depend on the "
                 "machine; 0: no limit");
  }
};

const AutoStrategy& automatic() {
  static const AutoStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& auto_strategy() { return automatic(); }

StrategyChoice choice_of(const AutoOptions& options) { return automatic().choice(options); }

}  // namespace contextile

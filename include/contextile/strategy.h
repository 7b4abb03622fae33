// The plug-in point for context-parallel methods: one pure function from (workload, cluster,
// options) to an arrangement, and the registry of all of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/arrangement.h"
#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

// One key of `--strategy name:key=value`.
struct OptionSpec {
  std::string name;
  std::string default_value;
  std::string help;  // meaning, unit, allowed values
};

// What a caller may ask of any strategy beside its own options.
struct StrategyRequest {
  std::map<std::string, std::string> options;  // key → value; unknown keys are errors
  std::optional<std::int64_t> block_size;      // tokens; unset: the strategy's default
  std::optional<Dtype> wire;                   // of partial results; unset: as the original
  bool backward = true;                        // false: forward only (prefill)
  std::uint64_t seed = 0;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // Source (paper, section) and what it does, one line.
  [[nodiscard]] virtual std::string_view summary() const = 0;
  [[nodiscard]] virtual std::vector<OptionSpec> options() const = 0;

  // Why this strategy cannot do that, or nothing. Throws InvalidArgument on bad options.
  [[nodiscard]] virtual std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster, const StrategyRequest& request) const = 0;

  // Deterministic: same arguments, same arrangement, on any number of threads. Throws
  // InvalidArgument on bad options, and with the reason when unsupported().
  [[nodiscard]] virtual Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                            const StrategyRequest& request) const = 0;
};

// All strategies, in the order tables list them.
[[nodiscard]] std::span<const Strategy* const> strategies();
// Throws InvalidArgument with the list of names and a "did you mean".
[[nodiscard]] const Strategy& find_strategy(std::string_view name);

// "name:key=value,key=value,other,…": an item without '=' starts the next strategy; values may hold
// colons; "all" stands for every strategy. Names and keys are checked when used.
struct StrategyChoice {
  std::string name;
  std::map<std::string, std::string> options;
};
[[nodiscard]] std::vector<StrategyChoice> parse_strategies(std::string_view text);

}  // namespace contextile

// What the strategies that decide on rounds of groups have in common.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "contextile/strategy.h"
#include "schedule/groups.h"
#include "strategy/options.h"

namespace contextile {

[[nodiscard]] inline std::vector<std::int64_t> lengths_of(const Workload& workload) {
  std::vector<std::int64_t> lengths;
  for (const Range& sequence : workload.sequences) lengths.push_back(sequence.size());
  return lengths;
}

// Tokens a rank should hold: T / R, rounded up.
[[nodiscard]] inline std::int64_t mean_tokens(const Workload& workload, std::int32_t num_ranks) {
  return std::max<std::int64_t>(1, (workload.num_tokens() + num_ranks - 1) / num_ranks);
}

template <typename Options>
class GroupStrategy : public Strategy {
 public:
  [[nodiscard]] std::vector<OptionSpec> options() const override { return table_.specs(); }

  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const override {
    Options options = table_.parse(name(), request.options);
    if (auto reason = crosses_sequences(workload)) return reason;
    try {
      static_cast<void>(rounds(workload, cluster.num_devices(), options));
    } catch (const InvalidArgument& reason) {
      return reason.what();
    }
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    Options options = table_.parse(name(), request.options);
    if (const auto reason = crosses_sequences(workload)) {
      fail_argument("strategy {}: {}", name(), *reason);
    }
    const std::vector<GroupRound> groups = rounds(workload, cluster.num_devices(), options);
    Arrangement arrangement = arrange_groups(
        workload, groups, {.block_size = request.block_size, .backward = request.backward});
    arrangement.strategy = name();
    arrangement.options = table_.print(options);
    if (request.block_size) {
      arrangement.options["block_size"] = fmt::format("{}", *request.block_size);
    }
    arrangement.partial_wire = request.wire.value_or(original_wire(workload));
    return arrangement;
  }

 protected:
  // Decides, and writes the defaults it used into `options`. Throws InvalidArgument with the reason
  // when it cannot.
  [[nodiscard]] virtual std::vector<GroupRound> rounds(const Workload& workload,
                                                       std::int32_t num_ranks,
                                                       Options& options) const = 0;
  [[nodiscard]] virtual Dtype original_wire(const Workload& workload) const = 0;

  OptionTable<Options> table_;
};

}  // namespace contextile

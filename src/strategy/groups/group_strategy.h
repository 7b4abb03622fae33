// Common base of the strategies that decide on rounds of groups.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strategy/schedule/groups.h"
#include "strategy/typed_strategy.h"

namespace contextile {

[[nodiscard]] inline std::vector<std::int64_t> lengths_of(const Workload& workload) {
  std::vector<std::int64_t> lengths;
  for (const Range& sequence : workload.sequences) lengths.push_back(sequence.size());
  return lengths;
}

// Returns the tokens that a rank should hold: T / R, rounded up.
[[nodiscard]] inline std::int64_t mean_tokens(const Workload& workload, std::int32_t num_ranks) {
  return std::max<std::int64_t>(1, (workload.num_tokens() + num_ranks - 1) / num_ranks);
}

// A strategy whose options have `cap`, the tokens of one rank; 0: mean_tokens().
template <typename Options>
class GroupStrategy : public TypedStrategy<Options> {
 public:
  [[nodiscard]] bool has_schedule() const final { return true; }
  [[nodiscard]] BatchSchedule schedule(const Workload& workload, const Cluster& cluster,
                                       const StrategyRequest& request) const final {
    Options options = this->options_of(request);
    if (const auto reason = unsupported_with(workload, cluster, options)) this->refuse(*reason);
    BatchSchedule schedule;
    try {
      schedule.rounds = capped_rounds(workload, cluster, options);
    } catch (const InvalidArgument& reason) {
      this->refuse(reason.what());
    }
    schedule.options = this->printed(options);
    schedule.attention = {"zigzag"};
    if (this->wire() == PartialWire::kF32) schedule.wire = Dtype::kF32;
    return schedule;
  }

 protected:
  using TypedStrategy<Options>::TypedStrategy;

  // Decides the rounds and writes the decisions into `options`, whose cap is set. Throws
  // InvalidArgument with the reason when it cannot.
  [[nodiscard]] virtual std::vector<ScheduleRound> rounds(const Workload& workload,
                                                          std::int32_t num_ranks,
                                                          Options& options) const = 0;

  [[nodiscard]] std::optional<std::string> unsupported_with(const Workload& workload,
                                                            const Cluster&,
                                                            const Options&) const final {
    return crosses_sequences(workload);
  }

  [[nodiscard]] std::optional<std::string> unplannable_with(const Workload& workload,
                                                            const Cluster& cluster,
                                                            const Options& options) const final {
    try {
      Options decided = options;
      static_cast<void>(capped_rounds(workload, cluster, decided));
    } catch (const InvalidArgument& reason) {
      return reason.what();
    }
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         Options& options) const final {
    Arrangement arrangement =
        arrange_groups(workload, capped_rounds(workload, cluster, options),
                       {.block_size = request.block_size, .backward = request.backward});
    record_block_size(request, arrangement);
    return arrangement;
  }

 private:
  [[nodiscard]] std::vector<ScheduleRound> capped_rounds(const Workload& workload,
                                                         const Cluster& cluster,
                                                         Options& options) const {
    if (options.cap == 0) options.cap = mean_tokens(workload, cluster.num_devices());
    return rounds(workload, cluster.num_devices(), options);
  }
};

}  // namespace contextile

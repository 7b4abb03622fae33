#include "planner/timed_block_size.h"

#include <tbb/parallel_for.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "strategy/published.h"

namespace contextile {
namespace {

class TimedBlockSize : public Strategy {
 public:
  // Whether a request leaves the size to be chosen, and what then remains of it.
  using Leaves = bool (*)(StrategyRequest&);

  TimedBlockSize(const Strategy& strategy, std::vector<std::int64_t> sizes, Leaves leaves)
      : strategy_(strategy), sizes_(std::move(sizes)), leaves_(leaves) {}

  [[nodiscard]] std::string_view name() const override { return strategy_.name(); }
  [[nodiscard]] std::string_view summary() const override { return strategy_.summary(); }
  [[nodiscard]] std::vector<OptionSpec> options() const override { return strategy_.options(); }
  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const override {
    return strategy_.unsupported(workload, cluster, request);
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    StrategyRequest asked = request;
    if (!leaves_(asked)) return strategy_.arrange(workload, cluster, request);
    struct Candidate {
      Arrangement arrangement;
      double time_us = std::numeric_limits<double>::infinity();
    };
    std::vector<Candidate> candidates(sizes_.size());
    tbb::parallel_for(std::size_t{0}, sizes_.size(), [&](std::size_t i) {
      StrategyRequest sized = asked;
      sized.block_size = sizes_[i];
      candidates[i].arrangement = strategy_.arrange(workload, cluster, sized);
      candidates[i].time_us =
          simulate(build_plan(workload, cluster, candidates[i].arrangement), cluster).time_us();
    });
    std::size_t best = 0;
    for (std::size_t i = 1; i < candidates.size(); ++i) {
      if (candidates[i].time_us < candidates[best].time_us) best = i;
    }
    return std::move(candidates[best].arrangement);
  }

 private:
  const Strategy& strategy_;
  std::vector<std::int64_t> sizes_;  // descending
  Leaves leaves_;
};

bool without_size(StrategyRequest& request) { return !request.block_size; }

bool with_auto_block(StrategyRequest& request) {
  const auto it = request.options.find("block");
  if (it == request.options.end() || it->second != "auto") return false;
  request.options.erase(it);
  return true;
}

}  // namespace

std::span<const Strategy* const> timed_strategies() {
  struct All {
    std::vector<std::unique_ptr<TimedBlockSize>> timed;
    std::vector<const Strategy*> strategies;
  };
  static const All kAll = [] {
    All all;
    for (const Strategy* strategy : published_strategies()) {
      if (strategy->name() == "dcp") {
        all.timed.push_back(std::make_unique<TimedBlockSize>(
            *strategy, std::vector<std::int64_t>{4096, 2048, 1024, 512}, without_size));
      } else if (strategy->name() == "fcp") {
        all.timed.push_back(std::make_unique<TimedBlockSize>(
            *strategy, std::vector<std::int64_t>{8192, 4096, 2048, 1024}, with_auto_block));
      } else {
        all.strategies.push_back(strategy);
        continue;
      }
      all.strategies.push_back(all.timed.back().get());
    }
    return all;
  }();
  return kAll.strategies;
}

}  // namespace contextile

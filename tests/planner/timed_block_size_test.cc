#include "planner/timed_block_size.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

// Records the sizes at which it must arrange; its arrangement does not depend on them.
class NotingStrategy : public Strategy {
 public:
  [[nodiscard]] std::string_view name() const override { return "noting"; }
  [[nodiscard]] std::string_view summary() const override { return ""; }
  [[nodiscard]] std::vector<OptionSpec> options() const override { return {}; }
  [[nodiscard]] std::optional<std::string> unsupported(const Workload&, const Cluster&,
                                                       const StrategyRequest&) const override {
    return std::nullopt;
  }
  [[nodiscard]] std::vector<std::int64_t> block_sizes(const StrategyRequest&) const override {
    return {256, 4096, 2048, 1024, 512};
  }
  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    const std::lock_guard lock(mutex_);
    sizes_.push_back(*request.block_size);
    return find_strategy("zigzag").arrange(workload, cluster, {});
  }

  // Descending.
  [[nodiscard]] std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> sizes = sizes_;
    std::ranges::sort(sizes, std::greater<>());
    return sizes;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::int64_t> sizes_;
};

std::vector<std::int64_t> timed_sizes_of(std::int64_t tokens) {
  const MaskUse causal = parse_mask_use("causal");
  const std::vector<std::int64_t> lengths = {tokens};
  const Workload workload = make_workload(lengths, {}, {&causal, 1});
  const NotingStrategy strategy;
  (void)arrange_timed(strategy, workload, load_cluster("local:1x2"), {});
  return strategy.sizes();
}

TEST(TimedBlockSize, AllSizesOfABatchThatIsSoonArranged) {
  EXPECT_EQ(timed_sizes_of(131072), (std::vector<std::int64_t>{4096, 2048, 1024, 512, 256}));
}

TEST(TimedBlockSize, OnlyTheBestGuessMayMakeManyTiles) {
  EXPECT_EQ(timed_sizes_of(1 << 20), (std::vector<std::int64_t>{4096, 2048, 256}));
}

}  // namespace
}  // namespace contextile

#include "auto/search.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include "auto/placement.h"
#include "auto/timed_block_size.h"
#include "base/check.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"

namespace contextile {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// An arrangement with its predicted time.
struct Candidate {
  double time_us = kNever;  // infinity: not tried, or does not fit the device
  std::string chosen;
  Arrangement arrangement;
};

class Search {
 public:
  Search(const Workload& workload, const Cluster& cluster, const StrategyRequest& request,
         const SearchOptions& options)
      : workload_(workload),
        cluster_(cluster),
        request_(request),
        options_(options),
        start_(std::chrono::steady_clock::now()) {}

  SearchResult run() {
    place_all();
    try_schedules();
    if (options_.published) try_published();
    improve();
    CONTEXTILE_CHECK(best_.time_us < kNever,
                     "auto: expected a plan that fits {} bytes of device memory, found none in {} "
                     "candidates",
                     cluster_.memory_bytes, tried_);
    SearchResult result{.arrangement = std::move(best_.arrangement),
                        .chosen = std::move(best_.chosen),
                        .predicted_us = best_.time_us,
                        .binding = {},
                        .candidates = tried_};
    result.binding = binding_of(result.arrangement);
    return result;
  }

 private:
  [[nodiscard]] bool out_of_time() const {
    if (options_.budget_ms == 0) return false;
    return std::chrono::steady_clock::now() - start_ >=
           std::chrono::milliseconds(options_.budget_ms);
  }

  // Predicted time of an arrangement; infinity if its plan exceeds the devices' memory.
  [[nodiscard]] double time_of(const Arrangement& arrangement) const {
    const Plan plan = build_plan(workload_, cluster_, arrangement);
    if (cluster_.memory_bytes > 0) {
      const PlanStats stats = statistics(plan);
      for (const auto& direction : {stats.forward, stats.backward}) {
        if (direction && direction->peak_memory_bytes > cluster_.memory_bytes) return kNever;
      }
    }
    return simulate(plan, cluster_).time_us();
  }

  // Makes and times `count` candidates in parallel and keeps the best of them and so far.
  template <typename Make>
  void try_candidates(std::size_t count, const Make& make) {
    std::vector<Candidate> candidates(count);
    tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) {
      if (out_of_time() && (i > 0 || best_.time_us < kNever)) return;
      candidates[i] = make(i);
      if (!candidates[i].chosen.empty()) {
        candidates[i].time_us = time_of(candidates[i].arrangement);
      }
    });
    for (Candidate& candidate : candidates) {
      if (candidate.chosen.empty()) continue;
      ++tried_;
      if (candidate.time_us < best_.time_us) best_ = std::move(candidate);
    }
  }

  void try_published() {
    const auto strategies = timed_strategies();
    StrategyRequest request = request_;
    request.options.clear();
    try_candidates(strategies.size(), [&](std::size_t i) {
      Candidate candidate;
      const Strategy& strategy = *strategies[i];
      if (strategy.unsupported(workload_, cluster_, request)) return candidate;
      candidate.arrangement = strategy.arrange(workload_, cluster_, request);
      candidate.chosen = strategy.name();
      return candidate;
    });
  }

  // -------------------------------------------------------------------------- our placements

  [[nodiscard]] std::vector<std::int64_t> block_sizes() const {
    if (request_.block_size) return {*request_.block_size};
    // Larger blocks only where every device still has a few of them.
    constexpr std::int64_t kBlocksOfDevice = 2;
    constexpr std::int64_t kMostBlocks = 4096;
    std::vector<std::int64_t> sizes;
    for (const std::int64_t size : {1024, 2048, 512, 4096, 8192, 256, 128}) {
      const std::int64_t blocks = workload_.num_tokens() / size;
      if (blocks >= kBlocksOfDevice * cluster_.num_devices() && blocks <= kMostBlocks) {
        sizes.push_back(size);
      }
    }
    if (sizes.empty()) {
      sizes.push_back(
          std::max<std::int64_t>(1, workload_.num_tokens() / (4 * cluster_.num_devices())));
    }
    constexpr std::size_t kMostSizes = 3;
    if (sizes.size() > kMostSizes) sizes.resize(kMostSizes);
    return sizes;
  }

  [[nodiscard]] std::vector<std::int32_t> head_groups() const {
    std::vector<std::int32_t> groups{1};
    const std::int32_t kv_heads = workload_.shape.kv_heads;
    if (kv_heads > 1) groups.push_back(kv_heads <= 16 ? kv_heads : 8 * (kv_heads % 8 == 0));
    if (kv_heads % 2 == 0 && kv_heads > 2) groups.push_back(2);
    std::erase(groups, 0);
    return groups;
  }

  void place_all() {
    retain_ = decide_retain();
    std::vector<std::shared_ptr<const PricedTiles>> priced;
    for (const std::int64_t size : block_sizes()) {
      priced.push_back(std::make_shared<const PricedTiles>(
          price_tiles(workload_, cluster_, size, request_.backward)));
    }
    std::vector<std::pair<std::shared_ptr<const PricedTiles>, PlacementChoice>> choices;
    constexpr std::size_t kMostTiles = 300'000;  // more than that only with one head group
    for (const double eps : {0.12, 0.05, 0.25}) {
      for (const std::int32_t groups : head_groups()) {
        for (const auto& tiles : priced) {
          const std::size_t count =
              tiles->tiles.all_tiles.size() * static_cast<std::size_t>(groups);
          if (groups > 1 && count > kMostTiles) continue;
          choices.push_back({tiles,
                             {.block_size = tiles->block_size,
                              .head_groups = groups,
                              .eps = eps,
                              .effort = 1,
                              .seed = request_.seed + 1}});
        }
      }
    }
    placements_.resize(choices.size());
    tbb::parallel_for(std::size_t{0}, choices.size(), [&](std::size_t i) {
      if (i > 0 && out_of_time()) return;
      placements_[i] =
          place(workload_, cluster_, choices[i].first, choices[i].second, request_, retain_);
    });
    std::erase_if(placements_, [](const Placement& p) { return p.priced == nullptr; });
    std::stable_sort(
        placements_.begin(), placements_.end(),
        [](const Placement& a, const Placement& b) { return a.estimate_us < b.estimate_us; });
  }

  // Received inputs stay for backward where that costs little of a known memory: what one device
  // receives in forward is at most a few times what it owns.
  [[nodiscard]] bool decide_retain() const {
    if (!request_.backward) return false;
    if (options_.retain != RetainInputs::kAuto) return options_.retain == RetainInputs::kOn;
    if (cluster_.memory_bytes == 0) return false;
    std::int64_t layers = 0;
    for (const NamedMask& mask : workload_.masks) layers += mask.layers;
    const AttentionShape& shape = workload_.shape;
    const std::int64_t token_bytes = unit_bytes(Kind::kQ, 1, shape, 1, shape.dtype) +
                                     unit_bytes(Kind::kKv, 1, shape, 1, shape.dtype);
    const std::int64_t owned = workload_.num_tokens() / cluster_.num_devices() + 1;
    constexpr std::int64_t kTimesOwned = 4;
    constexpr std::int64_t kShareOfMemory = 20;
    return kTimesOwned * owned * token_bytes * layers <= cluster_.memory_bytes / kShareOfMemory;
  }

  [[nodiscard]] Candidate scheduled(const Placement& placement, OverlapOptions overlap) const {
    Candidate candidate;
    candidate.chosen = "placement";
    candidate.arrangement =
        arrange_placement(workload_, cluster_, placement, request_, overlap, retain_);
    candidate.arrangement.options = {
        {"block_size", fmt::format("{}", placement.choice.block_size)},
        {"head_groups", fmt::format("{}", placement.choice.head_groups)},
        {"eps", fmt::format("{}", placement.choice.eps)},
        {"stages", fmt::format("{}", overlap.stages)},
        {"ahead", fmt::format("{}", overlap.ahead)},
        {"retained", retain_ ? "on" : "off"}};
    return candidate;
  }

  void try_schedules() {
    constexpr std::size_t kTried = 6;
    const auto count = std::min(placements_.size(),
                                static_cast<std::size_t>(std::max(1.0, kTried * options_.effort)));
    static constexpr OverlapOptions kSchedules[] = {{8, 2}, {16, 4}, {2, 1}};
    constexpr std::size_t kNumSchedules = std::size(kSchedules);
    try_candidates(count * kNumSchedules, [&](std::size_t i) {
      return scheduled(placements_[i / kNumSchedules], kSchedules[i % kNumSchedules]);
    });
  }

  // The best placements again, with more steps and other seeds, around the best schedule.
  void improve() {
    if (placements_.empty() || out_of_time()) return;
    constexpr std::size_t kImproved = 3;
    constexpr std::size_t kSeeds = 2;
    const std::size_t count = std::min(placements_.size(), kImproved);
    std::vector<Placement> better(count * kSeeds);
    tbb::parallel_for(std::size_t{0}, better.size(), [&](std::size_t i) {
      if (out_of_time()) return;
      PlacementChoice choice = placements_[i / kSeeds].choice;
      choice.effort = 3 * options_.effort;
      choice.seed += 1 + i % kSeeds;
      better[i] =
          place(workload_, cluster_, placements_[i / kSeeds].priced, choice, request_, retain_);
    });
    std::erase_if(better, [](const Placement& p) { return p.priced == nullptr; });
    static constexpr OverlapOptions kSchedules[] = {{8, 2}, {16, 4}, {6, 6}, {32, 8}};
    constexpr std::size_t kNumSchedules = std::size(kSchedules);
    try_candidates(better.size() * kNumSchedules, [&](std::size_t i) {
      return scheduled(better[i / kNumSchedules], kSchedules[i % kNumSchedules]);
    });
  }

  // What would help most were it free.
  [[nodiscard]] std::string binding_of(const Arrangement& arrangement) const {
    constexpr double kFree = 1e6;
    const Plan plan = build_plan(workload_, cluster_, arrangement);
    struct Relief {
      const char* name;
      Cluster cluster;
    };
    std::vector<Relief> reliefs(4, {"", cluster_});
    reliefs[0].name = "compute";
    reliefs[0].cluster.attention_tflops *= kFree;
    reliefs[1].name = "inter-node";
    reliefs[1].cluster.inter_gbytes_per_s_per_node *= kFree;
    reliefs[2].name = "intra-node";
    reliefs[2].cluster.intra_gbytes_per_s *= kFree;
    reliefs[3].name = "latency";
    reliefs[3].cluster.attention.call_us = reliefs[3].cluster.launch_us = 0;
    reliefs[3].cluster.intra_latency_us = reliefs[3].cluster.inter_latency_us = 0;
    std::vector<double> times_us(reliefs.size());
    tbb::parallel_for(std::size_t{0}, reliefs.size(), [&](std::size_t i) {
      times_us[i] = simulate(plan, reliefs[i].cluster).time_us();
    });
    const auto least = std::min_element(times_us.begin(), times_us.end()) - times_us.begin();
    return reliefs[static_cast<std::size_t>(least)].name;
  }

  const Workload& workload_;
  const Cluster& cluster_;
  const StrategyRequest& request_;
  const SearchOptions& options_;
  std::chrono::steady_clock::time_point start_;
  bool retain_ = false;
  std::vector<Placement> placements_;  // by estimate
  Candidate best_;
  std::int32_t tried_ = 0;
};

}  // namespace

SearchResult search(const Workload& workload, const Cluster& cluster,
                    const StrategyRequest& request, const SearchOptions& options) {
  return Search(workload, cluster, request, options).run();
}

}  // namespace contextile

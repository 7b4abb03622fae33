#include "planner/search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "contextile/plan.h"
#include "contextile/plan_build.h"
#include "contextile/plan_estimate.h"
#include "contextile/plan_stats.h"
#include "contextile/registry.h"
#include "contextile/simulate.h"
#include "planner/auto_strategy.h"
#include "planner/binding.h"
#include "planner/placement.h"
#include "planner/search_budget.h"
#include "planner/timed_block_size.h"

namespace contextile {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// What a limited search has taken when each part has had its share.
constexpr double kShareOfPlacing = 0.4;
constexpr double kShareOfSchedules = 0.65;
constexpr double kShareOfOptions = 0.85;  // of other strategies with other than their defaults
constexpr double kShareOfPublished = 0.9;
// Where time is limited, others go first, many of which are made in a millisecond, and on when
// placements have had their turn.
constexpr double kShareOfTimeForQuick = 0.25;
constexpr double kShareOfTimeForOthers = 0.8;

// Candidates of each part at effort 1, until it is known how many there are.
constexpr std::int64_t kMostScheduled = 30;
constexpr std::int64_t kMostPublished = 15;
constexpr std::int64_t kMostImproved = 60;

// An arrangement with its predicted time.
struct Candidate {
  double time_us = kNever;  // infinity: not tried, or does not fit the device
  std::string chosen;
  Arrangement arrangement;
};

template <typename T>
void atomic_max(std::atomic<T>& most, T value) {
  T held = most;
  while (held < value && !most.compare_exchange_weak(held, value)) {
  }
}

std::string schedule_text(const Schedule& schedule) {
  if (const auto* slots = std::get_if<TimelineOptions>(&schedule)) {
    return fmt::format("{} slots, {} ahead", slots->slots, slots->ahead);
  }
  const auto& overlap = std::get<OverlapOptions>(schedule);
  return fmt::format("{} stages, {} ahead", overlap.stages, overlap.ahead);
}

class Search {
 public:
  Search(const Workload& workload, const Cluster& cluster, const StrategyRequest& request,
         const AutoOptions& options)
      : workload_(workload),
        cluster_(cluster),
        request_(request),
        options_(options),
        budget_(options.steps),
        progress_(request.progress),
        start_(std::chrono::steady_clock::now()) {}

  SearchResult run() {
    const bool has_others = options_.candidates == Candidates::kAll;
    if (has_others && options_.budget_ms > 0) {
      others_ = published();
      try_others(kShareOfTimeForQuick);
    }
    place_all();
    try_placements();
    if (has_others && options_.budget_ms == 0) others_ = published();
    try_others(kShareOfTimeForOthers);
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
    result.binding = binding_of(build_plan(workload_, cluster_, result.arrangement), cluster_);
    return result;
  }

 private:
  [[nodiscard]] double elapsed_us() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_)
        .count();
  }
  [[nodiscard]] bool out_of_time() const { return !has_time_for(0); }
  // Whether so many steps, which are about microseconds, end in that share of the time.
  [[nodiscard]] bool has_time_for(std::int64_t steps, double share = 1) const {
    if (options_.budget_ms == 0) return true;
    const double limit_us = share * 1e3 * static_cast<double>(options_.budget_ms);
    return elapsed_us() + static_cast<double>(steps) < limit_us;
  }

  // All of them with every option they find worth trying, from the newest strategy to the oldest;
  // with a limit on steps what it allows, defaults first; with one on time those first that try one
  // block size, and of the others none that would not end in time.
  [[nodiscard]] std::vector<StrategyChoice> published() {
    std::vector<StrategyChoice> others;
    for (const Strategy* strategy : strategies()) {
      if (strategy == &auto_strategy()) continue;
      for (auto& options : strategy->variants(workload_, cluster_, request_)) {
        others.push_back({std::string(strategy->name()), std::move(options)});
      }
    }
    std::ranges::reverse(others);
    const auto num_sizes = [&](const StrategyChoice& choice) {
      const auto sizes = std::ssize(find_strategy(choice.name).block_sizes(request_of(choice)));
      return std::max<std::int64_t>(1, sizes);
    };
    const std::int64_t steps = steps_of_other_strategy(num_devices(), workload_.num_tokens(),
                                                       std::ssize(workload_.sequences));
    if (options_.budget_ms > 0) {
      std::ranges::stable_sort(others, {}, num_sizes);
      std::erase_if(others, [&](const StrategyChoice& choice) {
        return num_sizes(choice) > 1 && !has_time_for(num_sizes(choice) * steps);
      });
    }
    if (!budget_.limited()) return others;
    std::ranges::stable_partition(
        others, [](const StrategyChoice& choice) { return choice.options.empty(); });
    std::erase_if(others, [&](const StrategyChoice& choice) {
      return !budget_.take(num_sizes(choice) * steps,
                           choice.options.empty() ? kShareOfPublished : kShareOfOptions);
    });
    return others;
  }

  [[nodiscard]] StrategyRequest request_of(const StrategyChoice& choice) const {
    StrategyRequest request = request_;
    request.options = choice.options;
    request.progress = {};
    return request;
  }

  // Makes and times the others in parallel, as many as end in that share of the time, which leave
  // the list, and keeps the best of them and so far. Without any plan the first one in any case.
  void try_others(double share) {
    std::vector<Candidate> candidates(others_.size());
    std::atomic<std::int64_t> longest_us = 0;  // of a candidate so far
    std::atomic<std::size_t> next = 0;         // in order, whatever the threads' turns
    std::atomic<std::size_t> num_made = 0;
    progress_.expect(std::ssize(others_) - kMostPublished);
    parallel_for(std::size_t{0}, others_.size(), [&](std::size_t) {
      const std::size_t i = next++;
      if (!has_time_for(longest_us, share) && (i > 0 || best_.time_us < kNever)) return;
      const double began_us = elapsed_us();
      candidates[i] = candidate_of(others_[i]);
      atomic_max(num_made, i + 1);
      atomic_max(longest_us, static_cast<std::int64_t>(elapsed_us() - began_us));
      progress_.one_done("simulating other strategies");
    });
    others_.erase(others_.begin(), others_.begin() + static_cast<std::ptrdiff_t>(num_made.load()));
    for (Candidate& candidate : candidates) {
      if (candidate.chosen.empty()) continue;
      ++tried_;
      if (candidate.time_us < best_.time_us) best_ = std::move(candidate);
    }
  }

  // Without a name where the strategy cannot do it.
  [[nodiscard]] Candidate candidate_of(const StrategyChoice& choice) const {
    Candidate candidate;
    const Strategy& strategy = find_strategy(choice.name);
    const StrategyRequest request = request_of(choice);
    if (strategy.unsupported(workload_, cluster_, request)) return candidate;
    candidate.arrangement = arrange_timed(strategy, workload_, cluster_, request);
    candidate.chosen = strategy.name();
    const Times times = times_of(build_plan(workload_, cluster_, candidate.arrangement));
    candidate.time_us = times.forward_us + times.backward_us;
    return candidate;
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
    const bool has_plan = best_.time_us < kNever;
    std::vector<std::shared_ptr<const PricedTiles>> priced;
    for (const std::int64_t size : block_sizes()) {
      const std::int64_t blocks = workload_.num_tokens() / size;
      const auto tiles = static_cast<std::int64_t>(estimated_tiles(workload_, size));
      if ((has_plan || !priced.empty()) &&
          !has_time_for(steps_of_placing(num_devices(), blocks, tiles))) {
        continue;
      }
      priced.push_back(std::make_shared<const PricedTiles>(
          price_tiles(workload_, cluster_, size, request_.backward)));
    }
    std::vector<std::pair<std::shared_ptr<const PricedTiles>, PlacementChoice>> choices;
    constexpr std::size_t kMostTiles = 150'000;  // more than that only with one head group
    for (const double eps : {0.12, 0.05, 0.25}) {
      for (const auto& tiles : priced) {
        for (const std::int32_t groups : head_groups()) {
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
    std::erase_if(choices, [&, first = !has_plan](const auto& choice) mutable {
      const std::int64_t steps =
          steps_of_placing(num_devices(), num_units(*choice.first, choice.second),
                           choice.second.head_groups * std::ssize(choice.first->tiles.all_tiles));
      if (std::exchange(first, false)) {
        budget_.force(steps);
        return false;
      }
      return !budget_.take(steps, kShareOfPlacing);
    });
    placements_.resize(choices.size());
    progress_.expect(std::ssize(choices) + kMostScheduled + kMostPublished + kMostImproved);
    parallel_for(std::size_t{0}, choices.size(), [&](std::size_t i) {
      const auto& [tiles, choice] = choices[i];
      const std::int64_t steps =
          steps_of_placing(num_devices(), num_units(*tiles, choice),
                           choice.head_groups * std::ssize(tiles->tiles.all_tiles));
      if ((i > 0 || has_plan) && !has_time_for(steps)) return;
      placements_[i] =
          place(workload_, cluster_, choices[i].first, choices[i].second, request_, retain_);
      progress_.one_done("placing tiles");
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

  struct Times {
    double forward_us = kNever;
    double backward_us = kNever;
  };
  // A plan's times on the cluster; kNever for a direction that exceeds the devices' memory.
  [[nodiscard]] Times times_of(const Plan& plan) const {
    const Simulation simulation = simulate(plan, cluster_);
    Times times{simulation.forward ? simulation.forward->time_us : 0,
                simulation.backward ? simulation.backward->time_us : 0};
    if (cluster_.memory_bytes == 0) return times;
    const PlanStats stats = statistics(plan);
    const auto fits = [&](const std::optional<DirectionStats>& direction) {
      return !direction || direction->peak_memory_bytes <= cluster_.memory_bytes;
    };
    if (!fits(stats.forward)) times.forward_us = kNever;
    if (!fits(stats.backward)) times.backward_us = kNever;
    return times;
  }

  // Times every placement under every schedule in both directions, and takes the best pair of
  // schedules of the best placement if that is better than the best so far. Returns each one's
  // best.
  std::vector<double> try_schedules(std::span<const Placement> placements,
                                    std::span<const Schedule> schedules) {
    std::vector<Times> times(placements.size() * schedules.size());
    parallel_for(std::size_t{0}, times.size(), [&](std::size_t i) {
      if ((i > 0 || best_.time_us < kNever) && out_of_time()) return;
      const Schedule& schedule = schedules[i % schedules.size()];
      times[i] = times_of(
          build_plan(workload_, cluster_,
                     arrange_placement(workload_, cluster_, placements[i / schedules.size()],
                                       request_, {schedule, schedule}, retain_)));
      progress_.one_done("simulating placements");
    });
    std::vector<double> best_of_placement;
    const Placement* best = nullptr;
    SchedulePair best_pair;
    double best_us = best_.time_us;
    for (std::size_t p = 0; p < placements.size(); ++p) {
      const auto of_placement = std::span(times).subspan(p * schedules.size(), schedules.size());
      const auto forward = std::ranges::min_element(of_placement, {}, &Times::forward_us);
      const auto backward = std::ranges::min_element(of_placement, {}, &Times::backward_us);
      best_of_placement.push_back(forward->forward_us + backward->backward_us);
      if (best_of_placement.back() >= best_us) continue;
      best_us = best_of_placement.back();
      best = &placements[p];
      best_pair = {schedules[static_cast<std::size_t>(forward - of_placement.begin())],
                   schedules[static_cast<std::size_t>(backward - of_placement.begin())]};
    }
    tried_ += static_cast<std::int32_t>(std::ranges::count_if(
        times, [](const Times& t) { return t.forward_us < kNever || t.backward_us < kNever; }));
    if (best == nullptr) return best_of_placement;
    best_.time_us = best_us;
    best_.chosen = "placement";
    best_.arrangement = arrange_placement(workload_, cluster_, *best, request_, best_pair, retain_);
    best_.arrangement.options = {{"block_size", fmt::format("{}", best->choice.block_size)},
                                 {"head_groups", fmt::format("{}", best->choice.head_groups)},
                                 {"eps", fmt::format("{}", best->choice.eps)},
                                 {"forward", schedule_text(best_pair.forward)}};
    if (request_.backward) {
      best_.arrangement.options["backward"] = schedule_text(best_pair.backward);
      best_.arrangement.options["retained"] = retain_ ? "on" : "off";
    }
    return best_of_placement;
  }

  [[nodiscard]] std::int64_t num_devices() const { return cluster_.num_devices(); }
  [[nodiscard]] static std::int64_t num_units(const PricedTiles& priced,
                                              const PlacementChoice& choice) {
    return std::int64_t{priced.tiles.work.blocks.num_blocks()} * choice.head_groups;
  }
  [[nodiscard]] static std::int64_t num_tiles(const Placement& placement) {
    return std::ssize(placement.priced->tiles.all_tiles) * placement.choice.head_groups;
  }

  // How many of the best placements to go on with, each placed `placings` times and simulated
  // `plans` times: fewer where plans are large, none where the budget has no such share left.
  [[nodiscard]] std::size_t affordable(std::size_t most, std::int64_t placings, std::int64_t plans,
                                       double share) {
    constexpr std::int64_t kTiles = 500'000;  // in plans of one schedule
    std::int64_t tiles = 0;
    for (std::size_t p = 0; p < most; ++p) {
      const std::int64_t own = num_tiles(placements_[p]);
      tiles += own;
      if (p > 0 && tiles > kTiles) return p;
      const std::int64_t units = num_units(*placements_[p].priced, placements_[p].choice);
      const std::int64_t steps = placings * steps_of_placing(num_devices(), units, own) +
                                 plans * steps_of_simulating(num_devices(), own);
      if (!budget_.take(steps, share)) return p;
    }
    return most;
  }

  void try_placements() {
    if (placements_.empty()) return;
    constexpr double kTried = 6;
    const auto most = static_cast<std::size_t>(std::max(1.0, kTried * options_.effort));
    static const Schedule kSchedules[] = {OverlapOptions{8, 2}, TimelineOptions{4, 1},
                                          TimelineOptions{8, 1}, TimelineOptions{16, 2},
                                          OverlapOptions{2, 1}};
    std::span<const Schedule> schedules = kSchedules;
    std::size_t count =
        affordable(std::min(placements_.size(), most), 0, std::ssize(schedules), kShareOfSchedules);
    if (count == 0) {  // one plan, whatever it costs
      schedules = schedules.first(1);
      count = 1;
      budget_.force(steps_of_simulating(num_devices(), num_tiles(placements_.front())));
    }
    progress_.expect(static_cast<std::int64_t>(count * schedules.size()) - kMostScheduled);
    const std::vector<double> times_us =
        try_schedules(std::span(placements_).first(count), schedules);
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t p) { return times_us[p]; });
    std::vector<Placement> sorted;
    for (const std::size_t p : order) sorted.push_back(std::move(placements_[p]));
    std::ranges::move(sorted, placements_.begin());
  }

  // The best placements again, with more steps and other seeds, balanced as before and better,
  // under more schedules.
  void improve() {
    if (placements_.empty() || out_of_time()) return;
    constexpr std::size_t kImproved = 3;
    constexpr std::array kTighter = {1.0, 0.4};
    constexpr std::size_t kSeeds = kTighter.size();
    constexpr double kTimesTheSteps = 3;
    static const Schedule kSchedules[] = {
        OverlapOptions{4, 2},  OverlapOptions{6, 6},   OverlapOptions{16, 4},
        OverlapOptions{32, 8}, TimelineOptions{4, 1},  TimelineOptions{6, 1},
        TimelineOptions{8, 1}, TimelineOptions{16, 2}, TimelineOptions{24, 2}};
    constexpr auto kPlacings = static_cast<std::int64_t>(kSeeds * kTimesTheSteps);
    constexpr auto kPlans = static_cast<std::int64_t>(kSeeds * std::size(kSchedules));
    const std::size_t count =
        affordable(std::min(placements_.size(), kImproved), kPlacings, kPlans, 1);
    std::vector<Placement> better(count * kSeeds);
    progress_.expect(static_cast<std::int64_t>(better.size() * (1 + std::size(kSchedules))) -
                     kMostImproved);
    parallel_for(std::size_t{0}, better.size(), [&](std::size_t i) {
      if (out_of_time()) return;
      PlacementChoice choice = placements_[i / kSeeds].choice;
      choice.effort = kTimesTheSteps * options_.effort;
      choice.seed += 1 + i % kSeeds;
      choice.eps *= kTighter[i % kSeeds];
      better[i] =
          place(workload_, cluster_, placements_[i / kSeeds].priced, choice, request_, retain_);
      progress_.one_done("placing tiles again");
    });
    std::erase_if(better, [](const Placement& p) { return p.priced == nullptr; });
    try_schedules(better, kSchedules);
  }

  const Workload& workload_;
  const Cluster& cluster_;
  const StrategyRequest& request_;
  const AutoOptions& options_;
  StepBudget budget_;
  SearchProgress progress_;
  std::chrono::steady_clock::time_point start_;
  bool retain_ = false;
  std::vector<Placement> placements_;   // by estimate
  std::vector<StrategyChoice> others_;  // that nobody has tried
  Candidate best_;
  std::int32_t tried_ = 0;
};

}  // namespace

SearchResult search(const Workload& workload, const Cluster& cluster,
                    const StrategyRequest& request, const AutoOptions& options) {
  return Search(workload, cluster, request, options).run();
}

}  // namespace contextile

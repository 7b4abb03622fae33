#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/out_of_memory.h"
#include "base/parallel_for.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "plan/size_text.h"
#include "planner/checked_batch.h"
#include "planner/timed_block_size.h"
#include "strategy/schedule/token_alignment.h"

namespace contextile {
namespace {

// Strategies count by device and divide by the cluster's numbers, so those must be valid.
void check_fits(const Workload& workload, const Cluster& cluster) {
  check_cluster(cluster);
  for (const HomeRange& home : workload.home) {
    CONTEXTILE_CHECK(home.owner.valid() && home.owner.value < cluster.num_devices(),
                     "home of [{}, {}): expected a rank below {}, found {}", home.tokens.begin,
                     home.tokens.end, cluster.num_devices(), home.owner.value);
  }
}

void check_request(const Workload& workload, const Cluster& cluster, const PlanOptions& options) {
  check_fits(workload, cluster);
  check_alignment(workload, cluster, options);
}

constexpr std::int64_t kSteps = 3;

void begin_step(const PlanOptions& options, std::string_view what, std::int64_t step) {
  if (options.progress) options.progress(what, step, kSteps);
}

// Reports a part of one step as a part of all of them.
ProgressHook within_step(const PlanOptions& options, std::int64_t step) {
  if (!options.progress) return {};
  return [&options, step](std::string_view what, std::int64_t done, std::int64_t total) {
    options.progress(what, step * total + done, kSteps * total);
  };
}

std::string size_text(const Workload& workload, const Cluster& cluster,
                      const PlanOptions& options) {
  std::string text = fmt::format("a plan of {} tokens on {} devices", workload.num_tokens(),
                                 cluster.num_devices());
  if (!options.block_size) return text;
  return text + fmt::format(", about {:.2g} tiles in blocks of {}",
                            estimated_tiles(workload, *options.block_size), *options.block_size);
}

std::string size_text(const Arrangement& arrangement, const Cluster& cluster) {
  std::size_t tiles = 0;
  for (const ArrangedRound& round : arrangement.rounds) {
    for (const ArrangedMask& mask : round.programs) {
      for (const auto* direction : {&mask.forward, &mask.backward}) {
        if (*direction) tiles += (*direction)->tiles.size();
      }
    }
  }
  return fmt::format("a plan of {} tiles on {} devices", tiles, cluster.num_devices());
}

// Builds the plan of an arrangement whose workload is known to be valid.
PlannedBatch build_checked(const Workload& workload, const Cluster& cluster,
                           const Arrangement& arrangement, const PlanOptions& options) {
  PlannedBatch planned;
  with_memory_for([&] { return size_text(arrangement, cluster); },
                  [&] {
                    begin_step(options, "building the plan", 1);
                    const Clock::time_point arranged = Clock::now();
                    planned.plan = std::make_shared<const Plan>(
                        build_plan(workload, cluster, arrangement, {.limits = options.limits}));
                    planned.build_s = seconds_since(arranged);
                  });
  return planned;
}

void verify_built(const PlanOptions& options, PlannedBatch& planned) {
  with_memory_for([&] { return size_text(*planned.plan); },
                  [&] {
                    begin_step(options, "verifying", 2);
                    const Clock::time_point built = Clock::now();
                    planned.verified = verify(*planned.plan, {.progress = within_step(options, 2)});
                    planned.verify_s = seconds_since(built);
                    planned.statistics = statistics(*planned.plan);
                  });
}

}  // namespace

std::optional<std::string> unsupported_reason(const Workload& workload, const Cluster& cluster,
                                              const StrategyChoice& choice,
                                              const PlanOptions& options) {
  check_request(workload, cluster, options);
  return find_strategy(choice.name).unsupported(workload, cluster, request_of(choice, options));
}

namespace {

PlannedBatch arrange_and_build(const Workload& workload, const Cluster& cluster,
                               const StrategyChoice& choice, const PlanOptions& options) {
  const Strategy& strategy = find_strategy(choice.name);
  check_request(workload, cluster, options);
  // The sizes that strategies choose do not make too many tiles.
  if (options.block_size && !options.force) {
    check_plan_size(workload, cluster, *options.block_size);
  }
  begin_step(options, "arranging", 0);
  std::optional<SearchReport> search;
  StrategyRequest request = request_of(choice, options);
  request.searched = [&](const SearchReport& report) { search = report; };
  const Clock::time_point started = Clock::now();
  Arrangement arrangement =
      with_memory_for([&] { return size_text(workload, cluster, options); },
                      [&] { return arrange_timed(strategy, workload, cluster, request); });
  align_tokens(workload, cluster, options,
               arrangement);  // strategies of callers need not know of it
  const double arrange_s = seconds_since(started);
  PlannedBatch planned = build_checked(workload, cluster, arrangement, options);
  arrangement = {};  // verifying a large plan needs the memory
  verify_built(options, planned);
  planned.arrange_s = arrange_s;
  planned.search = std::move(search);
  return planned;
}

}  // namespace

PlannedBatch plan_checked_batch(const Workload& workload, const Cluster& cluster,
                                const StrategyChoice& choice, const PlanOptions& options) {
  PlannedBatch planned;
  look_during([&] { planned = arrange_and_build(workload, cluster, choice, options); });
  return planned;
}

PlannedBatch plan_batch(const Workload& workload, const Cluster& cluster,
                        const StrategyChoice& choice, const PlanOptions& options) {
  check_workload(workload);
  return plan_checked_batch(workload, cluster, choice, options);
}

PlannedBatch plan_arrangement(const Workload& workload, const Cluster& cluster,
                              const Arrangement& arrangement, const PlanOptions& options) {
  check_workload(workload);
  std::optional<Arrangement> aligned;
  if (aligns_tokens(options)) {
    check_request(workload, cluster, options);
    align_tokens(workload, cluster, options, aligned.emplace(arrangement));
  }
  PlannedBatch planned =
      build_checked(workload, cluster, aligned ? *aligned : arrangement, options);
  verify_built(options, planned);
  return planned;
}

PlannedBatch plan_and_check(const Workload& workload, const Cluster& cluster,
                            const StrategyChoice& choice, const PlanOptions& options) {
  PlannedBatch planned = plan_batch(workload, cluster, choice, options);
  if (!planned.verified.ok()) {
    throw CheckFailed(fmt::format("{}: {} violations: {}", choice_text(choice),
                                  planned.verified.num_violations,
                                  planned.verified.violations.front()));
  }
  return planned;
}

}  // namespace contextile

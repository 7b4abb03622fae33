// Planning ahead: some threads or processes plan the batches of the next steps while ranks execute
// the current one. They find each other through a store alone.
//
//   LookaheadPlanner planner(job, {.steps_ahead = 4, .threads = 2});   // here, or elsewhere
//   PlanFeed feed(planner.store(), job, rank);                         // one for each rank
//   for (std::int64_t step = 0; step < 1000; ++step) {
//     const TakenStep taken = feed.take(step);  // waits if it must
//     executor.prepare(taken.plan);
//     feed.acknowledge(step);
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/store.h"
#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/plan.h"
#include "contextile/planner.h"

namespace contextile {

// A job to plan, the same in every process of a run. A step's plan depends only on the job: not on
// the process that plans it, the time, or the number of threads.
struct PlanJob {
  BatchSampler sampler;
  WorkloadInput input;
  Cluster cluster;
  // The default takes about 4 seconds of one core for a batch of 128 devices (docs/auto.md).
  // Strategies with a time budget are refused, because their plans differ between machines.
  StrategyChoice choice = {"auto", {{"steps", "600000"}, {"steps_per_device", "18750"}}};
  PlanOptions plan;  // `progress` is not used
  // Makes the batch of a step if `input` cannot describe it. Its documents must have the lengths of
  // `lengths_tokens`, and its shape must be the input's. Planning threads call it, several at a
  // time. Empty: load_workload makes it.
  std::function<Workload(std::int64_t step)> workload = {};
  // Returns the lengths of a step's documents if they are not the sampler's. Empty: the sampler's.
  std::function<std::vector<std::int64_t>(std::int64_t step)> lengths_tokens = {};
};

// Returns the batch of a step that the planner plans. Throws as BatchSampler and load_workload do,
// and the errors of job.workload.
[[nodiscard]] Workload workload_of(const PlanJob& job, std::int64_t step);

// Thrown when a step cannot be planned, because of the batch or of the strategy. The run can go on
// with the steps after it.
class PlanningFailed : public Error {
 public:
  using Error::Error;
};

// ----------------------------------------------------------------------------------- planning

struct LookaheadOptions {
  std::string run_id = "run";   // 1 to 24 letters, digits, - and _; the same for all of a run
  std::int64_t first_step = 0;  // where a rank begins that has not announced its own first step
  std::int64_t end_step = std::numeric_limits<std::int64_t>::max();  // exclusive
  // κ: a step is planned only if it is less than this many steps ahead of the slowest rank.
  std::int32_t steps_ahead = 4;
  std::int32_t threads = 1;  // each plans one step at a time on one core
  // How long a planner that has begun a step keeps its claim after its last sign of life.
  std::chrono::milliseconds claim_expiry{10'000};
  std::chrono::milliseconds expiry{std::chrono::hours(24)};  // of plans that no rank has taken
  std::chrono::milliseconds poll_interval{10};  // between two checks of the ranks' progress
  // How long a planner goes on trying while the store fails, beyond StoreOptions::timeout of a
  // call. The default is as long as a rank waits for a step.
  std::chrono::milliseconds store_patience{600'000};
  // Called by planning threads with a line when the store begins to fail, when it answers again,
  // and when planning has ended. Empty: nothing is logged.
  std::function<void(std::string_view line)> log = {};
};

struct LookaheadStatistics {  // of this process, so far
  std::int64_t planned_steps = 0;
  std::int64_t failed_steps = 0;
  double planning_s = 0;             // of all threads: planning, proof, writing slices
  double idle_s = 0;                 // of all threads: enough is planned, or other planners plan it
  std::int64_t published_bytes = 0;  // into the store
  std::int64_t slowest_rank_step = 0;
  std::int64_t ready_steps = 0;  // planned by any planner and not yet acknowledged by all ranks, as
                                 // last seen
};

// The state of a planner, for the feeds of its process (PlanFeed::watch).
class PlannerHealth;

// Plans steps in their order as long as it lives. It proves each plan whole, then puts every rank's
// slice into the store. Any number of planners, on any machines, share the steps of a run: each
// claims a step first, and a claim that is not renewed is taken over. A planner that is killed and
// restarted continues where the ranks are. One that fails says why: in the store, where the feeds
// of all ranks look, and in its health.
class LookaheadPlanner {
 public:
  // Without a store, it plans for ranks of this process. Throws InvalidArgument on bad options and
  // jobs.
  LookaheadPlanner(PlanJob job, LookaheadOptions options, std::shared_ptr<Store> store = nullptr);
  ~LookaheadPlanner();  // stops it, as stop() does
  LookaheadPlanner(const LookaheadPlanner&) = delete;
  LookaheadPlanner& operator=(const LookaheadPlanner&) = delete;

  [[nodiscard]] const std::shared_ptr<Store>& store() const;
  [[nodiscard]] LookaheadStatistics statistics() const;
  // It may outlive the planner.
  [[nodiscard]] std::shared_ptr<const PlannerHealth> health() const;

  // Waits, at most for `timeout`, until every rank has acknowledged all steps below end_step.
  // Returns true if they have. Throws the error that ended planning: IoError when the store is
  // gone for longer than LookaheadOptions::store_patience.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds timeout);

  // Ends planning, also in the middle of a step, and releases the claims. Waits until callbacks of
  // the job have returned. `wait_for` returns; statistics stay.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ------------------------------------------------------------------------------------- taking

struct FeedOptions {
  std::string run_id = "run";
  std::int64_t first_step = 0;  // of this run, or of its continuation after a restart
  std::chrono::milliseconds timeout{600'000};                // for one step
  std::chrono::milliseconds expiry{std::chrono::hours(24)};  // of the record of this rank's
                                                             // progress
};

struct TakenStep {
  std::int64_t step = 0;
  std::shared_ptr<const Plan> plan;  // the slice of this rank; the planner has proved it whole
  double planning_s = 0;             // of the whole plan, in the process that planned it
  double waited_s = 0;               // until it arrived
  std::int64_t bytes = 0;            // from the store
};

struct FeedStatistics {  // of one rank, so far
  std::int64_t steps = 0;
  double planning_s = 0;  // of the plans taken
  double exposed_s = 0;   // time spent waiting for them
  std::int64_t bytes = 0;

  // Planning time that no rank waited for.
  [[nodiscard]] double hidden_s() const {
    return planning_s > exposed_s ? planning_s - exposed_s : 0;
  }
};

// One rank's plans, step by step. One thread uses it at a time.
class PlanFeed {
 public:
  // Announces where this rank begins. After a restart, this may be a step that was taken before.
  // Throws InvalidArgument, and IoError when the store is gone.
  PlanFeed(std::shared_ptr<Store> store, const PlanJob& job, Rank rank, FeedOptions options = {});
  ~PlanFeed();
  PlanFeed(const PlanFeed&) = delete;
  PlanFeed& operator=(const PlanFeed&) = delete;

  // Names what hinders a planner of this process in the errors of take(), also where the planner
  // cannot say it in the store.
  void watch(std::shared_ptr<const PlannerHealth> planner);

  // Returns the plan of a step that is not acknowledged, and the same plan if it is called again.
  // Throws PlanningFailed with the planner's error, InvalidPlan when the plan in the store is
  // corrupt or of another job, and IoError when the store is gone. Throws TransportError with the
  // reason when the plan does not arrive within the timeout, or sooner if a planner of the run has
  // ended and no other one shows life within LookaheadOptions::claim_expiry.
  [[nodiscard]] TakenStep take(std::int64_t step);
  // Declares that this rank needs neither this step nor those before it any more.
  void acknowledge(std::int64_t step);
  [[nodiscard]] FeedStatistics statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contextile

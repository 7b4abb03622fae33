// Planning ahead: some threads or processes plan the batches of the next steps while ranks execute
// the one that they have. They find each other by a store alone.
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

#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/store.h"

namespace contextile {

// What is planned, the same in every process of a run. A step's plan depends on this alone: not on
// who plans it, when, or on how many threads.
struct PlanJob {
  BatchSampler sampler;
  WorkloadInput input;
  Cluster cluster;
  // About 4 seconds of one core for a large batch (docs/auto.md). Strategies with a time budget are
  // refused: their plans differ from machine to machine.
  StrategyChoice choice = {"auto", {{"steps", "4000000"}}};
  PlanOptions plan;  // `progress` is not used
  // A step's batch, where it is more than `input` can say: its documents are the sampler's, its
  // shape is the input's. Called by planning threads, several at a time. Empty: load_workload.
  std::function<Workload(std::int64_t step)> workload = {};
};

// The batch of a step as the planner is given it. Throws as BatchSampler and load_workload do, and
// whatever job.workload throws.
[[nodiscard]] Workload workload_of(const PlanJob& job, std::int64_t step);

// A step could not be planned: the batch's fault, or the strategy's. The run can go on behind it.
class PlanningFailed : public Error {
 public:
  using Error::Error;
};

// ----------------------------------------------------------------------------------- planning

struct LookaheadOptions {
  std::string run_id = "run";   // 1 to 24 letters, digits, - and _; the same for all of a run
  std::int64_t first_step = 0;  // where ranks begin that have not said so themselves
  std::int64_t end_step = std::numeric_limits<std::int64_t>::max();  // exclusive
  // κ: only steps that are less than this ahead of the slowest rank are planned.
  std::int32_t steps_ahead = 4;
  std::int32_t threads = 1;  // each plans a step of its own on one core
  // How long a step that a planner has begun is left to it after its last sign of life.
  std::chrono::milliseconds claim_expiry{10'000};
  std::chrono::milliseconds expiry{std::chrono::hours(24)};  // of what nobody has taken
  std::chrono::milliseconds poll_interval{10};  // between looks at how far ranks have come
};

struct LookaheadStatistics {  // of this process, so far
  std::int64_t planned_steps = 0;
  std::int64_t failed_steps = 0;
  double planning_s = 0;             // of all threads: planning, proof, writing slices
  double idle_s = 0;                 // of all threads: enough is planned, or others plan it
  std::int64_t published_bytes = 0;  // into the store
  std::int64_t slowest_rank_step = 0;
  std::int64_t ready_steps = 0;  // planned by anybody and not acknowledged by all, last seen
};

// Plans steps in their order as long as it lives: proves each plan whole, then puts every rank's
// slice into the store. Any number of planners, on any machines, share the steps of a run: each
// claims a step first, and a claim that is not renewed is taken over. One that is killed and
// started again goes on where the ranks are.
class LookaheadPlanner {
 public:
  // Without a store plans for ranks of this process. Throws InvalidArgument on bad options and
  // jobs.
  LookaheadPlanner(PlanJob job, LookaheadOptions options, std::shared_ptr<Store> store = nullptr);
  // Ends planning at the next candidate of a search and gives back what was claimed.
  ~LookaheadPlanner();
  LookaheadPlanner(const LookaheadPlanner&) = delete;
  LookaheadPlanner& operator=(const LookaheadPlanner&) = delete;

  [[nodiscard]] const std::shared_ptr<Store>& store() const;
  [[nodiscard]] LookaheadStatistics statistics() const;

  // Waits until every rank has acknowledged all steps below end_step, at most for `timeout`;
  // returns whether they have. Throws what ended planning: IoError when the store is gone.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds timeout);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ------------------------------------------------------------------------------------- taking

struct FeedOptions {
  std::string run_id = "run";
  std::int64_t first_step = 0;                               // of this run, or of its continuation
  std::chrono::milliseconds timeout{600'000};                // for one step
  std::chrono::milliseconds expiry{std::chrono::hours(24)};  // of how far this rank has come
};

struct TakenStep {
  std::int64_t step = 0;
  std::shared_ptr<const Plan> plan;  // the slice of this rank; the planner has proved it whole
  double planning_s = 0;             // of the whole plan, wherever it was
  double waited_s = 0;               // until it was here
  std::int64_t bytes = 0;            // from the store
};

struct FeedStatistics {  // of one rank, so far
  std::int64_t steps = 0;
  double planning_s = 0;  // of the plans taken
  double exposed_s = 0;   // waited for them
  std::int64_t bytes = 0;

  // Planning that nobody waited for.
  [[nodiscard]] double hidden_s() const {
    return planning_s > exposed_s ? planning_s - exposed_s : 0;
  }
};

// One rank's plans, step by step. One thread uses it at a time.
class PlanFeed {
 public:
  // Tells the planners where this rank begins: after a restart also at a step that was taken
  // before. Throws InvalidArgument, and IoError when the store is gone.
  PlanFeed(std::shared_ptr<Store> store, const PlanJob& job, Rank rank, FeedOptions options = {});
  ~PlanFeed();
  PlanFeed(const PlanFeed&) = delete;
  PlanFeed& operator=(const PlanFeed&) = delete;

  // The plan of a step that is not acknowledged; the same again if asked again. Throws
  // PlanningFailed with the planner's error, InvalidPlan when what is in the store is corrupt or of
  // another job, TransportError when it does not come within the timeout, IoError when the store is
  // gone.
  [[nodiscard]] TakenStep take(std::int64_t step);
  // This rank needs neither this step nor those before it any more.
  void acknowledge(std::int64_t step);
  [[nodiscard]] FeedStatistics statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contextile

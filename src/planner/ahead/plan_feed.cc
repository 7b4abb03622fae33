#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/quote.h"
#include "contextile/advanced/lookahead.h"
#include "contextile/plan_file.h"
#include "planner/ahead/lookahead_keys.h"
#include "planner/ahead/planner_health.h"
#include "planner/ahead/step_value.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

// Compares shapes. A shape's default scale equals the same number given explicitly.
bool same_shape(AttentionShape a, AttentionShape b) {
  a.scale = a.effective_scale();
  b.scale = b.effective_scale();
  return a == b;
}

}  // namespace

struct PlanFeed::State {
  State(std::shared_ptr<Store> from, const PlanJob& planned, Rank mine, FeedOptions given)
      : store(std::move(from)),
        job(planned),
        rank(mine),
        options(std::move(given)),
        keys(options.run_id),
        next(options.first_step) {}

  const std::shared_ptr<Store> store;
  const PlanJob job;
  const Rank rank;
  const FeedOptions options;
  const LookaheadKeys keys;
  std::int64_t next;
  std::shared_ptr<const PlannerHealth> planner;  // of this process, if it has one
  std::optional<StoreValue> old_failure;         // of a planner that ended before this rank began
  FeedStatistics statistics;

  void tell_next() { store->replace(keys.next(rank), step_as_text(next), options.expiry); }

  // Waits for the value under the step's key for this rank.
  StoreValue wait_for(std::int64_t step) {
    // Sends a sign of life now and then, because a store may have lost its memory.
    constexpr milliseconds kBetweenSigns{1000};
    const std::string key = keys.slice(step, rank);
    const Clock::time_point deadline = Clock::now() + options.timeout;
    while (true) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      if (auto value = store->pull(key, std::min(left, kBetweenSigns))) return *std::move(value);
      const bool is_late = left <= milliseconds(0);
      if (is_late || planning_has_ended()) {
        throw TransportError(fmt::format(
            "rank {}: step {}: expected its plan in {}{}, found none: {}", rank.value, step,
            store->name(),
            is_late ? fmt::format(" within {} ms", options.timeout.count()) : std::string(),
            cause_of_waiting()));
      }
      tell_next();
      ask_again(step, key);
    }
  }

  static std::string text_of(const StoreValue& told) {  // untrusted
    return reason_text({reinterpret_cast<const char*>(told.data()), told.size()});
  }
  // Why the last planner that ended did so, if that was since this rank began.
  std::optional<std::string> told_failure() {
    const std::optional<StoreValue> told = store->get(keys.failed());
    if (!told || told == old_failure) return std::nullopt;
    return text_of(*told);
  }

  // True if a planner has ended for good and no other one has shown life since.
  bool planning_has_ended() {
    const bool has_one_ended = (planner != nullptr && planner->end_reason()) || told_failure();
    return has_one_ended && !store->get(keys.alive());
  }

  std::string cause_of_waiting() {
    if (const auto trouble = planner == nullptr ? std::nullopt : planner->trouble())
      return *trouble;
    if (const auto failure = told_failure()) {
      return "the last planner of this run has ended: " + *failure;
    }
    if (store->get(keys.alive())) return "a planner of this run lives but is not done with it";
    if (old_failure) {
      return "no planner lives; the last one ended before this rank began: " +
             text_of(*old_failure);
    }
    return "no planner, or one that plans another run or cluster";
  }

  // A step is marked as ready but this rank's value is missing: it was acknowledged by an earlier
  // start of this rank, or has expired. Removes the mark so that the step is planned again.
  void ask_again(std::int64_t step, const std::string& key) {
    if (!store->get(keys.ready(step))) return;
    if (!store->get(key)) store->erase(keys.ready(step));  // in this order: the mark comes last
  }

  // Throws unless the plan is of this job's batch and of this rank.
  void check_plan(const Plan& plan, std::int64_t step, const std::string& where) const {
    if (plan.slice_of != rank || plan.nodes != job.cluster.nodes ||
        plan.devices_per_node != job.cluster.devices_per_node) {
      fail_plan(
          "{}: expected the slice of rank {} on {} x {} devices, found that of rank {} on {} x "
          "{}",
          where, rank.value, job.cluster.nodes, job.cluster.devices_per_node, plan.slice_of.value,
          plan.nodes, plan.devices_per_node);
    }
    const std::vector<Range> expected = sequences_from_lengths(
        job.lengths_tokens ? job.lengths_tokens(step) : job.sampler.batch(step));
    if (plan.sequences != expected ||
        !same_shape(plan.shape, shape_of_rank(job.input.shape, job.input.tp))) {
      fail_plan(
          "{}: expected the batch of this job, {} documents of {} tokens, found {} of {} or "
          "another shape: its planner has another job",
          where, expected.size(), expected.back().end, plan.sequences.size(), plan.num_tokens());
    }
  }
};

PlanFeed::PlanFeed(std::shared_ptr<Store> store, const PlanJob& job, Rank rank,
                   FeedOptions options) {
  CONTEXTILE_CHECK(store != nullptr, "plan feed: expected a store, found none");
  CONTEXTILE_CHECK(rank.valid() && rank.value < job.cluster.num_devices(),
                   "plan feed: expected a rank in [0, {}), found {}", job.cluster.num_devices(),
                   rank.value);
  CONTEXTILE_CHECK(options.first_step >= 0, "plan feed: expected a first step from 0 on, found {}",
                   options.first_step);
  state_ = std::make_unique<State>(std::move(store), job, rank, std::move(options));
  state_->old_failure = state_->store->get(state_->keys.failed());
  state_->tell_next();
}

PlanFeed::~PlanFeed() = default;

void PlanFeed::watch(std::shared_ptr<const PlannerHealth> planner) {
  state_->planner = std::move(planner);
}

TakenStep PlanFeed::take(std::int64_t step) {
  State& state = *state_;
  CONTEXTILE_CHECK(step >= state.next, "rank {}: expected a step from {} on, found {}",
                   state.rank.value, state.next, step);
  const Clock::time_point started = Clock::now();
  const StoreValue bytes = state.wait_for(step);
  const std::string where =
      fmt::format("{} {}", state.store->name(), state.keys.slice(step, state.rank));
  const StepValue value = decode_step_value(bytes, step, where);
  TakenStep taken;
  taken.step = step;
  taken.planning_s = 1e-6 * static_cast<double>(value.planning_us);
  taken.bytes = std::ssize(bytes);
  const bool failed = value.kind == StepValueKind::kFailed;
  if (!failed) {
    auto plan = std::make_shared<Plan>(deserialize_slice(value.payload, where));
    state.check_plan(*plan, step, where);
    taken.plan = std::move(plan);
  }
  taken.waited_s = seconds_since(started);
  state.statistics.steps += 1;
  state.statistics.planning_s += taken.planning_s;
  state.statistics.exposed_s += taken.waited_s;
  state.statistics.bytes += taken.bytes;
  if (failed) {
    const std::string_view text(reinterpret_cast<const char*>(value.payload.data()),
                                value.payload.size());
    throw PlanningFailed(fmt::format("step {}: planning failed: {}", step, without_orders(text)));
  }
  return taken;
}

void PlanFeed::acknowledge(std::int64_t step) {
  State& state = *state_;
  CONTEXTILE_CHECK(step >= state.next, "rank {}: expected a step from {} on, found {}",
                   state.rank.value, state.next, step);
  const std::int64_t first = state.next;
  state.next = step + 1;
  state.tell_next();
  for (std::int64_t s = first; s <= step; ++s) state.store->erase(state.keys.slice(s, state.rank));
}

FeedStatistics PlanFeed::statistics() const { return state_->statistics; }

}  // namespace contextile

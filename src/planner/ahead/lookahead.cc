#include "contextile/advanced/lookahead.h"

#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/process_owner.h"
#include "contextile/plan_file.h"
#include "planner/ahead/lookahead_checks.h"
#include "planner/ahead/lookahead_keys.h"
#include "planner/ahead/planner_health.h"
#include "planner/ahead/rank_steps.h"
#include "planner/ahead/step_value.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

// Thrown into a search by its ProgressHook, and instead of trying the store again. Not an Error, so
// that nothing takes it for a failure of its own.
struct PlanningStopped {};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an error of an unknown kind";
  }
}

// Makes a name that distinguishes this planner's claims from all others'.
std::vector<std::uint8_t> random_name() {
  std::random_device random;
  const std::string name = fmt::format("planner-{:08x}{:08x}", random(), random());
  return {name.begin(), name.end()};
}

}  // namespace

Workload workload_of(const PlanJob& job, std::int64_t step) {
  if (job.workload) return job.workload(step);
  const std::vector<std::int64_t> lengths =
      job.lengths_tokens ? job.lengths_tokens(step) : job.sampler.batch(step);
  return load_workload(lengths, job.input, job.cluster.num_devices());
}

struct LookaheadPlanner::State {
  State(PlanJob planned, LookaheadOptions given, std::shared_ptr<Store> into)
      : job(std::move(planned)),
        options(std::move(given)),
        store(std::move(into)),
        keys(options.run_id),
        name(random_name()),
        health(std::make_shared<PlannerHealth>(options.log)),
        ranks(job.cluster.num_devices(), options.first_step) {
    if (store == nullptr) store = open_store("memory:");
  }

  const PlanJob job;
  const LookaheadOptions options;
  std::shared_ptr<Store> store;
  const LookaheadKeys keys;
  const std::vector<std::uint8_t> name;
  const std::shared_ptr<PlannerHealth> health;

  std::mutex looking;  // one thread looks for work at a time; guards the next four
  RankSteps ranks;
  std::optional<std::int64_t> unsure;  // a step whose claim was sent; the answer has not come
  std::set<std::int64_t> ready;        // in the window, as last seen
  Clock::time_point looked_at_all{};

  mutable std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::set<std::int64_t> mine;  // claimed and not yet published
  std::exception_ptr failure;
  LookaheadStatistics counted;

  const ProcessOwner owner;
  std::atomic<bool> stopped = false;  // planning has ended: it is closing, or has failed
  std::atomic<bool> closing = false;
  std::vector<std::thread> threads;
  std::size_t num_running = 0;  // threads that have not ended

  void start();
  template <typename Body, typename Last>
  void start_thread(const Body& body, const Last& last);
  void stop();
  void fail(std::exception_ptr error);
  void pause(milliseconds time, const std::atomic<bool>& until);
  template <typename Use>
  std::invoke_result_t<const Use&> with_patience(const Use& use);

  void look();
  std::optional<std::int64_t> claim_next();
  bool claim(std::int64_t step);
  bool is_mine(std::int64_t step);
  void give_back(std::int64_t step);
  void show_life();
  void tell_of_end();

  void work();
  void serve(std::int64_t step);
  PlannedBatch plan(std::int64_t step) const;
  std::vector<std::vector<std::uint8_t>> values_of(std::int64_t step, bool& failed) const;
  std::int64_t publish(std::int64_t step, const std::vector<std::vector<std::uint8_t>>& values);
};

void LookaheadPlanner::State::start() {
  for (std::int32_t t = 0; t < options.threads; ++t) {
    start_thread([this] { work(); }, [] {});
  }
  start_thread(
      [this] {
        with_patience([this] { return show_life(), true; });
        pause(options.claim_expiry / 3, stopped);
      },
      [this] { tell_of_end(); });
}

// Runs the body on a thread, again and again, until the planner is stopped or the body fails, and
// then `last`.
template <typename Body, typename Last>
void LookaheadPlanner::State::start_thread(const Body& body, const Last& last) {
  const auto run = [this, body, last] {
    try {
      const InterruptScope scope([this] {
        if (stopped) throw PlanningStopped{};
      });
      while (!stopped) body();
    } catch (const PlanningStopped&) {
    } catch (...) {
      fail(std::current_exception());
    }
    last();
    const std::scoped_lock lock(mutex);
    --num_running;
    changed.notify_all();
  };
  const std::scoped_lock lock(mutex);
  threads.emplace_back(run);
  ++num_running;
}

void LookaheadPlanner::State::stop() {
  {
    const std::scoped_lock lock(mutex);
    stopped = closing = true;
  }
  changed.notify_all();
  // Callbacks may take long to return, so an interrupt ends this wait. Another call joins then.
  std::unique_lock lock(mutex);
  static_cast<void>(
      wait_until(changed, lock, Clock::time_point::max(), [this] { return num_running == 0; }));
  std::vector<std::thread> ended = std::exchange(threads, {});
  lock.unlock();
  for (std::thread& thread : ended) thread.join();
}

void LookaheadPlanner::State::fail(std::exception_ptr error) {
  health->end(text_of(error));
  {
    const std::scoped_lock lock(mutex);
    if (!failure) failure = std::move(error);
    stopped = true;
  }
  changed.notify_all();
}

void LookaheadPlanner::State::pause(milliseconds time, const std::atomic<bool>& until) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, time, [&] { return until.load(); });
}

// Returns use(), which calls the store and may be called again. While the store fails, it tries
// again at ever longer intervals, because ranks that compute do not notice the failure: they come
// for their next plan later, and only then begin to wait. Throws PlanningStopped, and the store's
// error after options.store_patience.
template <typename Use>
std::invoke_result_t<const Use&> LookaheadPlanner::State::with_patience(const Use& use) {
  constexpr milliseconds kFirstPause{50};
  constexpr milliseconds kLongestPause{2000};
  std::optional<Clock::time_point> failing_since;
  for (milliseconds wait = kFirstPause;; wait = std::min(2 * wait, kLongestPause)) {
    try {
      auto result = use();
      if (failing_since) health->store_answers();
      return result;
    } catch (const PlanningStopped&) {
      if (failing_since) health->give_store_up();
      throw;
    } catch (const IoError& error) {
      if (failing_since) {
        health->store_fails_again(error.what());
      } else {
        failing_since = Clock::now();
        health->store_begins_to_fail(error.what());
      }
      if (Clock::now() - *failing_since >= options.store_patience) {
        health->give_store_up();
        throw IoError(fmt::format("the store has failed for {:.1f} s: {}",
                                  seconds_since(*failing_since), error.what()));
      }
    }
    pause(wait, stopped);
    if (stopped) {
      health->give_store_up();
      throw PlanningStopped{};
    }
  }
}

// --------------------------------------------------------------------------- dividing the work

// Called with `looking` held.
void LookaheadPlanner::State::look() {
  constexpr auto kBetweenLooksAtAll = std::chrono::seconds(1);
  const bool all = Clock::now() - looked_at_all >= kBetweenLooksAtAll;
  const std::int64_t before = ranks.slowest();
  if (all) {
    ranks.refresh_all(*store, keys);
    looked_at_all = Clock::now();
    ready.clear();  // ranks that start again at an earlier step take marks away
  } else {
    ranks.refresh_slowest(*store, keys);
  }
  const std::int64_t oldest = std::max(before, ranks.slowest() - options.steps_ahead);
  for (std::int64_t s = oldest; s < ranks.slowest(); ++s) store->erase(keys.ready(s));
  std::erase_if(ready, [&](std::int64_t s) { return s < ranks.slowest(); });
}

std::optional<std::int64_t> LookaheadPlanner::State::claim_next() {
  const std::scoped_lock lock(looking);
  look();
  const std::int64_t first = ranks.slowest();
  std::optional<std::int64_t> claimed;
  for (std::int64_t s = first; s < options.end_step && s - first < options.steps_ahead; ++s) {
    if (stopped) break;
    if (ready.contains(s)) continue;
    if (!claimed && claim(s)) claimed = s;
  }
  const std::scoped_lock counting(mutex);
  counted.slowest_rank_step = first;
  counted.ready_steps = std::ssize(ready);
  return claimed;
}

// Returns true if this planner shall plan the step. Called with `looking` held.
bool LookaheadPlanner::State::claim(std::int64_t step) {
  if (is_mine(step)) return false;
  if (store->get(keys.ready(step))) {
    ready.insert(step);
    return false;
  }
  // From here on a planner that is stopped goes on, because the claim must not be left behind.
  const InterruptLoan none(nullptr);
  // A claim of this planner whose answer did not come may lie in the store.
  const bool was_sent = std::exchange(unsure, step) == step;
  if (!(was_sent && store->renew(keys.claim(step), name, options.claim_expiry)) &&
      !store->put(keys.claim(step), name, options.claim_expiry)) {
    unsure.reset();
    return false;
  }
  // Its last owner may have finished it between the two calls. It is then marked, or all ranks are
  // past it.
  const bool is_ready = store->get(keys.ready(step)).has_value();
  ranks.refresh_slowest(*store, keys);
  if (is_ready || step < ranks.slowest()) {
    store->erase(keys.claim(step));
    unsure.reset();
    ready.insert(step);
    return false;
  }
  unsure.reset();
  const std::scoped_lock lock(mutex);
  mine.insert(step);
  return true;
}

bool LookaheadPlanner::State::is_mine(std::int64_t step) {
  const std::scoped_lock lock(mutex);
  return mine.contains(step);
}

void LookaheadPlanner::State::give_back(std::int64_t step) {
  const InterruptLoan none(nullptr);  // also of a planner that is stopped
  {
    const std::scoped_lock lock(mutex);
    mine.erase(step);
  }
  // If the claim has expired it may be another planner's, which then plans on without it. That does
  // no harm.
  store->erase(keys.claim(step));
}

// Says that this planner lives, that its claims are still its own, and that no planner's end is the
// run's.
void LookaheadPlanner::State::show_life() {
  store->replace(keys.alive(), name, options.claim_expiry);
  store->erase(keys.failed());
  std::set<std::int64_t> steps;
  {
    const std::scoped_lock lock(mutex);
    steps = mine;
  }
  for (const std::int64_t step : steps) {
    if (store->renew(keys.claim(step), name, options.claim_expiry)) continue;
    // It has expired, or the store has forgotten it. Another planner that has it now keeps it, and
    // makes the same plan.
    if (!is_mine(step)) continue;
    const InterruptLoan none(nullptr);  // a claim that was taken is kept or erased
    if (!store->put(keys.claim(step), name, options.claim_expiry)) continue;
    if (!is_mine(step)) store->erase(keys.claim(step));  // its plan was published meanwhile
  }
}

// Says why planning has ended, until this planner is closed: the store may not answer now, and may
// forget.
void LookaheadPlanner::State::tell_of_end() {
  while (!closing) {
    const std::optional<std::string> reason = health->end_reason();
    if (!reason) return;
    const std::string text = fmt::format("{}: {}", std::string(name.begin(), name.end()), *reason);
    try {
      store->replace(keys.failed(),
                     {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                     options.expiry);
    } catch (const std::exception&) {  // wait_for and the feeds of this process know it anyway
    }
    pause(options.claim_expiry / 3, closing);
  }
}

// ----------------------------------------------------------------------------------- planning

void LookaheadPlanner::State::work() {
  const Clock::time_point started = Clock::now();
  if (const auto step = with_patience([this] { return claim_next(); })) {
    serve(*step);
    return;
  }
  pause(options.poll_interval, stopped);
  const std::scoped_lock lock(mutex);
  counted.idle_s += seconds_since(started);
  changed.notify_all();  // wait_for checks the progress of ranks
}

void LookaheadPlanner::State::serve(std::int64_t step) {
  const Clock::time_point started = Clock::now();
  bool failed = false;
  std::int64_t bytes = 0;
  try {
    const std::vector<std::vector<std::uint8_t>> values = values_of(step, failed);
    bytes = with_patience([&] { return publish(step, values); });
  } catch (const PlanningStopped&) {
    with_patience([&] { return give_back(step), true; });
    return;
  }
  with_patience([&] { return give_back(step), true; });
  const std::scoped_lock lock(mutex);
  counted.planned_steps += failed ? 0 : 1;
  counted.failed_steps += failed ? 1 : 0;
  counted.planning_s += seconds_since(started);
  counted.published_bytes += bytes;
}

PlannedBatch LookaheadPlanner::State::plan(std::int64_t step) const {
  PlanOptions asked = job.plan;
  asked.progress = [this](std::string_view, std::int64_t, std::int64_t) {
    if (stopped) throw PlanningStopped{};
  };
  return plan_and_check(workload_of(job, step), job.cluster, job.choice, asked);
}

// The values of a step by rank. An error of planning is every rank's value.
std::vector<std::vector<std::uint8_t>> LookaheadPlanner::State::values_of(std::int64_t step,
                                                                          bool& failed) const {
  const Clock::time_point started = Clock::now();
  std::vector<std::vector<std::uint8_t>> payloads;
  tbb::task_arena one_core(1);
  try {
    one_core.execute([&] { payloads = serialize_slices(*plan(step).plan); });
    check_fits_store(payloads);
  } catch (const PlanningStopped&) {
    throw;
  } catch (const std::exception& error) {
    failed = true;
    const std::string_view text = error.what();
    payloads.assign(static_cast<std::size_t>(job.cluster.num_devices()),
                    {text.begin(), text.end()});
  }
  const auto planning_us = static_cast<std::int64_t>(1e6 * seconds_since(started));
  std::vector<std::vector<std::uint8_t>> values;
  values.reserve(payloads.size());
  for (const std::vector<std::uint8_t>& payload : payloads) {
    values.push_back(
        encode_step_value({.step = step,
                           .kind = failed ? StepValueKind::kFailed : StepValueKind::kPlanned,
                           .planning_us = planning_us,
                           .payload = payload}));
  }
  return values;
}

// Returns how many bytes went into the store. The mark comes last: it says that all values are
// there.
std::int64_t LookaheadPlanner::State::publish(
    std::int64_t step, const std::vector<std::vector<std::uint8_t>>& values) {
  std::vector<bool> needed(values.size());
  {
    const std::scoped_lock lock(looking);
    for (std::size_t r = 0; r < values.size(); ++r) needed[r] = ranks.needs(r, step);
  }
  std::int64_t bytes = 0;
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (!needed[r]) continue;
    const std::string key = keys.slice(step, Rank{static_cast<std::int32_t>(r)});
    if (store->put(key, values[r], options.expiry)) bytes += std::ssize(values[r]);
  }
  static_cast<void>(store->put(keys.ready(step), name, options.expiry));
  return bytes;
}

// -------------------------------------------------------------------------------------- public

LookaheadPlanner::LookaheadPlanner(PlanJob job, LookaheadOptions options,
                                   std::shared_ptr<Store> store) {
  check_job(job);
  check_lookahead_options(options);
  state_ = std::make_unique<State>(std::move(job), std::move(options), std::move(store));
  try {
    state_->start();
  } catch (...) {  // the system has no more threads
    const InterruptLoan none(nullptr);
    state_->stop();
    throw;
  }
}

LookaheadPlanner::~LookaheadPlanner() {
  if (state_->owner.is_forked()) {
    static_cast<void>(state_.release());  // its threads are the parent's
    return;
  }
  const InterruptLoan none(nullptr);
  state_->stop();
}

void LookaheadPlanner::stop() {
  state_->owner.check("planning ahead");
  state_->stop();
}

const std::shared_ptr<Store>& LookaheadPlanner::store() const { return state_->store; }

std::shared_ptr<const PlannerHealth> LookaheadPlanner::health() const { return state_->health; }

LookaheadStatistics LookaheadPlanner::statistics() const {
  state_->owner.check("planning ahead");
  const std::scoped_lock lock(state_->mutex);
  return state_->counted;
}

bool LookaheadPlanner::wait_for(milliseconds timeout) {
  State& state = *state_;
  state.owner.check("planning ahead");
  std::unique_lock lock(state.mutex);
  const auto done = [&] { return state.counted.slowest_rank_step >= state.options.end_step; };
  static_cast<void>(wait_until(state.changed, lock,
                               Clock::now() + std::min(timeout, kMaxStoreExpiry),
                               [&] { return state.failure || state.stopped || done(); }));
  if (state.failure) std::rethrow_exception(state.failure);
  return done();
}

}  // namespace contextile

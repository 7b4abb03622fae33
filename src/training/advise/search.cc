// The search: bounds first, then predictions in the order of the bounds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "training/advise/candidates.h"

namespace contextile {
namespace {

constexpr std::size_t kAtOnce = 8;  // set-ups that are predicted in parallel
constexpr std::array kByRecompute = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
constexpr double kShareOfEngines = 0.6;  // of the time; the rest is for this library's plans
constexpr double kLateShare = 0.75;      // of it, until only set-ups with plans are predicted
constexpr double kUsPerSecond = 1e6;
constexpr double kSecondsPerUs = 1e-6;
// Shares of the peak that are plausible outside attention, and the steps of a search among them.
constexpr double kLeastMfu = 0.05;
constexpr double kMostMfu = 1;
constexpr int kHalvings = 12;
constexpr double kUsPerHour = 3600 * kUsPerSecond;

double per_token(double us, std::int64_t tokens) { return us / static_cast<double>(tokens); }

// A set-up to predict. Times are of all drawn steps.
struct Candidate {
  TrainingSetup setup;
  double bound_us_per_token = 0;  // without plans
  // The best bound so far: without plans, or with a plan that no collective disturbs.
  double least_us_per_token = 0;
  bool planned = false;
};

// A set-up on all drawn steps: the outcome of the first one, or of the first that does not fit, and
// the time of all.
struct DrawnOutcome {
  StepOutcome first;
  double us = 0;

  [[nodiscard]] bool fits() const { return first.verdict == Verdict::kFits; }
};

// Plans and predictions of set-ups on the drawn steps. The steps of one planner share plans, and
// those of one packing and exchange share a planner.
class SetupPredictor {
 public:
  SetupPredictor(const AdviseJob& job, const DrawnSteps& steps) : job_(job), steps_(steps) {
    for (const DocumentPacking packing : kPackings) tokens_[index(packing)] = steps.tokens(packing);
    for (std::size_t i = 0; i < kPackings.size(); ++i) bounds_.push_back(planners(kPackings[i]));
  }

  DrawnOutcome bound(const TrainingSetup& setup) {
    return over_steps(setup, bounds_[index(setup.packing)],
                      [](StepPlanner& planner, const auto& s) { return planner.bound(s); });
  }
  // Not at the same time for set-ups that share plans.
  DrawnOutcome predict(const TrainingSetup& setup, bool undisturbed) {
    return over_steps(setup, planners_of(setup), [&](StepPlanner& planner, StepSetting setting) {
      setting.undisturbed = undisturbed;
      return planner.predict(setting);
    });
  }
  [[nodiscard]] std::int64_t tokens(const TrainingSetup& setup) const {
    return tokens_[index(setup.packing)];
  }
  // Set-ups of the same key share plans.
  [[nodiscard]] static std::string key(const TrainingSetup& setup) {
    return fmt::format("{} {} {} {} {} {}", setup.sizes.tp, setup.sizes.cp,
                       static_cast<int>(setup.exchange), setup.a2a_ranks,
                       static_cast<int>(setup.packing), setup.strategy);
  }

 private:
  using Planners = std::vector<std::unique_ptr<StepPlanner>>;

  static std::size_t index(DocumentPacking packing) { return static_cast<std::size_t>(packing); }

  [[nodiscard]] Planners planners(DocumentPacking packing) const {
    Planners planners;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      planners.push_back(
          std::make_unique<StepPlanner>(steps_.step(i, packing), [](const std::string&) {}));
    }
    return planners;
  }

  Planners& planners_of(const TrainingSetup& setup) {
    const std::scoped_lock lock(mutex_);
    Planners& planners_of_key = planners_[key(setup)];
    if (planners_of_key.empty()) planners_of_key = planners(setup.packing);
    return planners_of_key;
  }

  template <typename Predict>
  DrawnOutcome over_steps(const TrainingSetup& setup, Planners& planners, const Predict& predict) {
    const StepSetting setting = step_setting_of(setup, job_.options);
    DrawnOutcome all;
    for (std::size_t i = 0; i < planners.size(); ++i) {
      StepOutcome outcome = predict(*planners[i], setting);
      const bool fits = outcome.verdict == Verdict::kFits;
      if (fits) all.us += outcome.prediction->time_us;
      if (i == 0 || !fits) all.first = std::move(outcome);
      if (!fits) break;
    }
    return all;
  }

  const AdviseJob& job_;
  const DrawnSteps& steps_;
  std::array<std::int64_t, kPackings.size()> tokens_{};
  std::vector<Planners> bounds_;  // by packing
  std::mutex mutex_;
  std::map<std::string, Planners> planners_;
};

AdvisedSetup advised_setup(const TrainingSetup& setup, DrawnOutcome& outcome, double bound_us,
                           std::int64_t tokens, std::size_t steps) {
  AdvisedSetup advised{.setup = setup, .memory_bytes = outcome.first.memory_bytes()};
  advised.step_us = outcome.us / static_cast<double>(steps);
  advised.tokens_per_s = kUsPerSecond / per_token(outcome.us, tokens);
  advised.bound_us = bound_us / static_cast<double>(steps);
  advised.prediction = std::move(*outcome.first.prediction);
  return advised;
}

// Prediction of one list of set-ups: the engines' or this library's.
class SetupSearch {
 public:
  using Clock = std::chrono::steady_clock;

  // `own`: set-ups that only this library has.
  SetupSearch(const AdviseOptions& options, bool own, SetupPredictor& predictor,
              Clock::time_point end, Advice& advice)
      : options_(options), own_(own), predictor_(predictor), end_(end), advice_(advice) {
    const auto now = Clock::now();
    late_ = now + std::chrono::duration_cast<Clock::duration>(kLateShare * (end - now));
  }

  std::vector<AdvisedSetup> run(const std::vector<SetupGroup>& groups) {
    add_candidates(groups);
    while (!queue_.empty() && (!time_is_over() || best_.empty())) {
      if (options_.prune && queue_.front().least_us_per_token >= worst_kept()) break;
      if (!predict_next()) break;
      if (options_.progress) options_.progress(progress());
    }
    count_rest();
    return std::move(best_);
  }

 private:
  [[nodiscard]] bool time_is_over() const { return options_.seconds > 0 && Clock::now() >= end_; }

  // Time per token of the slowest set-up that is kept, once the list is full.
  [[nodiscard]] double worst_kept() const {
    return best_.size() < static_cast<std::size_t>(options_.best)
               ? std::numeric_limits<double>::infinity()
               : kUsPerSecond / best_.back().tokens_per_s;
  }

  [[nodiscard]] AdviseProgress progress() const {
    return {.predicted = advice_.predicted,
            .left = static_cast<std::int64_t>(queue_.size()),
            .best_tokens_per_s = best_.empty() ? 0 : best_.front().tokens_per_s};
  }

  void add_candidates(const std::vector<SetupGroup>& groups) {
    for (const SetupGroup& group : groups) {
      advice_.considered += static_cast<std::int64_t>(group.exchanges.size());
      add_group(group, Recompute::kNone);
    }
  }

  // Adds the set-ups of a group, each with the least recompute, from `least` on, that fits and that
  // an engine has.
  void add_group(const SetupGroup& group, Recompute least) {
    std::vector<TrainingSetup> left = group.exchanges;
    Verdict verdict = Verdict::kOutOfMemory;
    for (const Recompute recompute : kByRecompute) {
      if (left.empty() || recompute < least || !searched(recompute)) continue;
      TrainingSetup setup = group.setup;
      setup.recompute = recompute;
      const DrawnOutcome outcome = predictor_.bound(setup);
      verdict = outcome.first.verdict;
      if (verdict == Verdict::kImpossible) break;
      if (verdict != Verdict::kFits) continue;
      const double bound = per_token(outcome.us, predictor_.tokens(setup));
      std::erase_if(left, [&](TrainingSetup exchange) {
        exchange.recompute = recompute;
        if (!own_ && !runs_in_engine(exchange, options_)) return false;
        insert({exchange, bound, bound, false});
        return true;
      });
    }
    const auto count = static_cast<std::int64_t>(left.size());
    if (verdict == Verdict::kOutOfMemory) advice_.out_of_memory += count;
    if (verdict == Verdict::kImpossible) advice_.impossible += count;
    if (verdict == Verdict::kFits) advice_.unsupported += count;
  }

  [[nodiscard]] bool searched(Recompute recompute) const {
    return options_.recomputes.empty() ||
           std::ranges::find(options_.recomputes, recompute) != options_.recomputes.end();
  }

  // Takes the next set-ups that share no plans further: those without a plan to a bound with plans,
  // those with one to a prediction. When most of the time is over, only the latter, if there are
  // any. Returns false if nothing was predicted.
  bool predict_next() {
    const bool late = options_.seconds > 0 && Clock::now() >= late_ &&
                      std::ranges::any_of(queue_, &Candidate::planned);
    std::vector<Candidate> now;
    std::set<std::string> keys;
    for (auto at = queue_.begin(); at != queue_.end() && now.size() < kAtOnce;) {
      if (options_.prune && at->least_us_per_token >= worst_kept()) break;
      if ((!late || at->planned) && keys.insert(SetupPredictor::key(at->setup)).second) {
        now.push_back(std::move(*at));
        at = queue_.erase(at);
      } else {
        ++at;
      }
    }
    std::vector<DrawnOutcome> outcomes(now.size());
    parallel_for(std::size_t{0}, now.size(), [&](std::size_t i) {
      outcomes[i] = predictor_.predict(now[i].setup, !now[i].planned);
    });
    for (std::size_t i = 0; i < now.size(); ++i) add_outcome(now[i], outcomes[i]);
    return !now.empty();
  }

  void insert(Candidate candidate) {
    const auto place = std::ranges::upper_bound(queue_, candidate.least_us_per_token, {},
                                                &Candidate::least_us_per_token);
    queue_.insert(place, std::move(candidate));
  }

  void add_outcome(Candidate& candidate, DrawnOutcome& outcome) {
    if (outcome.first.verdict == Verdict::kImpossible) {
      ++advice_.impossible;
      return;
    }
    if (outcome.first.verdict == Verdict::kOutOfMemory) {
      add_with_more_recompute(candidate);
      return;
    }
    const std::int64_t tokens = predictor_.tokens(candidate.setup);
    if (!candidate.planned) {
      candidate.planned = true;
      candidate.least_us_per_token =
          std::max(candidate.bound_us_per_token, per_token(outcome.us, tokens));
      insert(std::move(candidate));
      return;
    }
    ++advice_.predicted;
    const double bound_us = candidate.bound_us_per_token * static_cast<double>(tokens);
    keep(advised_setup(candidate.setup, outcome, bound_us, tokens,
                       static_cast<std::size_t>(advice_.steps)));
  }

  // With attention's own memory a set-up did not fit.
  void add_with_more_recompute(const Candidate& candidate) {
    if (candidate.setup.recompute == Recompute::kFull) {
      ++advice_.out_of_memory;
      return;
    }
    const auto more = static_cast<Recompute>(static_cast<int>(candidate.setup.recompute) + 1);
    add_group({candidate.setup, {candidate.setup}}, more);
  }

  void keep(AdvisedSetup setup) {
    const auto place = std::ranges::upper_bound(best_, setup.tokens_per_s, std::greater<>(),
                                                &AdvisedSetup::tokens_per_s);
    best_.insert(place, std::move(setup));
    if (best_.size() > static_cast<std::size_t>(options_.best)) best_.pop_back();
  }

  void count_rest() {
    for (const Candidate& candidate : queue_) {
      if (options_.prune && candidate.least_us_per_token >= worst_kept()) {
        ++advice_.above_bound;
        continue;
      }
      ++advice_.left;
      const double best = best_.empty() ? std::numeric_limits<double>::infinity()
                                        : kUsPerSecond / best_.front().tokens_per_s;
      advice_.possible_gain = std::max(advice_.possible_gain, best / candidate.least_us_per_token);
    }
    queue_.clear();
  }

  const AdviseOptions& options_;
  bool own_;
  SetupPredictor& predictor_;
  Clock::time_point end_;
  Clock::time_point late_;
  Advice& advice_;
  std::vector<Candidate> queue_;  // in the order of bounds
  std::vector<AdvisedSetup> best_;
};

}  // namespace

double AdvisedSetup::device_hours_per_billion(const Cluster& cluster) const {
  return cluster.num_devices() * 1e9 / tokens_per_s * kUsPerSecond / kUsPerHour;
}

Advice advise(const AdviseJob& job, const AdviseOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.best < 1) {
    fail_argument("advise: expected at least one set-up to return, found {}", options.best);
  }
  if (!(options.seconds >= 0)) {
    fail_argument("advise: expected seconds of at least 0, found {}", options.seconds);
  }
  const AdviseJob complete = complete_job(job);
  const DrawnSteps steps(complete);
  Advice advice{
      .tokens = complete.tokens,
      .step_tokens = complete.step_tokens,
      .steps = static_cast<std::int32_t>(steps.size()),
      .cut = std::ranges::count_if(complete.lengths,
                                   [&](std::int64_t length) { return length > complete.tokens; }),
      .repeats = steps.repeats()};
  const std::vector<SetupGroup> engines = setup_groups(complete, options, false);
  if (engines.empty()) {
    fail_argument(
        "advise: expected sizes TP x CP x DP x PP with a product of {} devices that the model "
        "allows and {} micro-batches spread evenly over, found none",
        complete.cluster.num_devices(), complete.step_tokens / complete.tokens);
  }
  SetupPredictor predictor(complete, steps);
  const auto until = [&](double share) {
    return start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                       std::chrono::duration<double>(share * options.seconds));
  };
  advice.engines =
      SetupSearch(options, false, predictor, until(kShareOfEngines), advice).run(engines);
  advice.own = SetupSearch(options, true, predictor, until(1), advice)
                   .run(setup_groups(complete, options, true));
  return advice;
}

namespace {

// One set-up of a job, predicted as often as its constants change.
class OneSetup {
 public:
  OneSetup(const AdviseJob& job, const TrainingSetup& setup)
      : job_(of_setup(job, setup)), setup_(setup), steps_(job_), predictor_(job_, steps_) {
    setup_.tokens = job_.tokens;
    setup_.step_tokens = job_.step_tokens;
  }

  AdvisedSetup predict(double linear_mfu) {
    job_.options.linear_mfu = linear_mfu;
    const DrawnOutcome bound = predictor_.bound(setup_);
    DrawnOutcome outcome = bound.fits() ? predictor_.predict(setup_, false) : bound;
    if (!outcome.fits()) {
      fail_argument("set-up {}: {}", setup_text(setup_), outcome.first.reason);
    }
    return advised_setup(setup_, outcome, bound.us, predictor_.tokens(setup_), steps_.size());
  }

 private:
  static AdviseJob of_setup(const AdviseJob& job, const TrainingSetup& setup) {
    AdviseJob own = job;
    if (setup.tokens != 0) own.tokens = setup.tokens;
    if (setup.step_tokens != 0) own.step_tokens = setup.step_tokens;
    own = complete_job(own);
    // Somebody runs it, whatever the prediction of memory says.
    own.cluster.memory_bytes = 0;
    return own;
  }

  AdviseJob job_;
  TrainingSetup setup_;
  DrawnSteps steps_;
  SetupPredictor predictor_;
};

}  // namespace

AdvisedSetup predict_setup(const AdviseJob& job, const TrainingSetup& setup) {
  return OneSetup(job, setup).predict(job.options.linear_mfu);
}

AdvisedSetup fit_setup(AdviseJob& job, const TrainingSetup& setup, double measured_us) {
  OneSetup one(job, setup);
  double low = kLeastMfu;
  double high = kMostMfu;
  const double slowest = one.predict(low).step_us;
  const double fastest = one.predict(high).step_us;
  if (!(measured_us <= slowest && measured_us >= fastest)) {
    fail_argument(
        "measured step: expected {:.4g} to {:.4g} s, which this set-up is predicted to take if "
        "everything outside attention reaches 100% to 5% of the peak, found {:.4g} s",
        kSecondsPerUs * fastest, kSecondsPerUs * slowest, kSecondsPerUs * measured_us);
  }
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = 0.5 * (low + high);
    (one.predict(middle).step_us > measured_us ? low : high) = middle;
  }
  job.options.linear_mfu = 0.5 * (low + high);
  return one.predict(job.options.linear_mfu);
}

}  // namespace contextile

// The search: bounds first, then predictions in the order of the bounds.
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "training/advise/candidates.h"
#include "training/advise/setup_predictor.h"

namespace contextile {
namespace {

constexpr std::array kByRecompute = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
constexpr double kShareOfEngines = 0.6;   // of the time; the rest is for this library's plans
constexpr double kShareOfBounds = 0.4;    // of the time of a list
constexpr std::size_t kStride = 16;       // of groups while they are bounded
constexpr double kRanksOfEqualCost = 32;  // of a plan, for its work and for its messages
constexpr double kCostOfSchedule = 8;    // of a whole step, relative to a plan for each micro-batch
constexpr double kShareOfRound = 0.125;  // of the time that is left
constexpr double kLateShare = 0.75;      // of it, until only set-ups with plans are predicted
constexpr double kUsPerHour = 3600 * kUsPerSecond;

// A set-up to predict. Times are of all drawn steps.
struct Candidate {
  TrainingSetup setup;
  double bound_us_per_token = 0;  // without plans
  // The best bound so far: without plans, or with a plan that no collective disturbs.
  double least_us_per_token = 0;
  bool planned = false;
};

// The set-ups of a group that are worth a prediction, and how many are not.
struct GroupBounds {
  std::vector<Candidate> candidates = {};
  std::int64_t out_of_memory = 0;
  std::int64_t impossible = 0;
  std::int64_t unsupported = 0;
};

// Prediction of one list of set-ups: the engines' or this library's.
class SetupSearch {
 public:
  using Clock = std::chrono::steady_clock;

  // `own`: set-ups that only this library has.
  SetupSearch(const ModelSpec& model, const AdviseOptions& options, bool own,
              SetupPredictor& predictor, Clock::time_point end, Advice& advice)
      : model_(model),
        options_(options),
        own_(own),
        predictor_(predictor),
        end_(end),
        advice_(advice) {
    const auto now = Clock::now();
    const auto share = [&](double of_time) {
      return now + std::chrono::duration_cast<Clock::duration>(of_time * (end - now));
    };
    bounds_end_ = share(kShareOfBounds);
    late_ = share(kLateShare);
  }

  std::vector<AdvisedSetup> run(const std::vector<SetupGroup>& groups) {
    add_candidates(groups);
    while (!queue_.empty() && (!time_is_over() || needs_answer())) {
      if (options_.prune && queue_.front().least_us_per_token >= worst_kept()) break;
      if (!predict_next()) break;
      if (options_.progress) options_.progress(progress());
    }
    count_rest();
    return std::move(best_);
  }

 private:
  [[nodiscard]] bool time_is_over() const { return options_.seconds > 0 && Clock::now() >= end_; }

  // One set-up is predicted however long it takes.
  [[nodiscard]] bool needs_answer() const { return best_.empty() && advice_.engines.empty(); }

  // Time per token of the slowest set-up that is kept, once the list is full.
  [[nodiscard]] double worst_kept() const {
    return best_.size() < static_cast<std::size_t>(options_.best)
               ? std::numeric_limits<double>::infinity()
               : kUsPerSecond / best_.back().tokens_per_s;
  }

  [[nodiscard]] AdviseProgress progress() const {
    return {.predicted = advice_.predicted,
            .left = static_cast<std::int64_t>(queue_.size()) + unbounded_,
            .best_tokens_per_s = best_.empty() ? 0 : best_.front().tokens_per_s};
  }

  // Bounds groups until the share of the time for it is over, and until one set-up fits. Groups
  // that are far from each other come first, so that a short time sees all kinds of sizes.
  void add_candidates(const std::vector<SetupGroup>& groups) {
    std::vector<const SetupGroup*> order;
    for (std::size_t first = 0; first < kStride; ++first) {
      for (std::size_t i = first; i < groups.size(); i += kStride) order.push_back(&groups[i]);
    }
    for (const SetupGroup* group : order) unbounded_ += num_setups(*group);
    advice_.considered += unbounded_;
    for (std::size_t at = 0; at < order.size(); at += kAtOnce) {
      const bool over = options_.seconds > 0 && Clock::now() >= bounds_end_;
      if (over && (!queue_.empty() || !needs_answer())) break;
      const std::size_t count = std::min(kAtOnce, order.size() - at);
      std::vector<GroupBounds> bounds(count);
      parallel_for(std::size_t{0}, count, [&](std::size_t i) {
        bounds[i] = bounded(*order[at + i], Recompute::kNone, i);
      });
      for (std::size_t i = 0; i < count; ++i) {
        add_bounds(std::move(bounds[i]));
        unbounded_ -= num_setups(*order[at + i]);
      }
      if (options_.progress) options_.progress(progress());
    }
  }

  static std::int64_t num_setups(const SetupGroup& group) {
    return static_cast<std::int64_t>(group.exchanges.size());
  }

  [[nodiscard]] bool runs(TrainingSetup setup, Recompute recompute) const {
    setup.recompute = recompute;
    return own_ || runs_in_engine(setup, model_, options_);
  }

  // The set-ups of a group, each with the least recompute, from `least` on, that fits and that an
  // engine has.
  [[nodiscard]] GroupBounds bounded(const SetupGroup& group, Recompute least, std::size_t slot) {
    GroupBounds bounds;
    std::vector<TrainingSetup> left = group.exchanges;
    bounds.unsupported = static_cast<std::int64_t>(std::erase_if(left, [&](const auto& exchange) {
      return std::ranges::none_of(kByRecompute, [&](Recompute recompute) {
        return recompute >= least && searched(recompute) && runs(exchange, recompute);
      });
    }));
    Verdict verdict = Verdict::kOutOfMemory;
    for (const Recompute recompute : kByRecompute) {
      if (left.empty() || recompute < least || !searched(recompute)) continue;
      TrainingSetup setup = group.setup;
      setup.recompute = recompute;
      const DrawnOutcome outcome = predictor_.bound(setup, slot);
      verdict = outcome.first.verdict;
      if (verdict == Verdict::kImpossible) break;
      if (verdict != Verdict::kFits) continue;
      const double bound = per_token(outcome.us, predictor_.tokens(setup));
      std::erase_if(left, [&](TrainingSetup exchange) {
        if (!runs(exchange, recompute)) return false;
        exchange.recompute = recompute;
        bounds.candidates.push_back({exchange, bound, bound, false});
        return true;
      });
    }
    const auto count = static_cast<std::int64_t>(left.size());
    if (verdict == Verdict::kOutOfMemory) bounds.out_of_memory = count;
    if (verdict == Verdict::kImpossible) bounds.impossible = count;
    if (verdict == Verdict::kFits) bounds.unsupported += count;
    return bounds;
  }

  void add_bounds(GroupBounds bounds) {
    for (Candidate& candidate : bounds.candidates) insert(std::move(candidate));
    advice_.out_of_memory += bounds.out_of_memory;
    advice_.impossible += bounds.impossible;
    advice_.unsupported += bounds.unsupported;
  }

  [[nodiscard]] bool searched(Recompute recompute) const {
    return options_.recomputes.empty() ||
           std::ranges::find(options_.recomputes, recompute) != options_.recomputes.end();
  }

  // Takes the next set-ups that share no plans further: those without a plan to a bound with plans,
  // those with one to a prediction. Returns false if nothing was predicted.
  bool predict_next() {
    std::vector<Candidate> now = next_round();
    double cost = 0;
    for (const Candidate& candidate : now) cost += cost_of(candidate);
    const auto start = Clock::now();
    std::vector<DrawnOutcome> outcomes(now.size());
    parallel_for(std::size_t{0}, now.size(), [&](std::size_t i) {
      outcomes[i] = predictor_.predict(now[i].setup, !now[i].planned);
    });
    if (cost > 0) {
      cost_ += cost;
      cost_us_ += std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    }
    for (const Candidate& candidate : now) explored_.insert(SetupPredictor::key(candidate.setup));
    for (std::size_t i = 0; i < now.size(); ++i) add_outcome(now[i], outcomes[i]);
    return !now.empty();
  }

  // Removes the set-ups of the next round from the queue. The first answer is one of the cheapest
  // to plan, and shows how long plans take. Rounds are short, so that a plan which takes most of
  // the time waits for all others. When most of the time is over, only set-ups with plans are
  // taken, if there are any.
  std::vector<Candidate> next_round() {
    if (options_.seconds > 0 && (cost_ == 0 || needs_answer())) return cheapest();
    const bool late = options_.seconds > 0 && Clock::now() >= late_ &&
                      std::ranges::any_of(queue_, &Candidate::planned);
    const std::vector<std::size_t> order = order_of_round();
    std::vector<std::size_t> round;
    for (const double share : {kShareOfRound, 1.0}) {
      double cost_left = options_.seconds > 0 ? share * us_left() * cost_ / cost_us_
                                              : std::numeric_limits<double>::infinity();
      std::set<std::string> keys;
      for (const std::size_t at : order) {
        if (round.size() == kAtOnce) break;
        const Candidate& candidate = queue_[at];
        const double cost = cost_of(candidate);
        if ((late && !candidate.planned) || cost > cost_left) continue;
        if (!keys.insert(SetupPredictor::key(candidate.setup)).second) continue;
        cost_left -= cost;
        round.push_back(at);
      }
      if (!round.empty()) break;
    }
    return removed(std::move(round));
  }

  std::vector<Candidate> cheapest() {
    const auto at = std::ranges::min_element(
        queue_, {}, [](const Candidate& candidate) { return cost_of_plans(candidate.setup); });
    std::vector<Candidate> one = removed({static_cast<std::size_t>(at - queue_.begin())});
    one.front().planned = true;
    return one;
  }

  std::vector<Candidate> removed(std::vector<std::size_t> places) {
    std::vector<Candidate> candidates;
    candidates.reserve(places.size());
    for (const std::size_t at : places) candidates.push_back(std::move(queue_[at]));
    std::ranges::sort(places, std::greater<>());
    for (const std::size_t at : places) {
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return candidates;
  }

  [[nodiscard]] double us_left() const {
    return std::chrono::duration<double, std::micro>(end_ - Clock::now()).count();
  }

  // Set-ups that may still be kept, by their bounds. If the time is too short for all plans, every
  // second round begins with plans that were not made yet, the cheapest first: many small ones are
  // made in the time of a large one.
  [[nodiscard]] std::vector<std::size_t> order_of_round() {
    std::vector<std::size_t> order;
    std::vector<std::size_t> unexplored;
    std::set<std::string> keys;
    double cost = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      const Candidate& candidate = queue_[i];
      if (options_.prune && candidate.least_us_per_token >= worst_kept()) break;
      order.push_back(i);
      const std::string key = SetupPredictor::key(candidate.setup);
      if (explored_.contains(key) || !keys.insert(key).second) continue;
      unexplored.push_back(i);
      cost += cost_of(candidate);
    }
    if (options_.seconds <= 0 || cost_us_ * cost <= us_left() * cost_) return order;
    by_cost_ = !by_cost_;
    if (!by_cost_) return order;
    std::ranges::stable_sort(unexplored, {}, [&](std::size_t i) { return cost_of(queue_[i]); });
    unexplored.insert(unexplored.end(), order.begin(), order.end());
    return unexplored;
  }

  // Bounds with plans share plans; a prediction simulates them with collectives of its own.
  [[nodiscard]] double cost_of(const Candidate& candidate) const {
    const bool made = explored_.contains(SetupPredictor::key(candidate.setup));
    return made && !candidate.planned ? 0 : cost_of_plans(candidate.setup);
  }

  // About what a plan of the set-up costs, in any unit: messages are as many as pairs of ranks.
  static double cost_of_plans(const TrainingSetup& setup) {
    const double ranks = setup.sizes.cp;
    const std::int64_t micro_batches = setup.step_tokens / setup.tokens;
    return static_cast<double>(micro_batches) * ranks * (1 + ranks / kRanksOfEqualCost) *
           (setup.packing == DocumentPacking::kDynamic ? kCostOfSchedule : 1);
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
    add_bounds(bounded({candidate.setup, {candidate.setup}}, more, 0));
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
      const std::vector<AdvisedSetup>& found = best_.empty() ? advice_.engines : best_;
      if (found.empty()) continue;
      const double best = kUsPerSecond / found.front().tokens_per_s;
      advice_.possible_gain = std::max(advice_.possible_gain, best / candidate.least_us_per_token);
    }
    queue_.clear();
    advice_.left += unbounded_;
    advice_.unbounded += unbounded_;
  }

  const ModelSpec& model_;
  const AdviseOptions& options_;
  bool own_;
  SetupPredictor& predictor_;
  Clock::time_point end_;
  Clock::time_point bounds_end_;
  Clock::time_point late_;
  Advice& advice_;
  double cost_ = 0;                      // of all rounds
  double cost_us_ = 0;                   // that they took
  std::set<std::string> explored_ = {};  // keys of set-ups of a round so far
  bool by_cost_ = false;                 // the last round took the cheapest set-ups
  std::int64_t unbounded_ = 0;           // set-ups of groups without a bound so far
  std::vector<Candidate> queue_;         // in the order of bounds
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
  Advice advice{.tokens = complete.tokens,
                .step_tokens = complete.step_tokens,
                .steps = static_cast<std::int32_t>(steps.size()),
                .cut = steps.cut(),
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
      SetupSearch(complete.model, options, false, predictor, until(kShareOfEngines), advice)
          .run(engines);
  advice.own = SetupSearch(complete.model, options, true, predictor, until(1), advice)
                   .run(setup_groups(complete, options, true));
  return advice;
}

}  // namespace contextile

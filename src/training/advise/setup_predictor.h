// Predictions of set-ups on the drawn steps of a job.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "training/advise/candidates.h"

namespace contextile {

inline constexpr std::size_t kAtOnce = 8;  // set-ups that are predicted in parallel
inline constexpr double kUsPerSecond = 1e6;

inline double per_token(double us, std::int64_t tokens) { return us / static_cast<double>(tokens); }

// A set-up on all drawn steps: the outcome of the first one, or of the first that does not fit, and
// the time of all.
struct DrawnOutcome {
  StepOutcome first;
  double us = 0;
  std::int64_t memory_bytes = 0;  // of the fullest step

  [[nodiscard]] bool fits() const { return first.verdict == Verdict::kFits; }
};

// Plans and predictions of set-ups on the drawn steps. The steps of one planner share plans, and
// those of one packing and exchange share a planner.
class SetupPredictor {
 public:
  SetupPredictor(const AdviseJob& job, const DrawnSteps& steps) : job_(job), steps_(steps) {
    for (const DocumentPacking packing : kPackings) tokens_[index(packing)] = steps.tokens(packing);
    for (std::vector<Planners>& of_slot : bounds_) of_slot.resize(kPackings.size());
  }

  // Not at the same time in one slot. Slots are below kAtOnce.
  DrawnOutcome bound(const TrainingSetup& setup, std::size_t slot = 0) {
    Planners& own = bounds_[slot][index(setup.packing)];
    if (own.empty()) own = planners(setup.packing);
    return over_steps(setup, own,
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
      all.memory_bytes = std::max(all.memory_bytes, outcome.memory_bytes());
      if (i == 0 || !fits) all.first = std::move(outcome);
      if (!fits) break;
    }
    return all;
  }

  const AdviseJob& job_;
  const DrawnSteps& steps_;
  std::array<std::int64_t, kPackings.size()> tokens_{};
  std::array<std::vector<Planners>, kAtOnce> bounds_;  // by slot and packing
  std::mutex mutex_;
  std::map<std::string, Planners> planners_;
};

inline AdvisedSetup advised_setup(const TrainingSetup& setup, DrawnOutcome& outcome,
                                  double bound_us, std::int64_t tokens, std::size_t steps) {
  AdvisedSetup advised{.setup = setup, .memory_bytes = outcome.memory_bytes};
  advised.step_us = outcome.us / static_cast<double>(steps);
  advised.tokens_per_s = kUsPerSecond / per_token(outcome.us, tokens);
  advised.bound_us = bound_us / static_cast<double>(steps);
  advised.prediction = std::move(*outcome.first.prediction);
  return advised;
}

}  // namespace contextile

// One set-up of a job: its prediction, and the fit of it to a measured step.
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "training/advise/candidates.h"
#include "training/advise/setup_predictor.h"

namespace contextile {
namespace {

constexpr double kSecondsPerUs = 1e-6;
// Shares of the peak that are plausible outside attention, and the steps of a search among them.
constexpr double kLeastMfu = 0.05;
constexpr double kMostMfu = 1;
constexpr int kHalvings = 12;

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

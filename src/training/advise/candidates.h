// Set-ups that a search of training set-ups considers, and the steps they are predicted on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/advanced/advise.h"

namespace contextile {

inline constexpr std::array kPackings = {DocumentPacking::kSequential, DocumentPacking::kWlb,
                                         DocumentPacking::kDynamic};

// The job with its defaults filled in. Throws InvalidArgument on anything that cannot be searched.
[[nodiscard]] AdviseJob complete_job(const AdviseJob& job);

// The steps of a job that set-ups are predicted on: the same documents in every packing. Few
// micro-batches say little about a data set, so that small steps are several.
class DrawnSteps {
 public:
  explicit DrawnSteps(const AdviseJob& job);

  [[nodiscard]] std::size_t size() const { return steps_.size(); }
  [[nodiscard]] bool repeats() const { return repeats_; }
  // Documents that do not end in the micro-batch they begin in.
  [[nodiscard]] std::int64_t cut() const { return cut_; }
  // A job of one step whose micro-batches are packed so. Dynamic groups are dealt the documents of
  // sequential micro-batches.
  [[nodiscard]] const TrainingJob& step(std::size_t i, DocumentPacking packing) const {
    return steps_[i][packing == DocumentPacking::kWlb ? 1 : 0];
  }
  // Tokens of all steps.
  [[nodiscard]] std::int64_t tokens(DocumentPacking packing) const;

 private:
  std::vector<std::array<TrainingJob, 2>> steps_;
  bool repeats_ = false;
  std::int64_t cut_ = 0;
};

// Set-ups that differ only in recompute, which is left at kNone, and have the same bound for every
// exchange.
struct SetupGroup {
  TrainingSetup setup;                   // with the first of `exchanges`
  std::vector<TrainingSetup> exchanges;  // the same set-up with every exchange it may have
};
// Returns true if the engine of the options can run the set-up, or any engine if none is named.
[[nodiscard]] bool runs_in_engine(const TrainingSetup& setup, const ModelSpec& model,
                                  const AdviseOptions& options);
// All groups of a search: of the engines' set-ups, or of those that only this library has.
[[nodiscard]] std::vector<SetupGroup> setup_groups(const AdviseJob& job,
                                                   const AdviseOptions& options, bool own);

}  // namespace contextile

// The verifier, which proves that a plan is correct. It shares no code with the code that makes
// plans.
//
//   const VerifyReport report = verify(load_plan("batch.plan"));
//   if (!report.ok()) std::printf("%s\n", report.violations.front().c_str());
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/plan.h"

namespace contextile {

struct DataMovement {  // of one direction, all rounds and masks together
  std::int64_t transfers = 0;
  std::int64_t redundant_transfers = 0;  // no attention reads the data there or further on
  std::int64_t redundant_bytes = 0;
  std::int64_t unused_by_receiver_transfers = 0;  // not used by the receiver, which at most relays
                                                  // it
  std::int64_t unused_by_receiver_bytes = 0;
};

struct VerifyReport {
  std::vector<std::string> violations;  // the first `max_shown`, causes before consequences
  std::int64_t num_violations = 0;
  std::vector<std::string> warnings;
  bool grouped_launches_ok = true;       // no deadlock when launches run strictly one after another
  std::array<DataMovement, 2> movement;  // by Direction; meaningful when ok()

  [[nodiscard]] bool ok() const { return num_violations == 0; }
};

struct VerifyOptions {
  std::int64_t max_shown = 50;
  // Reports a deadlock of grouped launches as a violation. Transports such as NCCL need its
  // absence.
  bool require_grouped_launches = true;
  ProgressHook progress = {};  // receives the number of instructions examined so far
};

// Proves a plan: every attended pair is computed exactly once, data flow, linear partials, matching
// messages, no race, no deadlock, memory, ownership (docs/plan-format.md). Never throws on a broken
// plan, only what the progress hook throws; every violation is counted. Uses plan and mask types
// only. O(tiles + instructions · log).
[[nodiscard]] VerifyReport verify(const Plan& plan, const VerifyOptions& options = {});

}  // namespace contextile

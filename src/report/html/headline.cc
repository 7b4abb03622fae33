#include "report/html/headline.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "report/waiting.h"

namespace contextile {

std::string headline_text(ReportSubjects subjects) {
  const auto waits = [&](std::size_t i) {
    const ReportedPlan& reported = subjects[i].reported;
    return waiting_text(waiting_of(reported.cluster, reported.simulation));
  };
  const auto time_us = [&](std::size_t i) { return subjects[i].reported.simulation.time_us(); };
  if (subjects.size() == 1) return fmt::format("{} {}.", short_name(subjects, 0), waits(0));
  const std::size_t fast = time_us(1) < time_us(0) ? 1 : 0;
  const std::size_t slow = 1 - fast;
  const double ratio = time_us(fast) > 0 ? time_us(slow) / time_us(fast) : 1;
  return fmt::format("{} is predicted {:.3g} times as fast as {}, which {}.",
                     short_name(subjects, fast), ratio, short_name(subjects, slow), waits(slow));
}

}  // namespace contextile

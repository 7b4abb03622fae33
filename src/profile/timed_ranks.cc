#include "profile/timed_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

namespace contextile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMostCalls = 20000;  // of one sample

struct Interval {
  Clock::time_point start;
  Clock::time_point end;
};

// From the first start to the last end.
double span_s(const std::vector<Interval>& intervals) {
  Clock::time_point start = intervals.front().start;
  Clock::time_point end = intervals.front().end;
  for (const Interval& interval : intervals) {
    start = std::min(start, interval.start);
    end = std::max(end, interval.end);
  }
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

double seconds_per_call(std::int32_t ranks, const TimingEffort& effort,
                        const std::function<std::function<void()>(Transport&)>& prepare) {
  std::vector<Interval> intervals(static_cast<std::size_t>(ranks));
  double fastest = std::numeric_limits<double>::infinity();
  run_inproc(ranks, [&](Transport& transport) {
    const std::function<void()> call = prepare(transport);
    Interval& mine = intervals[transport.rank().index()];
    // Ranks write their interval between two barriers and read all of them after the second.
    const auto sample_s = [&](std::int64_t calls) {
      barrier(transport);
      mine.start = Clock::now();
      for (std::int64_t i = 0; i < calls; ++i) call();
      mine.end = Clock::now();
      barrier(transport);
      return span_s(intervals);
    };
    static_cast<void>(sample_s(1));  // warms caches and threads up
    const double once_s = std::max(sample_s(1), 1e-9);
    const auto calls =
        static_cast<std::int64_t>(std::clamp(effort.sample_s / once_s, 1.0, kMostCalls));
    // A call that fills a sample was one.
    const std::int32_t taken = once_s >= effort.sample_s ? 1 : 0;
    if (taken == 1 && transport.rank().value == 0) fastest = once_s;
    for (std::int32_t s = taken; s < effort.samples; ++s) {
      const double seconds = sample_s(calls) / static_cast<double>(calls);
      if (transport.rank().value == 0) fastest = std::min(fastest, seconds);
    }
  });
  return fastest;
}

}  // namespace contextile

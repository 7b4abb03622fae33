#include "runtime/profile/timed_ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/clock.h"

namespace contextile {
namespace {

constexpr double kMostCalls = 20000;  // of one sample

struct Interval {
  Clock::time_point start;
  Clock::time_point end;
};

// Seconds from the first start to the last end.
double span_s(const std::vector<Interval>& intervals) {
  Clock::time_point start = intervals.front().start;
  Clock::time_point end = intervals.front().end;
  for (const Interval& interval : intervals) {
    start = std::min(start, interval.start);
    end = std::max(end, interval.end);
  }
  return std::chrono::duration<double>(end - start).count();
}

// Seconds per call of each sample. `sample_s(n)` takes a sample of n calls; its result is the same
// on every rank, so that all take the same number.
template <typename Sample>
std::vector<double> sampled_s(const TimingEffort& effort, const Sample& sample_s) {
  static_cast<void>(sample_s(1));  // warms up caches and threads
  const double once_s = std::max(sample_s(1), 1e-9);
  const auto calls =
      static_cast<std::int64_t>(std::clamp(effort.sample_s / once_s, 1.0, kMostCalls));
  std::vector<double> samples;
  if (once_s >= effort.sample_s) samples.push_back(once_s);  // one call fills a sample
  while (std::ssize(samples) < effort.samples) {
    samples.push_back(sample_s(calls) / static_cast<double>(calls));
  }
  return samples;
}

}  // namespace

double seconds_per_call(std::int32_t ranks, const TimingEffort& effort,
                        const std::function<std::function<void()>(Transport&)>& prepare) {
  std::vector<Interval> intervals(static_cast<std::size_t>(ranks));
  double fastest = 0;
  run_inproc(ranks, [&](Transport& transport) {
    const std::function<void()> call = prepare(transport);
    Interval& mine = intervals[transport.rank().index()];
    // Ranks write their interval between two barriers and read all of them after the second.
    const std::vector<double> found = sampled_s(effort, [&](std::int64_t calls) {
      barrier(transport);
      mine.start = Clock::now();
      for (std::int64_t i = 0; i < calls; ++i) call();
      mine.end = Clock::now();
      barrier(transport);
      return span_s(intervals);
    });
    if (transport.rank().value == 0) fastest = *std::ranges::min_element(found);
  });
  return fastest;
}

double seconds_per_call(Transport& rank, std::int32_t ranks, const TimingEffort& effort,
                        const std::function<std::function<void()>(Transport&)>& prepare) {
  std::function<void()> call = [] {};
  if (rank.rank().value < ranks) call = prepare(rank);
  double call_s = 0;  // of the sample before, the same on all ranks
  const std::vector<double> samples = sampled_s(effort, [&](std::int64_t calls) {
    const double settling = call_s > 0 ? std::min(effort.settle_s / call_s, kMostCalls) : 0;
    barrier(rank);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(std::ceil(settling)); ++i) call();
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) call();
    const Clock::time_point end = Clock::now();
    const double sample_s =
        time_of_ranks(rank, ranks, std::chrono::duration<double>(end - start).count(), effort.time);
    call_s = sample_s / static_cast<double>(calls);
    return sample_s;
  });
  return *std::ranges::min_element(samples);
}

double time_of_ranks(Transport& rank, std::int32_t ranks, double mine, TimeOfRanks time) {
  const auto all = all_gather(rank, std::as_bytes(std::span(&mine, 1)));
  double largest = 0;
  double sum = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
    double of_rank = 0;
    std::memcpy(&of_rank, all[r].data(), sizeof(of_rank));
    largest = std::max(largest, of_rank);
    sum += of_rank;
  }
  return time == TimeOfRanks::kMean ? sum / ranks : largest;
}

}  // namespace contextile

#include "runtime/profile/link_measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "runtime/profile/transfer_bench.h"

namespace contextile {
namespace {

constexpr std::int64_t kLaunches = 16;  // of a sample of their cost
constexpr std::int32_t kLaunchSamples = 20;
// Calls during a transfer take this many times as long as the transfer alone, so that it ends
// before they do.
constexpr double kBusyTimes = 2.5;
constexpr std::int32_t kBusyTurns = 15;
constexpr double kLeastSecond = 1e-9;
constexpr double kBytesOfMb = 1e6;
constexpr double kMostStolen = 0.9;  // of compute

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

LinkRate rate_of(std::span<const TransferSample> samples, double launch_s) {
  const TransferSample& large = samples[samples.size() - 1];
  const TransferSample& medium = samples[samples.size() - 2];
  const double added_s = std::max(large.seconds - medium.seconds, 0.1 * large.seconds);
  return {.latency_s = std::max(0.0, samples.front().seconds - launch_s),
          .gbytes_per_s = static_cast<double>(large.bytes - medium.bytes) / added_s * 1e-9};
}

LinkRate link_rate_of(std::span<const TransferSample> samples, double launch_s) {
  LinkRate rate{.latency_s = std::max(0.0, samples.front().seconds - launch_s)};
  for (const TransferSample& sample : samples.last(2)) {
    const double moving_s = std::max(sample.seconds - rate.latency_s, 0.1 * sample.seconds);
    rate.gbytes_per_s =
        std::max(rate.gbytes_per_s, static_cast<double>(sample.bytes) / moving_s * 1e-9);
  }
  return rate;
}

StolenCompute stolen_compute(const BusySample& both_ways, const BusySample& one_way,
                             double transfer_s) {
  const double both_s = std::max(0.0, both_ways.busy_s - both_ways.quiet_s);
  const double one_s = std::clamp(one_way.busy_s - one_way.quiet_s, both_s / 2, both_s);
  const double of_way_s = both_s - one_s;
  const double share = (one_s - of_way_s) / transfer_s;
  return {.share = std::min(share, kMostStolen),
          .us_per_mb = 1e6 * of_way_s / (static_cast<double>(both_ways.bytes) / kBytesOfMb)};
}

std::vector<TransferPattern> LinkMeasurement::patterns() const {
  std::vector<TransferPattern> patterns;
  if (settings_.devices_per_node > 1) patterns.push_back(TransferPattern::kRing);
  if (settings_.nodes > 1) patterns.push_back(TransferPattern::kNodeRing);
  for (const TransferPattern pattern :
       {TransferPattern::kPairs, TransferPattern::kIncast, TransferPattern::kAllToAll}) {
    patterns.push_back(pattern);
  }
  return patterns;
}

std::int64_t LinkMeasurement::steps(const LinkSettings& settings) {
  constexpr std::int64_t kMostPatterns = 5;
  return kMostPatterns * std::ssize(settings.message_bytes) + 3;
}

double LinkMeasurement::exchange_s(TransferPattern pattern, std::int64_t bytes) const {
  return seconds_per_call(rank_, ranks(), settings_.effort, [&](Transport& transport) {
    const auto bench = std::make_shared<TransferBench>(transport, pattern, ranks(),
                                                       settings_.devices_per_node, bytes);
    return std::function<void()>([bench] { bench->exchange(); });
  });
}

// Sends small messages around a ring. After the barrier they have arrived, because messages of a
// pair come in order, so the waits do not block.
double LinkMeasurement::launch_s() const {
  TransferBench bench(rank_, widest_ring(), ranks(), settings_.devices_per_node,
                      settings_.message_bytes.front());
  double fastest = std::numeric_limits<double>::infinity();
  for (std::int32_t i = 0; i < kLaunchSamples; ++i) {
    barrier(rank_);
    std::vector<std::int64_t> tickets;
    const Clock::time_point start = Clock::now();
    for (std::int64_t n = 0; n < kLaunches; ++n) tickets.push_back(bench.launch());
    const Clock::time_point launched = Clock::now();
    barrier(rank_);
    const Clock::time_point arrived = Clock::now();
    for (const std::int64_t ticket : tickets) bench.wait(ticket);
    const double seconds =
        seconds_between(start, launched) + seconds_between(arrived, Clock::now());
    fastest = std::min(fastest, seconds / static_cast<double>(kLaunches));
  }
  return time_of_ranks(rank_, ranks(), fastest, TimeOfRanks::kSlowest);
}

// Uses the largest messages.
BusySample LinkMeasurement::busy_calls(TransferPattern pattern, TileBench& bench) const {
  const std::int64_t bytes = settings_.message_bytes.back();
  TransferBench transfers(rank_, pattern, ranks(), settings_.devices_per_node, bytes);
  const double call_s = seconds_per_call(rank_, ranks(), settings_.effort, [&](Transport&) {
    return std::function<void()>([&bench] { bench.forward(); });
  });
  const auto calls = static_cast<std::int64_t>(
      std::ceil(kBusyTimes * exchange_s(pattern, bytes) / std::max(call_s, kLeastSecond)));
  const auto seconds_of = [&](const std::function<void()>& work) {
    barrier(rank_);
    const Clock::time_point start = Clock::now();
    work();
    return time_of_ranks(rank_, ranks(), seconds_between(start, Clock::now()), TimeOfRanks::kMean);
  };
  const auto compute = [&] {
    for (std::int64_t i = 0; i < calls; ++i) bench.forward();
  };
  // The two alternate, so that a machine that becomes slower does so for both.
  std::vector<double> quiet_s;
  std::vector<double> added_s;
  for (std::int32_t i = 0; i < kBusyTurns; ++i) {
    quiet_s.push_back(seconds_of(compute));
    const double busy_s = seconds_of([&] {
      const std::int64_t ticket = transfers.launch();
      compute();
      transfers.wait(ticket);
    });
    added_s.push_back(busy_s - quiet_s.back());
  }
  BusySample sample{.pattern = pattern, .bytes = bytes};
  sample.quiet_s = median_of(quiet_s);
  sample.busy_s = sample.quiet_s + median_of(added_s);
  return sample;
}

void LinkMeasurement::run(TileBench& bench, MachineProfile& profile) const {
  std::vector<LinkRate> rates;
  step("launches");
  const double launch_s = this->launch_s();
  for (const TransferPattern pattern : patterns()) {
    for (const std::int64_t bytes : settings_.message_bytes) {
      step(fmt::format("{}, {} bytes", to_string(pattern), bytes));
      profile.transfers.push_back({ranks(), bytes, exchange_s(pattern, bytes), pattern});
    }
    const std::span<const TransferSample> samples(profile.transfers);
    rates.push_back(link_rate_of(samples.last(settings_.message_bytes.size()), launch_s));
  }
  for (const TransferPattern pattern : {widest_ring(), TransferPattern::kPairs}) {
    step(fmt::format("computing during {}", to_string(pattern)));
    profile.busy.push_back(busy_calls(pattern, bench));
  }
  // Rings come first: inside nodes, then between them; a machine with one kind has only that one.
  const LinkRate& intra = rates[0];
  const LinkRate& inter =
      settings_.devices_per_node > 1 && settings_.nodes > 1 ? rates[1] : rates[0];
  Cluster& cluster = profile.cluster;
  cluster.intra_gbytes_per_s = intra.gbytes_per_s;
  cluster.intra_latency_us = 1e6 * intra.latency_s;
  cluster.inter_gbytes_per_s_per_node = inter.gbytes_per_s * settings_.devices_per_node;
  cluster.inter_latency_us = 1e6 * inter.latency_s;
  cluster.launch_us = 1e6 * launch_s;
  const double port_bytes_per_s =
      1e9 * (settings_.nodes > 1 ? inter.gbytes_per_s : intra.gbytes_per_s);
  const double transfer_s = static_cast<double>(profile.busy[0].bytes) / port_bytes_per_s;
  const StolenCompute stolen = stolen_compute(profile.busy[0], profile.busy[1], transfer_s);
  cluster.sm_fraction = stolen.share;
  cluster.transfer_compute_us_per_mb = stolen.us_per_mb;
}

}  // namespace contextile

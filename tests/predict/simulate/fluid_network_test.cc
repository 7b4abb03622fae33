// The network, compared with progressive filling, written out plainly.
#include "predict/simulate/fluid_network.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

struct Arrival {
  double time_us = 0;
  std::int32_t stream = 0;
  double bytes = 0;
};

struct Traffic {
  std::vector<double> capacity;
  std::vector<FlowPath> streams;
  std::vector<Arrival> arrivals;  // by time; tags are their indices
};

Traffic random_traffic(Rng& rng) {
  Traffic traffic;
  // If there are many ports, each crossed by few streams, a change reaches only some.
  const bool sparse = random_chance(rng, 0.5);
  const std::int64_t ports = sparse ? random_between(rng, 20, 40) : random_between(rng, 2, 9);
  for (std::int64_t p = 0; p < ports; ++p) {
    traffic.capacity.push_back(static_cast<double>(random_between(rng, 1, 8)));
  }
  const std::int64_t streams = random_between(rng, 1, sparse ? 30 : 12);
  for (std::int64_t s = 0; s < streams; ++s) {
    FlowPath path;
    for (std::int64_t p = 0; p < ports && path.num_ports < kMaxPortsOfFlow; ++p) {
      if (random_between(rng, 0, sparse ? ports / 2 : 2) == 0)
        path.cross(static_cast<std::int32_t>(p));
    }
    if (path.num_ports == 0) path.cross(0);
    traffic.streams.push_back(path);
  }
  double now_us = 0;
  const std::int64_t arrivals = random_between(rng, 1, 60);
  for (std::int64_t a = 0; a < arrivals; ++a) {
    now_us += static_cast<double>(random_between(rng, 0, 3));  // several at once, too
    traffic.arrivals.push_back({now_us,
                                static_cast<std::int32_t>(random_between(rng, 0, streams - 1)),
                                static_cast<double>(random_between(rng, 0, 40))});
  }
  return traffic;
}

// Raises all rates together; flows of a port that is full keep their rates.
std::map<std::int32_t, double> reference_rates(const Traffic& traffic,
                                               const std::map<std::int32_t, double>& bytes_left) {
  std::map<std::int32_t, double> rates;
  std::vector<double> left = traffic.capacity;
  while (rates.size() < bytes_left.size()) {
    std::vector<int> waiting(left.size());
    const auto path = [&](std::int32_t tag) -> const FlowPath& {
      const Arrival& arrival = traffic.arrivals[static_cast<std::size_t>(tag)];
      return traffic.streams[static_cast<std::size_t>(arrival.stream)];
    };
    const auto crosses = [&](std::int32_t tag, std::size_t port) {
      const FlowPath& ports = path(tag);
      const auto* const end = ports.port.begin() + ports.num_ports;
      return std::find(ports.port.begin(), end, static_cast<std::int32_t>(port)) != end;
    };
    for (const auto& [tag, bytes] : bytes_left) {
      if (rates.contains(tag)) continue;
      for (std::size_t p = 0; p < left.size(); ++p) waiting[p] += crosses(tag, p) ? 1 : 0;
    }
    std::size_t tightest = left.size();
    for (std::size_t p = 0; p < left.size(); ++p) {
      if (waiting[p] == 0) continue;
      if (tightest == left.size() || left[p] / waiting[p] < left[tightest] / waiting[tightest]) {
        tightest = p;
      }
    }
    const double share = left[tightest] / waiting[tightest];
    for (const auto& [tag, bytes] : bytes_left) {
      if (rates.contains(tag) || !crosses(tag, tightest)) continue;
      rates[tag] = share;
      for (std::size_t p = 0; p < left.size(); ++p) left[p] -= crosses(tag, p) ? share : 0;
    }
  }
  return rates;
}

// The times at which flows end.
std::vector<double> reference_ends(const Traffic& traffic) {
  std::vector<double> ends(traffic.arrivals.size());
  std::map<std::int32_t, double> bytes_left;  // by tag
  double now_us = 0;
  std::size_t next = 0;
  while (next < traffic.arrivals.size() || !bytes_left.empty()) {
    const std::map<std::int32_t, double> rates = reference_rates(traffic, bytes_left);
    double step_us = next < traffic.arrivals.size() ? traffic.arrivals[next].time_us - now_us
                                                    : std::numeric_limits<double>::infinity();
    for (const auto& [tag, bytes] : bytes_left) step_us = std::min(step_us, bytes / rates.at(tag));
    now_us += step_us;
    for (auto it = bytes_left.begin(); it != bytes_left.end();) {
      it->second -= rates.at(it->first) * step_us;
      if (it->second < 1e-9) {
        ends[static_cast<std::size_t>(it->first)] = now_us;
        it = bytes_left.erase(it);
      } else {
        ++it;
      }
    }
    while (next < traffic.arrivals.size() && traffic.arrivals[next].time_us <= now_us) {
      bytes_left[static_cast<std::int32_t>(next)] = traffic.arrivals[next].bytes;
      ++next;
    }
  }
  return ends;
}

// Shares out at every change, or every `resolution_us` while there is one.
std::vector<double> simulated_ends(const Traffic& traffic, double resolution_us) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  FluidNetwork network(traffic.capacity);
  for (const FlowPath& path : traffic.streams) static_cast<void>(network.add_stream(path));
  std::vector<double> ends(traffic.arrivals.size());
  std::size_t next = 0;
  bool changed = false;
  double due_us = 0;
  while (true) {
    const double arrival_us =
        next < traffic.arrivals.size() ? traffic.arrivals[next].time_us : kNever;
    const double now_us = std::min({arrival_us, network.next_end_us(), changed ? due_us : kNever});
    if (now_us == kNever) break;
    while (network.next_end_us() <= now_us) {
      ends[static_cast<std::size_t>(network.pop_ended())] = now_us;
      changed = true;
    }
    while (next < traffic.arrivals.size() && traffic.arrivals[next].time_us <= now_us) {
      network.add(traffic.arrivals[next].stream, traffic.arrivals[next].bytes,
                  static_cast<std::int32_t>(next));
      ++next;
      changed = true;
    }
    if (changed && now_us >= due_us) {
      due_us = now_us + resolution_us;
      network.share_out(now_us, due_us);
      changed = false;
    }
  }
  EXPECT_EQ(network.num_flows(), 0);
  return ends;
}

TEST(FluidNetwork, FlowsEndWhenProgressiveFillingSaysSo) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const Traffic traffic = random_traffic(rng);
    const std::vector<double> expected = reference_ends(traffic);
    const std::vector<double> found = simulated_ends(traffic, 0);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
  }
}

TEST(FluidNetwork, ACoarseResolutionServesEveryFlowAndNoPortTooMuch) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const Traffic traffic = random_traffic(rng);
    const std::vector<double> ends = simulated_ends(traffic, 2.5);
    double last_us = 0;
    std::vector<double> bytes(traffic.capacity.size());
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const Arrival& arrival = traffic.arrivals[i];
      EXPECT_GE(ends[i], arrival.time_us);
      last_us = std::max(last_us, ends[i]);
      const FlowPath& path = traffic.streams[static_cast<std::size_t>(arrival.stream)];
      for (std::size_t p = 0; p < static_cast<std::size_t>(path.num_ports); ++p) {
        bytes[static_cast<std::size_t>(path.port[p])] += arrival.bytes;
      }
    }
    for (std::size_t p = 0; p < bytes.size(); ++p) {
      EXPECT_LE(bytes[p], traffic.capacity[p] * last_us * (1 + 1e-9));
    }
  }
}

TEST(FluidNetwork, FlowsOfOneStreamEndInTheOrderOfTheirBytes) {
  FluidNetwork network({6});
  FlowPath path;
  path.cross(0);
  const std::int32_t stream = network.add_stream(path);
  network.add(stream, 9, 0);
  network.add(stream, 3, 1);
  network.add(stream, 6, 2);
  network.share_out(0, 100);
  EXPECT_DOUBLE_EQ(network.next_end_us(), 1.5);
  EXPECT_EQ(network.pop_ended(), 1);
  network.share_out(1.5, 100);  // two flows left, 3 bytes per µs each
  EXPECT_DOUBLE_EQ(network.next_end_us(), 2.5);
  EXPECT_EQ(network.pop_ended(), 2);
  network.share_out(2.5, 100);
  EXPECT_DOUBLE_EQ(network.next_end_us(), 3);
  EXPECT_EQ(network.pop_ended(), 0);
  EXPECT_EQ(network.num_flows(), 0);
}

}  // namespace
}  // namespace contextile

// Costs of messages between the processes of a group: on the links, and on the ranks' processors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/advanced/profile.h"
#include "contextile/extend/transport.h"
#include "runtime/profile/tile_bench.h"
#include "runtime/profile/timed_ranks.h"

namespace contextile {

struct LinkSettings {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  std::vector<std::int64_t> message_bytes;  // ascending, at least two
  TimingEffort effort;
};

// Latency from the smallest message; bandwidth from the time that the largest adds to the next
// smaller one. `samples` are of one pattern, by bytes.
struct LinkRate {
  double latency_s = 0;
  double gbytes_per_s = 0;  // of one rank, each direction
};
[[nodiscard]] LinkRate rate_of(std::span<const TransferSample> samples, double launch_s);

// Rate of links with the same latency; the bandwidth is the better of the two largest messages'.
[[nodiscard]] LinkRate link_rate_of(std::span<const TransferSample> samples, double launch_s);

// Compute time lost to moving data: a share while anything moves, and an amount per MB. The two are
// separated by comparing a rank that sends and receives the same amount at once, for `transfer_s`
// each, with ranks that do only one of them.
struct StolenCompute {
  double share = 0;
  double us_per_mb = 0;
};
[[nodiscard]] StolenCompute stolen_compute(const BusySample& both_ways, const BusySample& one_way,
                                           double transfer_s);

// Collective; every rank gets the same results.
class LinkMeasurement {
 public:
  LinkMeasurement(Transport& rank, const LinkSettings& settings,
                  const std::function<void(std::string_view)>& on_step)
      : rank_(rank), settings_(settings), on_step_(on_step) {}

  // Fills transfers and busy calls of the profile, and its cluster's links, latencies, launch_us
  // and transfer_compute_us_per_mb. `bench` makes the calls during which messages move.
  void run(TileBench& bench, MachineProfile& profile) const;
  [[nodiscard]] static std::int64_t steps(const LinkSettings& settings);

 private:
  [[nodiscard]] std::int32_t ranks() const { return settings_.nodes * settings_.devices_per_node; }
  [[nodiscard]] TransferPattern widest_ring() const {
    return settings_.nodes > 1 ? TransferPattern::kNodeRing : TransferPattern::kRing;
  }
  [[nodiscard]] std::vector<TransferPattern> patterns() const;
  void step(std::string_view what) const {
    if (on_step_) on_step_(what);
  }
  [[nodiscard]] double exchange_s(TransferPattern pattern, std::int64_t bytes) const;
  [[nodiscard]] double launch_s() const;
  [[nodiscard]] BusySample busy_calls(TransferPattern pattern, TileBench& bench) const;

  Transport& rank_;
  const LinkSettings& settings_;
  const std::function<void(std::string_view)>& on_step_;
};

}  // namespace contextile

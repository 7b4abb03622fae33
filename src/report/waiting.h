// The share of a predicted time that devices wait for transfers, and for what they wait most.
#pragma once

#include <array>
#include <string>

#include "contextile/cluster.h"
#include "contextile/simulate.h"

namespace contextile {

struct Waiting {
  double share = 0;    // of the time of all devices, 0 to 1
  std::string mostly;  // "one NIC per node"; empty if nothing waits
};

// Adds up the waits of simulations on one cluster.
class WaitingTimes {
 public:
  explicit WaitingTimes(const Cluster& cluster) : cluster_(cluster) {}

  // `simulation` has a timeline. O(spans + waits · (steps within the wait + messages of a port)).
  void add(const Simulation& simulation);
  [[nodiscard]] Waiting result() const;

 private:
  static constexpr std::size_t kNumReasons = 5;

  const Cluster& cluster_;
  double time_us_ = 0;
  double exposed_us_ = 0;
  std::array<double, kNumReasons> for_us_{};
};
[[nodiscard]] Waiting waiting_of(const Cluster& cluster, const Simulation& simulation);

// "waits 37% of its attention time, mostly for one NIC per node", "hardly waits".
[[nodiscard]] std::string waiting_text(const Waiting& waiting);

}  // namespace contextile

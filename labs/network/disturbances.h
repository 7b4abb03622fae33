// Ways in which a machine differs from its prediction: other constants, a slow device, jitter.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/cluster.h"
#include "labs/network/network_program.h"

namespace contextile {

// Returns the cluster with every constant of its cost model multiplied by a factor of its own,
// uniform in [1 - within, 1 + within]: rates, latencies, call and launch times, flow limits, costs
// of the engine. Deterministic for a seed on every platform.
[[nodiscard]] Cluster with_wrong_constants(const Cluster& cluster, double within,
                                           std::uint64_t seed);

// A slow device and jitter.
struct Noise {
  double slow_by = 0.1;  // one device, drawn at random, takes longer by this share
  double jitter = 0.05;  // standard deviation of the factor of each instruction's duration
};
// Changes the durations of all steps. `device_seed` draws the slow device and `jitter_seed` the
// factors, which are normal around 1 and at least 0.1. Plans that are to be compared have one slow
// device and different jitter.
void add_noise(std::vector<NetworkProgram>& programs, const Noise& noise, std::uint64_t device_seed,
               std::uint64_t jitter_seed);

}  // namespace contextile

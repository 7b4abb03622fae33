#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/advanced/training.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "predict/simulate/what_if.h"

namespace contextile {
namespace {

constexpr Kind kForwardInputs[] = {Kind::kQ, Kind::kKv};
constexpr Kind kBackwardInputs[] = {Kind::kQ, Kind::kKv, Kind::kDo};

// The share of the model's layers that use each mask.
std::vector<double> layer_shares(const Plan& plan) {
  std::vector<double> shares;
  for (const NamedMask& mask : plan.rounds.front().masks) {
    shares.push_back(static_cast<double>(mask.layers));
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

double mean_layer_us(const SimulatedDirection& simulated, std::span<const double> shares) {
  double us = 0;
  for (const SimulatedProgram& program : simulated.programs) {
    us += shares[static_cast<std::size_t>(program.mask)] * program.time_us;
  }
  return us;
}

// A machine on which only moving data takes time.
Cluster transfers_only(Cluster cluster) {
  constexpr double kFree = 1e6;
  cluster.attention_tflops *= kFree;
  cluster.attention.call_us = 0;
  cluster.memory_gbytes_per_s *= kFree;
  cluster.launch_us = 0;
  cluster.transfer_sms = 0;
  cluster.sm_fraction = 0;
  cluster.transfer_compute_us_per_mb = 0;
  return cluster;
}

// The tokens that every device owns and its end time, by round and mask.
std::vector<RoundShares> round_shares(const Plan& plan, const Simulation& simulation,
                                      std::span<const double> shares) {
  std::map<std::pair<std::int32_t, std::int32_t>, RoundShares> of_program;
  const auto add = [&](const SimulatedDirection& direction, double DeviceShare::*idle_us) {
    for (const SimulatedProgram& program : direction.programs) {
      RoundShares& of = of_program[{program.round, program.mask}];
      of.layers = shares[static_cast<std::size_t>(program.mask)];
      of.devices.resize(program.idle_us.size());
      const PlanRound& round = plan.rounds[static_cast<std::size_t>(program.round)];
      for (std::size_t r = 0; r < of.devices.size(); ++r) {
        of.devices[r].tokens = round.owned_tokens(Rank{static_cast<std::int32_t>(r)});
        of.devices[r].*idle_us = program.idle_us[r];
      }
    }
  };
  add(*simulation.forward, &DeviceShare::forward_idle_us);
  add(*simulation.backward, &DeviceShare::backward_idle_us);
  std::vector<RoundShares> result;
  result.reserve(of_program.size());
  for (auto& [program, of] : of_program) result.push_back(std::move(of));
  return result;
}

// The share of inputs in the bytes that a direction moves.
double input_share(const DirectionStats& stats, Direction direction) {
  const std::span<const Kind> inputs = direction == Direction::kForward
                                           ? std::span<const Kind>(kForwardInputs)
                                           : std::span<const Kind>(kBackwardInputs);
  std::int64_t in = 0;
  for (const Kind kind : inputs) in += stats.bytes_by_kind[static_cast<std::size_t>(kind)];
  const std::int64_t all =
      std::accumulate(stats.bytes_by_kind.begin(), stats.bytes_by_kind.end(), std::int64_t{0});
  return all > 0 ? static_cast<double>(in) / static_cast<double>(all) : 0;
}

AttentionTimes times_of(const SimulatedDirection& simulated, std::span<const double> shares) {
  AttentionTimes times;
  times.time_us = mean_layer_us(simulated, shares);
  // Subtracts the busiest device's waiting time instead of adding up its compute. If it never
  // waits, compute is then the whole time to the last bit.
  double waiting_us = simulated.time_us;
  for (const DeviceTimes& device : simulated.devices) {
    waiting_us = std::min(waiting_us, device.of(Activity::kExposed) + device.idle_us);
  }
  const double waiting_share = waiting_us > 0 ? waiting_us / simulated.time_us : 0;
  times.compute_us = times.time_us * (1 - waiting_share);
  return times;
}

// How much later than attention alone a direction ends with a collective, one layer.
double later_us(const SimulatedDirection& alone, std::span<const double> shared_us,
                std::span<const double> shares) {
  double us = 0;
  for (std::size_t i = 0; i < alone.programs.size(); ++i) {
    const SimulatedProgram& program = alone.programs[i];
    us += shares[static_cast<std::size_t>(program.mask)] *
          std::max(0.0, shared_us[i] - program.time_us);
  }
  return us;
}

// Sets AttentionTimes::shared_us of both directions.
void share_links(const Plan& plan, const Cluster& cluster, const CollectiveTraffic& collective,
                 const Simulation& alone, std::span<const double> shares,
                 MicroBatchAttention& attention) {
  attention.forward.shared_us.emplace();
  attention.backward.shared_us.emplace();
  for (std::size_t i = 0; i < kSharedLoads.size(); ++i) {
    const SharedTimes shared = simulate_shared(plan, cluster, collective, kSharedLoads[i], alone);
    (*attention.forward.shared_us)[i] = later_us(*alone.forward, shared.forward_us, shares);
    (*attention.backward.shared_us)[i] = later_us(*alone.backward, shared.backward_us, shares);
  }
}

// Bytes that forward keeps for backward of one layer (the mean over masks), on the device with
// most.
std::int64_t retained_bytes(const Plan& plan, std::span<const double> shares) {
  double most = 0;
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    double retained = 0;
    for (std::size_t round = 0; round < plan.rounds.size(); ++round) {
      for (std::size_t mask = 0; mask < shares.size(); ++mask) {
        const DeviceMemory memory = device_memory(plan, round, mask, Direction::kForward, Rank{r});
        retained += shares[mask] * static_cast<double>(memory.retained_bytes);
      }
    }
    most = std::max(most, retained);
  }
  return static_cast<std::int64_t>(most);
}

}  // namespace

double AttentionTimes::later_us(double us) const {
  if (!shared_us || time_us <= 0) return us;
  double load = 0;
  double later = 0;
  for (std::size_t i = 0; i < kSharedLoads.size(); ++i) {
    const double next_load = kSharedLoads[i] * time_us;
    const double next = (*shared_us)[i];
    if (us <= next_load) return later + (next - later) * (us - load) / (next_load - load);
    load = next_load;
    later = next;
  }
  return later + us - load;  // attention is over
}

AttentionTimes& AttentionTimes::operator+=(const AttentionTimes& other) {
  if (!shared_us || !other.shared_us) {
    shared_us.reset();
  } else {
    for (std::size_t i = 0; i < kSharedLoads.size(); ++i) (*shared_us)[i] += (*other.shared_us)[i];
  }
  time_us += other.time_us;
  compute_us += other.compute_us;
  input_us += other.input_us;
  output_us += other.output_us;
  return *this;
}

BatchPart batch_part_of(const Plan& plan, const Cluster& cluster, std::int32_t tp,
                        AttentionDetail detail, const CollectiveTraffic& collective) {
  CONTEXTILE_CHECK(!plan.rounds.empty(), "training step: expected a plan with rounds, found none");
  const std::vector<double> shares = layer_shares(plan);
  const Simulation simulation = simulate(plan, cluster);
  CONTEXTILE_CHECK(simulation.forward && simulation.backward,
                   "training step: expected a plan with forward and backward, found one direction");
  BatchPart part;
  part.tokens = plan.num_tokens();
  for (const PlanRound& round : plan.rounds) {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
      most = std::max(most, round.owned_tokens(Rank{r}));
    }
    part.device_tokens += most;
    for (std::size_t mask = 0; mask < shares.size(); ++mask) {
      part.attention_flops += shares[mask] * forward_flops(round.masks[mask].mask.num_pairs(),
                                                           plan.shape.q_heads * tp, plan.shape);
    }
  }
  MicroBatchAttention& attention = part.attention;
  attention.forward = times_of(*simulation.forward, shares);
  attention.backward = times_of(*simulation.backward, shares);
  const PlanStats stats = statistics(plan);
  attention.staging_bytes =
      std::max(stats.forward->peak_memory_bytes, stats.backward->peak_memory_bytes);
  attention.retained_bytes = retained_bytes(plan, shares);
  part.shares = round_shares(plan, simulation, shares);
  if (collective.any()) share_links(plan, cluster, collective, simulation, shares, attention);
  if (detail == AttentionDetail::kTimes) return part;
  const Simulation transfers = simulate(plan, transfers_only(cluster));
  const auto split = [&](Direction direction, const SimulatedDirection& simulated,
                         const DirectionStats& moved, AttentionTimes& times) {
    const double us = mean_layer_us(simulated, shares);
    times.input_us = us * input_share(moved, direction);
    times.output_us = us - times.input_us;
  };
  split(Direction::kForward, *transfers.forward, *stats.forward, attention.forward);
  split(Direction::kBackward, *transfers.backward, *stats.backward, attention.backward);
  return part;
}

}  // namespace contextile

#include "training/scheduled_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/parallel_for.h"

namespace contextile {
namespace {

// Time of attention until device d of a part is done, the mean over masks, and its idle time.
struct DeviceAttention {
  double forward_us = 0;
  double backward_us = 0;
  std::int64_t tokens = 0;
};

std::vector<DeviceAttention> devices_of(const BatchPart& part, std::int32_t num_devices) {
  std::vector<DeviceAttention> devices(
      static_cast<std::size_t>(num_devices),
      {part.attention.forward.time_us, part.attention.backward.time_us, 0});
  for (const RoundShares& shares : part.shares) {
    for (std::size_t d = 0; d < shares.devices.size(); ++d) {
      devices[d].forward_us -= shares.layers * shares.devices[d].forward_idle_us;
      devices[d].backward_us -= shares.layers * shares.devices[d].backward_idle_us;
      devices[d].tokens = shares.devices[d].tokens;  // the same under every mask
    }
  }
  return devices;
}

// Sums up what the ranks do in one round.
class RoundSum {
 public:
  explicit RoundSum(std::int32_t num_ranks) : ranks_(static_cast<std::size_t>(num_ranks)) {
    part_.tokens_at_once = 0;
  }

  void add(const GroupBatch& group, const BatchPart& micro_batch) {
    const std::vector<DeviceAttention> devices = devices_of(micro_batch, group.size);
    for (std::size_t d = 0; d < devices.size(); ++d) {
      Rank& rank = ranks_[static_cast<std::size_t>(group.first) + d];
      AttentionTimes forward = micro_batch.attention.forward;
      AttentionTimes backward = micro_batch.attention.backward;
      forward.time_us = devices[d].forward_us;
      backward.time_us = devices[d].backward_us;
      rank.forward += forward;
      rank.backward += backward;
      rank.tokens += devices[d].tokens;
    }
    part_.tokens += micro_batch.tokens;
    part_.attention_flops += micro_batch.attention_flops;
    part_.tokens_at_once = std::max(*part_.tokens_at_once, micro_batch.held_tokens());
    MicroBatchAttention& attention = part_.attention;
    attention.staging_bytes =
        std::max(attention.staging_bytes, micro_batch.attention.staging_bytes);
    attention.retained_bytes =
        std::max(attention.retained_bytes, micro_batch.attention.retained_bytes);
  }

  BatchPart result() {
    RoundShares shares;
    for (const Rank& rank : ranks_) {
      part_.device_tokens = std::max(part_.device_tokens, rank.tokens);
      take_longest(rank.forward, part_.attention.forward);
      take_longest(rank.backward, part_.attention.backward);
    }
    for (const Rank& rank : ranks_) {
      shares.devices.push_back(
          {.tokens = rank.tokens,
           .forward_idle_us = part_.attention.forward.time_us - rank.forward.time_us,
           .backward_idle_us = part_.attention.backward.time_us - rank.backward.time_us});
    }
    part_.shares.push_back(std::move(shares));
    return std::move(part_);
  }

 private:
  struct Rank {
    AttentionTimes forward{.shared_us = SharedTimesOfLoads{}};
    AttentionTimes backward{.shared_us = SharedTimesOfLoads{}};
    std::int64_t tokens = 0;
  };

  static void take_longest(const AttentionTimes& of_rank, AttentionTimes& longest) {
    if (of_rank.time_us <= longest.time_us) return;
    longest = of_rank;
    longest.compute_us = std::min(longest.time_us, longest.compute_us);
  }

  std::vector<Rank> ranks_;
  BatchPart part_;
};

}  // namespace

std::vector<BatchPart> round_parts(const PlannedSchedule& schedule, std::int32_t tp,
                                   const CollectiveTraffic& collective) {
  std::vector<BatchPart> of_plan(schedule.plans.size());
  parallel_for(std::size_t{0}, of_plan.size(), [&](std::size_t i) {
    const auto& [cluster, planned] = schedule.plans[i];
    of_plan[i] = batch_part_of(*planned.plan, cluster, tp, AttentionDetail::kTimes, collective);
  });
  std::vector<BatchPart> parts;
  for (const std::vector<ScheduledMicroBatch>& round : schedule.rounds) {
    RoundSum sum(schedule.num_ranks);
    for (const auto& [group, plan] : round) sum.add(group, of_plan[plan]);
    parts.push_back(sum.result());
  }
  return parts;
}

BatchPart replica_part(const BatchPart& round, std::int32_t replica, std::int32_t dp) {
  BatchPart part = round;
  const std::vector<DeviceShare>& devices = round.shares.front().devices;
  const std::size_t cp = devices.size() / static_cast<std::size_t>(dp);
  part.tokens = 0;
  for (std::size_t r = 0; r < cp; ++r) {
    part.tokens += devices[static_cast<std::size_t>(replica) * cp + r].tokens;
  }
  part.attention_flops /= dp;
  return part;
}

std::optional<std::string> pipeline_reason(const PlannedSchedule& schedule) {
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    std::vector<std::int32_t> micro_batches(static_cast<std::size_t>(schedule.num_ranks));
    for (const ScheduledMicroBatch& micro_batch : schedule.rounds[r]) {
      for (std::int32_t d = 0; d < micro_batch.group.size; ++d) {
        ++micro_batches[static_cast<std::size_t>(micro_batch.group.first + d)];
      }
    }
    const auto most = std::ranges::max_element(micro_batches);
    if (*most <= 1) continue;
    return fmt::format(
        "{} gives rank {} {} micro-batches in round {}: pipeline stages run one at a time",
        schedule.strategy, most - micro_batches.begin(), *most, r);
  }
  return std::nullopt;
}

}  // namespace contextile

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "plan/conversion_layout.h"

namespace contextile {
namespace {

constexpr std::array<Kind, kNumKinds> kKinds = {Kind::kQ,  Kind::kKv, Kind::kO,
                                                Kind::kDo, Kind::kDq, Kind::kDkv};

// verify computes the memory of plans that it is about to reject: unknown blocks count as empty.
bool is_known(const PlanRound& round, BlockId block) {
  return block.valid() && block.value < round.blocks.num_blocks();
}
std::int64_t tokens_of(const PlanRound& round, BlockId block) {
  return is_known(round, block) ? round.blocks.num_tokens(block) : 0;
}

// The dtype of the arenas and owned accumulators of a kind.
Dtype storage_dtype(Kind kind, const AttentionShape& shape) {
  return is_result(kind) ? Dtype::kF32 : shape.dtype;
}

// Bytes of the units that are in the retained slots when the program ends.
std::int64_t retained_bytes(const Plan& plan, const PlanRound& round, const Program& program) {
  if (program.retain.empty()) return 0;
  const auto last_written = program.last_brought();
  std::int64_t bytes = 0;
  for (const Retain& retain : program.retain) {
    const auto found = last_written.find({retain.kind, retain.slot});
    if (found == last_written.end()) continue;  // nothing there; verify reports it
    const BlockId block = found->second.first;
    bytes += unit_bytes(retain.kind, tokens_of(round, block), plan.shape, round.groups_of(block),
                        storage_dtype(retain.kind, plan.shape));
  }
  return bytes;
}

// Bytes that the original's ring keeps in addition, if the strategy's option requests the count
// (count_stashed=on): for each of P steps an output of all queries, summed when forward ends.
std::int64_t stashed_bytes(const Plan& plan, const PlanRound& round, const Program& program) {
  const auto option = plan.options.find("count_stashed");
  const std::int32_t steps = plan.num_devices() / round.head_groups;
  if (option == plan.options.end() || option->second != "on" || steps == 1) return 0;
  std::set<std::pair<GroupId, BlockId>> queries;
  for (const Instruction& instruction : program.instructions) {
    if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
      for (const TileOp& tile : attention->tiles) queries.insert({tile.group, tile.q_block});
    }
  }
  std::int64_t bytes = 0;
  for (const auto& [group, block] : queries) {
    bytes += unit_bytes(Kind::kO, tokens_of(round, block), plan.shape, round.groups_of(block),
                        plan.shape.dtype);
  }
  constexpr double kMost = 0x1p61;  // plans of files may claim any number of devices
  return static_cast<std::int64_t>(std::min(kMost, static_cast<double>(bytes) * steps));
}

// ---------------------------------------------------------------------------------- balance

// Largest and mean load, summed over runs, because devices wait for each other between runs.
struct Balance {
  double max = 0;
  double mean = 0;

  void add_run(std::span<const double> loads) {
    if (loads.empty()) return;
    max += *std::max_element(loads.begin(), loads.end());
    mean += std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  }
  [[nodiscard]] double overload() const { return mean > 0 ? max / mean - 1 : 0; }
  [[nodiscard]] double imbalance() const { return max > 0 ? (max - mean) / max : 0; }
};

std::int64_t scaled(std::int64_t value, double factor) {
  return factor == 1 ? value : std::llround(static_cast<double>(value) * factor);
}

// --------------------------------------------------------------------------------- counting

// Sums over the programs of one direction.
class DirectionCount {
 public:
  DirectionCount(const Plan& plan, Direction direction) : plan_(plan), direction_(direction) {
    stats_.devices.resize(static_cast<std::size_t>(plan.num_devices()));
    retained_bytes_.resize(stats_.devices.size());
  }

  void add_run(std::size_t round_index, std::size_t mask) {
    const PlanRound& round = plan_.rounds[round_index];
    std::vector<double> flops(stats_.devices.size());
    for (std::size_t r = 0; r < stats_.devices.size(); ++r) {
      const Rank rank{static_cast<std::int32_t>(r)};
      const std::optional<Program>& program = round.devices[r].programs[mask].of(direction_);
      if (!program) continue;
      present_ = true;
      for (const Instruction& instruction : program->instructions) {
        if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
          flops[r] += add_tiles(round, *attention);
        } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
          add_launch(round, rank, *launch);
        }
      }
      const DeviceMemory memory = device_memory(plan_, round_index, mask, direction_, rank);
      stats_.devices[r].flops += flops[r];
      const std::int64_t stashed =
          direction_ == Direction::kForward ? stashed_bytes(plan_, round, *program) : 0;
      stats_.devices[r].memory_bytes =
          std::max(stats_.devices[r].memory_bytes, memory.total_bytes() + stashed);
      retained_bytes_[r] += memory.retained_bytes;
    }
    balance_.add_run(flops);
  }

  [[nodiscard]] std::optional<DirectionStats> finish() {
    if (!present_) return std::nullopt;
    charge_padding();
    std::vector<std::int64_t> node_sent(static_cast<std::size_t>(plan_.nodes));
    std::vector<std::int64_t> node_received(node_sent.size());
    for (std::size_t r = 0; r < stats_.devices.size(); ++r) {
      const DeviceStats& device = stats_.devices[r];
      const auto node = static_cast<std::size_t>(plan_.node_of(Rank{static_cast<std::int32_t>(r)}));
      node_sent[node] += device.inter_sent_bytes;
      node_received[node] += device.inter_received_bytes;
      stats_.flops += device.flops;
      stats_.max_device_bytes =
          std::max({stats_.max_device_bytes, device.sent_bytes, device.received_bytes});
      stats_.peak_memory_bytes = std::max(stats_.peak_memory_bytes, device.memory_bytes);
      stats_.retained_bytes = std::max(stats_.retained_bytes, retained_bytes_[r]);
    }
    for (std::size_t n = 0; n < node_sent.size(); ++n) {
      stats_.max_node_uplink_bytes =
          std::max({stats_.max_node_uplink_bytes, node_sent[n], node_received[n]});
    }
    stats_.compute_imbalance = balance_.imbalance();
    stats_.compute_overload = balance_.overload();
    return std::move(stats_);
  }

 private:
  // Returns the FLOPs of the tiles.
  double add_tiles(const PlanRound& round, const AttentionOp& op) {
    for (const TileOp& tile : op.tiles) {
      ++stats_.tiles;
      if (tile.group.value == 0) stats_.pairs += tile.pairs;
    }
    return attention_flops(op, direction_, plan_.shape, round);
  }

  void add_launch(const PlanRound& round, Rank rank, const LaunchOp& op) {
    ++stats_.launches;
    peers_.clear();
    for (const TransferEnd& send : op.sends) {
      const std::int64_t bytes = unit_bytes(send.kind, tokens_of(round, send.block), plan_.shape,
                                            round.groups_of(send.block), send.wire);
      const bool inter = plan_.node_of(rank) != plan_.node_of(send.peer);
      DeviceStats& sender = stats_.devices[rank.index()];
      DeviceStats& receiver = stats_.devices[send.peer.index()];
      ++stats_.transfers;
      peers_.push_back(send.peer);
      stats_.bytes_by_kind[static_cast<std::size_t>(send.kind)] += bytes;
      sender.sent_bytes += bytes;
      receiver.received_bytes += bytes;
      (inter ? stats_.inter_bytes : stats_.intra_bytes) += bytes;
      if (inter) {
        sender.inter_sent_bytes += bytes;
        receiver.inter_received_bytes += bytes;
      }
    }
    std::sort(peers_.begin(), peers_.end());
    stats_.messages += std::unique(peers_.begin(), peers_.end()) - peers_.begin();
  }

  // The plan moves and computes real tokens only. The cost of padding in the original is added to
  // the numbers, not to the programs.
  void charge_padding() {
    const double bytes = plan_.padded_bytes_factor;
    const double pairs = plan_.padded_pairs_factor;
    stats_.pairs = scaled(stats_.pairs, pairs);
    stats_.inter_bytes = scaled(stats_.inter_bytes, bytes);
    stats_.intra_bytes = scaled(stats_.intra_bytes, bytes);
    for (std::int64_t& kind_bytes : stats_.bytes_by_kind) kind_bytes = scaled(kind_bytes, bytes);
    for (DeviceStats& device : stats_.devices) {
      device.sent_bytes = scaled(device.sent_bytes, bytes);
      device.received_bytes = scaled(device.received_bytes, bytes);
      device.inter_sent_bytes = scaled(device.inter_sent_bytes, bytes);
      device.inter_received_bytes = scaled(device.inter_received_bytes, bytes);
      device.flops *= pairs;
    }
  }

  const Plan& plan_;
  const Direction direction_;
  DirectionStats stats_;
  Balance balance_;
  std::vector<std::int64_t> retained_bytes_;  // by rank
  std::vector<Rank> peers_;                   // of one launch
  bool present_ = false;
};

std::optional<DirectionStats> count_direction(const Plan& plan, Direction direction) {
  DirectionCount count(plan, direction);
  for (std::size_t round = 0; round < plan.rounds.size(); ++round) {
    for (std::size_t mask = 0; mask < plan.rounds[round].masks.size(); ++mask) {
      count.add_run(round, mask);
    }
  }
  return count.finish();
}

}  // namespace

double attention_flops(const AttentionOp& op, Direction direction, const AttentionShape& shape,
                       const PlanRound& round) {
  double flops = 0;
  for (const TileOp& tile : op.tiles) {
    const std::int32_t q_heads = shape.q_heads / round.groups_of(tile.q_block);
    flops += direction == Direction::kForward ? forward_flops(tile.pairs, q_heads, shape)
                                              : backward_flops(tile.pairs, q_heads, shape);
  }
  return flops;
}

DeviceMemory device_memory(const Plan& plan, std::size_t round_index, std::size_t mask,
                           Direction direction, Rank rank) {
  check_has_rank(plan, rank, "device memory");
  const PlanRound& round = plan.rounds[round_index];
  const DeviceProgram& device = round.devices[rank.index()];
  const std::optional<Program>& program = device.programs[mask].of(direction);
  DeviceMemory memory;
  if (!program) return memory;
  for (const Kind kind : kKinds) {
    if (!occurs_in(kind, direction)) continue;
    memory.staging_bytes += unit_bytes(kind, program->arena_tokens(kind), plan.shape,
                                       round.head_groups, storage_dtype(kind, plan.shape));
    if (!is_result(kind)) continue;
    for (const BlockId block : device.local_blocks) {
      if (!is_known(round, block) || !role_has(round.blocks.role(block), kind)) continue;
      memory.accumulator_bytes +=
          unit_bytes(kind, round.blocks.num_tokens(block), plan.shape, 1, Dtype::kF32);
    }
  }
  if (converts_anything(*program)) {
    memory.conversion_bytes = conversion_layout(plan, round, *program).size_bytes;
  }
  memory.retained_bytes = retained_bytes(plan, round, *program);
  return memory;
}

PlanStats statistics(const Plan& plan) {
  check_whole(plan, "statistics");
  PlanStats stats;
  stats.tokens = plan.num_tokens();
  std::vector<double> owned_tokens(static_cast<std::size_t>(plan.num_devices()));
  for (const PlanRound& round : plan.rounds) {
    for (std::size_t b = 0; b < round.owners.size(); ++b) {
      owned_tokens[round.owners[b].index()] +=
          static_cast<double>(round.blocks.num_tokens(BlockId{static_cast<std::int32_t>(b)}));
    }
  }
  Balance tokens;
  tokens.add_run(owned_tokens);
  stats.token_imbalance = tokens.imbalance();
  stats.token_overload = tokens.overload();
  stats.forward = count_direction(plan, Direction::kForward);
  stats.backward = count_direction(plan, Direction::kBackward);
  return stats;
}

}  // namespace contextile

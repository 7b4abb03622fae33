#include "planner/auto/arrangement_load.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "contextile/base.h"
#include "planner/auto/link_rates.h"

namespace contextile {
namespace {

// Bytes out of and into devices, or the NICs of all nodes.
struct Ports {
  std::vector<double> out;
  std::vector<double> in;

  explicit Ports(std::size_t count) : out(count, 0), in(count, 0) {}
  [[nodiscard]] double busiest() const {
    return std::max(*std::ranges::max_element(out), *std::ranges::max_element(in));
  }
};

// Tells which results may travel finished, and so in the dtype of the activations. One is partial
// if several devices compute it and its sender has received none of it.
class FinishedResults {
 public:
  FinishedResults(const ArrangedRound& round, const ArrangedDirection& arranged,
                  std::int32_t num_devices)
      : groups_(round.head_groups), num_devices_(num_devices) {
    const auto units = static_cast<std::size_t>(round.blocks.num_blocks()) *
                       static_cast<std::size_t>(round.head_groups);
    for (auto* of_side : {&of_rows_, &of_columns_}) of_side->assign(units, {});
    for (const PlacedTile& tile : arranged.tiles) {
      add(of_rows_[unit(tile.q_block, tile.group)], tile.device);
      add(of_columns_[unit(tile.kv_block, tile.group)], tile.device);
    }
    for (const Transfer& t : arranged.transfers) {
      if (is_result(t.kind)) received_.push_back(at(t, t.dst));
    }
    std::ranges::sort(received_);
  }

  [[nodiscard]] bool may_be_finished(const Transfer& t) const {
    const auto& of_side = is_of_kv(t.kind) ? of_columns_ : of_rows_;
    return !of_side[unit(t.block, t.group)].is_shared ||
           std::ranges::binary_search(received_, at(t, t.src));
  }

 private:
  struct Computed {
    Rank device;
    bool is_shared = false;  // several devices compute it
  };
  static void add(Computed& computed, Rank device) {
    computed.is_shared |= computed.device.valid() && computed.device != device;
    computed.device = device;
  }
  [[nodiscard]] std::size_t unit(BlockId block, GroupId group) const {
    return block.index() * static_cast<std::size_t>(groups_) + group.index();
  }
  [[nodiscard]] std::size_t at(const Transfer& t, Rank rank) const {
    const std::size_t of_kind =
        unit(t.block, t.group) * kNumKinds + static_cast<std::size_t>(t.kind);
    return of_kind * static_cast<std::size_t>(num_devices_) + rank.index();
  }

  std::int32_t groups_;
  std::int32_t num_devices_;
  std::vector<Computed> of_rows_;
  std::vector<Computed> of_columns_;
  std::vector<std::size_t> received_;  // a kind of unit by a device, sorted
};

class Loads {
 public:
  Loads(const Workload& workload, const Cluster& cluster, Dtype partial_wire)
      : shape_(workload.shape), cluster_(cluster), partial_wire_(partial_wire) {
    const auto best = [&](const std::vector<double>& shares) {
      return *std::ranges::max_element(shares) * cluster.usable_attention_tflops() *
             1e6;  // FLOP/µs
    };
    forward_rate_ = best(cluster.attention.forward);
    backward_rate_ = best(cluster.attention.backward);
  }

  [[nodiscard]] double least_us(const ArrangedRound& round, const ArrangedDirection& arranged,
                                Direction direction) const {
    return std::max(compute_us(round, arranged, direction), moving_us(round, arranged));
  }

 private:
  [[nodiscard]] double compute_us(const ArrangedRound& round, const ArrangedDirection& arranged,
                                  Direction direction) const {
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(cluster_.num_devices()), 0);
    for (const PlacedTile& tile : arranged.tiles) {
      pairs[tile.device.index()] += tile.pairs * round.parts_of(tile.q_block);
    }
    const std::int64_t most = *std::ranges::max_element(pairs);
    const std::int32_t heads = shape_.q_heads / round.head_groups;
    return direction == Direction::kForward ? forward_flops(most, heads, shape_) / forward_rate_
                                            : backward_flops(most, heads, shape_) / backward_rate_;
  }

  [[nodiscard]] double moving_us(const ArrangedRound& round,
                                 const ArrangedDirection& arranged) const {
    Ports devices(static_cast<std::size_t>(cluster_.num_devices()));
    Ports nics(static_cast<std::size_t>(cluster_.nodes * cluster_.nics_per_node));
    const FinishedResults results(round, arranged, cluster_.num_devices());
    for (const Transfer& transfer : arranged.transfers) {
      const bool is_partial = is_result(transfer.kind) && !results.may_be_finished(transfer);
      const auto bytes = static_cast<double>(
          unit_bytes(transfer.kind, round.blocks.num_tokens(transfer.block), shape_,
                     round.groups_of(transfer.block), is_partial ? partial_wire_ : shape_.dtype));
      const bool inside = cluster_.same_node(transfer.src, transfer.dst);
      (inside ? devices.out : nics.out)[inside ? transfer.src.index() : nic(transfer.src)] += bytes;
      (inside ? devices.in : nics.in)[inside ? transfer.dst.index() : nic(transfer.dst)] += bytes;
    }
    const double nic_gbytes_per_s = cluster_.inter_gbytes_per_s_per_node / cluster_.nics_per_node;
    return kUsPerByteOfGbytes * std::max(devices.busiest() / cluster_.intra_gbytes_per_s,
                                         nics.busiest() / nic_gbytes_per_s);
  }
  [[nodiscard]] std::size_t nic(Rank rank) const {
    return static_cast<std::size_t>(cluster_.node_of(rank) * cluster_.nics_per_node +
                                    cluster_.nic_of(rank));
  }

  const AttentionShape& shape_;
  const Cluster& cluster_;
  Dtype partial_wire_;
  double forward_rate_;
  double backward_rate_;
};

}  // namespace

std::int64_t most_tokens(const Arrangement& arrangement, const Cluster& cluster) {
  IdVector<Rank, std::int64_t> owned(IdRange<Rank>(cluster.num_devices()));
  for (const ArrangedRound& round : arrangement.rounds) {
    for (const BlockId b : IdRange<BlockId>(round.blocks.num_blocks())) {
      owned[round.owners[b.index()]] += round.blocks.num_tokens(b);
    }
  }
  return *std::ranges::max_element(owned);
}

std::int64_t tiles_of_a_direction(const Arrangement& arrangement) {
  std::int64_t forward = 0;
  std::int64_t backward = 0;
  for (const ArrangedRound& round : arrangement.rounds) {
    for (const ArrangedMask& mask : round.programs) {
      if (mask.forward) forward += std::ssize(mask.forward->tiles);
      if (mask.backward) backward += std::ssize(mask.backward->tiles);
    }
  }
  return std::max(forward, backward);
}

double least_time_us(const Workload& workload, const Cluster& cluster,
                     const Arrangement& arrangement) {
  const Loads loads(workload, cluster, arrangement.partial_wire);
  double us = 0;
  for (const ArrangedRound& round : arrangement.rounds) {
    for (const ArrangedMask& mask : round.programs) {
      if (mask.forward) us += loads.least_us(round, *mask.forward, Direction::kForward);
      if (mask.backward) us += loads.least_us(round, *mask.backward, Direction::kBackward);
    }
  }
  return us;
}

}  // namespace contextile

// The cost of a partition of a grid, computed from the assignment alone and without the
// partitioner's bookkeeping.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/partition.h"

namespace contextile {
namespace {

class Evaluator {
 public:
  Evaluator(const AttentionGrid& grid, const GridSpec& spec, const GridPartition& partition)
      : grid_(grid), spec_(spec), partition_(partition) {}

  GridQuality run() {
    gather_units();
    count_direct();
    count_relayed();
    count_loads();
    return quality_;
  }

 private:
  [[nodiscard]] std::int32_t num_devices() const { return spec_.nodes * spec_.devices_per_node; }
  [[nodiscard]] IdRange<Rank> devices() const { return IdRange<Rank>(num_devices()); }
  [[nodiscard]] std::int32_t node(Rank device) const {
    return device.value / spec_.devices_per_node;
  }
  [[nodiscard]] std::int32_t nics_per_node() const {
    return spec_.nics_per_node == 0 ? spec_.devices_per_node : spec_.nics_per_node;
  }
  [[nodiscard]] std::size_t nic(Rank device) const {
    const std::int32_t in_node = device.value % spec_.devices_per_node;
    return static_cast<std::size_t>(node(device) * nics_per_node() +
                                    in_node * nics_per_node() / spec_.devices_per_node);
  }

  // Bytes that leave and enter ports.
  struct Traffic {
    std::vector<std::int64_t> sent;
    std::vector<std::int64_t> received;

    explicit Traffic(std::size_t ports) : sent(ports, 0), received(ports, 0) {}
    void move(std::size_t from, std::size_t to, std::int64_t bytes) {
      sent[from] += bytes;
      received[to] += bytes;
    }
    [[nodiscard]] std::int64_t busiest() const {
      return std::max(*std::ranges::max_element(sent), *std::ranges::max_element(received));
    }
  };

  using UnitDevices = IdVector<GroupId, std::vector<Rank>>;

  void gather_units() {
    const IdRange<GroupId> groups(grid_.head_groups);
    const UnitDevices none(groups);
    IdVector<BlockId, UnitDevices> rows(grid_.blocks.ids(), none);
    IdVector<BlockId, UnitDevices> columns(grid_.blocks.ids(), none);
    for (const TileId t : grid_.tiles.ids()) {
      const GridTile& tile = grid_.tiles[t];
      rows[tile.row][tile.group].push_back(partition_.device[t]);
      columns[tile.column][tile.group].push_back(partition_.device[t]);
    }
    for (const BlockId b : grid_.blocks.ids()) {
      const std::int64_t tokens = grid_.blocks[b].tokens;
      const Rank owner = partition_.owner[b];
      for (const GroupId g : groups) {
        const std::vector<Rank>& row = rows[b][g];
        // Half of a row's bytes are queries, which leave the owner; the other half are outputs,
        // which return.
        add_unit(tokens * grid_.row_bytes_per_token / 2, owner, false, row);
        add_unit(tokens * grid_.row_bytes_per_token / 2, owner, true, row);
        add_unit(tokens * grid_.column_bytes_per_token, owner, false, columns[b][g]);
      }
    }
  }

  void add_unit(std::int64_t bytes, Rank owner, bool towards_owner, std::vector<Rank> devices) {
    std::sort(devices.begin(), devices.end());
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    std::erase(devices, owner);
    if (!devices.empty()) units_.push_back({bytes, owner, towards_owner, std::move(devices)});
  }

  [[nodiscard]] std::int64_t weighted(const MovingUnit& unit, Rank from, Rank to) const {
    return unit.bytes * (node(from) == node(to) ? 1 : spec_.inter_weight);
  }

  void count_direct() {
    Traffic devices(static_cast<std::size_t>(num_devices()));
    for (const MovingUnit& unit : units_) {
      std::int32_t last_node = node(unit.owner);
      for (const Rank device : unit.devices) {
        const Rank from = unit.towards_owner ? device : unit.owner;
        const Rank to = unit.towards_owner ? unit.owner : device;
        devices.move(from.index(), to.index(), weighted(unit, from, to));
        quality_.total_bytes += unit.bytes;
        // Devices ascend, so those of one node are adjacent: a unit crosses to each node once.
        if (node(device) == node(unit.owner) || node(device) == last_node) continue;
        last_node = node(device);
        quality_.inter_bytes += unit.bytes;
      }
    }
    quality_.max_device_direct_bytes = devices.busiest();
  }

  void count_relayed() {
    Traffic devices(static_cast<std::size_t>(num_devices()));
    Traffic ports(static_cast<std::size_t>(num_devices()));
    Traffic nics(static_cast<std::size_t>(spec_.nodes * nics_per_node()));
    const auto via =
        choose_relays(units_, num_devices(), spec_.devices_per_node, spec_.inter_weight);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const MovingUnit& unit = units_[u];
      for (std::size_t i = 0; i < unit.devices.size(); ++i) {
        const Rank from = unit.towards_owner ? unit.devices[i] : via[u][i];
        const Rank to = unit.towards_owner ? via[u][i] : unit.devices[i];
        devices.move(from.index(), to.index(), weighted(unit, from, to));
        if (node(from) == node(to)) {
          ports.move(from.index(), to.index(), unit.bytes);
        } else {
          nics.move(nic(from), nic(to), unit.bytes);
        }
      }
    }
    quality_.max_device_bytes = devices.busiest();
    quality_.max_port_bytes = ports.busiest();
    quality_.max_nic_bytes = nics.busiest();
  }

  void count_loads() {
    IdVector<Rank, std::int64_t> work(devices());
    IdVector<Rank, std::int64_t> tokens(devices());
    for (const TileId t : grid_.tiles.ids()) work[partition_.device[t]] += grid_.tiles[t].work;
    for (const BlockId b : grid_.blocks.ids()) {
      tokens[partition_.owner[b]] += grid_.blocks[b].tokens;
    }
    const auto overload = [](const IdVector<Rank, std::int64_t>& loads) {
      std::int64_t sum = 0;
      for (const std::int64_t load : loads) sum += load;
      const double mean = static_cast<double>(sum) / static_cast<double>(loads.size());
      return mean > 0
                 ? static_cast<double>(*std::max_element(loads.begin(), loads.end())) / mean - 1
                 : 0.0;
    };
    quality_.compute_overload = overload(work);
    quality_.token_overload = overload(tokens);
  }

  const AttentionGrid& grid_;
  const GridSpec& spec_;
  const GridPartition& partition_;
  std::vector<MovingUnit> units_;
  GridQuality quality_;
};

}  // namespace

GridQuality evaluate(const AttentionGrid& grid, const GridSpec& spec,
                     const GridPartition& partition) {
  CONTEXTILE_CHECK(
      partition.owner.size() == grid.blocks.size() && partition.device.size() == grid.tiles.size(),
      "partition: expected {} owners and {} devices, found {} and {}", grid.blocks.size(),
      grid.tiles.size(), partition.owner.size(), partition.device.size());
  return Evaluator(grid, spec, partition).run();
}

}  // namespace contextile

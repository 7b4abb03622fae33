// What a partition of a grid costs, from the assignment alone: none of the partitioner's
// bookkeeping.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/partition.h"

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
  [[nodiscard]] std::int32_t node(std::int32_t device) const {
    return device / spec_.devices_per_node;
  }
  [[nodiscard]] std::int64_t busiest() const {
    std::int64_t most = 0;
    for (std::size_t d = 0; d < sent_.size(); ++d) most = std::max({most, sent_[d], received_[d]});
    return most;
  }

  void gather_units() {
    const auto groups = static_cast<std::size_t>(grid_.head_groups);
    std::vector<std::vector<std::int32_t>> rows(grid_.blocks.size() * groups);
    std::vector<std::vector<std::int32_t>> columns(rows.size());
    for (std::size_t t = 0; t < grid_.tiles.size(); ++t) {
      const GridTile& tile = grid_.tiles[t];
      const auto group = static_cast<std::size_t>(tile.group);
      rows[static_cast<std::size_t>(tile.row) * groups + group].push_back(partition_.device[t]);
      columns[static_cast<std::size_t>(tile.column) * groups + group].push_back(
          partition_.device[t]);
    }
    for (std::size_t u = 0; u < rows.size(); ++u) {
      const std::int64_t tokens = grid_.blocks[u / groups].tokens;
      const std::int32_t owner = partition_.owner[u / groups];
      add_unit(tokens * grid_.row_bytes_per_token / 2, owner, false, rows[u]);
      add_unit(tokens * grid_.row_bytes_per_token / 2, owner, true, rows[u]);
      add_unit(tokens * grid_.column_bytes_per_token, owner, false, columns[u]);
    }
  }

  void add_unit(std::int64_t bytes, std::int32_t owner, bool towards_owner,
                std::vector<std::int32_t> devices) {
    std::sort(devices.begin(), devices.end());
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    std::erase(devices, owner);
    if (!devices.empty()) units_.push_back({bytes, owner, towards_owner, std::move(devices)});
  }

  void move(const MovingUnit& unit, std::int32_t from, std::int32_t to) {
    if (unit.towards_owner) std::swap(from, to);
    const std::int64_t bytes = unit.bytes * (node(from) == node(to) ? 1 : spec_.inter_weight);
    sent_[static_cast<std::size_t>(from)] += bytes;
    received_[static_cast<std::size_t>(to)] += bytes;
  }

  void clear_traffic() {
    sent_.assign(static_cast<std::size_t>(num_devices()), 0);
    received_.assign(sent_.size(), 0);
  }

  void count_direct() {
    clear_traffic();
    for (const MovingUnit& unit : units_) {
      std::int32_t last_node = node(unit.owner);
      for (const std::int32_t device : unit.devices) {
        move(unit, unit.owner, device);
        quality_.total_bytes += unit.bytes;
        if (node(device) == node(unit.owner) || node(device) == last_node) continue;
        last_node = node(device);
        quality_.inter_bytes += unit.bytes;
      }
    }
    quality_.max_device_direct_bytes = busiest();
  }

  void count_relayed() {
    clear_traffic();
    const auto via =
        choose_relays(units_, num_devices(), spec_.devices_per_node, spec_.inter_weight);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for (std::size_t i = 0; i < units_[u].devices.size(); ++i) {
        move(units_[u], via[u][i], units_[u].devices[i]);
      }
    }
    quality_.max_device_bytes = busiest();
  }

  void count_loads() {
    std::vector<std::int64_t> work(static_cast<std::size_t>(num_devices()));
    std::vector<std::int64_t> tokens(work.size());
    for (std::size_t t = 0; t < grid_.tiles.size(); ++t) {
      work[static_cast<std::size_t>(partition_.device[t])] += grid_.tiles[t].work;
    }
    for (std::size_t b = 0; b < grid_.blocks.size(); ++b) {
      tokens[static_cast<std::size_t>(partition_.owner[b])] += grid_.blocks[b].tokens;
    }
    const auto overload = [](const std::vector<std::int64_t>& loads) {
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
  std::vector<std::int64_t> sent_;
  std::vector<std::int64_t> received_;
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

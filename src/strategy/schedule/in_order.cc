#include "strategy/schedule/in_order.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "strategy/schedule/route_index.h"

namespace contextile {
namespace {

constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

class InOrderScheduler {
 public:
  InOrderScheduler(const ScheduleProblem& problem, std::span<const double> tile_us,
                   const InOrderOptions& options)
      : problem_(problem),
        index_(problem),
        tile_us_(tile_us),
        options_(options),
        stage_(problem.tiles.size(), 0),
        feeds_(problem.routes.size(), kNoRoute),
        need_(problem.routes.size(), kNever),
        leave_(problem.routes.size(), -1) {
    for (std::size_t r = 0; r < feeds_.size(); ++r) feeds_[r] = index_.relay_of(r);
  }

  ArrangedDirection run() {
    std::vector<std::vector<std::size_t>> tiles_of(static_cast<std::size_t>(problem_.num_devices));
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      tiles_of[problem_.tiles[t].device.index()].push_back(t);
    }
    for (const std::vector<std::size_t>& mine : tiles_of) {
      if (problem_.direction == Direction::kForward) {
        order_rows(mine);
      } else {
        order_columns(mine);
      }
    }
    time_routes();
    return result();
  }

 private:
  // Tiles that run together: those of a row or of a column.
  struct Run {
    int turn = 0;              // lower ones first
    std::int64_t tokens = 0;   // tokens received for it
    std::int32_t arrival = 0;  // the earliest stage for its inputs
    double us = 0;
    std::vector<std::size_t> tiles;
  };

  // Returns the earliest stage of a tile that uses the unit of the route.
  [[nodiscard]] std::int32_t arrival_of(std::size_t r) const {
    return feeds_[r] == kNoRoute ? 1 : 2;
  }

  // Returns the part of `total_us` that contains the middle of a run.
  [[nodiscard]] std::int32_t part_of(double before_us, double us, double total_us) const {
    const double middle = total_us > 0 ? (before_us + us / 2) / total_us : 0;
    return std::min(options_.stages - 1, static_cast<std::int32_t>(middle * options_.stages));
  }

  void set_stage(const Run& run, std::int32_t stage) {
    for (const std::size_t t : run.tiles) stage_[t] = stage;
  }

  // Returns the device's tiles by (row, group) or (column, group).
  template <typename KeyOf>
  [[nodiscard]] std::vector<Run> runs_of(std::span<const std::size_t> mine,
                                         const KeyOf& key_of) const {
    std::vector<std::size_t> order(mine.begin(), mine.end());
    if (!std::ranges::is_sorted(order, {}, key_of)) std::ranges::stable_sort(order, {}, key_of);
    std::vector<Run> runs;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || key_of(order[i]) != key_of(order[i - 1])) runs.emplace_back();
      runs.back().us += tile_us_[order[i]];
      runs.back().tiles.push_back(order[i]);
    }
    return runs;
  }

  // Rows without inputs run in stage 0, the others in parts of equal time from stage 1 on.
  void order_rows(std::span<const std::size_t> mine) {
    std::vector<Run> rows = runs_of(mine, [&](std::size_t t) {
      return std::pair(problem_.tiles[t].q_block, problem_.tiles[t].group);
    });
    double remote_us = 0;
    for (Run& row : rows) {
      for (const std::size_t t : row.tiles) {
        index_.for_each(t, false, [&](std::size_t r) {
          row.turn = 1;
          row.tokens += problem_.blocks->num_tokens(problem_.routes[r].block);
          row.arrival = std::max(row.arrival, arrival_of(r));
        });
      }
    }
    sort(rows);
    for (const Run& row : rows) remote_us += row.turn == 0 ? 0 : row.us;
    double before_us = 0;
    for (const Run& row : rows) {
      if (row.turn == 0) {
        set_stage(row, 0);
        continue;
      }
      set_stage(row, std::max(1 + part_of(before_us, row.us, remote_us), row.arrival));
      before_us += row.us;
    }
  }

  // Columns whose gradients cross nodes run first, then those that go to other devices of the node,
  // then those that stay.
  void order_columns(std::span<const std::size_t> mine) {
    std::vector<Run> columns = runs_of(mine, [&](std::size_t t) {
      return std::pair(problem_.tiles[t].kv_block, problem_.tiles[t].group);
    });
    for (Run& column : columns) {
      const PlacedTile& tile = problem_.tiles[column.tiles.front()];
      const Rank owner = problem_.owners[tile.kv_block.index()];
      const std::int32_t width = problem_.devices_per_node;
      column.turn = owner == tile.device                               ? 2
                    : owner.value / width == tile.device.value / width ? 1
                                                                       : 0;
      for (const std::size_t t : column.tiles) {
        index_.for_each(t, false, [&](std::size_t r) {
          column.arrival = std::max(column.arrival, arrival_of(r));
        });
      }
    }
    sort(columns);
    double remote_us = 0;
    for (const Run& column : columns) remote_us += column.turn == 2 ? 0 : column.us;
    double before_us = 0;
    for (const Run& column : columns) {
      std::int32_t stage = remote_us > 0 ? options_.stages : 0;
      if (column.turn < 2) {
        stage = part_of(before_us, column.us, remote_us);
        before_us += column.us;
      }
      set_stage(column, std::max(stage, column.arrival));
    }
  }

  static void sort(std::vector<Run>& runs) {
    std::ranges::stable_sort(runs, {},
                             [](const Run& run) { return std::pair(run.turn, run.tokens); });
  }

  void time_routes() {
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      last_ = std::max(last_, stage_[t]);
      index_.for_each(t, false, [&](std::size_t r) { need_[r] = std::min(need_[r], stage_[t]); });
      index_.for_each(t, true,
                      [&](std::size_t r) { leave_[r] = std::max(leave_[r], stage_[t] + 1); });
    }
    for (std::size_t r = 0; r < need_.size(); ++r) {
      if (feeds_[r] == kNoRoute) continue;
      if (is_result(problem_.routes[r].kind)) {
        if (leave_[r] >= 0) leave_[feeds_[r]] = std::max(leave_[feeds_[r]], leave_[r] + 1);
      } else if (need_[r] != kNever) {
        // The relay must have the unit when it is to leave.
        need_[feeds_[r]] = std::min(need_[feeds_[r]], std::max(1, need_[r] - options_.ahead));
      }
    }
  }

  [[nodiscard]] ArrangedDirection result() const {
    ArrangedDirection out;
    out.tiles.assign(problem_.tiles.begin(), problem_.tiles.end());
    for (std::size_t t = 0; t < out.tiles.size(); ++t) out.tiles[t].stage = stage_[t];
    for (std::size_t r = 0; r < problem_.routes.size(); ++r) {
      const UnitRoute& hop = problem_.routes[r];
      const bool is_passed_on = feeds_[r] != kNoRoute;
      if (is_result(hop.kind)) {
        if (leave_[r] < 0) continue;
        const std::int32_t end =
            is_passed_on ? leave_[feeds_[r]] : std::max(leave_[r] + 1, last_ + 2);
        out.transfers.push_back(
            {hop.kind, hop.block, hop.group, hop.device, hop.via, leave_[r], end});
      } else if (need_[r] != kNever) {
        const std::int32_t at_hand = is_passed_on ? need_[feeds_[r]] : 0;
        const std::int32_t launch = std::max(at_hand, need_[r] - options_.ahead);
        out.transfers.push_back(
            {hop.kind, hop.block, hop.group, hop.via, hop.device, launch, need_[r]});
      }
    }
    return out;
  }

  const ScheduleProblem& problem_;
  RouteIndex index_;
  std::span<const double> tile_us_;
  const InOrderOptions& options_;
  std::vector<std::int32_t> stage_;  // of every tile
  std::vector<std::size_t> feeds_;   // of every route: the relay's own route
  std::vector<std::int32_t> need_;   // of every input route
  std::vector<std::int32_t> leave_;  // of every result route
  std::int32_t last_ = 0;            // last stage of any tile
};

}  // namespace

ArrangedDirection schedule_in_order(const ScheduleProblem& problem, std::span<const double> tile_us,
                                    const InOrderOptions& options) {
  CONTEXTILE_CHECK(options.stages >= 1, "schedule: expected at least 1 stage, found {}",
                   options.stages);
  CONTEXTILE_CHECK(options.ahead >= 1, "schedule: expected at least 1 stage ahead, found {}",
                   options.ahead);
  CONTEXTILE_CHECK(tile_us.size() == problem.tiles.size(),
                   "schedule: expected the costs of {} tiles, found {}", problem.tiles.size(),
                   tile_us.size());
  return InOrderScheduler(problem, tile_us, options).run();
}

}  // namespace contextile

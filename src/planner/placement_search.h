// Placements of our own as candidates: made, put under schedules, simulated, and the best of them
// made better.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "planner/placement.h"
#include "planner/placement_choices.h"
#include "planner/search_state.h"

namespace contextile {

class PlacementSearch {
 public:
  explicit PlacementSearch(SearchState& state) : state_(state) {}

  // Every placement worth trying, by its estimate.
  void place_all();
  // The best of each kind under several schedules.
  void try_placements();
  // The best of them again, with more steps and other seeds under more schedules; rows then on from
  // where they are, with less for devices that end late.
  void improve();

 private:
  // A placement with the schedules that suit it best.
  struct Tried {
    Placement placement;
    SchedulePair schedules;
    double time_us = kNever;
  };
  // Of tiles, or of whole rows.
  struct Family {
    std::vector<Placement> placements;  // by estimate
    std::vector<Tried> tried;           // by time
  };

  std::vector<Placement> place(std::span<const PlacementChoice> choices);
  void try_family(Family& family, std::size_t most, std::span<const Schedule> schedules,
                  double share);
  void improve_family(Family& family, std::span<const Schedule> schedules);
  // Under every schedule in both directions; adds each with its best pair to those tried.
  void try_schedules(Family& family, std::vector<Placement> placements,
                     std::span<const Schedule> schedules);
  void rebalance();
  [[nodiscard]] Tried rebalanced(const Tried& tried) const;
  [[nodiscard]] Arrangement arrange(const Placement& placement,
                                    const SchedulePair& schedules) const;
  void take_if_best(const Tried& tried);
  [[nodiscard]] std::size_t affordable(std::span<const Placement> placements, std::size_t most,
                                       double placings, std::int64_t plans, double share);

  SearchState& state_;
  bool retain_ = false;
  Family tiles_;
  Family rows_;
};

}  // namespace contextile

// Ways on which servers pass data on to each other, so that a device that owns much of what others
// attend is not their only sender.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"

namespace contextile {

// Chooses the parent of every device that uses a unit: the unit's owner, or a device that has the
// owner as its parent. Inputs travel from parents to children, and results the other way. Every
// choice is the parent that is done first, given what it moves already. A node with several users
// gets the unit once from the owner, and the others in the node have that device as parent.
class RelayRouter {
 public:
  explicit RelayRouter(const Cluster& cluster)
      : cluster_(cluster),
        busy_us_(static_cast<std::size_t>(cluster.num_devices())),
        entered_us_(busy_us_.size()) {}

  // Counts bytes that `parent` moves in any case.
  void add(Rank parent, Rank child, std::int64_t bytes) {
    busy_us_[parent.index()] += transfer_us(parent, child, bytes);
  }

  // Returns the parent of each of `users`, which are distinct and not the owner, and counts the
  // bytes except for one copy from the owner, which the caller has counted. O(users²).
  [[nodiscard]] std::vector<Rank> parents_of(Rank owner, std::span<const Rank> users,
                                             std::int64_t bytes);

 private:
  [[nodiscard]] double transfer_us(Rank a, Rank b, std::int64_t bytes) const;
  [[nodiscard]] std::int32_t node_of(Rank rank) const {
    return rank.value / cluster_.devices_per_node;
  }

  const Cluster& cluster_;
  std::vector<double> busy_us_;     // of every device, as a parent
  std::vector<double> entered_us_;  // of every device, as a child of owners who might relay
};

}  // namespace contextile

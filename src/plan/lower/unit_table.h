// A table of all units in which one device after another keeps what it knows of those it uses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "contextile/extend/arrangement.h"

namespace contextile {

// The table has an index for every kind and unit; -1 says that the device does not use the unit.
// Devices share it one after another. Only touched entries are wiped, so the cost of a device
// depends on the units it uses.
class UnitTable {
 public:
  explicit UnitTable(std::size_t num_units) {
    for (auto& of_kind : index_) of_kind.assign(num_units, -1);
  }
  [[nodiscard]] std::int32_t find(Kind kind, std::size_t unit) const {
    return index_[static_cast<std::size_t>(kind)][unit];
  }
  void set(Kind kind, std::size_t unit, std::size_t value) {
    index_[static_cast<std::size_t>(kind)][unit] = static_cast<std::int32_t>(value);
    touched_.emplace_back(kind, unit);
  }
  void wipe() {
    for (const auto& [kind, unit] : touched_) index_[static_cast<std::size_t>(kind)][unit] = -1;
    touched_.clear();
  }

 private:
  std::array<std::vector<std::int32_t>, kNumKinds> index_;
  std::vector<std::pair<Kind, std::size_t>> touched_;
};

}  // namespace contextile

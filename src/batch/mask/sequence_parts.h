// A workload cut into its sequences, from which workloads of some of them are made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/workload.h"

namespace contextile {

// The bands, roles and positions of every sequence, counted from its first token. The masks must
// not cross from one sequence to another: pairs of different sequences are left out.
class SequenceParts {
 public:
  // `workload` must outlive the parts. O(bands and the sequences they meet).
  explicit SequenceParts(const Workload& workload);

  // Returns the workload of some sequences, laid end to end in the given order. It has no home.
  // O(its bands).
  [[nodiscard]] Workload select(std::span<const std::int32_t> sequences) const;

 private:
  struct Part {
    std::vector<std::vector<Band>> bands;  // of every mask
    std::vector<RoleRange> roles;
    std::vector<PositionSegment> positions;
  };

  const Workload& workload_;
  std::vector<Part> parts_;  // of every sequence
};

}  // namespace contextile

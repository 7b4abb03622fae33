// Reductions and copies that do not depend on each other, as one list of rows.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "contextile/advanced/stage_lists.h"

namespace contextile {

class RowBatch {
 public:
  // Adds dst := reduction of srcs, or a copy of the only one, unless it is of another sort than the
  // batch, touches rows that the batch writes, or writes rows that it reads. Always adds the first.
  bool add(bool is_copy, Kind kind, Range dst, std::span<const Range> srcs);
  [[nodiscard]] bool empty() const { return units_.empty(); }
  // Returns the batch as an instruction, and empties it.
  [[nodiscard]] StageInstruction take();

 private:
  struct Unit {
    Range dst;
    std::vector<Range> srcs;
  };
  bool is_copy_ = false;
  Kind kind_ = Kind::kO;
  std::vector<Unit> units_;
};

}  // namespace contextile

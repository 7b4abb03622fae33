// Calls of variable-length attention, from the segments of an attention instruction's rows.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "contextile/advanced/stage_lists.h"
#include "runtime/stages/row_segments.h"

namespace contextile {

// Rows of results that hold something.
class WrittenRows {
 public:
  explicit WrittenRows(const std::array<std::int64_t, kNumKinds>& rows);

  [[nodiscard]] bool any(Kind kind, std::span<const std::int32_t> rows) const;
  [[nodiscard]] bool any(Kind kind, Range rows) const;
  void add(Kind kind, std::span<const std::int32_t> rows) { set(kind, rows, true); }
  void remove(Kind kind, std::span<const std::int32_t> rows) { set(kind, rows, false); }

 private:
  void set(Kind kind, std::span<const std::int32_t> rows, bool value);
  std::array<std::vector<bool>, kNumKinds> written_;
};

// The kinds that a call reads and writes by its rows of queries, and by those of keys.
[[nodiscard]] std::span<const Kind> kinds_of_queries(Direction direction);
[[nodiscard]] std::span<const Kind> kinds_of_keys(Direction direction);

void append_rows(Range rows, RowList& out);

// All full keys of a segment and one causal piece behind them become one entry; every other piece
// has an entry of its own. Full entries of the same keys become one. Marks rows as written.
[[nodiscard]] std::vector<StageCall> stage_calls(std::span<const RowSegment> segments,
                                                 Direction direction, const StageOptions& options,
                                                 WrittenRows& written);

}  // namespace contextile

// The independent pieces of a mask's tokens, with the counts that bounds are computed from.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/mask.h"

namespace contextile {

// Degrees of consecutive rows (or columns): `first`, first + slope, … over `count` tokens; > 0.
struct DegreeRun {
  std::int64_t begin = 0;  // token
  std::int64_t count = 0;
  std::int64_t first = 0;
  std::int64_t slope = 0;

  [[nodiscard]] std::int64_t last() const { return first + (count - 1) * slope; }
};

// Consecutive tokens that attend, and are attended by, only each other: usually a document, or a
// chunk of a chunked one.
struct MaskComponent {
  Range tokens;
  std::int64_t pairs = 0;
  std::int64_t rows = 0;          // that attend anything
  std::int64_t max_degree = 0;    // most keys of a row
  std::int64_t future_pairs = 0;  // with key > query
  // Tokens that attend themselves and no later token. In any two of them only the later attends the
  // earlier.
  std::int64_t diagonal = 0;
  // Most tokens that no plan can separate without moving data: a path of attended pairs connects
  // any two of them. A lower estimate, as bands of a single diagonal do not count.
  std::int64_t connected_tokens = 0;
  // Rows that attend every one of these keys, and are not among them: much of the pairs, if any.
  std::int64_t biclique_rows = 0;
  std::int64_t biclique_keys = 0;
  std::size_t first_row_run = 0;  // into MaskComponents::row_runs, up to the next component's
  std::size_t first_column_run = 0;
};

struct MaskComponents {
  std::vector<MaskComponent> components;  // ascending; only those with pairs
  std::vector<DegreeRun> row_runs;        // keys of every query
  std::vector<DegreeRun> column_runs;     // queries of every key
};

// Splits a mask, whose bands must be disjoint. O(bands · log).
[[nodiscard]] MaskComponents components_of(const Mask& mask);

}  // namespace contextile

// Cuts the rows of a tile into panels of vector lanes, and finds the keys that every panel meets.
//
// The query rows of all heads that read one KV head are numbered token by token, head by head: flat
// row r is token r / heads, head r % heads. A panel is up to three vectors of consecutive flat
// rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/inline.h"

namespace contextile {

inline constexpr std::int32_t kMaxPanelVectors = 3;

struct Panel {
  std::int64_t first_row = 0;  // flat
  std::int32_t num_rows = 0;   // at most vectors x lanes; only the last panel has fewer
  std::int32_t vectors = 0;    // 1 … kMaxPanelVectors
};

// Cuts `num_rows` flat rows into panels: as many of three vectors as leave a rest that panels of
// two can hold. There are panels of one vector only if there are no more rows, or if panels have at
// most one (`most_vectors` 1).
class PanelGrid {
 public:
  PanelGrid(std::int64_t num_rows, std::int32_t lanes,
            std::int32_t most_vectors = kMaxPanelVectors);

  [[nodiscard]] std::int64_t num_panels() const { return num_wide_ + num_narrow_; }
  [[nodiscard]] Panel panel(std::int64_t index) const;
  // Returns the panel that holds a flat row.
  [[nodiscard]] std::int64_t panel_of(std::int64_t row) const;

 private:
  std::int64_t num_rows_;
  std::int32_t lanes_;
  std::int64_t num_wide_ = 0;  // of three vectors, first
  std::int64_t num_narrow_ = 0;
  std::int32_t narrow_vectors_ = 2;
};

// The keys [begin, end) that a panel meets. All its rows attend those in [full_begin, full_end), so
// these need no mask. For the others, `bands[first_band … first_band + num_bands)` of PanelBands
// say row by row which rows attend.
struct PanelStep {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t full_begin = 0;  // full_begin == full_end: nothing is full
  std::int32_t full_end = 0;
  std::uint32_t first_band = 0;
  std::uint32_t num_bands = 0;
};

// A band with bounds that fit a vector of 32-bit lanes.
struct LaneBand {
  std::int32_t q_begin = 0, q_end = 0;
  std::int32_t k_begin = 0, k_end = 0;
  std::int32_t lo = 0, hi = 0;
};

// The steps of every panel of a tile. A step is a band clipped to the panel; bands that touch or
// overlap are joined. Panels are those of `PanelGrid(rows * heads, lanes, most_vectors)`.
class PanelBands : public PreparedBands {
 public:
  // `bands` are disjoint, over local rows [0, num_rows) and keys [0, num_keys). Both numbers must
  // be below 2^29 (otherwise InvalidArgument). O(bands + panels + steps).
  PanelBands(std::span<const LocalBand> bands, std::int64_t num_rows, std::int64_t num_keys,
             std::int32_t heads_per_kv, std::int32_t lanes,
             std::int32_t most_vectors = kMaxPanelVectors);

  [[nodiscard]] CONTEXTILE_INLINE std::span<const PanelStep> steps(std::int64_t panel) const {
    const auto p = static_cast<std::size_t>(panel);
    return std::span(steps_).subspan(first_step_[p], first_step_[p + 1] - first_step_[p]);
  }
  [[nodiscard]] CONTEXTILE_INLINE const LaneBand& band(std::uint32_t index) const {
    return bands_[band_of_step_[index]];
  }
  [[nodiscard]] std::int64_t size_bytes() const override;
  [[nodiscard]] std::int32_t heads_per_kv() const { return heads_per_kv_; }
  [[nodiscard]] std::int32_t lanes() const { return lanes_; }

 private:
  void add_panel(Range tokens, std::span<const std::uint32_t> meeting);

  std::int32_t heads_per_kv_;
  std::int32_t lanes_;
  std::vector<LaneBand> bands_;
  std::vector<std::size_t> first_step_;
  std::vector<PanelStep> steps_;
  std::vector<std::uint32_t> band_of_step_;
};

}  // namespace contextile

// The rows of an attention instruction, cut where the pieces of bands that they see change.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "contextile/advanced/stage_lists.h"
#include "contextile/mask.h"

namespace contextile {

// A part of a band that is one entry class. `q` are rows of a block of queries, `k` rows of keys.
struct BandPiece {
  EntryClass entry_class = EntryClass::kFull;
  std::int64_t window = 0;
  Range q;
  Range k;
};

// Number of pairs of an entry.
[[nodiscard]] std::int64_t entry_pairs(EntryClass entry_class, std::int64_t window,
                                       std::int64_t rows, std::int64_t keys);

// Appends the pieces, at most four, whose union is the band.
void append_pieces(const LocalBand& band, std::vector<BandPiece>& out);

// Keys in a buffer, and the distance from their rows there to those of their gradients.
struct KeyRun {
  Range k;
  std::int64_t shift = 0;

  friend constexpr auto operator<=>(const KeyRun&, const KeyRun&) = default;
};

// A piece that all rows of a segment see: cut to them.
struct SegmentPiece {
  EntryClass entry_class = EntryClass::kFull;
  std::int64_t window = 0;
  KeyRun keys;
};

// Rows of one unit of queries which see the same pieces.
struct RowSegment {
  std::array<std::int64_t, kNumKinds> base = {};  // first row of the unit in the buffer of a kind
  std::int32_t group = 0;
  Range q;  // rows of the unit
  std::vector<SegmentPiece> pieces;
};

// The tiles of one unit of queries in one attention instruction.
class UnitPieces {
 public:
  UnitPieces(const std::array<std::int64_t, kNumKinds>& base, std::int32_t group)
      : base_(base), group_(group) {}

  // Adds the pieces of a tile whose keys begin at `first_key` of their buffer.
  void add(std::span<const BandPiece> pieces, std::int64_t first_key, std::int64_t shift);
  // Appends the segments, in the order of rows. O(pieces · (log + pieces per row)).
  void append_segments(std::vector<RowSegment>& out);

 private:
  struct Placed {
    BandPiece piece;  // keys are rows of their buffer
    std::int64_t shift = 0;
  };
  [[nodiscard]] RowSegment segment(Range rows, std::span<const std::size_t> active) const;

  std::array<std::int64_t, kNumKinds> base_;
  std::int32_t group_;
  std::vector<Placed> pieces_;
};

}  // namespace contextile

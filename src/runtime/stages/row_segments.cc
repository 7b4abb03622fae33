#include "runtime/stages/row_segments.h"

#include <algorithm>

namespace contextile {

std::int64_t entry_pairs(EntryClass entry_class, std::int64_t window, std::int64_t rows,
                         std::int64_t keys) {
  if (entry_class == EntryClass::kFull) return rows * keys;
  if (entry_class == EntryClass::kWindow) return rows * (window + 1);
  return rows * keys - rows * (rows - 1) / 2;
}

void append_pieces(const LocalBand& band, std::vector<BandPiece>& out) {
  // Trimmed, so that every row sees a key and every key is seen.
  const Band trimmed = clip(band, band.q, band.k);
  const Range q = trimmed.q;
  const Range k = trimmed.k;
  if (q.begin >= q.end || k.begin >= k.end) return;
  const std::int64_t lo = trimmed.lo;
  const std::int64_t hi = trimmed.hi;
  // Rows before `upper` end at hi, rows from `lower` on begin at lo.
  const std::int64_t upper = std::clamp(k.end - 1 - hi, q.begin, q.end);
  const std::int64_t lower = std::clamp(k.begin - lo + 1, q.begin, q.end);
  std::array<std::int64_t, 4> cuts = {q.begin, q.end, upper, lower};
  std::ranges::sort(cuts);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Range rows{cuts[i], cuts[i + 1]};
    if (rows.begin == rows.end) continue;
    const bool ends_at_hi = rows.end <= upper;
    const bool begins_at_lo = rows.begin >= lower;
    if (ends_at_hi && begins_at_lo) {
      out.push_back({EntryClass::kWindow, hi - lo, rows, {rows.begin + lo, rows.end + hi}});
    } else if (ends_at_hi) {
      out.push_back({EntryClass::kCausal, 0, rows, {k.begin, rows.end + hi}});
    } else if (begins_at_lo) {
      // The triangle of its own length, then keys that all of these rows see.
      out.push_back({EntryClass::kInverse, 0, rows, {rows.begin + lo, rows.end + lo}});
      if (rows.end + lo < k.end) {
        out.push_back({EntryClass::kFull, 0, rows, {rows.end + lo, k.end}});
      }
    } else {
      out.push_back({EntryClass::kFull, 0, rows, k});
    }
  }
}

void UnitPieces::add(std::span<const BandPiece> pieces, std::int64_t first_key,
                     std::int64_t shift) {
  for (BandPiece piece : pieces) {
    piece.k = {piece.k.begin + first_key, piece.k.end + first_key};
    pieces_.push_back({piece, shift});
  }
}

// Returns what rows [begin, end) see of the pieces that cover them.
RowSegment UnitPieces::segment(Range rows, std::span<const std::size_t> active) const {
  RowSegment out{base_, group_, rows, {}};
  for (const std::size_t i : active) {
    const auto& [piece, shift] = pieces_[i];
    const std::int64_t first = piece.k.begin + rows.begin - piece.q.begin;
    const std::int64_t left = piece.q.end - rows.end;  // rows of the piece behind
    switch (piece.entry_class) {
      case EntryClass::kFull:
        out.pieces.push_back({piece.entry_class, 0, {piece.k, shift}});
        break;
      case EntryClass::kCausal:
        out.pieces.push_back({piece.entry_class, 0, {{piece.k.begin, piece.k.end - left}, shift}});
        break;
      case EntryClass::kWindow:
        out.pieces.push_back(
            {piece.entry_class, piece.window, {{first, piece.k.end - left}, shift}});
        break;
      case EntryClass::kInverse: {
        const std::int64_t end = piece.k.begin + rows.end - piece.q.begin;
        out.pieces.push_back({piece.entry_class, 0, {{first, end}, shift}});
        if (end < piece.k.end) {
          out.pieces.push_back({EntryClass::kFull, 0, {{end, piece.k.end}, shift}});
        }
        break;
      }
    }
  }
  return out;
}

void UnitPieces::append_segments(std::vector<RowSegment>& out) {
  std::ranges::stable_sort(pieces_, {}, [](const Placed& p) { return p.piece.q.begin; });
  std::vector<std::int64_t> cuts;
  for (const Placed& placed : pieces_) {
    cuts.push_back(placed.piece.q.begin);
    cuts.push_back(placed.piece.q.end);
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<std::size_t> active;
  std::size_t next = 0;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Range rows{cuts[i], cuts[i + 1]};
    std::erase_if(active, [&](std::size_t at) { return pieces_[at].piece.q.end <= rows.begin; });
    for (; next < pieces_.size() && pieces_[next].piece.q.begin == rows.begin; ++next) {
      active.push_back(next);
    }
    if (!active.empty()) out.push_back(segment(rows, active));
  }
}

}  // namespace contextile

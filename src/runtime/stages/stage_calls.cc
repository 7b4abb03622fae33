#include "runtime/stages/stage_calls.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace contextile {
namespace {

constexpr std::array kForwardQueries = {Kind::kQ, Kind::kO};
constexpr std::array kBackwardQueries = {Kind::kQ, Kind::kDo, Kind::kDq};
constexpr std::array kForwardKeys = {Kind::kKv};
constexpr std::array kBackwardKeys = {Kind::kKv, Kind::kDkv};

struct Entry {
  std::vector<const RowSegment*> segments;  // their rows are those of the entry
  std::vector<KeyRun> keys;

  [[nodiscard]] std::int64_t num_rows() const {
    std::int64_t rows = 0;
    for (const RowSegment* segment : segments) rows += segment->q.size();
    return rows;
  }
  [[nodiscard]] std::int64_t num_keys() const {
    std::int64_t num = 0;
    for (const KeyRun& run : keys) num += run.k.size();
    return num;
  }
};

// Entries of one class, window and level are one call unless it grows too large. A row has at most
// one entry of a level.
class EntryTable {
 public:
  void add(const RowSegment& segment) {
    std::vector<KeyRun> full;
    std::vector<const SegmentPiece*> others;
    for (const SegmentPiece& piece : segment.pieces) {
      if (piece.entry_class == EntryClass::kFull) {
        full.push_back(piece.keys);
      } else {
        others.push_back(&piece);
      }
    }
    std::ranges::sort(full);
    std::map<std::pair<EntryClass, std::int64_t>, std::int32_t> levels;
    for (const SegmentPiece* piece : others) {
      Entry entry{{&segment}, {}};
      if (piece->entry_class == EntryClass::kCausal) entry.keys = std::exchange(full, {});
      entry.keys.push_back(piece->keys);
      const std::int32_t level = levels[{piece->entry_class, piece->window}]++;
      of_class_[{piece->entry_class, piece->window, level}].push_back(std::move(entry));
    }
    if (full.empty()) return;
    const auto [at, is_new] = full_entry_.try_emplace(full, full_.size());
    if (is_new) full_.push_back({{}, std::move(full)});
    full_[at->second].segments.push_back(&segment);
  }

  // Calls take(class, window, entries) for the entries of each call, the full ones first.
  template <typename Take>
  void for_each_call(std::int64_t max_rows, const Take& take) const {
    in_parts(full_, max_rows, [&](auto part) { take(EntryClass::kFull, 0, part); });
    for (const auto& [key, entries] : of_class_) {
      const EntryClass entry_class = std::get<0>(key);
      const std::int64_t window = std::get<1>(key);
      in_parts(entries, max_rows, [&](auto part) { take(entry_class, window, part); });
    }
  }

 private:
  template <typename Take>
  static void in_parts(const std::vector<Entry>& entries, std::int64_t max_rows, const Take& take) {
    std::size_t begin = 0;
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::int64_t more = entries[i].num_rows() + entries[i].num_keys();
      if (i > begin && rows + more > max_rows) {
        take(std::span(entries).subspan(begin, i - begin));
        begin = i;
        rows = 0;
      }
      rows += more;
    }
    if (begin < entries.size()) take(std::span(entries).subspan(begin));
  }

  std::vector<Entry> full_;
  std::map<std::vector<KeyRun>, std::size_t> full_entry_;  // index by the keys
  std::map<std::tuple<EntryClass, std::int64_t, std::int32_t>, std::vector<Entry>> of_class_;
};

Kind result_kind(Direction direction) {
  return direction == Direction::kForward ? Kind::kO : Kind::kDq;
}

StageCall call_of(EntryClass entry_class, std::int64_t window, std::span<const Entry> entries,
                  Direction direction) {
  StageCall call;
  call.entry_class = entry_class;
  call.window = window;
  call.q_offsets = {0};
  call.k_offsets = {0};
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  for (const Entry& entry : entries) {
    for (const RowSegment* segment : entry.segments) {
      for (const Kind kind : kinds_of_queries(direction)) {
        const std::int64_t base = segment->base[static_cast<std::size_t>(kind)];
        append_rows({base + segment->q.begin, base + segment->q.end},
                    call.rows[static_cast<std::size_t>(kind)]);
      }
    }
    for (const KeyRun& run : entry.keys) {
      append_rows(run.k, call.rows[static_cast<std::size_t>(Kind::kKv)]);
      if (direction == Direction::kForward) continue;
      append_rows({run.k.begin + run.shift, run.k.end + run.shift},
                  call.rows[static_cast<std::size_t>(Kind::kDkv)]);
    }
    const std::int64_t n = entry.num_rows();
    const std::int64_t m = entry.num_keys();
    rows += n;
    keys += m;
    if (std::max(rows, keys) > std::numeric_limits<std::int32_t>::max()) {
      fail_plan(
          "stages: expected an entry of fewer than 2^31 rows, found {} of queries and {} of keys",
          rows, keys);
    }
    call.q_offsets.push_back(static_cast<std::int32_t>(rows));
    call.k_offsets.push_back(static_cast<std::int32_t>(keys));
    call.groups.push_back(entry.segments.front()->group);
    call.max_q = std::max(call.max_q, n);
    call.max_k = std::max(call.max_k, m);
    call.pairs += entry_pairs(entry_class, window, n, m);
  }
  return call;
}

}  // namespace

std::span<const Kind> kinds_of_queries(Direction direction) {
  if (direction == Direction::kForward) return kForwardQueries;
  return kBackwardQueries;
}

std::span<const Kind> kinds_of_keys(Direction direction) {
  if (direction == Direction::kForward) return kForwardKeys;
  return kBackwardKeys;
}

void append_rows(Range rows, RowList& out) {
  const std::size_t first = out.size();
  out.resize(first + static_cast<std::size_t>(rows.size()));
  std::iota(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
            static_cast<std::int32_t>(rows.begin));
}

WrittenRows::WrittenRows(const std::array<std::int64_t, kNumKinds>& rows) {
  for (std::size_t k = 0; k < kNumKinds; ++k) {
    if (is_result(static_cast<Kind>(k))) written_[k].resize(static_cast<std::size_t>(rows[k]));
  }
}

bool WrittenRows::any(Kind kind, std::span<const std::int32_t> rows) const {
  const std::vector<bool>& written = written_[static_cast<std::size_t>(kind)];
  return std::ranges::any_of(
      rows, [&](std::int32_t row) { return written[static_cast<std::size_t>(row)]; });
}

bool WrittenRows::any(Kind kind, Range rows) const {
  const std::vector<bool>& written = written_[static_cast<std::size_t>(kind)];
  const auto end = written.begin() + rows.end;
  return std::find(written.begin() + rows.begin, end, true) != end;
}

void WrittenRows::set(Kind kind, std::span<const std::int32_t> rows, bool value) {
  std::vector<bool>& written = written_[static_cast<std::size_t>(kind)];
  if (written.empty()) return;
  for (const std::int32_t row : rows) written[static_cast<std::size_t>(row)] = value;
}

std::vector<StageCall> stage_calls(std::span<const RowSegment> segments, Direction direction,
                                   const StageOptions& options, WrittenRows& written) {
  EntryTable table;
  for (const RowSegment& segment : segments) table.add(segment);
  std::vector<StageCall> calls;
  table.for_each_call(options.max_rows, [&](EntryClass entry_class, std::int64_t window,
                                            std::span<const Entry> entries) {
    calls.push_back(call_of(entry_class, window, entries, direction));
  });
  const Kind result = result_kind(direction);
  for (StageCall& call : calls) {
    const RowList& rows = call.rows[static_cast<std::size_t>(result)];
    call.is_first = !written.any(result, rows);
    written.add(result, rows);
    if (direction == Direction::kBackward) {
      written.add(Kind::kDkv, call.rows[static_cast<std::size_t>(Kind::kDkv)]);
    }
  }
  return calls;
}

}  // namespace contextile

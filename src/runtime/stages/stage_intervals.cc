#include "runtime/stages/stage_intervals.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/check.h"
#include "runtime/stages/stage_calls.h"

namespace contextile {
namespace {

constexpr std::int64_t kBlock = StageIntervals::kBlock;

// Disjoint runs of keys, as long as possible, in the order in which keys are gathered.
class KeyOrder {
 public:
  explicit KeyOrder(std::span<const RowSegment> segments) {
    std::vector<KeyRun> all;
    for (const RowSegment& segment : segments) {
      for (const SegmentPiece& piece : segment.pieces) all.push_back(piece.keys);
    }
    const auto by_shift = [](const KeyRun& a, const KeyRun& b) {
      return std::tie(a.shift, a.k.begin, a.k.end) < std::tie(b.shift, b.k.begin, b.k.end);
    };
    std::ranges::sort(all, by_shift);
    for (const KeyRun& run : all) {
      if (!runs_.empty() && runs_.back().shift == run.shift && run.k.begin <= runs_.back().k.end) {
        runs_.back().k.end = std::max(runs_.back().k.end, run.k.end);
      } else {
        runs_.push_back(run);
      }
    }
    for (const KeyRun& run : runs_) {
      first_.push_back(num_keys_);
      num_keys_ += run.k.size();
    }
  }

  [[nodiscard]] std::span<const KeyRun> runs() const { return runs_; }
  [[nodiscard]] std::int64_t num_keys() const { return num_keys_; }
  // Returns the place among the gathered keys of the first of a run.
  [[nodiscard]] std::int64_t place_of(const KeyRun& run) const {
    const auto after = std::ranges::upper_bound(
        runs_, std::pair(run.shift, run.k.begin), {},
        [](const KeyRun& other) { return std::pair(other.shift, other.k.begin); });
    const auto at = static_cast<std::size_t>(after - runs_.begin()) - 1;
    return first_[at] + run.k.begin - runs_[at].k.begin;
  }

 private:
  std::vector<KeyRun> runs_;
  std::vector<std::int64_t> first_;  // place of the first key of each run
  std::int64_t num_keys_ = 0;
};

// Keys [low, high) of the first row of a segment; row i has [low + i · low_step, high + i ·
// high_step).
struct SlidingInterval {
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::int64_t low_step = 0;
  std::int64_t high_step = 0;
};

std::vector<SlidingInterval> intervals_of(const RowSegment& segment, const KeyOrder& keys) {
  std::vector<SlidingInterval> all;
  for (const SegmentPiece& piece : segment.pieces) {
    const std::int64_t first = keys.place_of(piece.keys);
    const std::int64_t end = first + piece.keys.k.size();
    const bool slides_low =
        piece.entry_class == EntryClass::kWindow || piece.entry_class == EntryClass::kInverse;
    const bool slides_high =
        piece.entry_class == EntryClass::kWindow || piece.entry_class == EntryClass::kCausal;
    all.push_back({first, slides_high ? end - segment.q.size() + 1 : end, slides_low ? 1 : 0,
                   slides_high ? 1 : 0});
  }
  std::ranges::sort(all, {}, &SlidingInterval::low);
  std::vector<SlidingInterval> merged;
  for (const SlidingInterval& next : all) {
    if (!merged.empty() && merged.back().high == next.low && merged.back().high_step == 0 &&
        next.low_step == 0) {
      merged.back().high = next.high;
      merged.back().high_step = next.high_step;
    } else {
      merged.push_back(next);
    }
  }
  return merged;
}

// The blocks of keys that the rows of one block of rows see, and those that all of them see whole.
class BlockRow {
 public:
  explicit BlockRow(std::int64_t num_keys)
      : num_keys_(num_keys), any_(blocks() + 1), whole_(blocks() + 1) {}

  [[nodiscard]] std::size_t blocks() const {
    return static_cast<std::size_t>((num_keys_ + kBlock - 1) / kBlock);
  }
  void add(std::int64_t low, std::int64_t high) {
    if (low >= high) return;
    ++any_[static_cast<std::size_t>(low / kBlock)];
    --any_[static_cast<std::size_t>((high + kBlock - 1) / kBlock)];
    const std::int64_t first = (low + kBlock - 1) / kBlock;
    const std::int64_t last = high / kBlock;  // a short last block is never whole
    if (first >= last) return;
    ++whole_[static_cast<std::size_t>(first)];
    --whole_[static_cast<std::size_t>(last)];
  }
  // Calls take(block, is whole) for every block that is seen, and forgets all rows.
  template <typename Take>
  void finish(std::int64_t num_rows, const Take& take) {
    std::int64_t any = 0;
    std::int64_t whole = 0;
    for (std::size_t b = 0; b < blocks(); ++b) {
      any += any_[b];
      whole += whole_[b];
      if (any > 0) take(static_cast<std::int32_t>(b), whole == num_rows);
    }
    std::ranges::fill(any_, 0);
    std::ranges::fill(whole_, 0);
  }

 private:
  std::int64_t num_keys_;
  std::vector<std::int32_t> any_;    // differences of the number of intervals, by block
  std::vector<std::int32_t> whole_;  // the same of those that cover the block
};

using BlockTable = std::vector<std::vector<std::int32_t>>;

StageIntervals::Blocks blocks_of(const BlockTable& table) {
  StageIntervals::Blocks blocks;
  std::size_t width = 1;
  for (const std::vector<std::int32_t>& list : table) width = std::max(width, list.size());
  blocks.width = static_cast<std::int32_t>(width);
  blocks.lists.resize(table.size() * width);
  for (std::size_t i = 0; i < table.size(); ++i) {
    blocks.counts.push_back(static_cast<std::int32_t>(table[i].size()));
    std::ranges::copy(table[i], blocks.lists.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  return blocks;
}

void add_blocks(StageIntervals& out, std::int64_t rows, std::int64_t keys) {
  const auto num_blocks = static_cast<std::size_t>((rows + kBlock - 1) / kBlock);
  BlockRow row(keys);
  BlockTable kv_partial(num_blocks);
  BlockTable kv_full(num_blocks);
  BlockTable q_partial(row.blocks());
  BlockTable q_full(row.blocks());
  const auto width = static_cast<std::size_t>(out.width);
  for (std::size_t b = 0; b < num_blocks; ++b) {
    const auto begin = b * kBlock;
    const auto end = std::min(begin + kBlock, static_cast<std::size_t>(rows));
    for (std::size_t at = begin * width; at < end * width; ++at) row.add(out.low[at], out.high[at]);
    row.finish(static_cast<std::int64_t>(end - begin), [&](std::int32_t key_block, bool is_whole) {
      (is_whole ? kv_full : kv_partial)[b].push_back(key_block);
      (is_whole ? q_full : q_partial)[static_cast<std::size_t>(key_block)].push_back(
          static_cast<std::int32_t>(b));
    });
  }
  out.kv_partial = blocks_of(kv_partial);
  out.kv_full = blocks_of(kv_full);
  out.q_partial = blocks_of(q_partial);
  out.q_full = blocks_of(q_full);
}

}  // namespace

std::int64_t num_keys(std::span<const RowSegment> segments) {
  return KeyOrder(segments).num_keys();
}

StageIntervals stage_intervals(std::span<const RowSegment> segments, Direction direction) {
  StageIntervals out;
  const KeyOrder keys(segments);
  std::vector<std::vector<SlidingInterval>> of_segment;
  std::size_t width = 1;
  std::int64_t rows = 0;
  for (const RowSegment& segment : segments) {
    of_segment.push_back(intervals_of(segment, keys));
    width = std::max(width, of_segment.back().size());
    rows += segment.q.size();
    for (const Kind kind : kinds_of_queries(direction)) {
      const std::int64_t base = segment.base[static_cast<std::size_t>(kind)];
      append_rows({base + segment.q.begin, base + segment.q.end},
                  out.rows[static_cast<std::size_t>(kind)]);
    }
  }
  width = std::bit_ceil(width);
  out.width = static_cast<std::int32_t>(width);
  out.low.reserve(static_cast<std::size_t>(rows) * width);
  out.high.reserve(static_cast<std::size_t>(rows) * width);
  for (std::size_t s = 0; s < segments.size(); ++s) {
    for (std::int64_t i = 0; i < segments[s].q.size(); ++i) {
      for (const SlidingInterval& one : of_segment[s]) {
        out.low.push_back(static_cast<std::int32_t>(one.low + i * one.low_step));
        out.high.push_back(static_cast<std::int32_t>(one.high + i * one.high_step));
      }
      for (std::size_t unused = of_segment[s].size(); unused < width; ++unused) {
        out.low.push_back(0);
        out.high.push_back(0);
      }
    }
  }
  for (const KeyRun& run : keys.runs()) {
    append_rows(run.k, out.rows[static_cast<std::size_t>(Kind::kKv)]);
    if (direction == Direction::kForward) continue;
    append_rows({run.k.begin + run.shift, run.k.end + run.shift},
                out.rows[static_cast<std::size_t>(Kind::kDkv)]);
  }
  add_blocks(out, rows, keys.num_keys());
  return out;
}

}  // namespace contextile

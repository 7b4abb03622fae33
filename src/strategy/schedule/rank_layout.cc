#include "strategy/schedule/rank_layout.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace contextile {
namespace {

using RangesByRank = std::vector<std::vector<Range>>;

// Appends a range; adjacent chunks of one rank become one range.
void append_range(std::vector<Range>& ranges, Range range) {
  if (range.empty()) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

// Returns chunk c of a sequence padded to `num_chunks` equal chunks, clipped to its real tokens.
Range clipped_chunk(Range sequence, std::int64_t num_chunks, std::int64_t c) {
  const std::int64_t size = (sequence.size() + num_chunks - 1) / num_chunks;
  return {std::min(sequence.begin + c * size, sequence.end),
          std::min(sequence.begin + (c + 1) * size, sequence.end)};
}

void deal_zigzag(Range sequence, RangesByRank& out) {
  const auto num_ranks = static_cast<std::int64_t>(out.size());
  for (std::int64_t r = 0; r < num_ranks; ++r) {
    std::vector<Range>& mine = out[static_cast<std::size_t>(r)];
    append_range(mine, clipped_chunk(sequence, 2 * num_ranks, r));
    append_range(mine, clipped_chunk(sequence, 2 * num_ranks, 2 * num_ranks - 1 - r));
  }
}

void deal_contiguous(Range sequence, RangesByRank& out) {
  const auto num_ranks = static_cast<std::int64_t>(out.size());
  for (std::int64_t r = 0; r < num_ranks; ++r) {
    append_range(out[static_cast<std::size_t>(r)], clipped_chunk(sequence, num_ranks, r));
  }
}

// `next_extra` is the chunk that gets the next remainder token. It carries over from document to
// document.
void deal_document(Range document, std::int64_t& next_extra, RangesByRank& out) {
  const auto num_ranks = static_cast<std::int64_t>(out.size());
  const std::int64_t num_chunks = 2 * num_ranks;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(num_chunks),
                                  document.size() / num_chunks);
  for (std::int64_t i = 0; i < document.size() % num_chunks; ++i) {
    ++sizes[static_cast<std::size_t>(next_extra)];
    next_extra = (next_extra + 1) % num_chunks;
  }
  std::vector<Range> chunks;
  std::int64_t begin = document.begin;
  for (const std::int64_t size : sizes) {
    chunks.push_back({begin, begin + size});
    begin += size;
  }
  for (std::int64_t r = 0; r < num_ranks; ++r) {
    std::vector<Range>& mine = out[static_cast<std::size_t>(r)];
    append_range(mine, chunks[static_cast<std::size_t>(r)]);
    append_range(mine, chunks[static_cast<std::size_t>(num_chunks - 1 - r)]);
  }
}

// A run of tokens that may share a block: they have one role and one home owner.
struct Stretch {
  Range tokens;
  Role role = Role::kBoth;
  Rank home;
};

// Returns `range` cut wherever role or home owner changes. O(log + pieces).
std::vector<Stretch> stretches(const Workload& workload, Range range) {
  std::vector<Stretch> result;
  auto role = std::partition_point(workload.roles.begin(), workload.roles.end(),
                                   [&](const RoleRange& r) { return r.tokens.end <= range.begin; });
  auto home = std::partition_point(workload.home.begin(), workload.home.end(),
                                   [&](const HomeRange& h) { return h.tokens.end <= range.begin; });
  for (std::int64_t at = range.begin; at < range.end;) {
    Stretch stretch;
    std::int64_t end = range.end;
    if (role != workload.roles.end()) {
      const bool inside = role->tokens.begin <= at;
      if (inside) stretch.role = role->role;
      end = std::min(end, inside ? role->tokens.end : role->tokens.begin);
    }
    if (home != workload.home.end()) {
      stretch.home = home->owner;
      end = std::min(end, home->tokens.end);
    }
    stretch.tokens = {at, end};
    result.push_back(stretch);
    at = end;
    if (role != workload.roles.end() && role->tokens.end <= at) ++role;
    if (home != workload.home.end() && home->tokens.end <= at) ++home;
  }
  return result;
}

}  // namespace

RangesByRank rank_ranges(TokenLayout layout, std::span<const Range> sequences,
                         std::int32_t num_ranks) {
  RangesByRank out(static_cast<std::size_t>(num_ranks));
  std::int64_t next_extra = 0;
  switch (layout) {
    case TokenLayout::kZigzag:
      for (const Range& sequence : sequences) deal_zigzag(sequence, out);
      break;
    case TokenLayout::kContiguous:
      for (const Range& sequence : sequences) deal_contiguous(sequence, out);
      break;
    case TokenLayout::kPerDocument:
      for (const Range& sequence : sequences) deal_document(sequence, next_extra, out);
      break;
    case TokenLayout::kPerSequence:
      if (!sequences.empty()) deal_zigzag({sequences.front().begin, sequences.back().end}, out);
      break;
  }
  return out;
}

void append_blocks(const Workload& workload, std::span<const Range> ranges, Rank worker,
                   std::optional<std::int64_t> block_size, WorkBlocks& out) {
  CONTEXTILE_CHECK(!block_size || *block_size > 0,
                   "block size: expected a positive number of tokens, found {}", *block_size);
  struct Open {  // the block being filled, for one role and home owner
    std::vector<Range> ranges;
    std::int64_t tokens = 0;
  };
  std::map<std::pair<Role, Rank>, Open> open;
  const auto close = [&](Role role, Open& block) {
    if (block.ranges.empty()) return;
    out.blocks.add(block.ranges, role);
    out.workers.push_back(worker);
    block = {};
  };
  for (const Range& range : ranges) {
    for (Stretch stretch : stretches(workload, range)) {
      Open& block = open[{stretch.role, stretch.home}];
      while (!stretch.tokens.empty()) {
        const std::int64_t room = block_size ? *block_size - block.tokens : stretch.tokens.size();
        const std::int64_t taken = std::min(room, stretch.tokens.size());
        append_range(block.ranges, {stretch.tokens.begin, stretch.tokens.begin + taken});
        block.tokens += taken;
        stretch.tokens.begin += taken;
        if (block_size && block.tokens == *block_size) close(stretch.role, block);
      }
    }
  }
  for (auto& [key, block] : open) close(key.first, block);
}

}  // namespace contextile

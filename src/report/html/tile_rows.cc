#include "report/html/tile_rows.h"

#include <iterator>
#include <numeric>
#include <variant>

namespace contextile {

TileRows::TileRows(const Plan& plan) {
  struct Placed {
    RangeOfBlock range;
    std::int32_t round = 0;
  };
  std::vector<Placed> placed;
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    for (const RangeOfBlock& range : sorted_ranges(plan.rounds[r].blocks)) {
      placed.push_back({range, static_cast<std::int32_t>(r)});
    }
  }
  std::ranges::sort(placed, {}, [](const Placed& p) { return p.range.tokens.begin; });
  std::size_t document = 0;
  for (const Placed& p : placed) {
    while (plan.sequences[document].end <= p.range.tokens.begin) ++document;
    ranges_.push_back(p.range);
    round_of_range_.push_back(p.round);
    owner_of_range_.push_back(
        plan.rounds[static_cast<std::size_t>(p.round)].owners[p.range.block.index()]);
    document_of_range_.push_back(static_cast<std::int32_t>(document));
  }
  merge();
}

bool TileRows::joins(const Row& row, std::size_t range) const {
  return row.num_ranges < factor_ && row.round == round_of_range_[range] &&
         (merges_documents_ || document_of_range_[row.first_range] == document_of_range_[range]);
}

void TileRows::merge() {
  rows_.clear();
  most_merged_ = 1;
  std::vector<std::pair<Rank, std::int64_t>> tokens;  // of the owners in the last row
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Range range = ranges_[i].tokens;
    if (rows_.empty() || !joins(rows_.back(), i)) {
      rows_.push_back({range, i, 0, owner_of_range_[i], round_of_range_[i]});
      tokens.clear();
    }
    Row& row = rows_.back();
    row.tokens.end = range.end;
    most_merged_ = std::max(most_merged_, ++row.num_ranges);
    if (factor_ == 1) continue;
    auto owner =
        std::ranges::find(tokens, owner_of_range_[i], &std::pair<Rank, std::int64_t>::first);
    if (owner == tokens.end()) owner = tokens.insert(tokens.end(), {owner_of_range_[i], 0});
    owner->second += range.size();
    row.owner = std::ranges::max_element(tokens, {}, &std::pair<Rank, std::int64_t>::second)->first;
  }
}

bool TileRows::coarsen() {
  const std::int32_t before = size();
  while (size() == before) {
    if (!merges_documents_ && most_merged_ < factor_) {
      merges_documents_ = true;  // every document is one row by now
    } else if (factor_ > static_cast<std::int64_t>(ranges_.size())) {
      return false;
    } else {
      factor_ *= 2;
    }
    merge();
  }
  return true;
}

std::int32_t TileRows::row_at(std::int64_t token) const {
  const auto after =
      std::ranges::upper_bound(rows_, token, {}, [](const Row& row) { return row.tokens.begin; });
  return static_cast<std::int32_t>(after - rows_.begin()) - 1;
}

BandSweep::BandSweep(std::span<const Band> bands) : bands_(bands.begin(), bands.end()) {
  std::ranges::sort(bands_, {}, [](const Band& band) { return band.q.begin; });
}

std::span<const Band> BandSweep::advance(Range queries) {
  std::erase_if(active_, [&](const Band& band) { return band.q.end <= queries.begin; });
  for (; next_ < bands_.size() && bands_[next_].q.begin < queries.end; ++next_) {
    if (bands_[next_].q.end > queries.begin) active_.push_back(bands_[next_]);
  }
  return active_;
}

TileDevices::TileDevices(const PlanRound& round, std::size_t mask, Direction direction,
                         GroupId group)
    : first_(static_cast<std::size_t>(round.blocks.num_blocks()) + 1) {
  const auto for_each_tile = [&](const auto& visit) {
    for (std::size_t r = 0; r < round.devices.size(); ++r) {
      const std::optional<Program>& program = round.devices[r].programs[mask].of(direction);
      if (!program) continue;
      for (const Instruction& instruction : program->instructions) {
        const auto* attention = std::get_if<AttentionOp>(&instruction);
        if (attention == nullptr) continue;
        for (const TileOp& tile : attention->tiles) {
          if (tile.group.value == group.value / round.parts_of(tile.q_block)) {
            visit(tile, static_cast<std::int32_t>(r));
          }
        }
      }
    }
  };
  for_each_tile([&](const TileOp& tile, std::int32_t) { ++first_[tile.q_block.index() + 1]; });
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  entries_.resize(first_.back());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for_each_tile([&](const TileOp& tile, std::int32_t device) {
    entries_[next[tile.q_block.index()]++] = {tile.kv_block.value, device};
  });
  for (std::size_t q = 0; q + 1 < first_.size(); ++q) {
    const auto begin = entries_.begin();
    std::sort(begin + static_cast<std::ptrdiff_t>(first_[q]),
              begin + static_cast<std::ptrdiff_t>(first_[q + 1]),
              [](const Entry& a, const Entry& b) { return a.kv_block < b.kv_block; });
  }
}

std::int32_t TileDevices::of(BlockId q_block, BlockId kv_block) const {
  const std::span<const Entry> row(entries_.data() + first_[q_block.index()],
                                   entries_.data() + first_[q_block.index() + 1]);
  return std::ranges::lower_bound(row, kv_block.value, {}, &Entry::kv_block)->device;
}

}  // namespace contextile

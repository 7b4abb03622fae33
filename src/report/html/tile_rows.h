// The parts of tile pictures: rows of tokens, bands met in order, devices of tiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "contextile/mask.h"
#include "contextile/plan.h"

namespace contextile {

// The token ranges of all blocks of all rounds in token order, one or several per row.
class TileRows {
 public:
  struct Row {
    Range tokens;
    std::size_t first_range = 0;
    std::int32_t num_ranges = 1;
    Rank owner;  // of most of its tokens
    std::int32_t round = 0;
  };

  // Begins with one range per row.
  explicit TileRows(const Plan& plan);

  // Merges twice as many ranges as before into a row: first ranges of one document and round and,
  // once every document is one row, of one round. Returns false if there is nothing left to merge.
  bool coarsen();

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(rows_.size()); }
  [[nodiscard]] const Row& operator[](std::int32_t row) const {
    return rows_[static_cast<std::size_t>(row)];
  }
  [[nodiscard]] const RangeOfBlock& range(std::size_t range) const { return ranges_[range]; }
  [[nodiscard]] bool merged() const { return most_merged_ > 1; }
  [[nodiscard]] bool merges_documents() const { return merges_documents_; }
  [[nodiscard]] std::int32_t most_merged() const { return most_merged_; }  // ranges in a row
  // The row that holds the token.
  [[nodiscard]] std::int32_t row_at(std::int64_t token) const;

  // Calls visit for at most `most` ranges of a row, evenly spread.
  template <typename Visit>
  void for_each_range(std::int32_t row, std::int32_t most, const Visit& visit) const {
    const Row& r = (*this)[row];
    const std::int64_t visited = std::min(most, r.num_ranges);
    for (std::int64_t i = 0; i < visited; ++i) {
      const std::int64_t at = (2 * i + 1) * r.num_ranges / (2 * visited);
      visit(ranges_[r.first_range + static_cast<std::size_t>(at)]);
    }
  }

 private:
  void merge();
  [[nodiscard]] bool joins(const Row& row, std::size_t range) const;

  std::vector<RangeOfBlock> ranges_;
  std::vector<std::int32_t> round_of_range_;
  std::vector<Rank> owner_of_range_;
  std::vector<std::int32_t> document_of_range_;  // of its first token
  std::vector<Row> rows_;
  std::int64_t factor_ = 1;
  std::int32_t most_merged_ = 1;
  bool merges_documents_ = false;
};

// Walks the bands along ranges of queries that only move forward.
class BandSweep {
 public:
  explicit BandSweep(std::span<const Band> bands);

  // The bands that meet `queries`, whose begin never moves back from call to call.
  [[nodiscard]] std::span<const Band> advance(Range queries);

 private:
  std::vector<Band> bands_;  // by first query
  std::size_t next_ = 0;
  std::vector<Band> active_;
};

// The device of every tile of one round, mask, direction and head group.
class TileDevices {
 public:
  TileDevices(const PlanRound& round, std::size_t mask, Direction direction, GroupId group);

  // The tile must exist.
  [[nodiscard]] std::int32_t of(BlockId q_block, BlockId kv_block) const;

 private:
  struct Entry {
    std::int32_t kv_block = 0;
    std::int32_t device = 0;
  };
  std::vector<std::size_t> first_;  // of each query block
  std::vector<Entry> entries_;      // by query block, then KV block
};

}  // namespace contextile

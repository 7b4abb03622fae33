// The rows of each rank that see keys of another rank.
//
// A rank's keys are one block: for each sequence its cached tokens in ascending order, then its new
// ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/serving/prefill.h"

namespace contextile {

// Chunk `index` of `num_chunks` of new tokens.
[[nodiscard]] Range prefill_chunk(PrefillChunks rule, std::int64_t tokens, std::int32_t num_chunks,
                                  std::int32_t index);

class PrefillGeometry {
 public:
  // Throws as prefill_work does. Keeps no tables.
  explicit PrefillGeometry(const PrefillBatch& batch);

  [[nodiscard]] std::int32_t num_ranks() const { return layout_.num_ranks; }
  [[nodiscard]] std::size_t num_sequences() const { return sequences_.size(); }

  // All rows of a rank. A sequence has two chunks of queries on it, the earlier (0) and the later
  // (1), and one run of keys. Either chunk may be empty.
  [[nodiscard]] std::int64_t num_q_rows(Rank rank) const;
  [[nodiscard]] std::int64_t num_kv_rows(Rank rank) const;
  [[nodiscard]] Range q_rows(Rank rank, std::size_t sequence, std::size_t chunk) const;
  [[nodiscard]] Range kv_rows(Rank rank, std::size_t sequence) const;

  // Positions of both chunks.
  [[nodiscard]] std::array<Range, 2> new_positions(Rank rank, std::size_t sequence) const;
  // The cached tokens that any new one sees, in this rank's numbering.
  [[nodiscard]] std::vector<Range> cached_keys(Rank rank, std::size_t sequence) const;

  // The keys of one rank that a chunk of queries of another rank sees, counted from the first row
  // of the chunk and the first key of the sequence.
  [[nodiscard]] std::vector<LocalBand> bands(Rank q_rank, std::size_t chunk, Rank kv_rank,
                                             std::size_t sequence) const;

 private:
  struct Sequence {
    std::int64_t cached_tokens = 0;
    std::int64_t new_tokens = 0;
    std::vector<Band> bands;    // over positions, of new queries alone
    std::vector<Range> cached;  // positions that a new token sees, ascending, disjoint
  };
  struct Rows {
    std::array<Range, 2> q;
    Range kv;
  };

  [[nodiscard]] const Rows& rows(Rank rank, std::size_t sequence) const {
    return rows_[rank.index() * num_sequences() + sequence];
  }
  // Number of a rank's keys before a cached position.
  [[nodiscard]] std::int64_t keys_before(Rank rank, const Sequence& sequence,
                                         std::int64_t position) const;
  void append_cached(const Band& band, Range queries, Rank kv_rank, const Sequence& sequence,
                     std::vector<LocalBand>& out) const;
  void deal_rows(Rank rank);

  KvLayout layout_;
  PrefillChunks chunks_ = PrefillChunks::kEven;
  std::vector<Sequence> sequences_;
  std::vector<Rows> rows_;  // by rank, then sequence
};

}  // namespace contextile

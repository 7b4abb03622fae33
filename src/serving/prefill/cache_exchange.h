// The ranks that keep new keys and values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serving/prefill/geometry.h"

namespace contextile {

// Moves tokens from the chunks in which they are computed to the interleaved order in which the
// cache holds them.
class CacheExchange {
 public:
  CacheExchange(const PrefillGeometry& geometry, Rank rank, const PrefillBatch& batch);

  // Throws InvalidArgument unless the tables have places for all new tokens.
  void check_tables() const;
  // wire: of rows that are sent.
  [[nodiscard]] NewKv run(Transport& transport, const AttentionShape& shape,
                          const TensorView& k_THD, const TensorView& v_THD, Dtype wire) const;

 private:
  std::optional<std::string> short_table_;
  std::vector<std::vector<std::int64_t>> rows_for_;    // by rank: this rank's that belong to it
  std::vector<std::vector<std::int64_t>> slots_from_;  // by rank: where what it has for us goes
};

}  // namespace contextile

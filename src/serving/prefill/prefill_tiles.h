// A batch's tiles: for each sequence, a chunk of one rank's queries and the keys of another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "serving/prefill/geometry.h"

namespace contextile {

// Keys and values of a rank, or of a part of its heads.
struct KvRows {
  TensorView k_MHD;
  TensorView v_MHD;
};

// The contents of a tile's rows before it: nothing yet, or the result of other keys.
enum class TileStart : std::uint8_t { kEmpty, kPartial };

class PrefillTiles {
 public:
  // Makes the tiles of the queries of any of `q_ranks` and the keys of any of `kv_ranks`. The
  // geometry must outlive them.
  PrefillTiles(const AttentionKernel& kernel, const KernelParams& params,
               const PrefillGeometry& geometry, std::span<const Rank> q_ranks,
               std::span<const Rank> kv_ranks);

  // Appends the tiles of a pair of ranks. `q` and `out` are all rows of the first rank, `kv` all of
  // the second. Rows that see none of the keys become empty at once if they start from nothing.
  void append(Rank q_rank, Rank kv_rank, const TensorView& q_NHD, const KvRows& kv,
              const PartialOutput& out, TileStart start, std::vector<ForwardTile>& tiles) const;

  [[nodiscard]] const KernelParams& params() const { return params_; }

 private:
  struct Tile {  // of a chunk of one sequence
    Range q;
    Range kv;
    std::vector<LocalBand> bands;
    std::unique_ptr<const PreparedBands> prepared;
  };

  const PrefillGeometry& geometry_;
  KernelParams params_;
  std::vector<std::vector<Tile>> tiles_;  // by rank of queries, then of keys
};

// `rows` rows of a result, from `first` on.
[[nodiscard]] PartialOutput rows_of(const PartialOutput& out, std::int64_t first,
                                    std::int64_t rows);

}  // namespace contextile

#include "serving/prefill/prefill_tiles.h"

#include <limits>
#include <utility>

#include "kernel/tensor.h"

namespace contextile {
namespace {

void make_empty(const PartialOutput& out) {
  fill_tensor(out.o_NHD, 0);
  fill_tensor(as_tensor(out.lse_NH, out.o_NHD.tokens, out.o_NHD.heads),
              -std::numeric_limits<float>::infinity());
}

}  // namespace

PartialOutput rows_of(const PartialOutput& out, std::int64_t first, std::int64_t rows) {
  RowStats lse = out.lse_NH;
  lse.data += first * lse.token_stride;
  return {slice(out.o_NHD, first, rows, 0, out.o_NHD.heads), lse};
}

PrefillTiles::PrefillTiles(const AttentionKernel& kernel, const KernelParams& params,
                           const PrefillGeometry& geometry, std::span<const Rank> q_ranks,
                           std::span<const Rank> kv_ranks)
    : geometry_(geometry), params_(params) {
  const auto ranks = static_cast<std::size_t>(geometry.num_ranks());
  tiles_.resize(ranks * ranks);
  for (const Rank q_rank : q_ranks) {
    for (const Rank kv_rank : kv_ranks) {
      std::vector<Tile>& tiles = tiles_[q_rank.index() * ranks + kv_rank.index()];
      for (std::size_t i = 0; i < geometry.num_sequences(); ++i) {
        for (const std::size_t chunk : {0, 1}) {
          Tile tile = {
              geometry.q_rows(q_rank, i, chunk), geometry.kv_rows(kv_rank, i), {}, nullptr};
          if (tile.q.empty()) continue;
          tile.bands = geometry.bands(q_rank, chunk, kv_rank, i);
          if (!tile.bands.empty()) {
            tile.prepared = kernel.prepare_bands(params, tile.q.size(), tile.kv.size(), tile.bands);
          }
          tiles.push_back(std::move(tile));
        }
      }
    }
  }
}

void PrefillTiles::append(Rank q_rank, Rank kv_rank, const TensorView& q_NHD, const KvRows& kv,
                          const PartialOutput& out, TileStart start,
                          std::vector<ForwardTile>& tiles) const {
  const auto ranks = static_cast<std::size_t>(geometry_.num_ranks());
  const auto rows = [](const TensorView& view, Range range) {
    return slice(view, range.begin, range.size(), 0, view.heads);
  };
  for (const Tile& tile : tiles_[q_rank.index() * ranks + kv_rank.index()]) {
    const PartialOutput result = rows_of(out, tile.q.begin, tile.q.size());
    if (tile.bands.empty()) {
      if (start == TileStart::kEmpty) make_empty(result);
      continue;
    }
    tiles.push_back({.q_NHD = rows(q_NHD, tile.q),
                     .k_MHD = rows(kv.k_MHD, tile.kv),
                     .v_MHD = rows(kv.v_MHD, tile.kv),
                     .o_NHD = result.o_NHD,
                     .lse_NH = result.lse_NH,
                     .bands = tile.bands,
                     .init = start == TileStart::kEmpty,
                     .prepared = tile.prepared.get()});
  }
}

}  // namespace contextile

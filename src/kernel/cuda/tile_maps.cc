#include "kernel/cuda/tile_maps.h"

#include <cstdint>

#include "kernel/cuda/wgmma_backward.h"
#include "kernel/cuda/wgmma_forward.h"

namespace contextile::cuda {
namespace {

// Maps boxes of `rows` flat rows, of which a token has `heads`.
BoxMap map_rows(Driver& driver, const TensorView& view, std::int32_t heads, std::int32_t rows) {
  if (view.tokens == 0) return {};  // no kernel reads it
  // A stride that nothing is multiplied with may have any value, but the driver accepts only some.
  const auto stride_bytes = [&view](std::int64_t count, std::int64_t stride) {
    return (count > 1 ? stride : view.dim) * std::int64_t{sizeof(std::uint16_t)};
  };
  return driver.map_boxes({.data = view.data,
                           .cols = view.dim,
                           .heads = view.heads,
                           .tokens = view.tokens,
                           .head_stride_bytes = stride_bytes(view.heads, view.head_stride),
                           .token_stride_bytes = stride_bytes(view.tokens, view.token_stride),
                           .box_cols = kSwizzleCols,
                           .box_heads = heads,
                           .box_tokens = rows / heads});
}

}  // namespace

std::vector<TileMaps> tile_maps(Driver& driver, Program program,
                                std::span<const ForwardTile> tiles) {
  if (program != Program::kWgmma) return {};
  std::vector<TileMaps> all;
  for (const ForwardTile& tile : tiles) {
    all.push_back({.k = map_rows(driver, tile.k_MHD, 1, kWgmmaKeys),
                   .v = map_rows(driver, tile.v_MHD, 1, kWgmmaKeys),
                   .q = {},
                   .dout = {}});
  }
  return all;
}

std::vector<TileMaps> tile_maps(Driver& driver, Program program, const KernelParams& params,
                                std::span<const BackwardTile> tiles) {
  if (program != Program::kWgmma) return {};
  const std::int32_t heads = params.q_heads / params.kv_heads;
  const std::int32_t rows = whole_rows(heads);
  std::vector<TileMaps> all;
  for (const BackwardTile& tile : tiles) {
    all.push_back({.k = map_rows(driver, tile.k_MHD, 1, kWgmmaStreamed<false>),
                   .v = map_rows(driver, tile.v_MHD, 1, kWgmmaStreamed<false>),
                   .q = map_rows(driver, tile.q_NHD, heads, rows),
                   .dout = map_rows(driver, tile.do_NHD, heads, rows)});
  }
  return all;
}

}  // namespace contextile::cuda

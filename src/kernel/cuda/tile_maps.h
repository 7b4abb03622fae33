// Maps of the tensors of tiles, by which kernels of sm_90a copy boxes of rows.
#pragma once

#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"
#include "kernel/cuda/launch.h"
#include "kernel/cuda/passes.h"

namespace contextile::cuda {

// Returns maps of the tensors that `program` streams of every tile of a call, in boxes of its
// blocks; nothing if the program reads without maps.
[[nodiscard]] std::vector<TileMaps> tile_maps(Driver& driver, Program program,
                                              std::span<const ForwardTile> tiles);
[[nodiscard]] std::vector<TileMaps> tile_maps(Driver& driver, Program program,
                                              const KernelParams& params,
                                              std::span<const BackwardTile> tiles);

}  // namespace contextile::cuda

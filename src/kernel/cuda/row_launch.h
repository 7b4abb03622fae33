// Launches of row kernels on a rank's compute stream.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "gpu/driver.h"
#include "kernel/cuda/layout.h"

namespace contextile::cuda {

// Launches a warp for every row of the call, and nothing if there are no rows. `access` returns the
// access that Driver::launch may ask about.
template <typename Call, typename AccessOf>
void launch_rows(const RankStreams& streams, std::string_view kernel, const Call& call,
                 const AccessOf& access) {
  const std::int64_t rows = call.shape.num_rows();
  if (rows == 0) return;
  const std::int64_t blocks = (rows + kWarps - 1) / kWarps;
  CONTEXTILE_CHECK(blocks < (std::int64_t{1} << 31),
                   "cuda rows: expected fewer than 2^33 rows, found {}", rows);
  streams.driver.launch(streams.compute,
                        {.module = "rows",
                         .kernel = kernel,
                         .blocks_x = static_cast<std::int32_t>(blocks),
                         .blocks_y = 1,
                         .threads = kThreads,
                         .shared_bytes = 0},
                        std::as_bytes(std::span(&call, 1)), access);
}

}  // namespace contextile::cuda

// Copies between lists of strided segments in device memory.
#pragma once

#include <span>

#include "contextile/extend/transport.h"
#include "gpu/driver.h"

namespace contextile::cuda {

// Copies the bytes of `from`, in order, into `to`. Both have the same total size; they may be cut
// differently.
void copy_on_stream(Driver& driver, Stream stream, std::span<const Segment> from,
                    std::span<const Segment> to);

}  // namespace contextile::cuda

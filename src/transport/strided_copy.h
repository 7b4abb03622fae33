// Copying between lists of strided segments that are cut differently.
#pragma once

#include <span>

#include "contextile/transport.h"

namespace contextile {

// Copies the bytes of `from`, in order, into `to`. Both have the same total size.
void copy_segments(std::span<const Segment> from, std::span<const Segment> to);

}  // namespace contextile

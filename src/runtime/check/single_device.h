// The whole batch on one device with one kernel call: what distribution is measured against.
#pragma once

#include "contextile/advanced/oracle.h"
#include "contextile/executor.h"
#include "contextile/extend/kernel.h"

namespace contextile {

// Forward and, if asked for, backward of the mask as a single tile, inputs and outputs in the
// shape's dtype, rounded as the executor rounds. Memory O(T · heads · dim).
[[nodiscard]] OracleResult run_single_device(const BatchTensors& batch, const AttentionShape& shape,
                                             const Mask& mask, const AttentionKernel& kernel,
                                             Passes passes);

}  // namespace contextile

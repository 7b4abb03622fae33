// The whole batch on one device with one kernel call: the baseline that distribution is measured
// against.
#pragma once

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/kernel.h"

namespace contextile {

// Runs forward and, if requested, backward of the mask as a single tile. Inputs and outputs have
// the shape's dtype, rounded as the executor rounds. Memory O(T · heads · dim).
[[nodiscard]] OracleResult run_single_device(const BatchTensors& batch, const AttentionShape& shape,
                                             const Mask& mask, const AttentionKernel& kernel,
                                             Passes passes);

}  // namespace contextile

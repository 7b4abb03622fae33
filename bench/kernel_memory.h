// The executor's work around its kernels with their row operations, against the bandwidth of this
// machine.
#pragma once

#include "contextile/extend/kernel.h"
#include "kernel/row_ops.h"

namespace contextile {

// Verifies every operation on a small case (exit 1 if one is wrong), then prints GB/s and the share
// of a plain loop with the same reads and writes, measured before and after each call. It uses
// arrays far beyond the last cache, and arrays that fit the second. One thread, medians of CPU
// time.
void print_memory_rates(const RowOps& rows, int repeats);

}  // namespace contextile

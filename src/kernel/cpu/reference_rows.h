// The row operations that all others are checked against.
#pragma once

#include "contextile/extend/kernel.h"
#include "kernel/row_ops.h"

namespace contextile {

// Returns plain loops over elements, compiled without fusing multiply and add. They give the bits
// that every other implementation must give. Stateless.
[[nodiscard]] const RowOps& reference_rows();

}  // namespace contextile

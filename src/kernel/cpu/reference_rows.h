// The row operations everything else is checked against.
#pragma once

#include "contextile/extend/kernel.h"
#include "kernel/row_ops.h"

namespace contextile {

// Plain loops over elements, compiled without fusing multiply and add: the bits every other
// implementation must give. Stateless.
[[nodiscard]] const RowOps& reference_rows();

}  // namespace contextile

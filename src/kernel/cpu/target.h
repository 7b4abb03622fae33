// The table of a vector class. Include this only from the file of its instruction set.
#pragma once

#include "kernel/cpu/backward.h"
#include "kernel/cpu/forward.h"
#include "kernel/cpu/task.h"

namespace contextile {

template <class V>
constexpr SimdTarget make_simd_target(const char* name) {
  return {name,
          V::kLanes * V::kGridVectors,
          V::kForwardPanels,
          V::kBackwardPanels,
          V::kBackwardKeys,
          &forward_workspace_bytes<V>,
          &run_forward<V>,
          &packed_bytes<V>,
          &pack_backward<V>,
          &backward_workspace_bytes<V>,
          &run_backward<V>,
          &dq_elements<V>,
          &add_shares<V>};
}

}  // namespace contextile

#include "kernel/paged/lanes_portable.h"
#include "kernel/paged/paged_target.h"
#include "kernel/paged/take_keys.h"

namespace contextile {

const PagedTarget* paged_portable() {
  static constexpr PagedTarget kTarget = make_paged_target<LanesPortable>("portable");
  return &kTarget;
}

}  // namespace contextile

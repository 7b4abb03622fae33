// Handles of the emulated driver: pointers that stand for objects without data.
#pragma once

#include <cstdlib>
#include <set>

#include "gpu/emulated/device.h"

namespace contextile::emulated {

inline Result make_handle(void** handle, std::set<void*>& all) {
  *handle = std::malloc(1);
  all.insert(*handle);
  return kSuccess;
}

template <typename Handles>
Result drop_handle(void* handle, Handles& all) {
  if (all.erase(handle) == 0) return kInvalidHandle;
  std::free(handle);
  return kSuccess;
}

}  // namespace contextile::emulated

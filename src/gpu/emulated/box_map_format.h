// Maps of boxes as the CPU's device reads them: their source, unchanged.
#pragma once

#include <cstring>

#include "gpu/box_map.h"

namespace contextile::cuda {

static_assert(sizeof(BoxSource) <= sizeof(BoxMap));

[[nodiscard]] inline BoxMap packed_map(const BoxSource& source) {
  BoxMap map;
  std::memcpy(map.opaque, &source, sizeof(source));
  return map;
}
[[nodiscard]] inline BoxSource source_of(const BoxMap& map) {
  BoxSource source;
  std::memcpy(&source, map.opaque, sizeof(source));
  return source;
}

}  // namespace contextile::cuda

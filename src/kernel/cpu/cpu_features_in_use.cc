#include "kernel/cpu/cpu_features.h"

namespace contextile {

const CpuFeatures& cpu_features() {
  static const CpuFeatures kFound = found_cpu_features();
  return kFound;
}

}  // namespace contextile

#include "runtime/executor/machine_memory.h"

#include <unistd.h>

#include "base/check.h"

namespace contextile {

double inproc_bytes(const Plan& plan, const PlanStats& statistics) {
  const AttentionShape& shape = plan.shape;
  const double elements = static_cast<double>(plan.num_tokens()) *
                          (shape.q_heads + shape.kv_heads) * (shape.head_dim + shape.value_dim);
  double bytes = 4 * elements * static_cast<double>(bytes_per_element(shape.dtype));
  for (const auto& direction : {statistics.forward, statistics.backward}) {
    if (!direction) continue;
    for (const DeviceStats& device : direction->devices) {
      bytes += static_cast<double>(device.memory_bytes);
    }
  }
  return bytes;
}

void check_machine_memory(std::string_view where, const Plan& plan, double needed_bytes) {
  const double machine_bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  CONTEXTILE_CHECK(needed_bytes <= machine_bytes,
                   "{}: expected a batch that fits this machine's {:.1f} GB, found {} tokens that "
                   "need about {:.1f} GB",
                   where, machine_bytes / 1e9, plan.num_tokens(), needed_bytes / 1e9);
}

}  // namespace contextile

// DistCA's plan of a batch: who owns which rows and who computes them, nano-batch by nano-batch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "strategy/distca/tasks.h"

namespace contextile {

struct CaPlanOptions {
  MigrationOptions migration;
  std::int32_t attention_servers = 0;  // the last devices, which own no rows; fewer than devices
  std::int32_t nano_batches = 2;       // parts of equal tokens, each placed and balanced on its own
  std::int64_t buffer_limit_bytes = 0;  // 0: none
};

struct CaPlan {
  std::vector<std::vector<CaItem>> nano_batches;  // documents are sequences
  double tolerance = 0;                           // that was used in the end
};

// Cuts the batch into nano-batches, a document across a cut into a front part and a later part that
// attends it, and places and balances each. With a buffer limit the tolerance grows by 0.05 until
// no device sends or receives more at once (forward inputs, or outputs, of the whole batch);
// nothing when even the placement alone does. O(tries · moves · items).
[[nodiscard]] std::optional<CaPlan> plan_tasks(std::span<const Range> sequences,
                                               std::int32_t num_devices,
                                               const CaPlanOptions& options);

}  // namespace contextile

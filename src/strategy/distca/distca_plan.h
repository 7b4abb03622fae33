// DistCA's plan of a batch: the owner of every row and the device that computes it, nano-batch by
// nano-batch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/workload.h"
#include "strategy/distca/distca_tasks.h"

namespace contextile {

struct CaPlanOptions {
  MigrationOptions migration;
  std::optional<MigrationOptions> backward;  // unset: backward runs where forward does
  std::int32_t attention_servers = 0;  // the last devices, which own no rows; fewer than devices
  std::int32_t nano_batches = 2;       // parts of equal tokens, each placed and balanced on its own
  std::int64_t buffer_limit_bytes = 0;  // 0: none
};

struct CaPlan {
  std::vector<std::vector<CaItem>> nano_batches;  // documents are sequences
  std::vector<std::vector<CaItem>> backward;      // of the same rows; empty: those of nano_batches
  std::vector<CaCachedRows> cached;
  double tolerance = 0;  // the one used in the end
};

// Plans the tasks of a batch. Without a home layout, the batch is cut into nano-batches of equal
// tokens and each is placed; a document across a cut becomes a front part and a later part that
// attends it. With a home layout, rows stay where they are (items_at_home). Each nano-batch is then
// balanced. With a buffer limit, the tolerance grows by 0.05 until no device sends or receives more
// than the limit at once (forward inputs, or outputs, of the whole batch). Returns nothing if the
// limit does not suffice even without moves. Tokens without queries (`roles`) need a home.
// O(tries · moves · items).
[[nodiscard]] std::optional<CaPlan> plan_tasks(std::span<const Range> sequences,
                                               std::span<const HomeRange> home,
                                               std::int32_t num_devices,
                                               const CaPlanOptions& options,
                                               std::span<const RoleRange> roles = {});

}  // namespace contextile

#include "strategy/distca/plan.h"

#include <cstddef>
#include <utility>

namespace contextile {
namespace {

// The rows of packed tokens [tokens) by document.
std::vector<CaDocument> documents_in(std::span<const Range> sequences, Range tokens) {
  std::vector<CaDocument> documents;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const Range part = intersect(sequences[s], tokens);
    if (part.empty()) continue;
    const std::int64_t begin = sequences[s].begin;
    documents.push_back({static_cast<std::int32_t>(s), {part.begin - begin, part.end - begin}});
  }
  return documents;
}

std::int64_t largest_buffer_bytes(const CaPlan& plan, std::int32_t num_devices,
                                  const MigrationOptions& options) {
  std::vector<CaItem> items;
  for (const std::vector<CaItem>& nano_batch : plan.nano_batches) {
    items.insert(items.end(), nano_batch.begin(), nano_batch.end());
  }
  return forward_volume(items, num_devices, static_cast<std::int64_t>(options.q_bytes_per_token),
                        static_cast<std::int64_t>(options.kv_bytes_per_token))
      .largest_buffer_bytes();
}

}  // namespace

std::optional<CaPlan> plan_tasks(std::span<const Range> sequences, std::int32_t num_devices,
                                 const CaPlanOptions& options) {
  const std::int64_t total_tokens = sequences.empty() ? 0 : sequences.back().end;
  std::vector<std::vector<CaItem>> placed;
  for (std::int32_t n = 0; n < options.nano_batches; ++n) {
    const Range tokens{total_tokens * n / options.nano_batches,
                       total_tokens * (n + 1) / options.nano_batches};
    placed.push_back(
        place_documents(documents_in(sequences, tokens), num_devices - options.attention_servers));
  }
  constexpr double kToleranceStep = 0.05;
  MigrationOptions migration = options.migration;
  for (int step = 0;; ++step) {
    migration.tolerance = options.migration.tolerance + kToleranceStep * step;
    CaPlan plan{placed, migration.tolerance};
    for (std::vector<CaItem>& items : plan.nano_batches) migrate(items, num_devices, migration);
    if (options.buffer_limit_bytes == 0 ||
        largest_buffer_bytes(plan, num_devices, migration) <= options.buffer_limit_bytes) {
      return plan;
    }
    if (plan.nano_batches == placed) return std::nullopt;
  }
}

}  // namespace contextile

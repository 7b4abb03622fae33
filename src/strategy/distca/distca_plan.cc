#include "strategy/distca/distca_plan.h"

#include <cstddef>
#include <utility>

namespace contextile {
namespace {

// Returns the rows of the packed tokens `tokens`, by document.
std::vector<DocumentRows> documents_in(std::span<const Range> sequences, Range tokens) {
  std::vector<DocumentRows> documents;
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
                        static_cast<std::int64_t>(options.kv_bytes_per_token), plan.cached)
      .largest_buffer_bytes();
}

// Returns nano-batches of equal tokens, each placed on its own.
std::vector<std::vector<CaItem>> placed_items(std::span<const Range> sequences,
                                              std::int32_t num_devices,
                                              const CaPlanOptions& options) {
  const std::int64_t total_tokens = sequences.empty() ? 0 : sequences.back().end;
  std::vector<std::vector<CaItem>> placed;
  for (std::int32_t n = 0; n < options.nano_batches; ++n) {
    const Range tokens{total_tokens * n / options.nano_batches,
                       total_tokens * (n + 1) / options.nano_batches};
    placed.push_back(
        place_documents(documents_in(sequences, tokens), num_devices - options.attention_servers));
  }
  return placed;
}

}  // namespace

std::optional<CaPlan> plan_tasks(std::span<const Range> sequences, std::span<const HomeRange> home,
                                 std::int32_t num_devices, const CaPlanOptions& options,
                                 std::span<const RoleRange> roles) {
  const CaHome by_role = home_by_role(sequences, home, roles);
  const std::vector<std::vector<CaItem>> residing =
      home.empty() ? placed_items(sequences, num_devices, options)
                   : items_at_home(sequences, by_role.computed, num_devices, options.nano_batches);
  const auto gathered = [&](const MigrationOptions& migration) {
    std::vector<std::vector<CaItem>> nano_batches = residing;
    if (!home.empty() && migration.fidelity == Fidelity::kRefined) {
      gather_documents(nano_batches, num_devices, migration, by_role.cached);
    }
    return nano_batches;
  };
  const auto balanced = [&](std::vector<std::vector<CaItem>> nano_batches,
                            MigrationOptions migration, double tolerance) {
    migration.tolerance = tolerance;
    for (std::vector<CaItem>& items : nano_batches) {
      migrate(items, num_devices, migration, by_role.cached);
    }
    return nano_batches;
  };
  const std::vector<std::vector<CaItem>> start = gathered(options.migration);
  // The tolerance grows until the buffers suffice. Once nothing moves, a larger one cannot help.
  constexpr double kToleranceStep = 0.05;
  for (int step = 0;; ++step) {
    CaPlan plan;
    plan.tolerance = options.migration.tolerance + kToleranceStep * step;
    plan.cached = by_role.cached;
    plan.nano_batches = balanced(start, options.migration, plan.tolerance);
    if (options.buffer_limit_bytes == 0 ||
        largest_buffer_bytes(plan, num_devices, options.migration) <= options.buffer_limit_bytes) {
      if (options.backward)
        plan.backward = balanced(gathered(*options.backward), *options.backward, plan.tolerance);
      return plan;
    }
    if (plan.nano_batches == start) return std::nullopt;
  }
}

}  // namespace contextile

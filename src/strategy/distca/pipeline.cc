#include "strategy/distca/pipeline.h"

#include <algorithm>

#include "base/check.h"
#include "strategy/distca/tasks.h"

namespace contextile {

std::vector<SamePhaseTick> same_phase_ticks(std::int32_t num_stages,
                                            std::int32_t num_micro_batches) {
  CONTEXTILE_CHECK(num_stages > 0 && num_micro_batches > 0,
                   "pipeline: expected stages and micro-batches, found {} and {}", num_stages,
                   num_micro_batches);
  std::vector<SamePhaseTick> ticks;
  const auto add = [&](Direction phase, std::int32_t tick) {
    SamePhaseTick& added = ticks.emplace_back();
    added.phase = phase;
    for (std::int32_t r = 0; r < num_stages; ++r) {
      const std::int32_t micro_batch =
          tick - (phase == Direction::kForward ? r : num_stages - 1 - r);
      const bool runs = micro_batch >= 0 && micro_batch < num_micro_batches;
      added.micro_batches.push_back(runs ? micro_batch : kIdleStage);
    }
  };
  for (std::int32_t t = 0; t < num_stages - 1; ++t) add(Direction::kForward, t);
  for (std::int32_t i = 0; i < num_micro_batches; ++i) {
    add(Direction::kForward, num_stages - 1 + i);
    add(Direction::kBackward, i);
  }
  for (std::int32_t t = num_micro_batches; t < num_micro_batches + num_stages - 1; ++t) {
    add(Direction::kBackward, t);
  }
  return ticks;
}

void append_stage_home(std::span<const std::int64_t> lengths, Rank first, std::int32_t num_ranks,
                       std::vector<HomeRange>& home) {
  const std::int64_t offset = home.empty() ? 0 : home.back().tokens.end;
  const std::vector<Range> sequences = sequences_from_lengths(lengths);
  std::vector<CaDocument> documents;
  for (const Range& sequence : sequences) {
    documents.push_back({static_cast<std::int32_t>(documents.size()), {0, sequence.size()}});
  }
  const auto begin = static_cast<std::ptrdiff_t>(home.size());
  for (const CaItem& item : place_documents(documents, num_ranks)) {
    const std::int64_t at = offset + sequences[static_cast<std::size_t>(item.document)].begin;
    for (const CaShard& shard : shards_of(item)) {
      home.push_back({{at + shard.queries.begin, at + shard.queries.end},
                      Rank{first.value + item.source.value}});
    }
  }
  std::sort(home.begin() + begin, home.end(),
            [](const HomeRange& a, const HomeRange& b) { return a.tokens.begin < b.tokens.begin; });
}

std::int32_t peak_activations(std::span<const SamePhaseTick> ticks, std::int32_t stage) {
  std::int32_t alive = 0;
  std::int32_t peak = 0;
  for (const SamePhaseTick& tick : ticks) {
    if (tick.micro_batches[static_cast<std::size_t>(stage)] == kIdleStage) continue;
    alive += tick.phase == Direction::kForward ? 1 : -1;
    peak = std::max(peak, alive);
  }
  return peak;
}

}  // namespace contextile

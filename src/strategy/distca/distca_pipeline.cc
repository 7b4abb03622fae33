#include "strategy/distca/distca_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "base/check.h"
#include "strategy/distca/distca_tasks.h"
#include "strategy/stage_home.h"

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

void append_stage_home(const StageParts& parts, std::size_t part, Rank first,
                       std::int32_t num_ranks, std::vector<HomeRange>& home) {
  std::int64_t end = home.empty() ? 0 : home.back().tokens.end;
  std::map<std::int32_t, std::int64_t> begin_of;  // of the part's documents
  for (const DocumentRows& document : parts[part]) {
    begin_of[document.document] = end;
    end += document.rows.end;
  }
  const auto appended = static_cast<std::ptrdiff_t>(home.size());
  for (std::size_t p = 0; p <= part; ++p) {
    for (const CaItem& item : place_documents(parts[p], num_ranks)) {
      const auto at = begin_of.find(item.document);
      if (at == begin_of.end()) continue;
      for (const CaShard& shard : shards_of(item)) {
        home.push_back({{at->second + shard.queries.begin, at->second + shard.queries.end},
                        Rank{first.value + item.source.value}});
      }
    }
  }
  std::sort(home.begin() + appended, home.end(),
            [](const HomeRange& a, const HomeRange& b) { return a.tokens.begin < b.tokens.begin; });
}

void append_stage_home(std::span<const std::int64_t> lengths, Rank first, std::int32_t num_ranks,
                       std::vector<HomeRange>& home) {
  StageParts parts(1);
  for (const std::int64_t length : lengths) {
    parts[0].push_back({static_cast<std::int32_t>(parts[0].size()), {0, length}});
  }
  append_stage_home(parts, 0, first, num_ranks, home);
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

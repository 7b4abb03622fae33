#include "strategy/magi/casts.h"

#include <algorithm>

#include "base/ranges.h"

namespace contextile {
namespace {

// Returns the number of elements in stages 0 … s, for every s that has any.
std::vector<std::int64_t> elements_until_stage(std::int64_t num_elements, std::int32_t stages) {
  const std::int64_t with_own = num_elements + 1;
  const std::int64_t used = std::min<std::int64_t>(stages, num_elements);
  std::vector<std::int64_t> until;
  std::int64_t end = -1;
  for (std::int64_t s = 0; s < used; ++s) {
    end += with_own / used + (s < with_own % used ? 1 : 0);
    until.push_back(end);
  }
  return until;
}

}  // namespace

std::vector<Range> keys_to_fetch(std::span<const Range> needed, std::span<const Range> held) {
  std::vector<Range> result;
  auto own = held.begin();
  for (Range range : needed) {
    while (own != held.end() && own->end <= range.begin) ++own;
    for (auto hole = own; hole != held.end() && hole->begin < range.end; ++hole) {
      if (range.begin < hole->begin) result.push_back({range.begin, hole->begin});
      range.begin = std::min(hole->end, range.end);
    }
    if (!range.empty()) result.push_back(range);
  }
  return result;
}

std::vector<StagedKeys> cut_into_stages(std::span<const Range> keys, const StageRule& rule) {
  std::int64_t total_tokens = 0;
  for (const Range& range : keys) total_tokens += range.size();
  if (total_tokens == 0) return {};
  const std::int64_t max_elements = rule.stages == 1 ? 1 : rule.max_elements;
  const std::int64_t element_tokens =
      std::max(rule.element_tokens, (total_tokens + max_elements - 1) / max_elements);
  const std::vector<std::int64_t> until =
      elements_until_stage((total_tokens + element_tokens - 1) / element_tokens, rule.stages);
  std::vector<StagedKeys> result;
  std::int32_t stage = 0;
  std::int64_t before_tokens = 0;
  for (Range range : keys) {
    while (!range.empty()) {
      while (before_tokens == until[static_cast<std::size_t>(stage)] * element_tokens) ++stage;
      const std::int64_t room =
          until[static_cast<std::size_t>(stage)] * element_tokens - before_tokens;
      const std::int64_t taken = std::min(room, range.size());
      result.push_back({{range.begin, range.begin + taken}, stage});
      range.begin += taken;
      before_tokens += taken;
    }
  }
  return result;
}

}  // namespace contextile

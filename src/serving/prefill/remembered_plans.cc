#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "contextile/serving/prefill.h"

namespace contextile {
namespace {

// Everything of a batch that its workload depends on.
struct BatchKey {
  KvLayout layout;
  PrefillChunks chunks = PrefillChunks::kEven;
  std::string mask;
  AttentionShape shape;
  std::vector<std::pair<std::int64_t, std::int64_t>> tokens;  // cached and new, by sequence

  friend bool operator==(const BatchKey&, const BatchKey&) = default;
};

BatchKey key_of(const PrefillBatch& batch, const AttentionShape& shape) {
  BatchKey key = {batch.layout, batch.chunks, to_string(batch.mask), shape, {}};
  for (const PrefillSequence& sequence : batch.sequences) {
    key.tokens.emplace_back(sequence.cached_tokens, sequence.new_tokens);
  }
  return key;
}

struct Memory {
  std::mutex mutex;
  std::list<std::pair<BatchKey, std::shared_ptr<const Plan>>> plans;  // the latest first
};

}  // namespace

PrefillPlanner remembered_plans(std::function<std::shared_ptr<const Plan>(const Workload&)> plan,
                                std::size_t most) {
  CONTEXTILE_CHECK(most >= 1, "remembered plans: expected at least 1, found {}", most);
  return [memory = std::make_shared<Memory>(), plan = std::move(plan), most](
             const PrefillBatch& batch, const AttentionShape& shape) {
    BatchKey key = key_of(batch, shape);
    const std::lock_guard lock(memory->mutex);
    auto& plans = memory->plans;
    for (auto it = plans.begin(); it != plans.end(); ++it) {
      if (it->first != key) continue;
      plans.splice(plans.begin(), plans, it);
      return plans.front().second;
    }
    std::shared_ptr<const Plan> made;
    try {
      made = plan(prefill_workload(batch, shape));
    } catch (const InvalidArgument&) {  // none, on every rank
    }
    plans.emplace_front(std::move(key), made);
    if (plans.size() > most) plans.pop_back();
    return made;
  };
}

}  // namespace contextile

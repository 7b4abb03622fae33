// Packing the documents of every training step into micro-batches of about equal work, as WLB-LLM
// does: very long documents wait until every micro-batch can have one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// A document on its way into a micro-batch.
struct Document {
  std::int64_t id = 0;  // the caller's; carried along, never looked at
  std::int64_t length_tokens = 0;

  friend constexpr auto operator<=>(const Document&, const Document&) = default;
};

struct WlbPackingOptions {
  std::int32_t micro_batches = 4;  // N, of one step
  std::int64_t max_tokens = 0;     // Lmax of one micro-batch
  // T1 < T2 < …: a document of at least T1 tokens waits in the queue of the highest level it
  // reaches. Unset: one level at max_tokens / 4. Empty: nothing waits.
  std::optional<std::vector<std::int64_t>> outlier_levels_tokens{};
  // B: a document of this many tokens costs as much in attention as in everything else.
  std::int64_t balance_tokens = 131072;
};

// Work of a document, attention and everything else: (L/B)² + L/B.
[[nodiscard]] double packing_workload(std::int64_t length_tokens, std::int64_t balance_tokens);

// Documents in the order in which they were placed.
using MicroBatch = std::vector<Document>;

// What waits from one step to the next. A default-constructed state is the beginning.
struct WlbPackingState {
  std::vector<std::vector<Document>> queues;  // of each level, oldest first
  std::vector<Document> remained;             // found no room in the last step, first come first

  [[nodiscard]] std::size_t num_waiting() const;
};

struct WlbPackingStep {
  std::vector<MicroBatch> micro_batches;  // N; those that got nothing are empty
  WlbPackingState state;                  // for the next step
};

enum class OutlierRelease : std::uint8_t {
  kFullQueues,  // the N oldest of every queue that holds at least N
  kAll,         // everything: the data is at its end
};

// One step of WLB-LLM's Algorithm 1 (Wang et al., OSDI 2025; as two public implementations read
// it). Outliers join their queue, queues release, and what is new or released is sorted by length,
// longest first (ties: new before released, in their order). After those that remained, each goes
// to the micro-batch with the least work if it fits, else to the one with the fewest tokens if it
// fits (ties: the first), else it remains.
//
// No document is lost, doubled or cut, and no micro-batch exceeds max_tokens. What remains is
// served first: the n-th of `remained` (from 0) is placed within n / N + 1 steps. The n-th of a
// queue is released at the latest when n / N steps have passed and the queue holds N documents; at
// the end of the data call with kAll (and nothing new) until nothing waits.
//
// Throws InvalidArgument on bad options, a state that does not fit them, and a document that is
// empty or longer than max_tokens (naming it). O(D log D + D·N) for D documents.
[[nodiscard]] WlbPackingStep pack_wlb(WlbPackingState state, std::span<const Document> arriving,
                                      const WlbPackingOptions& options,
                                      OutlierRelease release = OutlierRelease::kFullQueues);

// The same for one step on its own, as DistCA's baseline does it: nothing waits; what fits nowhere
// goes, in its order and after all others, to the micro-batch with the least work, max_tokens
// notwithstanding. Levels are ignored. An empty micro-batch stays empty (DistCA's holds a document
// of padding). Throws InvalidArgument on bad options and empty documents.
[[nodiscard]] std::vector<MicroBatch> pack_wlb_without_defer(std::span<const Document> documents,
                                                             const WlbPackingOptions& options);

}  // namespace contextile

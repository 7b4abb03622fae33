// What of a micro-batch goes through the layers together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/workload.h"
#include "strategy/stage_home.h"

namespace contextile {

// Rows with queries.
[[nodiscard]] std::int64_t computed_tokens(const std::vector<DocumentRows>& documents);

// All documents in one part.
[[nodiscard]] StageParts whole_documents(std::span<const std::int64_t> lengths);

// Two parts that run in turns, or one where the other would be empty. With kSamePhase keys have a
// home on the stage, so a document may be cut: parts of equal tokens, to one, as DistCA's
// nano-batches (§4.1), as long as the masks let the first rows of a document stand alone.
// Elsewhere a strategy chooses where keys are, for each part by itself: whole documents, about
// equal tokens. O(documents · log).
[[nodiscard]] StageParts ping_pong_parts(std::span<const std::int64_t> lengths,
                                         PipelineSchedule schedule, std::span<const MaskUse> masks);

}  // namespace contextile

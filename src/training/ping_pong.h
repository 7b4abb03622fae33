// The parts of a micro-batch that go through the layers together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/workload.h"
#include "strategy/stage_home.h"

namespace contextile {

// Number of rows with queries.
[[nodiscard]] std::int64_t computed_tokens(const std::vector<DocumentRows>& documents);

// Puts all documents into one part.
[[nodiscard]] StageParts whole_documents(std::span<const std::int64_t> lengths);

// Two parts that alternate, or one if the other would be empty. With kSamePhase keys have a home on
// the stage, so a document may be cut: the parts have equal tokens, to one, like DistCA's
// nano-batches (§4.1), as long as the masks let the first rows of a document stand alone. With
// other schedules a strategy places keys for each part by itself, so parts are whole documents of
// about equal tokens. O(documents · log).
[[nodiscard]] StageParts ping_pong_parts(std::span<const std::int64_t> lengths,
                                         PipelineSchedule schedule, std::span<const MaskUse> masks);

}  // namespace contextile

// Placement of the tokens of a pipeline stage before attention is planned. The planner of training
// steps and distca, whose placement this is, share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/workload.h"

namespace contextile {

// Rows to place, as positions in their document; their keys are [0, rows.end). A nano-batch that
// starts inside a document has rows.begin > 0.
struct DocumentRows {
  std::int32_t document = 0;  // id in items
  Range rows;
};

// A micro-batch in parts that run one after another, each with the rows of its documents. Earlier
// rows of a document belong to an earlier part.
using StageParts = std::vector<std::vector<DocumentRows>>;

// Appends, behind the tokens of `home`, the places of one part's documents on the stage's
// `num_ranks` ranks from `first` on. The part's rows are divided in equal tokens, and documents
// that are cut have head and tail pieces (DistCA's loader), so that pairs of rows cost the same on
// every rank. Earlier rows of its documents are where the part they belong to has them.
// O((documents + ranks) · log).
void append_stage_home(const StageParts& parts, std::size_t part, Rank first,
                       std::int32_t num_ranks, std::vector<HomeRange>& home);
// The same for whole documents.
void append_stage_home(std::span<const std::int64_t> lengths, Rank first, std::int32_t num_ranks,
                       std::vector<HomeRange>& home);

}  // namespace contextile

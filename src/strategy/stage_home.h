// Where the tokens of a pipeline stage are before attention is planned: shared by the planner of
// training steps and by distca, whose placement it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/workload.h"

namespace contextile {

// Rows to place, as positions in their document; keys are [0, rows.end). A nano-batch that starts
// inside a document has rows.begin > 0.
struct DocumentRows {
  std::int32_t document = 0;  // names it in items
  Range rows;
};

// A micro-batch in parts that run one after another, each with the rows of its documents; rows of a
// document that come first are of an earlier part.
using StageParts = std::vector<std::vector<DocumentRows>>;

// Where the documents of one part are on the stage's `num_ranks` ranks, from `first` on: its rows
// in equal tokens, documents that are cut head and tail (DistCA's loader), so that pairs of rows
// cost the same wherever they are; rows before them where the part that they are of has them.
// Appended behind the tokens of `home`. O((documents + ranks) · log).
void append_stage_home(const StageParts& parts, std::size_t part, Rank first,
                       std::int32_t num_ranks, std::vector<HomeRange>& home);
// The same for whole documents.
void append_stage_home(std::span<const std::int64_t> lengths, Rank first, std::int32_t num_ranks,
                       std::vector<HomeRange>& home);

}  // namespace contextile

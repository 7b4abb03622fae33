// Batches of the kinds of data that models train on, drawn at random, the same on every machine.
//
//   for (const std::string& source : bench::length_sources()) {
//     const bench::SourceBatch batch = bench::draw_batch(source, 131072, 1);
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile::bench {

// Documents of a batch, packed end to end.
struct SourceBatch {
  std::vector<std::int64_t> lengths_tokens;  // one for each document
  // The tree of every document, for `rollouts`. Empty: any mask may be used.
  std::vector<MaskSpec> trees;
};

// Returns the names of all sources: the built-in datasets, then
//   chat      log-normal, median 350, 90th percentile 1200
//   code      median 2.5K. Nine files in ten are log-normal; the others have a Pareto tail of
//             exponent 1 from 10K to 128K, which holds about half of the tokens.
//   rollouts  groups of a prompt of 256 to 4K and 8 answers of 2K to 16K, uniform in the
//             logarithm. A group is one document: each answer sees the prompt and itself.
//   single    one document that fills the batch.
[[nodiscard]] std::vector<std::string> length_sources();

// Draws documents until the batch has exactly `tokens`; the last document is cut to fit. A group
// of rollouts is cut in its last answers. Throws InvalidArgument on an unknown source.
[[nodiscard]] SourceBatch draw_batch(std::string_view source, std::int64_t tokens,
                                     std::uint64_t seed);

// Makes the workload of a batch under its trees, or under `mask` if it has none.
[[nodiscard]] Workload workload_of(const SourceBatch& batch, const AttentionShape& shape,
                                   std::string_view mask);

}  // namespace contextile::bench

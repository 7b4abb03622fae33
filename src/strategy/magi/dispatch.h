// MagiAttention's dispatch solver, which decides the rank that works on each chunk of the batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/strategies.h"
#include "contextile/workload.h"

namespace contextile {

// Returns the tokens of a chunk: as many as give every rank eight chunks, at most `requested` (0:
// no limit).
[[nodiscard]] std::int64_t magi_chunk_tokens(std::int64_t num_tokens, std::int32_t num_ranks,
                                             std::int64_t requested);

// Returns equal chunks of the batch; the last one is clipped to the batch.
[[nodiscard]] std::vector<Range> magi_chunks(std::int64_t num_tokens, std::int64_t chunk_tokens);

// Ranks that one search of the exact algorithms may try, over all its chunks.
inline constexpr std::int64_t kDispatchSteps = 250'000;

// The keys that the queries of a chunk attend, and the work. A chunk of padding has neither.
struct ChunkWork {
  std::int64_t area = 0;    // attended pairs, every mask weighted by its layers
  std::vector<Range> keys;  // of every band that meets the chunk; they may overlap
};
// Returns the work of each of ascending chunks. O(bands · log + chunks that bands meet).
[[nodiscard]] std::vector<ChunkWork> chunk_work(std::span<const NamedMask> masks,
                                                std::span<const Range> chunks);

// Returns the rank of every chunk. No rank gets more than ceil(chunks / ranks), except with
// kBinarySearch.
//   kMinHeap       by area descending (ties: the later chunk first) to the least loaded rank (ties:
//                  the lower one) that has a place.
//   kToppHeap      by area descending (ties: the earlier chunk first) to one of the
//                  max(1, ceil(top_p · ranks)) least loaded ranks with a place: the one whose chunks
//                  so far have most keys in common with it (ties: the less loaded).
//   kSequential    equal runs in order; the first ranks get one more if they do not divide evenly.
//   kBinarySearch  the largest load is the least that any partition has: by bisection, with a search
//                  at every load whether all chunks fit under it.
//   kBacktracking  the same among partitions with a limit of chunks per rank: by branch and bound.
// The last two are exact if their searches end within kDispatchSteps, as they do with few chunks.
// Otherwise they return the best partition found, which is at most kMinHeap's load.
// O(chunks · log), kToppHeap O(chunks · top_p · ranks · keys of a rank), the last two
// O(kDispatchSteps · log of the load).
[[nodiscard]] std::vector<Rank> dispatch_chunks(std::span<const ChunkWork> chunks,
                                                std::int32_t num_ranks, MagiDispatch algorithm,
                                                double top_p);

}  // namespace contextile

// A batch as users describe it, turned into the workload that one context-parallel rank sees: what
// every front end needs between lengths and plan_batch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/workload.h"

namespace contextile {

// What holds for all batches of a job, whatever their lengths.
struct WorkloadInput {
  AttentionShape shape;        // heads of the whole model
  std::int32_t tp = 1;         // tensor-parallel ranks that divide the heads among them
  std::vector<MaskUse> masks;  // empty: causal
  std::string mask_path;       // a file for read_mask_file instead of `masks`; empty: none
  std::string layout;          // as load_layout takes it; empty: the plan chooses owners
};

// The heads of one of `tp` tensor-parallel ranks. Throws InvalidArgument on a shape that is not
// valid, or whose query and KV heads `tp` does not divide.
[[nodiscard]] AttentionShape shape_of_rank(AttentionShape shape, std::int32_t tp);

// Throws InvalidArgument when the shape cannot be divided or masks come from two places.
void check_workload_input(const WorkloadInput& input);

// The batch of `lengths` on `num_ranks` context-parallel ranks: sequences, the shape of one
// tensor-parallel rank, masks (a mask file is read for this batch's tokens) and home layout, all
// checked. Throws InvalidArgument or IoError. O(bands + home ranges).
[[nodiscard]] Workload load_workload(std::span<const std::int64_t> lengths,
                                     const WorkloadInput& input, std::int32_t num_ranks);

}  // namespace contextile

// What an executor does around the programs: delta before backward, sink and rounding after.
#pragma once

#include <span>

#include "contextile/kernel.h"
#include "kernel/merge.h"

namespace contextile {

// delta = rowsum(dO ∘ O), summed in fp64. All [tokens, heads, dim] of one shape.
void compute_delta(const TensorView& dout_NHD, const TensorView& out_NHD, const RowStats& delta_NH);

// Rounds accumulated outputs once into the caller's tensors, the sink logits of these heads
// applied: L' = logaddexp(L, sink), O·exp(L - L'). A row with no attended key: O = 0, L' = sink
// (-inf without). `sink_H` is empty when the layer has none.
void finish_output(const PartialOutput& accumulated, std::span<const float> sink_H,
                   const TensorView& out_NHD, const RowStats& lse_NH);

// The same for rows nobody attends from: O = 0, L = sink or -inf.
void write_empty_output(std::span<const float> sink_H, const TensorView& out_NHD,
                        const RowStats& lse_NH);

// dsink_H[h] -= Σ_n exp(sink - L')·delta; the rows' final LSE.
void add_sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                       const RowStats& delta_NH, std::int64_t tokens, std::span<double> dsink_H);

}  // namespace contextile

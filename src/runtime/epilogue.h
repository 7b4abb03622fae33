// What an executor does around the programs beside the kernel's row operations: rows that attend
// nothing, the gradient of sinks.
#pragma once

#include <span>

#include "contextile/kernel.h"

namespace contextile {

// What RowOps::finish makes of rows nobody attends from: O = 0, L = sink or -inf.
void write_empty_output(std::span<const float> sink_H, const TensorView& out_NHD,
                        const RowStats& lse_NH);

// dsink_H[h] -= Σ_n exp(sink - L')·delta; the rows' final LSE.
void add_sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                       const RowStats& delta_NH, std::int64_t tokens, std::span<double> dsink_H);

}  // namespace contextile

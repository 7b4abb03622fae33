// Which mode a batch should be prefilled in: by the rule of its authors, and by a simulation.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/kernel.h"
#include "contextile/prefill.h"
#include "contextile/transport.h"
#include "contextile/workload.h"

namespace contextile {

// What one rank does in a second.
struct PrefillRates {
  double flops_per_s = 0;  // C: attention
  double bytes_per_s = 0;  // BW: to the next rank, while it receives as much
  double message_s = 0;    // what a message takes beside its bytes
};

// Passing keys and values, or queries. Source: arXiv 2411.01783, the heuristic without the
// all-to-all: with T new of T + P tokens, K KV heads for Q heads and e bytes an element,
//   pass_kv if T >= N·C·K·e / (2·Q·BW) or T / (T + P) >= 2·K / Q, else pass_q.
// The first says that a block of keys arrives while another is computed, the second that it is
// no larger than the block of queries. Throws InvalidArgument unless rates are positive and T is.
[[nodiscard]] PrefillMode choose_prefill_mode(std::int64_t new_tokens, std::int64_t cached_tokens,
                                              std::int32_t num_ranks, const AttentionShape& shape,
                                              const PrefillRates& rates);

// Seconds until the last rank has one layer's outputs, computing and sending side by side: a step
// begins when its block has come and the one before is computed, what a rank sends leaves at its
// rate, message by message. Copies, merges and rounding cost nothing. Throws InvalidArgument unless
// rates are positive.
[[nodiscard]] double simulate_prefill_s(PrefillMode mode, const PrefillWork& work,
                                        const AttentionShape& shape, const PrefillRates& rates,
                                        Dtype wire = Dtype::kF32);
// The mode of `modes` (at least one) that takes the least, the first of equal ones.
[[nodiscard]] PrefillMode simulated_prefill_mode(std::span<const PrefillMode> modes,
                                                 const PrefillWork& work,
                                                 const AttentionShape& shape,
                                                 const PrefillRates& rates,
                                                 Dtype wire = Dtype::kF32);

// Measures a group as it is, all ranks at once: a tile of attention, messages round the ring.
// Medians of a few repeats, the slowest rank's, so the same on all ranks. Collective. Takes a
// fraction of a second.
[[nodiscard]] PrefillRates measure_prefill_rates(Transport& transport,
                                                 const AttentionKernel& kernel,
                                                 const AttentionShape& shape);

}  // namespace contextile

// Facts about set-ups that the writers of flags share.
#pragma once

#include <cstdint>

#include "contextile/advanced/training_setup.h"

namespace contextile {

// The part of accelerate that TRL trains with.
enum class TrlBackend : std::uint8_t { kFsdp, kDeepspeed, kReplicated };
[[nodiscard]] TrlBackend trl_backend(const TrainingSetup& setup);

// Number of micro-batches of a step over all replicas: engines call it the global batch size where
// a micro-batch is one sequence. 0: unknown.
[[nodiscard]] std::int64_t rows_of_step(const TrainingSetup& setup);

}  // namespace contextile

// Parts of the time of a step that decoding and prompts have in common. Times are in microseconds.
#pragma once

#include "contextile/serving/helix.h"

namespace contextile {

// The layout of the devices that share whole layers where KVP groups compute their own rows.
[[nodiscard]] constexpr HelixLayout own_layout(const HelixLayout& layout) {
  return {1, layout.tpa, layout.tpa, 1, 1};
}

[[nodiscard]] double read_us(const HelixHardware& hardware, double bytes);
[[nodiscard]] double send_us(const HelixHardware& hardware, double bytes);
[[nodiscard]] double compute_us(const HelixHardware& hardware, double flops);
// Elements that a token's cached keys and values take on a device that holds it.
[[nodiscard]] double token_elements(const HelixModel& model, const HelixLayout& layout);
// FLOPs of all query heads for a pair of a row and a key.
[[nodiscard]] double pair_flops(const HelixModel& model);
// Time of a layer's all-reduces around the output projection and the feed-forward.
[[nodiscard]] double all_reduces_us(const HelixModel& model, const HelixHardware& hardware,
                                    const HelixLayout& layout, double requests);
// Time of all matrices of a step with those rows: those of every layer and the head's.
[[nodiscard]] double mixed_weights_us(const HelixModel& model, const HelixHardware& hardware,
                                      const HelixLayout& layout, const HelixRows& rows);
// Time of the logits alone; 0 without rows that need them.
[[nodiscard]] double logits_us(const HelixModel& model, const HelixHardware& hardware,
                               const HelixLayout& layout, const HelixRows& rows);

// Throw InvalidArgument.
void check_rows(const HelixRows& rows);
void check_devices(const HelixHardware& hardware, const HelixLayout& layout);

}  // namespace contextile

// Predictions of decoding as tables and JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/serving/helix.h"
#include "report/table.h"

namespace contextile {

// The predicted cases: every context with every batch and number of devices.
struct HelixStudy {
  HelixModel model;
  HelixHardware hardware;
  std::vector<std::int64_t> contexts;
  std::vector<std::int32_t> batches;
  std::vector<std::int32_t> devices;
  HopB hop_b;
  std::vector<std::int64_t> prompts = {};  // tokens
};

// Lines "model …", "hardware …", "hop-b …".
[[nodiscard]] std::string describe_helix(const HelixStudy& study);
[[nodiscard]] Json helix_setting_json(const HelixStudy& study);

// One row per context, batch and number of devices: the fastest layout of every family that fits.
[[nodiscard]] Table helix_time_table(const HelixStudy& study);
// One row per number of devices and batch: the context from which on sharing tokens pays, and its
// cost at the shortest context.
[[nodiscard]] Table helix_loss_table(const HelixStudy& study);
// The longest context of every batch, and the most requests of every context, that some layout of
// every family can hold.
[[nodiscard]] Table helix_context_table(const HelixStudy& study);
[[nodiscard]] Table helix_batch_table(const HelixStudy& study);
// The parts of the time with the last context, batch and number of devices: one row per family, and
// for Helix one per reading of HOP-B.
[[nodiscard]] Table helix_parts_table(const HelixStudy& study);
// One row per prompt, number of devices and layout: the time of all its tokens in one step, on an
// empty cache. Layouts are those of TP (KVP 1), CP and TP x CP with own rows, and Helix.
[[nodiscard]] Table helix_prompt_table(const HelixStudy& study);
// Tokens/s of a user against tokens/s of a device with the last context, over all devices and
// batches of 1, 2, 4, … up to `most_requests`.
[[nodiscard]] HelixSearch helix_search_of(const HelixStudy& study, std::int32_t most_requests);
[[nodiscard]] Table helix_front_table(const HelixStudy& study, const HelixSearch& search);
// The gain of Helix over such points of tensor parallelism alone, and over all others.
[[nodiscard]] Table helix_gain_table(const HelixStudy& study, const HelixSearch& search);

}  // namespace contextile

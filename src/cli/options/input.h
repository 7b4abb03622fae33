// The input options several commands share, and the workloads, cluster and request they describe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/app.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {

// auto with a search of about 0.7 s of one core on up to 32 devices and in proportion above, for
// plans at once rather than the best plans.
inline constexpr const char* kQuickAuto = "auto:steps=600000,steps_per_device=18750";

// The values of the command line. Defaults here are the ones `--help` shows.
struct InputOptions {
  std::string lengths_path;
  std::string length_field = "length";
  std::string dataset;
  BatchOptions batch;

  WorkloadInput workload;
  std::optional<std::int32_t> value_dim;  // unset: head_dim

  std::string cluster = "dgx-h200:4x8";
  std::int32_t pp = 1;
  PlanOptions plan;           // all but what tokens cost; its seed is also that of samples
  std::string linear_layers;  // a model, or µs of a token; empty: not said
};

// Lengths, masks, attention shape, cluster, layout, limits: all but the strategy.
void add_input_options(CLI::App& app, InputOptions& options);
// The next three add parts of it. This one: the source of lengths, and how they become batches.
void add_batch_options(CLI::App& app, InputOptions& options);
void add_mask_rule_option(CLI::App& app, InputOptions& options);
void add_blocking_options(CLI::App& app, InputOptions& options);  // block size, wire

// Lengths of every batch. Throws InvalidArgument or IoError.
[[nodiscard]] std::vector<std::vector<std::int64_t>> load_lengths(const InputOptions& options);
// Reads what the options name. Throws InvalidArgument or IoError.
[[nodiscard]] PlanInput load_input(const InputOptions& options);

}  // namespace contextile

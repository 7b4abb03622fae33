// The input options several commands share, and the workloads, cluster and request they describe.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/data.h"
#include "contextile/plan_build.h"
#include "contextile/planner.h"
#include "contextile/registry.h"
#include "contextile/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// As given on the command line. Defaults here are the ones `--help` shows.
struct InputOptions {
  std::string lengths_path;
  std::string length_field = "length";
  std::string dataset;
  BatchOptions batch;

  std::vector<MaskUse> masks;  // empty: causal
  std::string mask_path;

  AttentionShape shape;
  std::optional<std::int32_t> value_dim;  // unset: head_dim

  std::string cluster = "dgx-h200:4x8";
  std::int32_t tp = 1;
  std::int32_t pp = 1;
  std::string layout;  // empty: the plan chooses owners
  std::optional<std::int64_t> block_size;
  std::optional<Dtype> wire;
  BuildOptions limits;
  std::uint64_t seed = 0;
  bool forward_only = false;
};

// Lengths, masks, attention shape, cluster, layout, limits: all but the strategy.
void add_input_options(CLI::App& app, InputOptions& options);
// Parts of it. Where lengths come from and how they become batches, without how many batches.
void add_batch_options(CLI::App& app, InputOptions& options);
void add_mask_rule_option(CLI::App& app, InputOptions& options);
void add_blocking_options(CLI::App& app, InputOptions& options);  // block size, wire
// --strategy with `help`; parsed by parse_strategies.
void add_strategy_option(CLI::App& app, std::vector<StrategyChoice>& choices,
                         const std::string& unset, const std::string& text);
void add_json_option(CLI::App& app, bool& json);
// "--csv: `rows` as CSV".
void add_csv_option(CLI::App& app, bool& csv, const std::string& rows);
// Throws InvalidArgument when `path`, of `option`, is one of the files that are read.
void check_no_input(const std::string& option, const std::string& path,
                    const std::vector<std::string>& inputs);
// Throws InvalidArgument when both were given.
void check_formats(bool json, bool csv);
// A seed that is drawn anew in every run unless given.
void add_random_seed_option(CLI::App& app, std::optional<std::uint64_t>& seed,
                            const std::string& text);
[[nodiscard]] std::uint64_t given_or_random(const std::optional<std::uint64_t>& seed);

// Lengths of every batch. Throws InvalidArgument or IoError.
[[nodiscard]] std::vector<std::vector<std::int64_t>> load_lengths(const InputOptions& options);
// Reads what the options name. Throws InvalidArgument or IoError.
[[nodiscard]] PlanInput load_input(const InputOptions& options);

}  // namespace contextile

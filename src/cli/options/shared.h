// Options that several commands have, each with its help in one place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/app.h"
#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {

// PLAN, required.
void add_plan_argument(CLI::App& app, std::string& path);
// --cluster; the default that is shown is `unset`, or else what `cluster` holds.
void add_cluster_option(CLI::App& app, std::string& cluster, const std::string& text,
                        const std::string& unset = "");
void add_dataset_option(CLI::App& app, std::string& dataset, const std::string& text,
                        const std::string& unset = "");
// --dtype; the default is what `dtype` holds.
void add_dtype_option(CLI::App& app, Dtype& dtype, const std::string& text);
// --wire of a plan, and of something else.
void add_wire_option(CLI::App& app, PlanOptions& options);
void add_wire_option(CLI::App& app, std::optional<Dtype>& wire, const std::string& text,
                     const std::string& unset);
// --kernel; empty unless given, which means the preferred one for the dtype.
void add_kernel_option(CLI::App& app, std::string& kernel, const std::string& text);
// --strategy; parsed by parse_strategies.
void add_strategy_option(CLI::App& app, std::vector<StrategyChoice>& choices,
                         const std::string& unset, const std::string& text);
void add_json_option(CLI::App& app, bool& json);
// "--csv: `rows` as CSV".
void add_csv_option(CLI::App& app, bool& csv, const std::string& rows);
// Throws InvalidArgument when both were given.
void check_formats(bool json, bool csv);
// A seed that is drawn again in every run unless given.
void add_random_seed_option(CLI::App& app, std::optional<std::uint64_t>& seed,
                            const std::string& text);
[[nodiscard]] std::uint64_t given_or_random(const std::optional<std::uint64_t>& seed);
}  // namespace contextile

#include "cli/options/shared.h"

#include <fmt/format.h>

#include <random>
#include <string_view>

#include "base/check.h"
#include "base/quote.h"
#include "cli/options/types.h"
#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/strategy.h"

namespace contextile {
namespace {

std::vector<std::string> names_of(const auto& items) {
  std::vector<std::string> names;
  names.reserve(items.size());
  for (const auto& item : items) names.emplace_back(item.name);
  return names;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    names.emplace_back(to_string(dtype));
  }
  return names;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names = {"simd"};
  for (const AttentionKernel* kernel : kernels()) names.emplace_back(kernel->name());
  return names;
}

}  // namespace

void add_plan_argument(CLI::App& app, std::string& path) {
  add_required(app, "PLAN", {"", "plan file, - for stdin", ""},
               [&path](const std::string& text) { path = text; });
}

void add_cluster_option(CLI::App& app, std::string& cluster, const std::string& text,
                        const std::string& unset) {
  const std::string subject = text.empty() ? "" : text + ": ";
  add_value(app, "--cluster",
            {"NAME[:NODESxDEVICES][,transfer_sms=N][,kernel=K][,engine=E]|FILE",
             subject + "{} or FILE", unset.empty() ? cluster : unset, names_of(cluster_presets())},
            [&cluster](const std::string& value) { cluster = value; });
}

void add_dataset_option(CLI::App& app, std::string& dataset, const std::string& text,
                        const std::string& unset) {
  add_value(app, "--dataset",
            {"NAME", fmt::format("{}: {{}}", text), unset.empty() ? dataset : unset,
             names_of(datasets())},
            [&dataset](const std::string& value) { dataset = value; });
}

void add_dtype_option(CLI::App& app, Dtype& dtype, const std::string& text) {
  add_value(app, "--dtype",
            {"TYPE", fmt::format("{}: {{}}", text), std::string(to_string(dtype)), dtype_names()},
            [&dtype](const std::string& value) { dtype = parse_dtype(value); });
}

void add_wire_option(CLI::App& app, PlanOptions& options) {
  std::vector<std::string> names = dtype_names();
  names.emplace_back("original");
  add_value(app, "--wire",
            {"TYPE", "how partial results travel: {} (that of the strategy's original)",
             fmt::format("original, but f32 where one would be rounded more than {} times on its "
                         "way; compare: original",
                         options.max_roundings),
             std::move(names)},
            [&options](const std::string& value) {
              const bool is_original = value == "original";
              options.max_roundings = is_original ? kAnyRoundings : PlanOptions().max_roundings;
              options.wire = is_original ? std::nullopt : std::optional(parse_dtype(value));
            });
}

void add_wire_option(CLI::App& app, std::optional<Dtype>& wire, const std::string& text,
                     const std::string& unset) {
  add_value(app, "--wire", {"TYPE", fmt::format("{}: {{}}", text), unset, dtype_names()},
            [&wire](const std::string& value) { wire = parse_dtype(value); });
}

void add_kernel_option(CLI::App& app, std::string& kernel, const std::string& text) {
  // The help names no kernel: which ones exist depends on the machine.
  add_value(app, "--kernel",
            {"NAME", text + " (contextile info lists them)", "the preferred one for the dtype",
             kernel_names()},
            [&kernel](const std::string& value) { kernel = value; });
}

void add_strategy_option(CLI::App& app, std::vector<StrategyChoice>& choices,
                         const std::string& unset, const std::string& text) {
  std::vector<std::string> names;
  for (const Strategy* strategy : strategies()) names.emplace_back(strategy->name());
  choices = parse_strategies(unset);
  add_value(app, "--strategy",
            {"NAME[:KEY=VALUE,...]", fmt::format("{}: {{}}; options: contextile info", text), unset,
             std::move(names)},
            [&choices](const std::string& value) { choices = parse_strategies(value); });
}

void add_json_option(CLI::App& app, bool& json) {
  add_switch(app, "--json", json, "one JSON document instead of tables");
}

void add_csv_option(CLI::App& app, bool& csv, const std::string& rows) {
  add_switch(app, "--csv", csv, rows + " as CSV, in bytes, fractions and seconds");
}

void check_formats(bool json, bool csv) {
  if (json && csv) fail_argument("expected either --json or --csv, found both");
}

void add_random_seed_option(CLI::App& app, std::optional<std::uint64_t>& seed,
                            const std::string& text) {
  add_size_as<std::uint64_t>(app, "--seed", seed, 0, {"N", text, "random, printed"});
}

std::uint64_t given_or_random(const std::optional<std::uint64_t>& seed) {
  return seed ? *seed : std::random_device{}();
}

}  // namespace contextile

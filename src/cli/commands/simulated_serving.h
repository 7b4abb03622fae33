// contextile serve --simulate: the predicted times of serving a trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/options/helix_setting.h"
#include "cli/options/serving_ranks.h"
#include "contextile/serving/engine.h"

namespace contextile {

struct SimulatedServingOptions {
  std::string trace;  // empty: it is served, not simulated
  HelixSettingOptions setting;
  std::vector<std::int32_t> devices = {1, 2, 4, 8};
  bool json = false;
  bool csv = false;
};

// --simulate, and the options that only mean something with it.
void add_simulated_serving_options(CLI::App& app, SimulatedServingOptions& options);
// Throws InvalidArgument on an option that was given but has no meaning with, or without,
// --simulate.
void check_simulated_serving(const CLI::App& app, const SimulatedServingOptions& options);
// `ranks` says how prompts are computed. `model`: empty for the default. `kv_tokens`: at most this
// many; unset: as many as fit. Returns the exit code.
int simulated_serving(SimulatedServingOptions options, const std::string& model,
                      const EngineOptions& engine, const ServingRanks& ranks,
                      const std::optional<std::int64_t>& kv_tokens);

}  // namespace contextile

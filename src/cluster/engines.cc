#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/cluster.h"

namespace contextile {

std::span<const EngineCost> engine_costs() {
  static constexpr std::array kCosts = {
      EngineCost{"merge_bytes_per_element", &EngineCosts::merge_bytes_per_element},
      EngineCost{"host_call_us", &EngineCosts::host_call_us},
      EngineCost{"host_sequence_us", &EngineCosts::host_sequence_us},
      EngineCost{"host_stage_us", &EngineCosts::host_stage_us},
      EngineCost{"host_launch_us", &EngineCosts::host_launch_us},
      EngineCost{"host_message_us", &EngineCosts::host_message_us},
      EngineCost{"host_merge_us", &EngineCosts::host_merge_us}};
  return kCosts;
}

EngineCosts EngineCosts::without_host() const {
  return {.name = name, .merge_bytes_per_element = merge_bytes_per_element};
}

// The descriptions say where the constants come from.
const std::vector<EnginePreset>& engine_presets() {
  static const std::vector<EnginePreset> kEngines = {
      {"native",
       "Contextile's executor and kernels: attention adds to what a slot holds, and the host is "
       "never waited for",
       {}},
      {"torch",
       "operators of PyTorch, uncompiled: a merge passes over memory nine times; host times are "
       "sums of those of single operators (PyTorch 2.11 on an H200: gather 17, FlashAttention 31, "
       "merge 71, copy 10 us), those of launches and messages are assumed",
       {.name = "torch",
        .merge_bytes_per_element = 34,
        .host_call_us = 270,
        .host_stage_us = 230,
        .host_launch_us = 50,
        .host_message_us = 10,
        .host_merge_us = 71}},
      {"torch_graphs",
       "the same operators, replayed by a CUDA graph: merges as torch's, and no host time, assumed",
       {.name = "torch_graphs", .merge_bytes_per_element = 34}},
      {"dcp",
       "the executor of DCP, kernels that add to what a slot holds; host time of a sequence fitted "
       "to DCP's causal bars (docs/results/measured.md, 2026-11-29)",
       {.name = "dcp", .host_sequence_us = 150}},
      {"te",
       "rings of TransformerEngine; host time of a sequence fitted to DCP's causal bars "
       "(docs/results/measured.md, 2026-11-29), compiled merges of three passes assumed",
       {.name = "te", .merge_bytes_per_element = 12, .host_sequence_us = 100}},
      {"ring",
       "rings in PyTorch that merge partial outputs apart from attention, as ring-flash-attention "
       "and the rings of MagiAttention's benchmark do; costs assumed as torch's",
       {.name = "ring", .merge_bytes_per_element = 34, .host_stage_us = 230}}};
  return kEngines;
}

EngineCosts find_engine(std::string_view name) {
  const std::vector<EnginePreset>& engines = engine_presets();
  const auto found = std::ranges::find(engines, name, &EnginePreset::name);
  if (found != engines.end()) return found->costs;
  std::vector<std::string> names;
  std::ranges::transform(engines, std::back_inserter(names),
                         [](const EnginePreset& engine) { return std::string(engine.name); });
  fail_argument("engine: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

}  // namespace contextile

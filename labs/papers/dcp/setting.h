// The common setting of the figures of DCP (Jiang et al., SOSP 2025): masks, machine, baseline.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "contextile/planner.h"
#include "labs/papers/setting.h"

namespace contextile {

struct PaperMask {
  const char* name;  // as tables have it
  const char* spec;
};
// The paper's four, with its parameters.
inline constexpr std::array<PaperMask, 4> kDcpMasks = {{{"causal", "causal"},
                                                        {"lambda", "lambda:64,4096"},
                                                        {"blockwise", "causal_blockwise:256,2,1"},
                                                        {"shared", "shared_question:0.2,4"}}};
// For PaperResult::setting: names and parameters.
[[nodiscard]] std::string dcp_masks_text(std::span<const PaperMask> masks);

// For PaperResult::setting: the dcp that the rows named dcp are.
extern const std::pair<std::string, std::string> kDcpIs;

// §7.1: 131072 tokens, 8 query and 2 KV heads, four nodes of eight A100, partial results as bf16;
// before overrides.
[[nodiscard]] PaperSetting dcp_attention_setting();

// The paper's setup of TransformerEngine, and the note about it.
[[nodiscard]] StrategyChoice transformer_engine_choice();
extern const std::string kTransformerEngineIs;

// For PaperResult::differences, where methods have engines of their own.
extern const std::string kEnginesAre;

// For PaperResult::differences, where lengths are samples.
extern const std::string kDocumentsAreWhole;

// Whole steps as the artifact runs them: gpt-8b, ZeRO-1, no overlap of gradients.
[[nodiscard]] TrainingJob dcp_training_job(const Cluster& cluster, const PlanOptions& plan);
// For PaperResult::differences.
extern const std::string kDcpStepsAre;

// A choice as tables name it: choice_text with A for head_parallel, as docs/strategies.md calls
// that number, so that rows keep to 80 columns.
[[nodiscard]] std::string table_name(const StrategyChoice& choice);

}  // namespace contextile

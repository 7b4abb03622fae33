// What the tables of papers share: the options they follow, the DCP paper's masks and baseline,
// jobs and documents of the DistCA paper, and how documents become micro-batches.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/registry.h"
#include "contextile/step_planner.h"
#include "papers/paper_table.h"

namespace contextile {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// For PaperResult::differences.
extern const std::string kStepsAreModelled;
extern const std::string kLengthsAreSampled;

// Throws InvalidArgument when the command line changes anything but what `followed` names, as
// options ("--dataset").
void refuse_overrides(const BenchOverrides& overrides, std::string_view table,
                      std::initializer_list<std::string_view> followed);

// One prediction, with nothing to remember for the next.
[[nodiscard]] StepOutcome predict_once(const TrainingJob& job, const StepSetting& setting);

// Smallest and largest of some values.
struct Extent {
  double least = kInfinity;
  double most = -kInfinity;

  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  [[nodiscard]] bool any() const { return least <= most; }
  [[nodiscard]] bool within(double low, double high) const { return least >= low && most <= high; }
};
[[nodiscard]] std::string whole_percent(double share);  // "19%"

// Without findings.
[[nodiscard]] PaperResult paper_result(std::vector<std::pair<std::string, std::string>> setting,
                                       Table table, std::vector<std::string> differences);

// A step of one micro-batch whose attention runs on all devices as one group: TP `tp`, the others
// CP. Without micro-batches.
[[nodiscard]] TrainingStep one_group_step(const TrainingJob& job, std::int32_t tp);
// Causal attention of some documents as that step runs it: planned, verified, simulated.
[[nodiscard]] BatchPart planned_part(const StrategyChoice& choice, const TrainingJob& job,
                                     const ParallelSizes& sizes, const BatchLengths& documents,
                                     AttentionDetail detail);
// The step with these parts, two of which run in turns.
[[nodiscard]] StepPrediction predict_parts(TrainingStep step, std::vector<BatchPart> parts);

// ------------------------------------------------------------------------------------- DCP

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
// §7.1: 131072 tokens, 8 query and 2 KV heads, four nodes of eight A100, partial results as bf16;
// before overrides.
[[nodiscard]] BenchSetting dcp_attention_setting();
[[nodiscard]] std::string dcp_masks_text(std::span<const PaperMask> masks);

// The ways to set up TransformerEngine of which tables show the faster, and what to say of it.
[[nodiscard]] std::vector<StrategyChoice> transformer_engine_choices();
extern const std::string kTransformerEngineIs;

// ---------------------------------------------------------------------------------- DistCA

inline constexpr std::int32_t kDistcaTp = 8;
inline constexpr std::array<std::string_view, 2> kDistcaModels = {"llama-3-8b", "llama-34b"};
// Tokens of a node, as Fig. 9 has them.
[[nodiscard]] std::int64_t distca_tokens_of_node(std::string_view model);
// "131072 (8B) and 65536 (34B) tokens", or what the command line says.
[[nodiscard]] std::string distca_tokens_text(const BenchOverrides& overrides);
// Unless the command line says otherwise: "pretrain".
[[nodiscard]] std::string distca_dataset(const BenchOverrides& overrides);
[[nodiscard]] std::string distca_cluster_text(const BenchOverrides& overrides);

// One point of a figure: documents of at most `max_length`, `batch` times as many tokens a step.
struct DistcaPoint {
  std::string_view model;
  std::int32_t devices = 0;
  std::int64_t max_length = 0;
  std::int64_t batch = 0;
};

// The paper's machine, of as many devices, unless the command line says otherwise; no micro-batches
// yet. Throws InvalidArgument when a node of it does not hold TP groups of 8.
[[nodiscard]] TrainingJob distca_job(const DistcaPoint& point, const BenchOverrides& overrides);

// The same with memory that is counted but has no limit: for figures of what is needed.
[[nodiscard]] TrainingJob unlimited_job(const DistcaPoint& point, const BenchOverrides& overrides);

// Documents of `steps` steps of `tokens` tokens, lengths stretched so that the longest are of
// `max_length`.
[[nodiscard]] std::vector<BatchLengths> stretched_documents(const std::string& dataset,
                                                            std::int64_t tokens,
                                                            std::int64_t max_length,
                                                            std::uint64_t seed,
                                                            std::int64_t steps = 1);

// Whole documents in micro-batches of about equal work (WLB-LLM).
[[nodiscard]] std::vector<BatchLengths> packed_for_work(const BatchLengths& documents,
                                                        std::int32_t micro_batches);
// Whole documents in micro-batches of about equal tokens: longest first, to the emptiest.
[[nodiscard]] std::vector<BatchLengths> packed_for_tokens(BatchLengths documents,
                                                          std::int32_t micro_batches);

}  // namespace contextile

// DistCA, Fig. 10: whole training steps with pipelines. The paper measured GPUs; here
// everything outside attention comes from the model's sizes.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "labs/papers/distca/setting.h"
#include "labs/papers/distca/trends.h"
#include "labs/papers/distca/whole_steps.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// Fig. 10, with pipelines.
constexpr DistcaPoint kFig10[] = {{"llama-3-8b", 64, 131072, 32},   {"llama-3-8b", 128, 131072, 64},
                                  {"llama-3-8b", 256, 131072, 128}, {"llama-3-8b", 64, 262144, 16},
                                  {"llama-3-8b", 128, 262144, 32},  {"llama-3-8b", 256, 262144, 32},
                                  {"llama-3-8b", 64, 524288, 8},    {"llama-3-8b", 128, 524288, 8},
                                  {"llama-3-8b", 256, 524288, 16},  {"llama-34b", 128, 131072, 32},
                                  {"llama-34b", 256, 131072, 64},   {"llama-34b", 512, 131072, 128},
                                  {"llama-34b", 128, 262144, 16},   {"llama-34b", 256, 262144, 32},
                                  {"llama-34b", 512, 262144, 32},   {"llama-34b", 128, 393216, 8},
                                  {"llama-34b", 256, 393216, 8},    {"llama-34b", 512, 393216, 16}};

constexpr std::array<std::int32_t, 2> kPipelines = {2, 4};

// Section 6.2.
std::vector<Finding> trends_of(std::span<const DistcaOutcome> outcomes) {
  std::vector<Finding> findings = {faster_in_most(outcomes, "llama-34b"),
                                   length_finding(outcomes, {"llama-34b", LengthTrend::kRises})};
  const std::vector<Finding> scaling = scaling_findings(outcomes);
  if (!scaling.empty()) findings.push_back(scaling.front());
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  constexpr DistcaClaim kClaims[] = {{"llama-3-8b", "pretrain", 1.15, 1.30},
                                     {"llama-3-8b", "prolong", 1.10, 1.35},
                                     {"llama-34b", "pretrain", 0, 1.15},
                                     {"llama-34b", "prolong", 0, 1.25}};
  PaperResult result =
      distca_whole_steps(overrides, "distca-fig10", kFig10, kPipelines, kClaims, trends_of);
  result.differences.push_back(
      "Both: fastest of 2 and 4 stages with 2 or 4 micro-batches a stage that fits. WLB in 1F1B, "
      "every CP x DP; DistCA in ticks of one "
      "phase, DP 1.");
  return result;
}

}  // namespace

PaperTable distca_fig10() {
  return {"distca-fig10", "DistCA, Fig. 10", "whole steps with pipelines, 64 to 512 GPUs", make};
}

}  // namespace contextile

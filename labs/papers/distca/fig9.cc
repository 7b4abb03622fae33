// DistCA, Fig. 9: whole training steps without pipelines. The paper measured GPUs; here
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

// Fig. 9: batches for 64, 128, 256 devices by the longest document.
constexpr DistcaPoint kFig9[] = {
    {"llama-3-8b", 64, 131072, 8}, {"llama-3-8b", 128, 131072, 16}, {"llama-3-8b", 256, 131072, 32},
    {"llama-3-8b", 64, 262144, 4}, {"llama-3-8b", 128, 262144, 8},  {"llama-3-8b", 256, 262144, 16},
    {"llama-3-8b", 64, 524288, 2}, {"llama-3-8b", 128, 524288, 4},  {"llama-3-8b", 256, 524288, 8},
    {"llama-34b", 64, 131072, 4},  {"llama-34b", 128, 131072, 8},   {"llama-34b", 256, 131072, 16},
    {"llama-34b", 64, 262144, 2},  {"llama-34b", 128, 262144, 4},   {"llama-34b", 256, 262144, 8},
    {"llama-34b", 64, 524288, 2},  {"llama-34b", 128, 524288, 4},   {"llama-34b", 256, 524288, 8}};

constexpr std::array<std::int32_t, 1> kNoPipeline = {1};

// Section 6.2, and "near-linear" of the introduction.
std::vector<Finding> trends_of(std::span<const DistcaOutcome> outcomes) {
  std::vector<Finding> findings = {faster_everywhere(outcomes),
                                   length_finding(outcomes, {"llama-34b", LengthTrend::kRises}),
                                   length_finding(outcomes, {"llama-3-8b", LengthTrend::kFalls})};
  for (const auto& more : {more_on_pretrain(outcomes), scaling_findings(outcomes)}) {
    findings.insert(findings.end(), more.begin(), more.end());
  }
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  constexpr DistcaClaim kClaims[] = {{"", "pretrain", 1.07, 1.20}, {"", "prolong", 1.05, 1.12}};
  PaperResult result =
      distca_whole_steps(overrides, "distca-fig9", kFig9, kNoPipeline, kClaims, trends_of);
  result.differences.push_back(
      "WLB: fastest of all CP x DP that fit, documents packed for equal work in variable lengths. "
      "DistCA: all devices one pool, two nano-batches in ping-pong.");
  return result;
}

}  // namespace

PaperTable distca_fig9() {
  return {"distca-fig9", "DistCA, Fig. 9", "whole steps without pipelines, 64 to 256 GPUs", make};
}

}  // namespace contextile

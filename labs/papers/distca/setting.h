// The common setting of the figures of DistCA: models, machine, documents, and how documents become
// micro-batches.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "labs/papers/paper_table.h"

namespace contextile {

inline constexpr std::int32_t kDistcaTp = 8;
inline constexpr std::array<std::string_view, 2> kDistcaModels = {"llama-3-8b", "llama-34b"};
// "34b" of "llama-34b", for narrow tables.
[[nodiscard]] std::string distca_size(std::string_view model);
// Tokens of a node, as Fig. 9 has them.
[[nodiscard]] std::int64_t distca_tokens_of_node(std::string_view model);
// "131072 (8B) and 65536 (34B) tokens", or the command line's number.
[[nodiscard]] std::string distca_tokens_text(const TableOverrides& overrides);
// Section 6.3 (Fig. 12; Fig. 11 names no tokens): documents of at most that long, a step of 1M (8B)
// or 512K (34B) tokens, on 8 and 16 nodes.
inline constexpr std::int64_t kDistcaAblationLongest = 131072;
inline constexpr std::array<std::int32_t, 2> kDistcaAblationNodes = {8, 16};
[[nodiscard]] std::int64_t distca_ablation_tokens(std::string_view model,
                                                  const TableOverrides& overrides);
// "1048576 (8B) and 524288 (34B) tokens", or the command line's number.
[[nodiscard]] std::string distca_ablation_text(const TableOverrides& overrides);
// "pretrain", unless the command line says otherwise.
[[nodiscard]] std::string distca_dataset(const TableOverrides& overrides);
[[nodiscard]] std::string distca_cluster_text(const TableOverrides& overrides);

// One point of a figure: documents of at most `max_length`, and `batch` times as many tokens per
// step.
struct DistcaPoint {
  std::string_view model;
  std::int32_t devices = 0;
  std::int64_t max_length = 0;
  std::int64_t batch = 0;
};

// The paper's machine with the point's number of devices, unless the command line says otherwise,
// and no micro-batches yet. Throws InvalidArgument if one of its nodes does not hold TP groups of
// 8.
[[nodiscard]] TrainingJob distca_job(const DistcaPoint& point, const TableOverrides& overrides);

// The same with memory that is counted but has no limit, for figures of the memory needed.
[[nodiscard]] TrainingJob unlimited_job(const DistcaPoint& point, const TableOverrides& overrides);

// Documents of `steps` steps of `tokens` tokens. Lengths are stretched so that the longest have
// `max_length` tokens.
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

// How one training job runs: what the engines' own flags say, in this library's terms.
//
//   TrainingSetup setup = {.sizes = {.tp = 8, .cp = 4, .dp = 2}};
//   setup.exchange = CpExchange::kHybrid;
//   setup.a2a_ranks = 2;
//   std::printf("%s\n", setup_text(setup).c_str());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "contextile/advanced/training.h"

namespace contextile {

// How the ranks of a context-parallel group exchange keys and values, with Megatron-LM's names
// (its option cp_comm_type).
enum class CpExchange : std::uint8_t {
  kP2p,        // a ring, causal masks balanced by zigzag
  kA2a,        // heads against tokens (Ulysses)
  kAllGather,  // all keys and values on every rank
  kHybrid,     // "a2a+p2p": all-to-all among a2a_ranks neighbors, rings across (USP)
};
[[nodiscard]] std::string_view to_string(CpExchange exchange);  // "p2p", "a2a", …
[[nodiscard]] CpExchange parse_cp_exchange(std::string_view text);

enum class DocumentPacking : std::uint8_t {
  kSequential,  // documents fill micro-batches in order
  kWlb,         // micro-batches of about equal work (WLB-LLM); long documents may wait
  kDynamic,     // sequences are dealt over groups whose size follows their length (dynamic CP)
};
[[nodiscard]] std::string_view to_string(
    DocumentPacking packing);  // "sequential", "wlb", "dynamic"
[[nodiscard]] DocumentPacking parse_document_packing(std::string_view text);

struct TrainingSetup {
  ParallelSizes sizes;
  CpExchange exchange = CpExchange::kP2p;
  std::int32_t a2a_ranks = 0;  // kHybrid: neighbors that exchange heads; divides sizes.cp
  DocumentPacking packing = DocumentPacking::kSequential;
  std::int64_t tokens = 0;       // of a micro-batch of one replica (the engines' sequence length)
  std::int64_t step_tokens = 0;  // of all micro-batches of all replicas
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int32_t chunks = 1;  // of the model on every stage
  Recompute recompute = Recompute::kNone;
  OptimizerShards optimizer = OptimizerShards::kZero1;
  // This library's plans in place of `exchange`, by the name of the strategy; empty: the engine's.
  std::string strategy = {};

  friend bool operator==(const TrainingSetup&, const TrainingSetup&) = default;
};

// Returns a text such as "TP 8, CP 4 (a2a+p2p, 2 x 2), DP 2, PP 1, WLB packing, full recompute".
[[nodiscard]] std::string setup_text(const TrainingSetup& setup);

}  // namespace contextile

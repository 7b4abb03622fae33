// Searches the set-ups of a training job for those that take the least predicted time.
//
//   AdviseJob job = {.model = load_model("llama-3-8b"), .cluster = load_cluster("dgx-h100:4x8")};
//   job.lengths = read_lengths("lengths.txt");
//   job.tokens = 131072;
//   job.step_tokens = 2'097'152;
//   const Advice advice = advise(job);
//   if (!advice.engines.empty()) std::puts(setup_text(advice.engines.front().setup).c_str());
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "contextile/advanced/engine_setup.h"
#include "contextile/advanced/step_planner.h"
#include "contextile/advanced/training.h"
#include "contextile/advanced/training_setup.h"
#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

// Returns the cluster with `gpus` devices of its kind: whole nodes, or a part of one node with its
// share of the NICs. `where` begins messages. Throws InvalidArgument.
[[nodiscard]] Cluster with_gpus(Cluster cluster, std::int32_t gpus, const std::string& where);
// "64xh100": 64 GPUs of a kind (a100, h100, h200, h20, b200, gb200, gb300) or of a preset by its
// name. Anything that does not begin so is a cluster as load_cluster takes it. Throws like it.
[[nodiscard]] Cluster load_gpus(const std::string& text);

// One job: its documents on its devices.
struct AdviseJob {
  ModelSpec model;
  Cluster cluster;             // all devices
  std::vector<MaskUse> masks;  // empty: causal
  // Lengths of documents, tokens, in any order. Steps are drawn from them.
  std::vector<std::int64_t> lengths;
  std::int64_t tokens = 0;       // of a micro-batch of one replica; 0: default_tokens
  std::int64_t step_tokens = 0;  // of a step, a multiple of `tokens`; 0: default_step_tokens
  // Constants of the prediction. The search sets recompute and optimizer itself.
  IterationOptions options;
  std::uint64_t seed = 0;  // of the order of documents
};
// Returns the least power of two, 8192 or more, that the longest document fits in.
[[nodiscard]] std::int64_t default_tokens(const std::vector<std::int64_t>& lengths);
// Returns the tokens of as many micro-batches as make 4 Mi tokens, at least one.
[[nodiscard]] std::int64_t default_step_tokens(std::int64_t tokens);

struct AdviseProgress {
  std::int64_t predicted = 0;  // set-ups so far
  std::int64_t left = 0;       // that may still be predicted
  double best_tokens_per_s = 0;
};

// The set-ups to search. Empty lists stand for all.
struct AdviseOptions {
  GivenSizes sizes;
  std::vector<CpExchange> exchanges;
  std::vector<DocumentPacking> packings;
  std::vector<Recompute> recomputes;
  std::vector<OptimizerShards> optimizers;  // kZero1 and kFsdp
  // The set-ups that this engine can run; unset: that any of Megatron-LM, torchtitan, TRL and
  // DeepSpeed can. kContextile: any.
  std::optional<TrainingEngine> engine;
  bool interleaved = true;  // also two model chunks on every stage of a pipeline
  // This library's plans to search as well: strategies that run where any engine's exchange does.
  std::vector<std::string> strategies = {"magi", "distca", "fcp"};
  std::int32_t best =
      5;  // set-ups to return of the engines', and as many with this library's plans
  // After which no bound and no prediction begins, unless no set-up is predicted yet; 0: no limit.
  double seconds = 15;
  // false: set-ups whose bound is above the best are predicted, too.
  bool prune = true;
  std::function<void(const AdviseProgress&)> progress;  // called between predictions
};

struct AdvisedSetup {
  TrainingSetup setup;
  double step_us = 0;       // predicted, the mean over the steps that were drawn
  double tokens_per_s = 0;  // predicted
  double bound_us = 0;      // no plan of the set-up is predicted faster: no transfers of attention,
                            // and its work spread evenly
  std::int64_t memory_bytes = 0;   // of the fullest device in the drawn steps
  StepPrediction prediction = {};  // of the first step

  // Device-hours for 1e9 tokens.
  [[nodiscard]] double device_hours_per_billion(const Cluster& cluster) const;
};

struct Advice {
  std::int64_t tokens = 0;
  std::int64_t step_tokens = 0;
  std::int32_t steps = 0;  // that were drawn
  // Drawn documents that were cut at the end of a micro-batch. The next one has their rest.
  std::int64_t cut = 0;
  bool repeats = false;                    // true: the documents were fewer than the steps need
  std::vector<AdvisedSetup> engines = {};  // fastest first; every one fits the memory
  // The same with what no engine has: this library's plans, and its packing by work.
  std::vector<AdvisedSetup> own = {};
  // Counts of set-ups. Their sum is `considered`.
  std::int64_t considered = 0;
  std::int64_t predicted = 0;
  std::int64_t out_of_memory = 0;
  std::int64_t impossible = 0;
  std::int64_t unsupported = 0;  // by the engine, or by any
  std::int64_t above_bound = 0;  // not predicted, because the bound alone is slower than the best
  std::int64_t left = 0;         // not predicted, because the time was over
  std::int64_t unbounded = 0;    // of those left: without a bound
  // The most that a set-up which is left and has a bound could gain over the best of its list; 1:
  // nothing.
  double possible_gain = 1;
};

// Searches TP x CP x DP x PP, exchange, packing, recompute, optimizer and chunks. A set-up counts
// with the least recompute that fits the memory, because less is always faster. Set-ups are
// predicted in the order of their bounds, which are predictions with attention's work spread evenly
// and without transfers. Throws InvalidArgument on a bad job and when nothing can be searched.
// Deterministic unless the time is over. O(set-ups + predictions).
[[nodiscard]] Advice advise(const AdviseJob& job, const AdviseOptions& options = {});

// Predicts one set-up of the job, whether it fits the memory or not. Fields `tokens` and
// `step_tokens` of the set-up, where they are not 0, stand for those of the job. Throws
// InvalidArgument, with the reason, when the set-up is impossible.
[[nodiscard]] AdvisedSetup predict_setup(const AdviseJob& job, const TrainingSetup& setup);

// The same for a set-up whose step was measured: sets job.options.linear_mfu, between 0.05 and 1,
// so that the step is predicted to take `measured_us`. Throws InvalidArgument if no share does.
[[nodiscard]] AdvisedSetup fit_setup(AdviseJob& job, const TrainingSetup& setup,
                                     double measured_us);

// Predicts the set-up that an engine's flags describe, or fits the prediction to its measured step.
// Tokens and gradient overlap of the flags become those of the job where it has none, so that other
// set-ups are compared on the same steps. Throws InvalidArgument like predict_setup, and where the
// flags describe another model or other tokens than the job's.
[[nodiscard]] AdvisedSetup predict_read_setup(AdviseJob& job, const ReadSetup& read,
                                              std::optional<double> measured_us = std::nullopt);

// Returns why the engine cannot run the set-up with the model, or nothing: as engine_problem, and
// layers or tokens that its pipelines and sequence shards do not divide.
[[nodiscard]] std::optional<std::string> job_problem(const TrainingSetup& setup,
                                                     const ModelSpec& model, TrainingEngine engine);

// Returns the setting of the step planner that the set-up stands for.
[[nodiscard]] StepSetting step_setting_of(const TrainingSetup& setup,
                                          const IterationOptions& options);

}  // namespace contextile

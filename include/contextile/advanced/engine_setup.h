// The set-up of a training job as engines write it: flags to paste, and flags read.
//
//   const ReadSetup now = read_megatron_arguments(
//       "torchrun --nproc_per_node 8 pretrain_gpt.py --context-parallel-size 4 --seq-length 65536");
//   TrainingSetup better = now.setup;  // TP 1, CP 4, DP 2, PP 1
//   better.exchange = CpExchange::kA2a;
//   if (!engine_problem(better, TrainingEngine::kMegatron)) {
//     std::puts(engine_flags(better, TrainingEngine::kMegatron).flags.c_str());
//   }
//
// Flags follow these versions: Megatron-LM with megatron-core 0.16.1 and 0.19.2, torchtitan 0.2.2
// (the last with TOML), accelerate 1.15 with TRL 1.16, DeepSpeed 0.19.8.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/advanced/training_setup.h"

namespace contextile {

enum class TrainingEngine : std::uint8_t {
  kMegatron,    // Megatron-LM's arguments; read also from YAML of Megatron-Bridge
  kTorchtitan,  // TOML
  kTrl,         // YAML of accelerate, and arguments of TRL's SFTConfig
  kDeepspeed,   // JSON
  kContextile,  // Python; written, not read
};
[[nodiscard]] std::string_view to_string(TrainingEngine engine);  // "megatron", "torchtitan", …
[[nodiscard]] TrainingEngine parse_training_engine(std::string_view text);

// ------------------------------------------------------------------------------------ written

// Returns why the engine cannot run the set-up, in one sentence, or nothing. Also refuses sizes
// that do not fit each other, whatever the engine.
[[nodiscard]] std::optional<std::string> engine_problem(const TrainingSetup& setup,
                                                        TrainingEngine engine);

struct EngineFlags {
  // Megatron: arguments, one per line, with backslashes. torchtitan: TOML. TRL: YAML for
  // `accelerate launch --config_file`. DeepSpeed: JSON. Contextile: Python.
  std::string flags;
  // Settings that stand elsewhere. TRL: YAML for `trl sft --config`. DeepSpeed: lines of the
  // training script. Empty for the others.
  std::string script;

  friend bool operator==(const EngineFlags&, const EngineFlags&) = default;
};
// Returns where the engine does more work than the set-up says, so that its step takes longer than
// predicted, and what only recent versions can do, a line each; or nothing.
[[nodiscard]] std::optional<std::string> engine_note(const TrainingSetup& setup,
                                                     TrainingEngine engine);

// How a set-up was predicted, where flags must ask for the same.
struct PredictedWith {
  bool experts = false;  // the model has some
  GradientOverlap gradient_overlap = GradientOverlap::kOn;
};
// Returns the flags that make the engine run the set-up. Tokens that are 0 are left to the engine.
// The ranks of a pipeline or a replica are not among Megatron's flags: DP is the number of GPUs
// divided by TP, CP and PP. Throws InvalidArgument where engine_problem returns a reason.
[[nodiscard]] EngineFlags engine_flags(const TrainingSetup& setup, TrainingEngine engine,
                                       const PredictedWith& predicted = {});

// --------------------------------------------------------------------------------------- read

// One setting as it was given.
struct SetupSetting {
  std::string key;    // "--seq-length", "training.seq_len"
  std::string value;  // "8192"; empty for a flag without value
  std::string note;   // ReadSetup::approximated: how the setting is predicted instead

  friend bool operator==(const SetupSetting&, const SetupSetting&) = default;
};

// A set-up as an engine's flags describe it. Every setting given is in one of the three lists.
struct ReadSetup {
  TrainingSetup setup;  // with the engine's defaults for what was not given
  // Fields of `setup` that were given, or that follow from those given: "tp", "cp", "dp", "pp",
  // "ep", "exchange", "a2a_ranks", "packing", "tokens", "step_tokens", "chunks", "recompute" and
  // "optimizer". Without "dp", DP is unknown and stands as 1.
  std::vector<std::string> given;
  std::optional<std::int64_t> num_gpus;
  // Set if the flags decide it.
  std::optional<GradientOverlap> gradient_overlap;
  // Sizes of the model (Megatron): "layers", "hidden", "ffn", "q_heads", "kv_heads", "head_dim",
  // "vocabulary", "vocabulary_multiple", "gated_ffn" (0, 1), "untied" (0, 1), "experts",
  // "active_experts", "expert_ffn", "shared_expert_ffn", "expert_tp". Only those that are known.
  std::map<std::string, std::int64_t> model;
  // In the order given.
  std::vector<SetupSetting> understood;
  std::vector<SetupSetting> approximated;    // affect time or memory, and are predicted otherwise
  std::vector<SetupSetting> without_effect;  // affect neither: learning rates, seeds, paths, …
  // How the prediction differs from the engine's defaults, one sentence each.
  std::vector<std::string> assumed;

  [[nodiscard]] bool has(std::string_view field) const;  // among `given`
};

using FlatSettings = std::span<const std::pair<std::string, std::string>>;

// Reads settings of a file whose keys are joined by dots: {"parallelism.context_parallel_degree",
// "4"}. Lists of numbers and texts are one value with blanks between ("2 4"); a value "null" counts
// as not given. `num_gpus` is the number of GPUs where the file does not say it.
//  * Megatron: the last part of a key is the name of the argument or of the field of
//    TransformerConfig, with "_" or "-".
//  * TRL: keys of accelerate's file and of SFTConfig together.
//  * DeepSpeed: also "seq_length" and "gradient_checkpointing" of the training script.
// Throws InvalidArgument, with the key, on settings that may affect time or memory and are not
// understood, on values out of range, and on settings that contradict each other. O(bytes).
[[nodiscard]] ReadSetup read_engine_setup(TrainingEngine engine, FlatSettings flat,
                                          std::optional<std::int64_t> num_gpus = std::nullopt);

// Reads a launch command of Megatron-LM: words as a shell splits them, with quotes, comments and
// backslashes. Words before the script (a file *.py) belong to the launcher; `--nproc_per_node` and
// `--nnodes` of torchrun give the number of GPUs. Without a script the text is the arguments alone.
// The value of a setting without effect may be a shell variable; elsewhere a variable is refused by
// name. Throws like read_engine_setup. O(bytes).
[[nodiscard]] ReadSetup read_megatron_arguments(
    std::string_view shell_text, std::optional<std::int64_t> num_gpus = std::nullopt);

// Returns the values of a JSON object as read_engine_setup takes them. Objects in lists have their
// index in the key. Throws InvalidArgument if the text is no JSON object. O(bytes).
[[nodiscard]] std::vector<std::pair<std::string, std::string>> flatten_json(std::string_view text);

}  // namespace contextile

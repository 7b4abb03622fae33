// Set-ups as text that people paste into an engine's command, file or script.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/advanced/engine_setup.h"
#include "training/setup/engine_rows.h"

namespace contextile {
namespace {

// Lines "key = value" of one section.
class SectionLines {
 public:
  SectionLines(std::string_view indent, std::string_view between)
      : indent_(indent), between_(between) {}

  template <typename Value>
  void add(std::string_view key, const Value& value) {
    text_ += fmt::format("{}{}{}{}\n", indent_, key, between_, value);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string_view indent_;
  std::string_view between_;
  std::string text_;
};

std::int64_t rows_of_replica(const TrainingSetup& setup) {
  return rows_of_step(setup) / setup.sizes.dp;
}

// ------------------------------------------------------------------------------- Megatron-LM

void add_megatron_parallelism(const TrainingSetup& setup, bool experts,
                              std::vector<std::string>& lines) {
  const ParallelSizes& sizes = setup.sizes;
  lines.push_back(fmt::format("--tensor-model-parallel-size {}", sizes.tp));
  if (sizes.tp > 1) lines.emplace_back("--sequence-parallel");
  lines.push_back(fmt::format("--pipeline-model-parallel-size {}", sizes.pp));
  if (setup.chunks > 1) {
    lines.push_back(fmt::format("--num-virtual-stages-per-pipeline-rank {}", setup.chunks));
  }
  lines.push_back(fmt::format("--context-parallel-size {}", sizes.cp));
  if (sizes.ep > 1) lines.push_back(fmt::format("--expert-model-parallel-size {}", sizes.ep));
  if (experts || sizes.ep > 1) {
    // As predicted: experts are whole, by default as many parts as --tensor-model-parallel-size,
    // and tokens reach them by all-to-all, by default by all-gather.
    lines.insert(lines.end(),
                 {"--expert-tensor-parallel-size 1", "--moe-token-dispatcher-type alltoall"});
  }
  if (sizes.cp > 1) lines.push_back(fmt::format("--cp-comm-type {}", to_string(setup.exchange)));
  if (setup.exchange == CpExchange::kHybrid) {
    lines.push_back(fmt::format("--hierarchical-context-parallel-sizes {} {}", setup.a2a_ranks,
                                sizes.cp / setup.a2a_ranks));
  }
}

void add_megatron_memory(const TrainingSetup& setup, bool experts,
                         std::vector<std::string>& lines) {
  if (setup.recompute == Recompute::kFull) {
    lines.insert(lines.end(), {"--recompute-granularity full", "--recompute-method uniform",
                               "--recompute-num-layers 1"});
  }
  if (setup.recompute == Recompute::kSelective) {
    // "mlp" leaves layers of experts as they are, "moe" those without.
    lines.insert(lines.end(),
                 {"--recompute-granularity selective", experts || setup.sizes.ep > 1
                                                           ? "--recompute-modules layernorm mlp moe"
                                                           : "--recompute-modules layernorm mlp"});
  }
  if (setup.optimizer == OptimizerShards::kZero1) {
    lines.emplace_back("--use-distributed-optimizer");
  }
  if (setup.optimizer == OptimizerShards::kFsdp) {
    lines.insert(lines.end(), {"--use-distributed-optimizer", "--use-megatron-fsdp",
                               "--data-parallel-sharding-strategy optim_grads_params",
                               "--no-gradient-accumulation-fusion", "--ckpt-format fsdp_dtensor"});
  }
}

// By default gradients are reduced, and weights gathered, when nothing else runs.
void add_megatron_overlap(const TrainingSetup& setup, std::vector<std::string>& lines) {
  if (setup.sizes.cp * setup.sizes.dp == 1) return;
  lines.emplace_back("--overlap-grad-reduce");
  if (setup.optimizer != OptimizerShards::kNone) lines.emplace_back("--overlap-param-gather");
}

EngineFlags megatron_flags(const TrainingSetup& setup, const PredictedWith& predicted) {
  std::vector<std::string> lines;
  add_megatron_parallelism(setup, predicted.experts, lines);
  if (setup.tokens > 0) {
    lines.push_back(fmt::format("--seq-length {}", setup.tokens));
    lines.emplace_back("--micro-batch-size 1");
  }
  if (setup.step_tokens > 0) {
    lines.push_back(fmt::format("--global-batch-size {}", rows_of_step(setup)));
  }
  if (setup.packing == DocumentPacking::kDynamic) {
    lines.emplace_back("--hybrid-context-parallel");
    lines.push_back(fmt::format("--max-seqlen-per-dp-cp-rank {}", setup.tokens / setup.sizes.cp));
    lines.insert(lines.end(), {"--calculate-per-token-loss", "--dataloader-type single"});
  }
  add_megatron_memory(setup, predicted.experts, lines);
  if (predicted.gradient_overlap == GradientOverlap::kOn) add_megatron_overlap(setup, lines);
  return {.flags = fmt::format("{}\n", fmt::join(lines, " \\\n")), .script = {}};
}

// --------------------------------------------------------------------------------- torchtitan

std::string torchtitan_training(const TrainingSetup& setup) {
  SectionLines training("", " = ");
  if (setup.tokens > 0) {
    // A stage of a pipeline splits the local batch into micro-batches of one sequence.
    const std::int64_t local = setup.sizes.pp > 1 ? rows_of_replica(setup) : 1;
    training.add("seq_len", setup.tokens);
    training.add("local_batch_size", local);
  }
  if (setup.step_tokens > 0) training.add("global_batch_size", rows_of_step(setup));
  return training.text().empty() ? "" : fmt::format("[training]\n{}\n", training.text());
}

EngineFlags torchtitan_flags(const TrainingSetup& setup) {
  const ParallelSizes& sizes = setup.sizes;
  const bool sharded = setup.optimizer == OptimizerShards::kFsdp;
  SectionLines parallelism("", " = ");
  parallelism.add("data_parallel_replicate_degree", sharded ? 1 : sizes.dp);
  parallelism.add("data_parallel_shard_degree", sharded ? sizes.dp : 1);
  if (sharded) parallelism.add("fsdp_reshard_after_forward", "\"always\"");
  parallelism.add("tensor_parallel_degree", sizes.tp);
  parallelism.add("context_parallel_degree", sizes.cp);
  if (sizes.cp > 1) {
    parallelism.add("context_parallel_rotate_method",
                    setup.exchange == CpExchange::kP2p ? "\"alltoall\"" : "\"allgather\"");
  }
  if (sizes.ep > 1) parallelism.add("expert_parallel_degree", sizes.ep);
  parallelism.add("pipeline_parallel_degree", sizes.pp);
  if (sizes.pp > 1) {
    const bool interleaved = setup.schedule == PipelineSchedule::kInterleaved;
    parallelism.add("pipeline_parallel_schedule", interleaved ? "\"Interleaved1F1B\"" : "\"1F1B\"");
    parallelism.add("pipeline_parallel_microbatch_size", 1);
  }
  SectionLines checkpoint("", " = ");
  checkpoint.add("mode", fmt::format("\"{}\"", to_string(setup.recompute)));
  if (setup.recompute == Recompute::kSelective) {
    checkpoint.add("selective_ac_option", "\"op\"");
  }
  return {.flags = fmt::format("{}[parallelism]\n{}\n[activation_checkpoint]\n{}",
                               torchtitan_training(setup), parallelism.text(), checkpoint.text()),
          .script = {}};
}

// ------------------------------------------------------------------------- accelerate and TRL

std::string_view zero_stage_of(OptimizerShards shards) {
  switch (shards) {
    case OptimizerShards::kNone:
      return "0";
    case OptimizerShards::kZero1:
      return "1";
    default:
      return "3";
  }
}

std::string accelerate_plugin(const TrainingSetup& setup) {
  SectionLines plugin("  ", ": ");
  switch (trl_backend(setup)) {
    case TrlBackend::kFsdp:
      plugin.add("fsdp_version", 2);
      plugin.add("fsdp_reshard_after_forward", "true");
      plugin.add("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
      plugin.add("fsdp_activation_checkpointing", setup.recompute == Recompute::kFull);
      return fmt::format("distributed_type: FSDP\nfsdp_config:\n{}", plugin.text());
    case TrlBackend::kDeepspeed:
      plugin.add("zero_stage", zero_stage_of(setup.optimizer));
      return fmt::format("distributed_type: DEEPSPEED\ndeepspeed_config:\n{}", plugin.text());
    default:
      return "distributed_type: MULTI_GPU\n";
  }
}

std::string accelerate_parallelism(const TrainingSetup& setup) {
  const ParallelSizes& sizes = setup.sizes;
  const TrlBackend backend = trl_backend(setup);
  const bool replicated = backend == TrlBackend::kReplicated;
  const bool a2a = backend == TrlBackend::kDeepspeed;
  SectionLines lines("  parallelism_config_", ": ");
  lines.add("dp_replicate_size", replicated ? sizes.dp : 1);
  lines.add("dp_shard_size", replicated ? 1 : sizes.dp);
  lines.add("tp_size", sizes.tp);
  lines.add("cp_size", a2a ? 1 : sizes.cp);
  if (!a2a && sizes.cp > 1) {
    lines.add("cp_comm_strategy", setup.exchange == CpExchange::kP2p ? "alltoall" : "allgather");
  }
  lines.add("sp_size", a2a ? sizes.cp : 1);
  if (a2a && sizes.cp > 1) lines.add("sp_backend", "deepspeed");
  return fmt::format("parallelism_config:\n{}", lines.text());
}

EngineFlags trl_flags(const TrainingSetup& setup) {
  const bool fsdp = trl_backend(setup) == TrlBackend::kFsdp;
  SectionLines script("", ": ");
  if (setup.tokens > 0) {
    script.add("max_length", setup.tokens);
    script.add("packing", "true");
    script.add("per_device_train_batch_size", 1);
  }
  if (setup.step_tokens > 0) script.add("gradient_accumulation_steps", rows_of_replica(setup));
  // FSDP recomputes by its own setting.
  script.add("gradient_checkpointing", !fsdp && setup.recompute == Recompute::kFull);
  return {.flags = fmt::format("compute_environment: LOCAL_MACHINE\n{}{}mixed_precision: bf16\n"
                               "num_processes: {}\n",
                               accelerate_plugin(setup), accelerate_parallelism(setup),
                               setup.sizes.num_devices()),
          .script = script.text()};
}

// ---------------------------------------------------------------------------------- DeepSpeed

EngineFlags deepspeed_flags(const TrainingSetup& setup) {
  std::vector<std::string> lines = {
      R"(  "bf16": {"enabled": true})",
      fmt::format(R"(  "zero_optimization": {{"stage": {}}})", zero_stage_of(setup.optimizer)),
      fmt::format(R"(  "sequence_parallel_size": {})", setup.sizes.cp)};
  std::string script;
  if (setup.tokens > 0) {
    lines.emplace_back(R"(  "train_micro_batch_size_per_gpu": 1)");
    script += fmt::format("seq_length = {}\n", setup.tokens);
  }
  if (setup.step_tokens > 0) {
    lines.push_back(fmt::format(R"(  "gradient_accumulation_steps": {})", rows_of_replica(setup)));
    lines.push_back(fmt::format(R"(  "train_batch_size": {})", rows_of_step(setup)));
  }
  if (setup.recompute == Recompute::kFull) script += "model.gradient_checkpointing_enable()\n";
  return {.flags = fmt::format("{{\n{}\n}}\n", fmt::join(lines, ",\n")), .script = script};
}

// --------------------------------------------------------------------------------- Contextile

std::string strategy_of(const TrainingSetup& setup) {
  if (!setup.strategy.empty()) return setup.strategy;
  switch (setup.exchange) {
    case CpExchange::kP2p:
      return "zigzag";
    case CpExchange::kA2a:
      return "ulysses";
    case CpExchange::kAllGather:
      return "all_gather";
    case CpExchange::kHybrid:
      return fmt::format("hybrid:head_parallel={}", setup.a2a_ranks);
  }
  fail_argument("exchange: expected p2p, a2a, all_gather or a2a+p2p, found {}",
                static_cast<int>(setup.exchange));
}

EngineFlags contextile_flags(const TrainingSetup& setup) {
  const bool dynamic = setup.packing == DocumentPacking::kDynamic;
  const ParallelSizes& sizes = setup.sizes;
  SectionLines arguments("    ", "=");
  // A strategy's name comes from the caller: quotes and line breaks in it must not end the text.
  std::string strategy = strategy_of(setup);
  std::erase_if(strategy, [](char c) { return c == '"' || c == '\\' || c < ' ' || c > '~'; });
  arguments.add("strategy", fmt::format("\"{}\",", strategy));
  if (dynamic) {
    arguments.add("schedule", "\"megatron_dynamic\",");
    if (setup.step_tokens > 0) arguments.add("tokens", fmt::format("{},", setup.step_tokens));
  } else {
    arguments.add("data_parallel", fmt::format("{},", sizes.dp));
    arguments.add("replica", "replica,");
    if (setup.step_tokens > 0) {
      arguments.add("micro_batches", fmt::format("{},", rows_of_replica(setup)));
    }
    arguments.add("packing", fmt::format("\"{}\",", to_string(setup.packing)));
    if (setup.tokens > 0) arguments.add("tokens", fmt::format("{},", setup.tokens));
  }
  return {.flags = fmt::format("# {}; `cluster` has {} ranks, `shape` the model's heads.\n"
                               "loader = DataLoader(\n"
                               "    dataset,\n    cluster=cluster,\n    rank=rank,\n{}"
                               "    **shape,\n)\n",
                               setup_text(setup), dynamic ? sizes.cp * sizes.dp : sizes.cp,
                               arguments.text()),
          .script = {}};
}

}  // namespace

EngineFlags engine_flags(const TrainingSetup& setup, TrainingEngine engine,
                         const PredictedWith& predicted) {
  if (const auto problem = engine_problem(setup, engine)) {
    fail_argument("{}: {}", to_string(engine), *problem);
  }
  switch (engine) {
    case TrainingEngine::kMegatron:
      return megatron_flags(setup, predicted);
    case TrainingEngine::kTorchtitan:
      return torchtitan_flags(setup);
    case TrainingEngine::kTrl:
      return trl_flags(setup);
    case TrainingEngine::kDeepspeed:
      return deepspeed_flags(setup);
    default:
      return contextile_flags(setup);
  }
}

}  // namespace contextile

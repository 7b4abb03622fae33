// Files of torchtitan, accelerate with TRL, and DeepSpeed as people write them, and mistakes in
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/engine_setup.h"
#include "contextile/base.h"
#include "training/setup/flat_text.h"

namespace contextile {
namespace {

constexpr std::string_view kTitanToml = R"([job]
dump_folder = "./outputs"
description = "Llama 3 8B"

[profiling]
enable_profiling = true

[metrics]
log_freq = 10

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
context_parallel_degree = 4

[checkpoint]
enable = false
interval = 500

[compile]
enable = false
components = "model loss"

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
)";

constexpr std::string_view kAccelerateYaml = R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 2
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 1
  parallelism_config_cp_size: 4
)";

constexpr std::string_view kDeepspeedJson = R"({
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "none", "pin_memory": true},
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_max_live_parameters": 1e9
  },
  "gradient_accumulation_steps": 4,
  "gradient_clipping": "auto",
  "steps_per_print": 2000,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": 1,
  "wall_clock_breakdown": false,
  "sequence_parallel_size": 4
})";

FlatText with_setting(FlatText flat, std::string_view key, std::string_view value) {
  std::erase_if(flat, [&](const auto& pair) { return pair.first == key; });
  flat.emplace_back(key, value);
  return flat;
}

void expect_file_error(TrainingEngine engine, const FlatText& flat, std::string_view part) {
  try {
    (void)read_engine_setup(engine, flat);
    ADD_FAILURE() << "expected an error with " << part;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

void expect_every_setting_listed(const ReadSetup& read, const FlatText& flat) {
  EXPECT_EQ(read.understood.size() + read.approximated.size() + read.without_effect.size(),
            flat.size());
}

TEST(ReadTorchtitan, ATrainingFileIsReadWhole) {
  const FlatText flat = flat_text(kTitanToml, '=');
  const ReadSetup read = read_engine_setup(TrainingEngine::kTorchtitan, flat, 32);
  TrainingSetup expected;
  expected.sizes = {.tp = 2, .cp = 4, .dp = 4, .pp = 1};
  expected.exchange = CpExchange::kAllGather;
  expected.tokens = 8192;
  expected.step_tokens = 8192 * 4;
  expected.recompute = Recompute::kSelective;
  expected.optimizer = OptimizerShards::kFsdp;
  EXPECT_EQ(read.setup, expected);
  expect_every_setting_listed(read, flat);
  // Without the number of GPUs, the ranks that are left are unknown.
  const ReadSetup unknown = read_engine_setup(TrainingEngine::kTorchtitan, flat);
  EXPECT_FALSE(unknown.has("dp"));
  EXPECT_FALSE(unknown.has("step_tokens"));
}

TEST(ReadTorchtitan, PipelinesSplitTheLocalBatch) {
  FlatText flat = with_setting(flat_text(kTitanToml, '='), "training.local_batch_size", "8");
  flat = with_setting(flat, "parallelism.pipeline_parallel_degree", "2");
  flat = with_setting(flat, "parallelism.pipeline_parallel_schedule", "Interleaved1F1B");
  const ReadSetup read = read_engine_setup(TrainingEngine::kTorchtitan, flat, 32);
  EXPECT_EQ(read.setup.tokens, 8192);
  EXPECT_EQ(read.setup.step_tokens, 8192 * 8 * 2);
  EXPECT_EQ(read.setup.schedule, PipelineSchedule::kInterleaved);
  EXPECT_EQ(read.setup.chunks, 2);
}

TEST(ReadTorchtitan, SettingsThatAreNotPredictedAreNamed) {
  const FlatText flat = flat_text(kTitanToml, '=');
  const auto expect = [&](std::string_view key, std::string_view value, std::string_view part) {
    expect_file_error(TrainingEngine::kTorchtitan, with_setting(flat, key, value), part);
  };
  expect("parallelism.data_parallel_replicate_degree", "2", "FSDP over a part of the replicas");
  expect("activation_checkpoint.selective_ac_option", "2",
         "torchtitan: activation_checkpoint.selective_ac_option: expected op or 1");
  expect("activation_checkpoint.mode", "memory_budget", "expected one of none, selective, full");
  expect("parallelism.context_parallel_rotate_method", "ring", "allgather, alltoall, found 'ring'");
  expect("training.enable_cpu_offload", "true", "offload is not predicted");
  expect("parallelism.context_parallel_degre", "4",
         "did you mean 'parallelism.context_parallel_degree'?");
  expect("training.seq_len", "-5", "training.seq_len: expected a whole number from 1");
}

TEST(ReadTrl, AFileOfAccelerateIsReadWithTheTrainersArguments) {
  FlatText flat = flat_text(kAccelerateYaml, ':');
  for (const auto& [key, value] : FlatText{{"max_length", "16384"},
                                           {"per_device_train_batch_size", "2"},
                                           {"gradient_accumulation_steps", "8"},
                                           {"packing", "true"},
                                           {"learning_rate", "2e-5"},
                                           {"gradient_checkpointing", "false"}}) {
    flat.emplace_back(key, value);
  }
  const ReadSetup read = read_engine_setup(TrainingEngine::kTrl, flat);
  TrainingSetup expected;
  expected.sizes = {.tp = 1, .cp = 4, .dp = 2, .pp = 1};
  expected.exchange = CpExchange::kAllGather;
  expected.tokens = 32768;
  expected.step_tokens = 32768 * 8 * 2;
  expected.recompute = Recompute::kFull;
  expected.optimizer = OptimizerShards::kFsdp;
  EXPECT_EQ(read.setup, expected);
  EXPECT_EQ(read.num_gpus, 8);
  expect_every_setting_listed(read, flat);
}

TEST(ReadTrl, DeepspeedUnderAccelerateExchangesHeads) {
  const FlatText flat = {{"distributed_type", "DEEPSPEED"},
                         {"deepspeed_config.zero_stage", "3"},
                         {"deepspeed_config.zero3_init_flag", "true"},
                         {"num_processes", "4"},
                         {"parallelism_config.parallelism_config_sp_size", "2"},
                         {"parallelism_config.parallelism_config_sp_backend", "deepspeed"}};
  const ReadSetup read = read_engine_setup(TrainingEngine::kTrl, flat);
  EXPECT_EQ(read.setup.exchange, CpExchange::kA2a);
  EXPECT_EQ(read.setup.sizes, (ParallelSizes{.tp = 1, .cp = 2, .dp = 2, .pp = 1}));
  EXPECT_EQ(read.setup.optimizer, OptimizerShards::kFsdp);
}

TEST(ReadTrl, ArgumentsThatAreNotGivenAreThoseOfSftConfig) {
  const FlatText file = {{"distributed_type", "MULTI_GPU"}, {"num_processes", "4"}};
  EXPECT_EQ(read_engine_setup(TrainingEngine::kTrl, file).setup.tokens, 0);
  const ReadSetup read =
      read_engine_setup(TrainingEngine::kTrl, with_setting(file, "max_length", "4096"));
  EXPECT_EQ(read.setup.tokens, 8 * 4096);
  EXPECT_EQ(read.setup.step_tokens, 4 * 8 * 4096);
  EXPECT_EQ(read.setup.recompute, Recompute::kFull);
  EXPECT_EQ(read.assumed.size(), 1U);
  EXPECT_FALSE(read.has("tokens"));
}

TEST(ReadTrl, FilesOfFsdp1AndOfOneProcessAreRead) {
  const ReadSetup sharded = read_engine_setup(
      TrainingEngine::kTrl, FlatText{{"distributed_type", "FSDP"},
                                     {"fsdp_config.fsdp_version", "1"},
                                     {"fsdp_config.fsdp_reshard_after_forward", "FULL_SHARD"},
                                     {"fsdp_config.fsdp_forward_prefetch", "true"},
                                     {"fsdp_config.fsdp_backward_prefetch", "BACKWARD_PRE"},
                                     {"num_processes", "8"}});
  EXPECT_EQ(sharded.setup.optimizer, OptimizerShards::kFsdp);
  EXPECT_EQ(sharded.setup.sizes.dp, 8);
  EXPECT_EQ(sharded.approximated.size(), 2U);
  const ReadSetup one = read_engine_setup(
      TrainingEngine::kTrl,
      FlatText{{"distributed_type", "NO"}, {"gpu_ids", "all"}, {"num_processes", "8"}});
  EXPECT_EQ(one.num_gpus, 1);
  EXPECT_THAT(
      [] {
        (void)read_engine_setup(TrainingEngine::kTrl, FlatText{{"distributed_type", "NO"}}, 8);
      },
      testing::ThrowsMessage<InvalidArgument>(
          testing::HasSubstr("expected MULTI_GPU, FSDP or DEEPSPEED on 8 GPUs")));
  EXPECT_EQ(one.assumed.size(), 1U);
}

TEST(ReadTrl, SettingsThatAreNotPredictedAreNamed) {
  const FlatText flat = flat_text(kAccelerateYaml, ':');
  const auto expect = [&](std::string_view key, std::string_view value, std::string_view part) {
    expect_file_error(TrainingEngine::kTrl, with_setting(flat, key, value), part);
  };
  expect("fsdp_config.fsdp_offload_params", "true", "offload is not predicted");
  expect("parallelism_config.parallelism_config_dp_replicate_size", "2",
         "trl: parallelism_config.parallelism_config_dp_replicate_size: expected 1 with sharded");
  expect("num_processes", "16", "to be 16 GPUs, found 8");
  expect("deepspeed_config.deepspeed_config_file", "ds.json",
         "trl: deepspeed_config.deepspeed_config_file: expected a setting that is understood");
  expect("parallelism_config.sp_size", "2", "expected 1 with a cp_size above 1, found '2'");
  expect("megatron_lm_config.megatron_lm_tp_degree", "2", "megatron_lm_tp_degree: expected");
}

TEST(ReadDeepspeed, AFileForZero3IsReadWhole) {
  FlatText flat = flatten_json(kDeepspeedJson);
  flat.emplace_back("seq_length", "32768");
  flat.emplace_back("gradient_checkpointing", "true");
  const ReadSetup read = read_engine_setup(TrainingEngine::kDeepspeed, flat, 8);
  TrainingSetup expected;
  expected.sizes = {.tp = 1, .cp = 4, .dp = 2, .pp = 1};
  expected.exchange = CpExchange::kA2a;
  expected.tokens = 32768;
  expected.step_tokens = 32768 * 4 * 2;
  expected.recompute = Recompute::kFull;
  expected.optimizer = OptimizerShards::kFsdp;
  EXPECT_EQ(read.setup, expected);
  expect_every_setting_listed(read, flat);
}

TEST(ReadDeepspeed, ReplicasFollowFromTheBatchSizes) {
  FlatText flat = with_setting(flatten_json(kDeepspeedJson), "train_batch_size", "24");
  const ReadSetup read = read_engine_setup(TrainingEngine::kDeepspeed, flat);
  EXPECT_EQ(read.setup.sizes.dp, 6);
  expect_file_error(TrainingEngine::kDeepspeed, with_setting(flat, "train_batch_size", "23"),
                    "expected a multiple of 1 sequences a micro-batch x 4 accumulation steps");
  flat = with_setting(flat, "seq_length", "8");
  EXPECT_THROW((void)read_engine_setup(TrainingEngine::kDeepspeed, flat, 8), InvalidArgument);
}

TEST(ReadDeepspeed, SettingsThatAreNotPredictedAreNamed) {
  const FlatText flat = flatten_json(kDeepspeedJson);
  const auto expect = [&](std::string_view key, std::string_view value, std::string_view part) {
    expect_file_error(TrainingEngine::kDeepspeed, with_setting(flat, key, value), part);
  };
  expect("zero_optimization.offload_optimizer.device", "cpu", "offload is not predicted");
  expect("zero_optimization.offload_param.device", "nvme", "offload_param.device: expected none");
  expect("zero_optimization.stage", "4", "expected 0, 1, 2 or 3, found '4'");
  expect("zero_optimization.zero_hpz_partition_size", "8", "zero_hpz_partition_size: expected");
  expect("pipeline.stages", "4", "deepspeed: pipeline.stages: expected a setting");
  const ReadSetup second = read_engine_setup(TrainingEngine::kDeepspeed,
                                             with_setting(flat, "zero_optimization.stage", "2"));
  EXPECT_EQ(second.setup.optimizer, OptimizerShards::kZero1);
  EXPECT_EQ(second.approximated.back().note,
            "predicted as stage 1, with whole gradients on every rank");
}

TEST(ReadEngineSetup, ContextileHasNoFile) {
  expect_file_error(TrainingEngine::kContextile, {}, "whose set-up is no file");
  EXPECT_THROW((void)read_engine_setup(TrainingEngine::kTrl, {}, 0), InvalidArgument);
}

TEST(ReadEngineSetup, NothingIsTheDefaultsOfTheEngine) {
  EXPECT_EQ(read_engine_setup(TrainingEngine::kDeepspeed, {}).setup.optimizer,
            OptimizerShards::kNone);
  EXPECT_TRUE(read_engine_setup(TrainingEngine::kTrl, {}).given.empty());
  EXPECT_TRUE(read_engine_setup(TrainingEngine::kTorchtitan, {}).given.empty());
  EXPECT_TRUE(read_megatron_arguments("").given.empty());
}

TEST(FlattenJson, KeysAreJoinedByDotsAndPlainListsByBlanks) {
  EXPECT_EQ(flatten_json(R"({"a": {"b": [1, "x", true]}, "c": [{"d": null}], "e": {}})"),
            (FlatText{{"a.b", "1 x true"}, {"c.0.d", "null"}}));
  EXPECT_THROW((void)flatten_json("[1]"), InvalidArgument);
  EXPECT_THROW((void)flatten_json("{"), InvalidArgument);
}

}  // namespace
}  // namespace contextile

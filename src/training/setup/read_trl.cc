// YAML of accelerate together with the arguments of TRL's SFTConfig.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/engine_setup.h"
#include "training/setup/setting_reader.h"

namespace contextile {
namespace {

constexpr std::string_view kTrlKernels = "kernels are predicted at the cluster's rates";

constexpr std::string_view kTrlPrefetch =
    "weights are predicted to arrive while the layer before computes";

constexpr std::array kTrlApproximated = {
    ApproximatedName{"fsdp_config.auto_wrap_policy", "every layer is predicted as one unit"},
    ApproximatedName{"fsdp_config.transformer_layer_cls_to_wrap",
                     "every layer is predicted as one unit"},
    ApproximatedName{"fsdp_config.min_num_params", "every layer is predicted as one unit"},
    ApproximatedName{"fsdp_config.backward_prefetch", kTrlPrefetch},
    ApproximatedName{"fsdp_config.forward_prefetch", kTrlPrefetch},
    ApproximatedName{"mixed_precision", "predicted in bf16"},
    ApproximatedName{"fp8_config.*", "matrix products are predicted in bf16"},
    ApproximatedName{"dynamo_config.*", kTrlKernels},
    ApproximatedName{"torch_compile", kTrlKernels},
    ApproximatedName{"use_liger_kernel", kTrlKernels},
    ApproximatedName{"attn_implementation", kTrlKernels},
    ApproximatedName{"parallelism_config.sp_attn_implementation", kTrlKernels},
    ApproximatedName{"packing", "documents are predicted as separate"},
    ApproximatedName{"packing_strategy", "packing is predicted in order"},
    ApproximatedName{"padding_free", "documents are predicted as separate"},
    ApproximatedName{"pad_to_multiple_of", "padding is not predicted"},
    ApproximatedName{"optim", "predicted as Adam with fp32 state"},
};

constexpr auto kTrlWithoutEffect = std::to_array<std::string_view>({
    "compute_environment",
    "debug",
    "downcast_bf16",
    "enable_cpu_affinity",
    "main_training_function",
    "main_process_ip",
    "main_process_port",
    "machine_rank",
    "rdzv_backend",
    "same_network",
    "use_cpu",
    "tpu_*",
    "gpu_ids",
    "fsdp_config.version",
    "fsdp_config.cpu_ram_efficient_loading",
    "fsdp_config.state_dict_type",
    "fsdp_config.sync_module_states",
    "fsdp_config.use_orig_params",
    "parallelism_config.cp_backend",
    "parallelism_config.sp_seq_length",
    "parallelism_config.sp_seq_length_is_variable",
    "deepspeed_config.zero3_init_flag",
    "deepspeed_config.zero3_save_16bit_model",
    "deepspeed_config.deepspeed_multinode_launcher",
    "deepspeed_config.gradient_clipping",
    "model_name_or_path",
    "output_dir",
    "dataset_*",
    "learning_rate",
    "lr_scheduler_*",
    "warmup_*",
    "weight_decay",
    "adam_*",
    "max_grad_norm",
    "num_train_epochs",
    "max_steps",
    "logging_*",
    "log_*",
    "save_*",
    "eval_*",
    "report_to",
    "run_name",
    "seed",
    "data_seed",
    "push_to_hub",
    "hub_*",
    "truncation_mode",
    "dataloader_*",
    "gradient_checkpointing_kwargs*",
});

// Name of a key without the prefixes that accelerate repeats inside its sections.
std::string trl_name(std::string_view key) {
  for (const std::string_view section : {"parallelism_config.", "fsdp_config."}) {
    if (!key.starts_with(section)) continue;
    std::string_view rest = key.substr(section.size());
    const std::string_view prefix = section == "fsdp_config." ? "fsdp_" : "parallelism_config_";
    if (rest.starts_with(prefix)) rest.remove_prefix(prefix.size());
    return fmt::format("{}{}", section, rest);
  }
  return std::string(key);
}

// The sizes of the parallel dimensions; accelerate's a2a is called sequence parallelism.
void read_trl_sizes(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kReplicate = "parallelism_config.dp_replicate_size";
  constexpr std::string_view kShard = "parallelism_config.dp_shard_size";
  constexpr std::string_view kSequence = "parallelism_config.sp_size";
  TrainingSetup& setup = result.setup;
  if (const auto tp = reader.count("parallelism_config.tp_size")) {
    setup.sizes.tp = *tp;
    result.given.emplace_back("tp");
  }
  const auto cp = reader.count("parallelism_config.cp_size");
  const auto sp = reader.count(kSequence);
  const auto rotate =
      reader.choice("parallelism_config.cp_comm_strategy", {"allgather", "alltoall"});
  (void)reader.choice("parallelism_config.sp_backend", {"deepspeed"});
  if (cp.value_or(1) > 1 && sp.value_or(1) > 1) {
    reader.fail(kSequence, "1 with a cp_size above 1");
  }
  if (cp || sp) {
    setup.sizes.cp = cp.value_or(1) * sp.value_or(1);
    result.given.emplace_back("cp");
  }
  if (setup.sizes.cp > 1) {
    const bool ring = rotate.value_or(0) == 1;
    setup.exchange = ring ? CpExchange::kP2p : CpExchange::kAllGather;
    if (sp.value_or(1) > 1) setup.exchange = CpExchange::kA2a;
    if (rotate || sp.value_or(1) > 1) result.given.emplace_back("exchange");
  }
  const auto replicate = reader.count(kReplicate);
  const auto shard = reader.count(kShard);
  if (replicate.value_or(1) > 1 && (shard.value_or(1) > 1 || setup.sizes.cp > 1)) {
    reader.fail(kReplicate,
                "1 with sharded ranks, because FSDP over a part of the replicas is not "
                "predicted");
  }
  if (replicate || shard) {
    setup.sizes.dp = replicate.value_or(1) * shard.value_or(1);
    result.given.emplace_back("dp");
  }
}

void read_trl_fsdp(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kReshard = "fsdp_config.reshard_after_forward";
  constexpr std::string_view kStrategy = "fsdp_config.sharding_strategy";
  constexpr std::string_view kOffload = "fsdp_config.offload_params";
  result.setup.optimizer = OptimizerShards::kFsdp;
  // A flag, or a strategy of version 1.
  const auto reshard = reader.choice(kReshard, {"true", "FULL_SHARD", "false", "SHARD_GRAD_OP"});
  if (reshard.value_or(0) > 1) reader.approximate(kReshard, "predicted as true or FULL_SHARD");
  (void)reader.choice(kStrategy, {"FULL_SHARD", "1"});  // of version 1
  if (reader.flag(kOffload)) reader.fail(kOffload, "false, because offload is not predicted");
}

// Sharding of weights and optimizer.
void read_trl_optimizer(SettingReader& reader, ReadSetup& result) {
  TrainingSetup& setup = result.setup;
  setup.optimizer = OptimizerShards::kNone;
  const auto type = reader.choice("distributed_type", {"FSDP", "DEEPSPEED", "MULTI_GPU", "NO"});
  const auto stage = reader.count("deepspeed_config.zero_stage", 0);
  for (const std::string_view part : {"optimizer", "param"}) {
    const std::string name = fmt::format("deepspeed_config.offload_{}_device", part);
    const auto device = reader.text(name);
    if (device && *device != "none") reader.fail(name, "none, because offload is not predicted");
  }
  if (!type) return;
  result.given.emplace_back("optimizer");
  if (*type == 0) read_trl_fsdp(reader, result);
  if (*type != 1) return;
  if (!stage) reader.fail("deepspeed_config.zero_stage", "0, 1, 2 or 3");
  set_zero_stage(reader, "deepspeed_config.zero_stage", *stage, setup);
}

// Returns true if arguments of SFTConfig are among the settings. Those that are not given then have
// its defaults; accelerate's file alone leaves them open.
bool has_trainer(SettingReader& reader) {
  return std::ranges::any_of(
      std::array{"max_length", "per_device_train_batch_size", "gradient_accumulation_steps"},
      [&](std::string_view name) { return reader.text(name).has_value(); });
}

void read_trl_recompute(SettingReader& reader, ReadSetup& result) {
  const auto fsdp = reader.given_flag("fsdp_config.activation_checkpointing");
  auto trainer = reader.given_flag("gradient_checkpointing");
  // The name of transformers 6.
  if (const auto renamed = reader.given_flag("activation_checkpointing")) trainer = renamed;
  if (fsdp || trainer) result.given.emplace_back("recompute");
  if (!trainer && has_trainer(reader)) {
    trainer = true;
    result.assumed.emplace_back("gradient_checkpointing true, SFTConfig's default");
  }
  const bool full = fsdp.value_or(false) || trainer.value_or(false);
  result.setup.recompute = full ? Recompute::kFull : Recompute::kNone;
}

void read_trl_tokens(SettingReader& reader, ReadSetup& result) {
  TrainingSetup& setup = result.setup;
  const auto length = reader.count("max_length");
  const auto rows = reader.count("per_device_train_batch_size");
  const auto steps = reader.count("gradient_accumulation_steps");
  const auto plugin_steps = reader.count("deepspeed_config.gradient_accumulation_steps");
  if (!has_trainer(reader)) return;
  // With SFTConfig's defaults. A job may have other numbers where these are not given.
  setup.tokens = checked_product({length.value_or(1024), rows.value_or(8)}, "trl: micro-batch");
  if (length && rows) result.given.emplace_back("tokens");
  if (!result.has("dp")) return;
  const auto accumulated = steps ? steps : plugin_steps;
  setup.step_tokens =
      checked_product({setup.tokens, accumulated.value_or(1), setup.sizes.dp}, "trl: step");
  if (length && rows && accumulated) result.given.emplace_back("step_tokens");
}

}  // namespace

void read_trl(std::vector<GivenSetting> settings, ReadSetup& result) {
  for (GivenSetting& setting : settings) setting.name = trl_name(setting.key);
  SettingReader reader("trl", std::move(settings));
  auto processes = reader.count("num_processes");
  const std::int64_t gpus = result.num_gpus.value_or(1);
  if (reader.text("distributed_type") == "NO" && gpus > 1) {
    reader.fail("distributed_type", fmt::format("MULTI_GPU, FSDP or DEEPSPEED on {} GPUs", gpus));
  }
  if (processes.value_or(1) > 1 && reader.text("distributed_type") == "NO") {
    processes = 1;
    result.assumed.emplace_back("one process, because of distributed_type NO");
  }
  (void)reader.count("num_machines");
  set_gpus(reader, "num_processes", processes, result);
  read_trl_sizes(reader, result);
  settle_replicas("trl", result);
  read_trl_optimizer(reader, result);
  read_trl_recompute(reader, result);
  read_trl_tokens(reader, result);
  if (!reader.given_flag("bf16").value_or(true)) reader.approximate("bf16", "predicted in bf16");
  reader.finish({.approximated = kTrlApproximated, .without_effect = kTrlWithoutEffect}, result);
}

}  // namespace contextile

// torchtitan's TOML, as versions to 0.2.2 read it.
#include <fmt/format.h>

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

constexpr std::string_view kTitanKernels = "kernels are predicted at the cluster's rates";
constexpr std::string_view kTitanStages = "stages are predicted with equal layers";
constexpr std::string_view kTitanBf16 = "matrix products are predicted in bf16";

constexpr std::array kTitanApproximated = {
    ApproximatedName{"compile.*", kTitanKernels},
    ApproximatedName{"model.converters", kTitanBf16},
    ApproximatedName{"quantize.*", kTitanBf16},
    ApproximatedName{"float8.*", kTitanBf16},
    ApproximatedName{"mx.*", kTitanBf16},
    ApproximatedName{"training.dtype", "weights are predicted in bf16 with fp32 copies"},
    ApproximatedName{"training.mixed_precision_*", "predicted in bf16 with fp32 gradients"},
    ApproximatedName{"parallelism.enable_async_tensor_parallel",
                     "predicted with the overlap of IterationOptions"},
    ApproximatedName{"parallelism.disable_loss_parallel", "logits are predicted split over TP"},
    ApproximatedName{"parallelism.expert_parallel_comm_backend",
                     "the exchange of experts is predicted by size alone"},
    ApproximatedName{"parallelism.pipeline_parallel_first_stage_less_layers", kTitanStages},
    ApproximatedName{"parallelism.pipeline_parallel_last_stage_less_layers", kTitanStages},
    ApproximatedName{"optimizer.implementation", kTitanKernels},
};

constexpr auto kTitanWithoutEffect = std::to_array<std::string_view>({
    "job.*",
    "profiling.*",
    "metrics.*",
    "model.name",
    "model.flavor",
    "model.hf_assets_path",
    "model.tokenizer_path",
    "model.print_after_conversion",
    "optimizer.name",
    "optimizer.lr",
    "optimizer.eps",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.weight_decay",
    "lr_scheduler.*",
    "training.dataset",
    "training.dataset_path",
    "training.dataloader.*",
    "training.max_norm",
    "training.steps",
    "training.gc_freq",
    "training.gc_debug",
    "training.seed",
    "debug.*",
    "checkpoint.*",
    "comm.*",
    "validation.*",
    "memory_estimation.*",
});

void read_titan_replicas(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kReplicate = "parallelism.data_parallel_replicate_degree";
  constexpr std::string_view kShard = "parallelism.data_parallel_shard_degree";
  TrainingSetup& setup = result.setup;
  const std::int32_t replicate = reader.count(kReplicate).value_or(1);
  const auto shard = reader.count(kShard, -1);  // -1, the default: all ranks that are left
  if (shard && *shard == 0) reader.fail(kShard, "-1 or a whole number of at least 1");
  const bool sharded = shard.value_or(-1) != 1;
  if (replicate > 1 && sharded) {
    reader.fail(kReplicate, fmt::format("1 with {} other than 1, because FSDP over a part of the "
                                        "replicas is not predicted",
                                        kShard));
  }
  setup.optimizer = sharded || setup.sizes.cp > 1 ? OptimizerShards::kFsdp : OptimizerShards::kNone;
  if (replicate > 1 && setup.optimizer == OptimizerShards::kFsdp) {
    reader.fail(kReplicate, "1 with context parallelism, whose ranks share the weights");
  }
  if (shard || replicate > 1) result.given.emplace_back("optimizer");
  if (shard && *shard > 0) {
    setup.sizes.dp = sharded ? *shard : replicate;
    result.given.emplace_back("dp");
  }
  const auto reshard =
      reader.choice("parallelism.fsdp_reshard_after_forward", {"always", "default", "never"});
  if (reshard && *reshard > 0) {
    reader.approximate("parallelism.fsdp_reshard_after_forward", "predicted as always");
  }
  settle_replicas("torchtitan", result);
}

void read_titan_sizes(SettingReader& reader, ReadSetup& result) {
  ParallelSizes& sizes = result.setup.sizes;
  const auto take = [&](std::string_view name, std::string_view field, std::int32_t& size) {
    if (const auto given = reader.count(name)) {
      size = *given;
      result.given.emplace_back(field);
    }
  };
  take("parallelism.tensor_parallel_degree", "tp", sizes.tp);
  take("parallelism.context_parallel_degree", "cp", sizes.cp);
  take("parallelism.pipeline_parallel_degree", "pp", sizes.pp);
  if (const auto ep = reader.count("parallelism.expert_parallel_degree")) {
    result.setup.sizes.ep = *ep;
    result.given.emplace_back("ep");
  }
  if (const auto tp = reader.count("parallelism.expert_tensor_parallel_degree")) {
    result.model.emplace("expert_tp", *tp);
  }
  const auto rotate =
      reader.choice("parallelism.context_parallel_rotate_method", {"allgather", "alltoall"});
  if (sizes.cp > 1) {
    result.setup.exchange = rotate.value_or(0) == 0 ? CpExchange::kAllGather : CpExchange::kP2p;
    if (rotate) result.given.emplace_back("exchange");
  }
  constexpr std::string_view kBalancer = "parallelism.context_parallel_load_balancer";
  if (reader.choice(kBalancer, {"headtail", "ptrr"}).value_or(0) == 1) {
    reader.approximate(kBalancer, "predicted as headtail");
  }
}

void read_titan_schedule(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kSchedule = "parallelism.pipeline_parallel_schedule";
  constexpr std::string_view kLayers = "parallelism.pipeline_parallel_layers_per_stage";
  TrainingSetup& setup = result.setup;
  const auto schedule = reader.choice(kSchedule, {"1F1B", "Interleaved1F1B"});
  if (const auto csv = reader.text("parallelism.pipeline_parallel_schedule_csv");
      csv && setup.sizes.pp > 1) {
    reader.fail("parallelism.pipeline_parallel_schedule_csv", "no file, because it isn't read");
  }
  if (reader.count(kLayers) && setup.sizes.pp > 1) {
    reader.fail(kLayers, "no number of layers, because stages are predicted with equal ones");
  }
  if (schedule.value_or(0) == 1 && setup.sizes.pp > 1) {
    setup.schedule = PipelineSchedule::kInterleaved;
    setup.chunks = 2;  // torchtitan's number where no layers of a stage are given
    result.given.emplace_back("chunks");
  }
}

void read_titan_tokens(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kGlobal = "training.global_batch_size";
  constexpr std::string_view kMicro = "parallelism.pipeline_parallel_microbatch_size";
  TrainingSetup& setup = result.setup;
  const auto length = reader.count("training.seq_len");
  const auto local_given = reader.count("training.local_batch_size");
  const std::int32_t local = local_given.value_or(8);  // torchtitan's default
  const std::int32_t micro = reader.count(kMicro).value_or(1);
  const auto global = reader.count(kGlobal, -1);
  if (!length) return;
  const bool pipelined = setup.sizes.pp > 1;
  if (pipelined && local % micro != 0) {
    reader.fail(kMicro, fmt::format("a divisor of the local batch of {}", local));
  }
  setup.tokens =
      checked_product({*length, pipelined ? micro : local}, "torchtitan: tokens of a micro-batch");
  result.given.emplace_back("tokens");
  const bool whole = global && *global > 0;
  if (!whole && !result.has("dp")) return;
  const std::int64_t at_once =
      checked_product({local, setup.sizes.dp}, "torchtitan: sequences of all replicas");
  const std::int64_t rows = whole ? *global : at_once;
  setup.step_tokens = checked_product({*length, rows}, "torchtitan: tokens of a step");
  result.given.emplace_back("step_tokens");
  if (!result.has("dp")) return;
  if (rows % at_once != 0) {
    reader.fail(kGlobal,
                fmt::format("a multiple of a local batch of {} x DP {}", local, setup.sizes.dp));
  }
  if (pipelined && rows != at_once) {
    reader.fail(kGlobal, fmt::format("{} with pipelines, because a pipeline that drains several "
                                     "times a step is not predicted",
                                     at_once));
  }
}

void read_titan_recompute(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kOption = "activation_checkpoint.selective_ac_option";
  TrainingSetup& setup = result.setup;
  const auto mode = reader.choice("activation_checkpoint.mode", {"none", "selective", "full"});
  const std::string option = reader.text(kOption).value_or("2");  // torchtitan's default
  constexpr std::array kModes = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  setup.recompute = kModes[mode.value_or(1)];
  if (mode) result.given.emplace_back("recompute");
  if (setup.recompute == Recompute::kSelective && option != "op") {
    if (option == "1") {
      setup.recompute = Recompute::kFull;
    } else if (mode) {
      reader.fail(kOption, "op or 1, because recompute of some layers is not predicted");
    } else {
      result.approximated.push_back(
          {"activation_checkpoint.mode", "",
           "not given: every second layer is recomputed, predicted as norms and activations"});
    }
  }
  (void)reader.given_flag("activation_checkpoint.early_stop");
}

}  // namespace

void read_torchtitan(std::vector<GivenSetting> settings, ReadSetup& result) {
  SettingReader reader("torchtitan", std::move(settings));
  read_titan_sizes(reader, result);
  read_titan_replicas(reader, result);
  read_titan_schedule(reader, result);
  read_titan_tokens(reader, result);
  read_titan_recompute(reader, result);
  constexpr std::string_view kOffload = "training.enable_cpu_offload";
  if (reader.flag(kOffload)) reader.fail(kOffload, "false, because offload is not predicted");
  reader.finish({.approximated = kTitanApproximated, .without_effect = kTitanWithoutEffect},
                result);
}

}  // namespace contextile

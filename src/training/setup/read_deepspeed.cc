// DeepSpeed's JSON, with the sequence length and the checkpointing of the training script.
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

constexpr std::string_view kZeroOverlap = "predicted with the overlap of IterationOptions";

constexpr std::array kDeepspeedApproximated = {
    ApproximatedName{"fp16.*", "predicted in bf16"},
    ApproximatedName{"zero_optimization.overlap_comm", kZeroOverlap},

    ApproximatedName{"zero_optimization.reduce_bucket_size", kZeroOverlap},
    ApproximatedName{"zero_optimization.allgather_bucket_size", kZeroOverlap},
    ApproximatedName{"zero_optimization.stage3_*", kZeroOverlap},
    ApproximatedName{"zero_optimization.reduce_scatter", kZeroOverlap},
    ApproximatedName{"zero_optimization.allgather_partitions", kZeroOverlap},
    ApproximatedName{"zero_optimization.sub_group_size", kZeroOverlap},
    ApproximatedName{"zero_optimization.contiguous_gradients", kZeroOverlap},
    ApproximatedName{"zero_optimization.round_robin_gradients", kZeroOverlap},
    ApproximatedName{"communication_data_type", "gradients are predicted in fp32"},
    ApproximatedName{"seq_parallel_communication_data_type", "keys are predicted in bf16"},
    ApproximatedName{"data_types.*", "gradients are predicted in fp32"},
    ApproximatedName{"optimizer.type", "predicted as Adam with fp32 state"},
};

constexpr auto kDeepspeedWithoutEffect = std::to_array<std::string_view>({
    "optimizer.params.*",
    "scheduler.*",
    "gradient_clipping",
    "prescale_gradients",
    "gradient_predivide_factor",
    "steps_per_print",
    "wall_clock_breakdown",
    "dump_state",
    "memory_breakdown",
    "flops_profiler.*",
    "comms_logger.*",
    "tensorboard.*",
    "wandb.*",
    "csv_monitor.*",
    "checkpoint.*",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.ignore_unused_parameters",
});

// A part of ZeRO's state that may be kept outside the GPU.
void refuse_offload(SettingReader& reader, std::string_view part) {
  const std::string section = fmt::format("zero_optimization.offload_{}.", part);
  const auto device = reader.text(section + "device");
  if (device && *device != "none") {
    reader.fail(section + "device", "none, because offload is not predicted");
  }
  for (const std::string_view name : {"pin_memory", "nvme_path", "buffer_count", "buffer_size"}) {
    if (device) (void)reader.any(section + std::string(name));
  }
}

// Batch sizes count sequences. DP follows from all three of them.
void read_deepspeed_batch(SettingReader& reader, ReadSetup& result) {
  TrainingSetup& setup = result.setup;
  auto micro = count_unless_auto(reader, "train_micro_batch_size_per_gpu");
  auto steps = count_unless_auto(reader, "gradient_accumulation_steps");
  const auto rows = count_unless_auto(reader, "train_batch_size");
  const auto length = reader.count("seq_length");
  if (!steps && !(micro && rows && result.has("dp"))) steps = 1;  // DeepSpeed's default
  if (rows && micro && steps && !result.has("dp")) {
    const std::int64_t once = checked_product({*micro, *steps}, "deepspeed: sequences of a rank");
    if (*rows % once != 0) {
      reader.fail("train_batch_size",
                  fmt::format("a multiple of {} sequences a micro-batch x {} accumulation steps",
                              *micro, *steps));
    }
    setup.sizes.dp = static_cast<std::int32_t>(*rows / once);
    result.given.emplace_back("dp");
  }
  if (!length || !micro) return;
  setup.tokens = checked_product({*length, *micro}, "deepspeed: tokens of a micro-batch");
  result.given.emplace_back("tokens");
  if (!rows && !result.has("dp")) return;
  const std::int64_t step_rows =
      rows ? *rows
           : checked_product({*micro, *steps, setup.sizes.dp}, "deepspeed: sequences of a step");
  setup.step_tokens = checked_product({*length, step_rows}, "deepspeed: tokens of a step");
  result.given.emplace_back("step_tokens");
  const std::int64_t at_once =
      checked_product({*micro, steps.value_or(1), setup.sizes.dp}, "deepspeed: sequences");
  if (steps ? step_rows != at_once : step_rows % at_once != 0) {
    reader.fail("train_batch_size",
                fmt::format("{} sequences a micro-batch x accumulation steps x DP {}", *micro,
                            setup.sizes.dp));
  }
}

}  // namespace

void read_deepspeed(std::vector<GivenSetting> settings, ReadSetup& result) {
  SettingReader reader("deepspeed", std::move(settings));
  TrainingSetup& setup = result.setup;
  if (const auto sp = reader.count("sequence_parallel_size")) {
    setup.sizes.cp = *sp;
    result.given.emplace_back("cp");
  }
  if (setup.sizes.cp > 1) {
    setup.exchange = CpExchange::kA2a;
    result.given.emplace_back("exchange");
  }
  settle_replicas("deepspeed", result);
  read_deepspeed_batch(reader, result);
  constexpr std::string_view kStage = "zero_optimization.stage";
  const auto stage = reader.count(kStage, 0);
  set_zero_stage(reader, kStage, stage.value_or(0), setup);
  if (stage) result.given.emplace_back("optimizer");
  refuse_offload(reader, "optimizer");
  refuse_offload(reader, "param");
  if (const auto full = reader.given_flag("gradient_checkpointing")) {
    setup.recompute = *full ? Recompute::kFull : Recompute::kNone;
    result.given.emplace_back("recompute");
  }
  constexpr std::string_view kBf16 = "bf16.enabled";
  if (const auto bf16 = reader.text(kBf16); bf16 && *bf16 == "false") {
    reader.approximate(kBf16, "predicted in bf16");
  }
  reader.finish({.approximated = kDeepspeedApproximated, .without_effect = kDeepspeedWithoutEffect},
                result);
}

}  // namespace contextile

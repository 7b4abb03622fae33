#include "labs/papers/dcp/step_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "contextile/advanced/step_planner.h"
#include "contextile/advanced/training.h"
#include "contextile/simulate.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/steps.h"

namespace contextile {
namespace {

using Span = std::pair<double, double>;

// Time in both of two lists of intervals; those of `a` may overlap each other.
double common_us(std::vector<Span> a, const std::vector<Span>& b) {
  std::ranges::sort(a);
  double us = 0;
  double covered_until = 0;  // of a
  for (auto [begin, end] : a) {
    begin = std::max(begin, covered_until);
    covered_until = std::max(covered_until, end);
    for (const auto& [other_begin, other_end] : b) {
      us += std::max(0.0, std::min(end, other_end) - std::max(begin, other_begin));
    }
  }
  return us;
}

// Mean over devices of the time in which they compute while messages from or to them move.
double overlapped_us(const SimulatedDirection& direction) {
  const std::size_t num_devices = direction.devices.size();
  double us = 0;
  for (const SimulatedProgram& program : direction.programs) {
    std::vector<std::vector<Span>> messages(num_devices);
    std::vector<std::vector<Span>> work(num_devices);
    for (const MessageSpan& message : program.messages) {
      for (const Rank end : {message.src, message.dst}) {
        messages[static_cast<std::size_t>(end.value)].emplace_back(message.start_us,
                                                                   message.end_us);
      }
    }
    for (const ActivitySpan& span : program.activities) {
      if (span.activity != Activity::kAttention && span.activity != Activity::kMerge) continue;
      work[static_cast<std::size_t>(span.device.value)].emplace_back(span.start_us, span.end_us);
    }
    for (std::size_t device = 0; device < num_devices; ++device) {
      us += common_us(std::move(messages[device]), work[device]);
    }
  }
  return us / static_cast<double>(num_devices);
}

void add_attention(const SimulatedDirection& direction, double layers_s, StepParts& parts) {
  const double share_s = layers_s / static_cast<double>(direction.devices.size());
  for (const DeviceTimes& device : direction.devices) {
    parts.attention_s += share_s * device.busy_us();
    parts.exposed_s += share_s * device.of(Activity::kExposed);
    parts.idle_s += share_s * device.idle_us;
  }
  parts.overlapped_s += layers_s * overlapped_us(direction);
}

// Adds a share of one batch's step. The plan of its attention is made once for the whole step.
// Returns the reason if that is impossible, or nothing.
std::string add_step(const StrategyChoice& choice, const TrainingJob& job, const MaskUse& mask,
                     const BatchLengths& lengths, double share, StepParts& parts) {
  const TrainingStep step = one_group_step(job, kStepTp);
  if (auto problem = parallel_sizes_problem(job.model, job.cluster, step.sizes, 1)) return *problem;
  PlanInput group;
  group.options = job.plan;
  group.cluster = context_parallel_cluster(job.cluster, step.sizes);
  const Workload workload =
      make_workload(lengths, attention_shape_of(job.model, kStepTp), {&mask, 1});
  if (auto reason = unsupported_reason(workload, group.cluster, choice, group.options))
    return *reason;
  const PlannedBatch planned = plan_and_check(workload, group.cluster, choice, group.options);
  const StepPrediction prediction = predict_parts(
      step, {batch_part_of(*planned.plan, group.cluster, kStepTp, AttentionDetail::kTimes)});
  if (auto reason = out_of_memory(job.cluster, prediction.memory)) return *reason;
  parts.step_s += 1e-6 * share * prediction.time_us;
  const Simulation simulation = simulate(*planned.plan, group.cluster, {.timeline = true});
  const double layers_s = 1e-6 * share * job.model.layers;
  add_attention(*simulation.forward, layers_s, parts);
  add_attention(*simulation.backward, layers_s, parts);
  return {};
}

}  // namespace

StepParts step_parts(const StrategyChoice& choice, const PaperSetting& setting,
                     const std::string& mask) {
  const TrainingJob job = dcp_training_job(setting.input.cluster, setting.input.options);
  const MaskUse use = parse_mask_use(mask);
  StepParts parts;
  parts.step_s = 0;
  const auto batches = batches_from_dataset(setting.datasets.front(), setting.batch);
  for (const BatchLengths& lengths : batches) {
    const double share = 1.0 / static_cast<double>(batches.size());
    std::string problem = add_step(choice, job, use, lengths, share, parts);
    if (problem.empty()) continue;
    StepParts none;
    none.skipped = std::move(problem);
    return none;
  }
  parts.other_s = parts.step_s - parts.attention_s - parts.exposed_s - parts.idle_s;
  return parts;
}

StepParts transformer_engine(const PaperSetting& setting, const std::string& mask) {
  return step_parts(transformer_engine_choice(), setting, mask);
}

std::vector<Column> part_columns(std::vector<Column> first) {
  for (const Column& column :
       std::vector<Column>{{"step_s", "step\nms", Format::kMilliseconds},
                           {"attention_s", "attention\nms", Format::kMilliseconds},
                           {"exposed_s", "exposed\nms", Format::kMilliseconds},
                           {"overlapped_s", "overlap\nms", Format::kMilliseconds},
                           {"idle_s", "idle\nms", Format::kMilliseconds},
                           {"other_s", "other\nms", Format::kMilliseconds},
                           {"exposed_share", "exposed\nof step", Format::kPercent}}) {
    first.push_back(column);
  }
  return first;
}

void add_parts(const StepParts& parts, std::vector<Cell> labels, Table& table) {
  if (!parts.skipped.empty()) {
    const std::string name = std::get<std::string>(labels.back());
    table.add_row(std::move(labels), fmt::format("{} skipped: {}", name, parts.skipped));
    return;
  }
  for (const double value : {parts.step_s, parts.attention_s, parts.exposed_s, parts.overlapped_s,
                             parts.idle_s, parts.other_s}) {
    labels.emplace_back(value);
  }
  labels.emplace_back(parts.exposed_s / parts.step_s);
  table.add_row(std::move(labels));
}

PaperSetting step_setting(const TableOverrides& overrides, std::string_view table,
                          std::string cluster_name) {
  refuse_overrides(
      overrides, table,
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  PaperSetting setting;
  setting.datasets = {"longalign"};
  setting.batch.tokens = 131072;
  setting.batch.long_documents = LongDocuments::kDrop;
  setting.batch.batches = 20;
  setting.cluster_name = std::move(cluster_name);
  setting.input.options.wire = Dtype::kBf16;
  apply_overrides(overrides, setting);
  setting.batch.max_length = setting.batch.tokens;
  return setting;
}

PaperResult steps_result(const PaperSetting& setting, Table table) {
  PaperResult result{.setting = setting.description(),
                     .table = std::move(table),
                     .differences = {kDcpStepsAre, kDocumentsAreWhole}};
  result.setting[1] = {"model", fmt::format("gpt-8b, TP {} x CP {}, ZeRO-1", kStepTp,
                                            setting.input.cluster.num_devices() / kStepTp)};
  return result;
}

const std::string kOverlapMeans =
    "Exposed: a device waits for transfers inside attention. Overlap: it computes attention while "
    "messages from or to it move. Idle: it is done, others are not. Means over devices and "
    "batches; all but overlap add up to the step.";

}  // namespace contextile

#include "contextile/advanced/step_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "base/check.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/schedule.h"
#include "strategy/stage_home.h"
#include "training/ping_pong.h"
#include "training/scheduled_rounds.h"

namespace contextile {
namespace {

// Counts the tokens of documents that go through the model together.
std::int64_t tokens_of(const BatchLengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

// The parts of a micro-batch that go through the layers together.
StageParts parts_of(const StepSetting& setting, const BatchLengths& lengths,
                    std::span<const MaskUse> masks) {
  return setting.nano_batches == NanoBatches::kOne
             ? whole_documents(lengths)
             : ping_pong_parts(lengths, setting.schedule, masks);
}

PipelineShape pipeline_of(const StepSetting& setting, std::int32_t micro_batches) {
  return {.schedule = setting.schedule,
          .stages = setting.sizes.pp,
          .micro_batches = micro_batches,
          .chunks = setting.chunks,
          .group = setting.group};
}

// The documents that the stages of a replica run in one tick, and the homes of their tokens.
struct PooledBatch {
  std::vector<DocumentRows> documents;
  std::vector<HomeRange> home;
};

// Part j of the micro-batches of a forward tick, the tokens of stage r on ranks r·CP … r·CP + CP-1.
// `parts` are those of every micro-batch.
PooledBatch pooled_batch(const std::vector<StageParts>& parts, const ParallelSizes& sizes,
                         std::size_t replica, const PipelineTick& tick, std::size_t j) {
  const auto dp = static_cast<std::size_t>(sizes.dp);
  PooledBatch batch;
  for (std::int32_t r = 0; r < sizes.pp; ++r) {
    const std::optional<PipelineStep>& step = tick.steps[static_cast<std::size_t>(r)];
    if (!step) continue;
    const std::size_t k = static_cast<std::size_t>(step->micro_batch) * dp + replica;
    if (j >= parts[k].size()) continue;
    batch.documents.insert(batch.documents.end(), parts[k][j].begin(), parts[k][j].end());
    append_stage_home(parts[k], j, Rank{r * sizes.cp}, sizes.cp, batch.home);
  }
  return batch;
}

void hold_nothing(TrainingStep& step) {
  for (std::vector<MicroBatchWork>& replica : step.replicas) {
    for (MicroBatchWork& micro_batch : replica) {
      for (BatchPart& part : micro_batch.parts) part.tokens_at_once = 0;
    }
  }
}

// Collectives that run during the part's attention delay it by nothing.
void leave_undisturbed(BatchPart& part) {
  part.attention.forward.shared_us = SharedTimesOfLoads{};
  part.attention.backward.shared_us = SharedTimesOfLoads{};
}

std::optional<std::string> pipeline_problem(const PipelineShape& shape) {
  try {
    check_pipeline(shape);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace

bool is_scheduled(const StepSetting& setting) {
  return !setting.one_plan && setting.schedule != PipelineSchedule::kSamePhase &&
         setting.nano_batches == NanoBatches::kOne &&
         find_strategy(setting.strategy.name).has_schedule();
}

std::vector<std::vector<NanoBatchRows>> nano_batches_of(std::span<const std::int64_t> lengths,
                                                        std::span<const MaskUse> masks) {
  static_cast<void>(sequences_from_lengths(lengths));
  std::vector<std::vector<NanoBatchRows>> nano_batches;
  for (const std::vector<DocumentRows>& part :
       ping_pong_parts(lengths, PipelineSchedule::kSamePhase, masks)) {
    std::vector<NanoBatchRows>& rows = nano_batches.emplace_back();
    for (const DocumentRows& document : part) rows.push_back({document.document, document.rows});
  }
  return nano_batches;
}

std::string sizes_text(const ParallelSizes& sizes) {
  return fmt::format("TP {}, CP {}, DP {}, PP {}{}", sizes.tp, sizes.cp, sizes.dp, sizes.pp,
                     sizes.ep > 1 ? fmt::format(", EP {}", sizes.ep) : "");
}

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits:
      return "fits";
    case Verdict::kOutOfMemory:
      return "out_of_memory";
    case Verdict::kImpossible:
      return "impossible";
  }
  fail_argument("verdict: expected fits, out_of_memory or impossible, found {}",
                static_cast<int>(verdict));
}

std::int64_t StepOutcome::memory_bytes() const {
  std::int64_t most = 0;
  for (const StageMemory& stage : memory) most = std::max(most, stage.total_bytes());
  return most;
}

StepPlanner::StepPlanner(const TrainingJob& job, PlanNotice notice)
    : job_(job), masks_(job.masks), notice_(std::move(notice)) {
  if (masks_.empty()) masks_.emplace_back();
}

Workload StepPlanner::workload_of(const std::vector<DocumentRows>& documents,
                                  std::int32_t tp) const {
  BatchLengths lengths;
  // A part of a document attends keys of its earlier parts, whose queries belong to those parts.
  std::vector<Range> of_earlier_parts;
  std::int64_t begin = 0;
  for (const DocumentRows& document : documents) {
    lengths.push_back(document.rows.end);
    if (document.rows.begin > 0) of_earlier_parts.push_back({begin, begin + document.rows.begin});
    begin += document.rows.end;
  }
  Workload workload = make_workload(lengths, attention_shape_of(job_.model, tp), masks_);
  drop_queries(workload, of_earlier_parts);
  return workload;
}

CollectiveTraffic StepPlanner::traffic_of(const StepSetting& setting) const {
  if (setting.undisturbed) return {};
  return gradient_traffic(job_.cluster, setting.sizes, options_of(setting));
}

const StepPlanner::PlannedPart& StepPlanner::planned(const StepSetting& setting,
                                                     const Cluster& group, const Workload& workload,
                                                     const std::string& what) {
  // Settings that share a key share the plan, so that a sweep plans every batch once.
  const CollectiveTraffic collective = traffic_of(setting);
  const Key key{choice_text(setting.strategy) + (setting.undisturbed ? " undisturbed" : ""),
                group.nodes,
                group.devices_per_node,
                group.inter_gbytes_per_s_per_node,
                setting.sizes.tp,
                what,
                collective};
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  notice_(fmt::format("{}, TP {}, {} x {}: {}", choice_text(setting.strategy), setting.sizes.tp,
                      group.nodes, group.devices_per_node, what));
  PlannedPart part;
  PlanOptions options = job_.plan;
  options.linear_us_per_token =
      linear_us_per_token(job_.model, job_.cluster, options_of(setting).linear_mfu) /
      setting.sizes.tp;
  part.unsupported = unsupported_reason(workload, group, setting.strategy, options);
  if (!part.unsupported) {
    const PlannedBatch batch = plan_and_check(workload, group, setting.strategy, options);
    part.part =
        batch_part_of(*batch.plan, group, setting.sizes.tp,
                      setting.nano_batches == NanoBatches::kOne ? AttentionDetail::kTimes
                                                                : AttentionDetail::kSeparately,
                      collective);
    if (setting.undisturbed) leave_undisturbed(part.part);
  }
  return plans_.emplace(key, std::move(part)).first->second;
}

// A step without plans: tokens spread evenly, attention without time. It shows what cannot fit.
TrainingStep StepPlanner::even_step(const StepSetting& setting) const {
  const auto dp = static_cast<std::size_t>(setting.sizes.dp);
  TrainingStep step{
      .model = job_.model,
      .cluster = job_.cluster,
      .sizes = setting.sizes,
      .pipeline = pipeline_of(setting, static_cast<std::int32_t>(job_.micro_batches.size() / dp)),
      .options = options_of(setting),
      .replicas = std::vector<std::vector<MicroBatchWork>>(dp),
      .ticks = {}};
  for (std::size_t k = 0; k < job_.micro_batches.size(); ++k) {
    step.replicas[k % dp].push_back(
        even_micro_batch(tokens_of(job_.micro_batches[k]), setting.sizes.cp));
  }
  if (setting.schedule == PipelineSchedule::kSamePhase) {
    const auto ticks = static_cast<std::size_t>(
        step.pipeline.stages + step.pipeline.micro_batches * step.pipeline.chunks - 1);
    step.ticks.assign(dp, {ticks, std::vector<MicroBatchAttention>(1)});
  }
  return step;
}

const StepPlanner::PlannedRounds& StepPlanner::planned_rounds(const StepSetting& setting) {
  const auto& [tp, cp, dp, pp, ep] = setting.sizes;
  const Cluster ranks = job_.cluster.group(tp, pp);  // of a stage, all replicas
  StrategyChoice choice = setting.strategy;
  std::int64_t largest = 0;  // micro-batch
  BatchLengths lengths;      // of the whole step
  for (const BatchLengths& micro_batch : job_.micro_batches) {
    largest = std::max(largest, tokens_of(micro_batch));
    lengths.insert(lengths.end(), micro_batch.begin(), micro_batch.end());
  }
  choice.options.try_emplace("cap", fmt::format("{}", (largest + cp - 1) / cp));
  const std::string inside =
      setting.group_strategy ? ", " + choice_text(*setting.group_strategy) : "";
  const CollectiveTraffic collective = traffic_of(setting);
  const Key key{choice_text(choice) + inside + (setting.undisturbed ? " undisturbed" : ""),
                ranks.nodes,
                ranks.devices_per_node,
                ranks.inter_gbytes_per_s_per_node,
                tp,
                "schedule",
                collective};
  const auto known = rounds_.find(key);
  if (known != rounds_.end()) return known->second;
  notice_(fmt::format("{}, TP {}, {} x {}: schedule", choice_text(choice), tp, ranks.nodes,
                      ranks.devices_per_node));
  const Workload workload = make_workload(lengths, attention_shape_of(job_.model, tp), masks_);
  PlannedRounds planned;
  try {
    const PlannedSchedule schedule =
        plan_and_check_schedule(workload, ranks, choice, job_.plan, setting.group_strategy);
    planned.rounds = round_parts(schedule, tp, collective);
    if (setting.undisturbed) std::ranges::for_each(planned.rounds, leave_undisturbed);
    planned.unpipelined = pipeline_reason(schedule);
  } catch (const InvalidArgument& error) {
    // Asking first would decide on groups twice.
    planned.unsupported = unscheduled_reason(workload, ranks, choice, job_.plan);
    if (!planned.unsupported && !setting.group_strategy) throw;
    if (!planned.unsupported) planned.unsupported = error.what();  // of a group
  }
  return rounds_.emplace(key, std::move(planned)).first->second;
}

std::optional<std::string> StepPlanner::plan_rounds(const StepSetting& setting,
                                                    TrainingStep& step) {
  const PlannedRounds& planned = planned_rounds(setting);
  if (planned.unsupported) return planned.unsupported;
  if (setting.sizes.pp > 1 && planned.unpipelined) return planned.unpipelined;
  step.pipeline.micro_batches = static_cast<std::int32_t>(planned.rounds.size());
  if (auto problem = pipeline_problem(step.pipeline)) return problem;
  for (std::size_t d = 0; d < step.replicas.size(); ++d) {
    step.replicas[d].clear();
    for (const BatchPart& round : planned.rounds) {
      step.replicas[d].push_back(
          {{replica_part(round, static_cast<std::int32_t>(d), setting.sizes.dp)}});
    }
  }
  return std::nullopt;
}

std::optional<std::string> StepPlanner::plan_micro_batches(const StepSetting& setting,
                                                           TrainingStep& step) {
  const Cluster group = context_parallel_cluster(job_.cluster, setting.sizes);
  const std::size_t dp = step.replicas.size();
  for (std::size_t k = 0; k < job_.micro_batches.size(); ++k) {
    MicroBatchWork& micro_batch = step.replicas[k % dp][k / dp];
    micro_batch.parts.clear();
    const StageParts parts = parts_of(setting, job_.micro_batches[k], masks_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string what =
          setting.nano_batches == NanoBatches::kOne
              ? fmt::format("micro-batch {}", k)
              : fmt::format("micro-batch {}, {} of {}", k, i + 1, parts.size());
      const PlannedPart& part =
          planned(setting, group, workload_of(parts[i], setting.sizes.tp), what);
      if (part.unsupported) return part.unsupported;
      micro_batch.parts.push_back(part.part);
    }
  }
  return std::nullopt;
}

BatchPart StepPlanner::unplanned_part(const StepSetting& setting,
                                      const std::vector<DocumentRows>& documents) const {
  BatchPart part = even_micro_batch(computed_tokens(documents), setting.sizes.cp).parts.front();
  const Workload workload = workload_of(documents, 1);
  double layers = 0;
  for (const NamedMask& mask : workload.masks) {
    layers += mask.layers;
    part.attention_flops +=
        mask.layers * forward_flops(mask.mask.num_pairs(), workload.shape.q_heads, workload.shape);
  }
  part.attention_flops /= layers;
  return part;
}

std::optional<std::string> StepPlanner::plan_ticks(const StepSetting& setting, TrainingStep& step) {
  const Cluster pool = pooled_cluster(job_.cluster, setting.sizes);
  const std::size_t dp = step.replicas.size();
  std::vector<StageParts> parts;  // of every micro-batch
  std::size_t num_parts = 1;
  for (const BatchLengths& lengths : job_.micro_batches) {
    parts.push_back(parts_of(setting, lengths, masks_));
    num_parts = std::max(num_parts, parts.back().size());
  }
  // Outside attention every micro-batch stays on its stage; its attention is the tick's.
  for (std::size_t k = 0; k < parts.size(); ++k) {
    MicroBatchWork& micro_batch = step.replicas[k % dp][k / dp];
    micro_batch.parts.clear();
    for (const std::vector<DocumentRows>& part : parts[k]) {
      micro_batch.parts.push_back(unplanned_part(setting, part));
    }
  }
  std::vector<PipelineTick> ticks = pipeline_ticks(step.pipeline);
  std::erase_if(ticks, [](const PipelineTick& t) { return t.direction != Direction::kForward; });
  for (std::size_t d = 0; d < dp; ++d) {
    for (std::size_t tick = 0; tick < step.ticks[d].size(); ++tick) {
      step.ticks[d][tick].assign(num_parts, {});
      for (std::size_t j = 0; j < num_parts; ++j) {
        PooledBatch batch = pooled_batch(parts, setting.sizes, d, ticks[tick], j);
        if (batch.documents.empty()) continue;
        Workload workload = workload_of(batch.documents, setting.sizes.tp);
        workload.home = std::move(batch.home);
        const std::string what = fmt::format("replica {} of {}, tick {} of {} stages, {} of {}",
                                             d + 1, dp, tick, setting.sizes.pp, j + 1, num_parts);
        const PlannedPart& part = planned(setting, pool, workload, what);
        if (part.unsupported) return part.unsupported;
        step.ticks[d][tick][j] = part.part.attention;
      }
    }
  }
  return std::nullopt;
}

std::optional<TrainingStep> StepPlanner::unplanned_step(const StepSetting& setting,
                                                        StepOutcome& outcome) const {
  const auto impossible = [&](std::optional<std::string> problem) {
    if (problem) outcome.reason = std::move(*problem);
    return !outcome.reason.empty();
  };
  if (impossible(parallel_sizes_problem(job_.model, job_.cluster, setting.sizes, setting.chunks))) {
    return std::nullopt;
  }
  if (job_.micro_batches.size() % static_cast<std::size_t>(setting.sizes.dp) != 0) {
    outcome.reason = fmt::format("{} micro-batches do not spread evenly over DP {}",
                                 job_.micro_batches.size(), setting.sizes.dp);
    return std::nullopt;
  }
  TrainingStep step = even_step(setting);
  if (impossible(pipeline_problem(step.pipeline))) return std::nullopt;
  // Settings that exceed the memory even without attention's own are not worth planning. A schedule
  // decides how many tokens a rank holds at a time.
  if (is_scheduled(setting)) hold_nothing(step);
  outcome.memory = step_memory(step);
  if (auto reason = out_of_memory(job_.cluster, outcome.memory)) {
    outcome.verdict = Verdict::kOutOfMemory;
    outcome.reason = std::move(*reason);
    return std::nullopt;
  }
  return step;
}

StepOutcome StepPlanner::predict(const StepSetting& setting) {
  StepOutcome outcome{.setting = setting,
                      .verdict = Verdict::kImpossible,
                      .reason = {},
                      .planned = false,
                      .prediction = std::nullopt,
                      .memory = {}};
  std::optional<TrainingStep> step = unplanned_step(setting, outcome);
  if (!step) return outcome;
  outcome.planned = true;
  std::optional<std::string> problem = is_scheduled(setting) ? plan_rounds(setting, *step)
                                       : setting.schedule == PipelineSchedule::kSamePhase
                                           ? plan_ticks(setting, *step)
                                           : plan_micro_batches(setting, *step);
  if (problem) {
    outcome.reason = std::move(*problem);
    outcome.memory.clear();
    return outcome;
  }
  outcome.prediction = predict_step(*step);
  outcome.memory = outcome.prediction->memory;
  outcome.verdict = Verdict::kFits;
  if (auto reason = out_of_memory(job_.cluster, outcome.memory)) {
    outcome.verdict = Verdict::kOutOfMemory;
    outcome.reason = std::move(*reason);
  }
  return outcome;
}

}  // namespace contextile

// contextile/advanced/training.h, step_planner.h: ticks of pipelines, and nano-batches.
#include <string>

#include "bind.h"
#include "contextile/advanced/step_planner.h"
#include "contextile/advanced/training.h"
#include "contextile/workload.h"

namespace contextile::python {
namespace {

// Returns the ticks of a same-phase pipeline as (phase, number, [(micro-batch, chunk) or None]).
using Steps = std::vector<std::optional<std::pair<std::int32_t, std::int32_t>>>;
std::vector<std::tuple<std::string, std::int32_t, Steps>> same_phase_ticks(
    std::int32_t stages, std::int32_t micro_batches, std::int32_t chunks, std::int32_t group) {
  std::vector<std::tuple<std::string, std::int32_t, Steps>> ticks;
  for (const PipelineTick& tick :
       pipeline_ticks({PipelineSchedule::kSamePhase, stages, micro_batches, chunks, group})) {
    Steps steps;
    for (const std::optional<PipelineStep>& step : tick.steps) {
      steps.emplace_back();
      if (step) steps.back() = {step->micro_batch, step->chunk};
    }
    ticks.emplace_back(std::string(to_string(tick.direction)), tick.number, std::move(steps));
  }
  return ticks;
}

// Returns rows (document, begin, end) of every nano-batch.
using NanoBatch = std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>>;
std::vector<NanoBatch> nano_batches(const std::vector<std::int64_t>& lengths,
                                    const std::vector<std::string>& masks) {
  std::vector<MaskUse> uses;
  for (const std::string& mask : masks) uses.push_back(parse_mask_use(mask));
  std::vector<NanoBatch> result;
  for (const std::vector<NanoBatchRows>& rows : nano_batches_of(lengths, uses)) {
    NanoBatch& nano_batch = result.emplace_back();
    for (const NanoBatchRows& one : rows) {
      nano_batch.emplace_back(one.document, one.rows.begin, one.rows.end);
    }
  }
  return result;
}

Workload without_queries(Workload workload, const std::vector<Range>& tokens) {
  drop_queries(workload, tokens);
  return workload;
}

}  // namespace

void bind_pipeline(nb::module_& module) {
  module.def("same_phase_ticks", &same_phase_ticks, nb::kw_only(), "stages"_a, "micro_batches"_a,
             "chunks"_a = 1, "group"_a = 0,
             "Returns the ticks of a same-phase pipeline, the same list that contextile iterate "
             "predicts from. Raises InvalidArgument.");
  module.def("nano_batches", &nano_batches, "lengths"_a, "masks"_a,
             "Returns the two nano-batches of a micro-batch as rows (document, begin, end), as "
             "contextile iterate --ping-pong cuts them. Raises InvalidArgument.");
  module.def("without_queries", &without_queries, "workload"_a, "tokens"_a,
             "Returns the workload without the queries of token ranges, which are ascending and "
             "disjoint. Raises InvalidArgument.");
}

}  // namespace contextile::python

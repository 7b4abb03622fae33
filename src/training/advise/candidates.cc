#include "training/advise/candidates.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "contextile/planner.h"

namespace contextile {
namespace {

constexpr std::array kOtherEngines = {TrainingEngine::kMegatron, TrainingEngine::kTorchtitan,
                                      TrainingEngine::kTrl, TrainingEngine::kDeepspeed};

template <typename T>
bool searched(const std::vector<T>& list, T value) {
  return list.empty() || std::ranges::find(list, value) != list.end();
}

// TrainingSetup with every exchange that the sizes allow. Those that the model's heads forbid are
// left out; a strategy says so only after it was tried.
std::vector<TrainingSetup> engine_exchanges(const ModelSpec& model, const TrainingSetup& setup,
                                            const AdviseOptions& options) {
  std::vector<TrainingSetup> all;
  const auto add = [&](CpExchange exchange, std::int32_t a2a_ranks) {
    if (!searched(options.exchanges, exchange)) return;
    all.push_back(setup);
    all.back().exchange = exchange;
    all.back().a2a_ranks = a2a_ranks;
  };
  const std::int32_t cp = setup.sizes.cp;
  const std::int32_t kv_heads = model.kv_heads / setup.sizes.tp;
  // A group of one rank exchanges nothing, and dynamic groups have rings.
  if (cp == 1 || setup.packing == DocumentPacking::kDynamic) {
    all.push_back(setup);
    return all;
  }
  add(CpExchange::kP2p, 0);
  if (kv_heads % cp == 0) add(CpExchange::kA2a, 0);
  add(CpExchange::kAllGather, 0);
  for (std::int32_t a2a = 2; a2a < cp; ++a2a) {
    if (cp % a2a == 0 && kv_heads % a2a == 0) add(CpExchange::kHybrid, a2a);
  }
  return all;
}

// This library's plans, and the engines' exchanges under its data loader's packing.
std::vector<TrainingSetup> own_exchanges(const ModelSpec& model, const TrainingSetup& setup,
                                         const AdviseOptions& options) {
  if (setup.packing == DocumentPacking::kDynamic) return {};
  std::vector<TrainingSetup> all;
  if (setup.packing == DocumentPacking::kWlb) all = engine_exchanges(model, setup, options);
  if (setup.sizes.cp == 1) return all;
  for (const std::string& strategy : options.strategies) {
    all.push_back(setup);
    all.back().strategy = strategy;
  }
  return all;
}

}  // namespace

bool runs_in_engine(const TrainingSetup& setup, const AdviseOptions& options) {
  if (options.engine) {
    return *options.engine == TrainingEngine::kContextile ||
           !engine_problem(setup, *options.engine);
  }
  return std::ranges::any_of(kOtherEngines,
                             [&](TrainingEngine engine) { return !engine_problem(setup, engine); });
}

std::vector<SetupGroup> setup_groups(const AdviseJob& job, const AdviseOptions& options, bool own) {
  const std::int64_t micro_batches = job.step_tokens / job.tokens;
  std::vector<SetupGroup> groups;
  const auto add = [&](const TrainingSetup& setup) {
    std::vector<TrainingSetup> exchanges = own ? own_exchanges(job.model, setup, options)
                                               : engine_exchanges(job.model, setup, options);
    if (!exchanges.empty()) groups.push_back({exchanges.front(), std::move(exchanges)});
  };
  for (const ParallelSizes& sizes :
       all_sizes(options.sizes, job.model, job.cluster, micro_batches, 1)) {
    for (const DocumentPacking packing : kPackings) {
      if (!searched(options.packings, packing)) continue;
      // Groups of one rank have no sizes to choose from.
      if (packing == DocumentPacking::kDynamic && sizes.cp * sizes.dp == 1) continue;
      if (packing == DocumentPacking::kWlb && !own) continue;
      for (const OptimizerShards optimizer : {OptimizerShards::kZero1, OptimizerShards::kFsdp}) {
        if (!searched(options.optimizers, optimizer)) continue;
        TrainingSetup setup{.sizes = sizes, .packing = packing};
        setup.tokens = job.tokens;
        setup.step_tokens = job.step_tokens;
        setup.optimizer = optimizer;
        add(setup);
        if (!options.interleaved || sizes.pp == 1 || job.model.layers < 2 * sizes.pp) continue;
        setup.schedule = PipelineSchedule::kInterleaved;
        setup.chunks = 2;
        add(setup);
      }
    }
  }
  return groups;
}

StepSetting step_setting_of(const TrainingSetup& setup, const IterationOptions& options) {
  StepSetting setting;
  setting.sizes = setup.sizes;
  setting.schedule = setup.schedule;
  setting.chunks = setup.chunks;
  setting.options = options;
  setting.options->recompute = setup.recompute;
  setting.options->optimizer = setup.optimizer;
  if (!setup.strategy.empty()) {
    setting.strategy = {setup.strategy};
    return setting;
  }
  if (setup.packing == DocumentPacking::kDynamic) {
    setting.strategy = {"megatron_dynamic"};
    return setting;
  }
  switch (setup.exchange) {
    case CpExchange::kP2p:
      setting.strategy = {"zigzag"};
      break;
    case CpExchange::kA2a:
      setting.strategy = {"ulysses"};
      break;
    case CpExchange::kAllGather:
      setting.strategy = {"all_gather"};
      break;
    case CpExchange::kHybrid:
      setting.strategy = {"hybrid"};
      if (setup.a2a_ranks > 0) {
        setting.strategy.options["head_parallel"] = std::to_string(setup.a2a_ranks);
      }
      break;
  }
  return setting;
}

}  // namespace contextile

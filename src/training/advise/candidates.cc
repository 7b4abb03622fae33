#include "training/advise/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
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

// Stages and their chunks have equally many layers.
std::optional<std::string> layers_problem(const TrainingSetup& setup, const ModelSpec& model) {
  const std::int64_t chunks = std::int64_t{setup.sizes.pp} * setup.chunks;
  if (model.layers % chunks == 0) return std::nullopt;
  return fmt::format("expected layers that PP {} x {} chunks divide, found {}", setup.sizes.pp,
                     setup.chunks, model.layers);
}

// Two chunks of the sequence on every context-parallel rank, whatever the exchange, and an equal
// part of a rank's tokens on every tensor-parallel rank. Dynamic groups pad their sequences.
std::optional<std::string> sequence_problem(const TrainingSetup& setup, std::string_view engine) {
  const auto [tp, cp, dp, pp, ep] = setup.sizes;
  const std::int64_t parts = std::int64_t{tp} * (cp > 1 ? 2 * cp : 1);
  if (setup.packing == DocumentPacking::kDynamic || setup.tokens % parts == 0) return std::nullopt;
  return fmt::format(
      "{} cuts sequences into TP {} x {} parts, expected a multiple of {} tokens, "
      "found {}",
      engine, tp, parts / tp, parts, setup.tokens);
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

std::optional<std::string> job_problem(const TrainingSetup& setup, const ModelSpec& model,
                                       TrainingEngine engine) {
  if (auto problem = engine_problem(setup, engine)) return problem;
  if (engine == TrainingEngine::kMegatron) {
    if (auto problem = layers_problem(setup, model)) return problem;
  }
  if (engine != TrainingEngine::kMegatron && engine != TrainingEngine::kTorchtitan) {
    return std::nullopt;
  }
  return sequence_problem(setup, to_string(engine));
}

bool runs_in_engine(const TrainingSetup& setup, const ModelSpec& model,
                    const AdviseOptions& options) {
  if (options.engine) {
    return *options.engine == TrainingEngine::kContextile ||
           !job_problem(setup, model, *options.engine);
  }
  return std::ranges::any_of(
      kOtherEngines, [&](TrainingEngine engine) { return !job_problem(setup, model, engine); });
}

std::vector<SetupGroup> setup_groups(const AdviseJob& job, const AdviseOptions& options, bool own) {
  const std::int64_t micro_batches = job.step_tokens / job.tokens;
  std::vector<SetupGroup> groups;
  const auto add = [&](const TrainingSetup& setup) {
    std::vector<TrainingSetup> exchanges = own ? own_exchanges(job.model, setup, options)
                                               : engine_exchanges(job.model, setup, options);
    if (own && layers_problem(setup, job.model)) return;
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

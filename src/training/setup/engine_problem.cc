// The set-ups that every engine can run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/parse_name.h"
#include "contextile/advanced/engine_setup.h"
#include "training/setup/engine_rows.h"

namespace contextile {
namespace {

constexpr std::array kEngines = {TrainingEngine::kMegatron, TrainingEngine::kTorchtitan,
                                 TrainingEngine::kTrl, TrainingEngine::kDeepspeed,
                                 TrainingEngine::kContextile};
using Problem = std::optional<std::string>;

Problem sizes_problem(const TrainingSetup& setup) {
  const ParallelSizes& sizes = setup.sizes;
  if (std::min({sizes.tp, sizes.cp, sizes.dp, sizes.pp, sizes.ep, setup.chunks}) < 1) {
    return fmt::format(
        "expected sizes of at least 1, found TP {}, CP {}, DP {}, PP {} and {} chunks", sizes.tp,
        sizes.cp, sizes.dp, sizes.pp, setup.chunks);
  }
  const std::int32_t a2a = setup.a2a_ranks;
  if (setup.exchange == CpExchange::kHybrid) {
    if (a2a < 2 || a2a >= sizes.cp || sizes.cp % a2a != 0) {
      return fmt::format("a2a+p2p: expected a2a ranks between 2 and CP {} that divide it, found {}",
                         sizes.cp, a2a);
    }
  } else if (a2a != 0) {
    return fmt::format("expected no a2a ranks with the exchange {}, found {}",
                       to_string(setup.exchange), a2a);
  }
  if (setup.schedule == PipelineSchedule::k1F1B && setup.chunks > 1) {
    return fmt::format("expected 1 chunk a stage with 1f1b, found {}", setup.chunks);
  }
  if (setup.schedule == PipelineSchedule::kInterleaved && (setup.chunks < 2 || sizes.pp < 2)) {
    return fmt::format("interleaved: expected at least 2 stages and 2 chunks, found {} and {}",
                       sizes.pp, setup.chunks);
  }
  return std::nullopt;
}

Problem tokens_problem(const TrainingSetup& setup) {
  if (setup.tokens < 0 || setup.step_tokens < 0) {
    return fmt::format("expected no negative tokens, found {} of a micro-batch and {} of a step",
                       setup.tokens, setup.step_tokens);
  }
  if (setup.step_tokens == 0) return std::nullopt;
  if (setup.tokens == 0 || setup.step_tokens % setup.tokens != 0 ||
      setup.step_tokens / setup.tokens % setup.sizes.dp != 0) {
    return fmt::format(
        "expected a step of whole micro-batches, equally many for each of {} replicas, found {} "
        "tokens per step and {} per micro-batch",
        setup.sizes.dp, setup.step_tokens, setup.tokens);
  }
  return std::nullopt;
}

// Methods that no engine but this library has.
Problem own_methods_problem(const TrainingSetup& setup, std::string_view engine) {
  if (!setup.strategy.empty()) {
    return fmt::format("the strategy {} runs with contextile only, not with {} alone",
                       setup.strategy, engine);
  }
  if (setup.packing == DocumentPacking::kWlb) {
    return fmt::format("{} has no WLB packing; contextile's data loader has", engine);
  }
  if (setup.schedule == PipelineSchedule::kSamePhase) {
    return fmt::format("{} has no same-phase pipelines; contextile has", engine);
  }
  return std::nullopt;
}

Problem experts_problem(const TrainingSetup& setup, std::string_view engine) {
  if (setup.sizes.ep == 1) return std::nullopt;
  return fmt::format("{} has no flag for expert parallelism, found EP {}", engine, setup.sizes.ep);
}

Problem static_groups_problem(const TrainingSetup& setup, std::string_view engine) {
  if (setup.packing != DocumentPacking::kDynamic) return std::nullopt;
  return fmt::format("{} has no dynamic context parallelism; megatron and contextile have", engine);
}

Problem megatron_problem(const TrainingSetup& setup) {
  if (setup.packing != DocumentPacking::kDynamic) return std::nullopt;
  if (setup.sizes.pp > 1) {
    return fmt::format("megatron has dynamic context parallelism without pipelines, found PP {}",
                       setup.sizes.pp);
  }
  if (setup.optimizer == OptimizerShards::kFsdp) {
    return "megatron has no dynamic context parallelism with FSDP";
  }
  if (setup.exchange != CpExchange::kP2p) {
    return fmt::format("megatron has dynamic context parallelism with p2p only, found {}",
                       to_string(setup.exchange));
  }
  if (setup.tokens == 0 || setup.tokens % setup.sizes.cp != 0) {
    return fmt::format(
        "megatron's dynamic context parallelism needs the tokens of a rank, expected a multiple of "
        "CP {} tokens, found {}",
        setup.sizes.cp, setup.tokens);
  }
  return std::nullopt;
}

Problem torchtitan_problem(const TrainingSetup& setup) {
  if (auto problem = static_groups_problem(setup, "torchtitan")) return problem;
  if (setup.exchange == CpExchange::kA2a || setup.exchange == CpExchange::kHybrid) {
    return fmt::format("torchtitan exchanges keys by p2p or all_gather, found {}",
                       to_string(setup.exchange));
  }
  if (setup.optimizer == OptimizerShards::kZero1) {
    return "torchtitan shards weights with the optimizer (fsdp) or nothing (replicated), found "
           "zero1";
  }
  if (setup.optimizer == OptimizerShards::kNone && setup.sizes.cp > 1) {
    return fmt::format("torchtitan shards weights over context-parallel ranks, so CP {} needs fsdp",
                       setup.sizes.cp);
  }
  if (setup.optimizer == OptimizerShards::kFsdp && setup.sizes.cp == 1 && setup.sizes.dp == 1) {
    return "torchtitan's FSDP needs ranks to shard over, found CP 1 and DP 1";
  }
  if (setup.schedule == PipelineSchedule::kInterleaved && setup.chunks != 2) {
    return fmt::format("torchtitan's Interleaved1F1B has 2 chunks a stage by default, found {}",
                       setup.chunks);
  }
  if (setup.sizes.pp > 1 && setup.step_tokens == 0) {
    return "torchtitan's pipelines need the number of micro-batches, found no tokens of a step";
  }
  return std::nullopt;
}

// DeepSpeed, alone or under accelerate.
Problem deepspeed_problem(const TrainingSetup& setup, std::string_view engine) {
  if (auto problem = static_groups_problem(setup, engine)) return problem;
  if (auto problem = experts_problem(setup, engine)) return problem;
  if (setup.sizes.cp > 1 && setup.exchange != CpExchange::kA2a) {
    return fmt::format("{} with DeepSpeed's optimizer exchanges heads by a2a only, found {}",
                       engine, to_string(setup.exchange));
  }
  if (setup.sizes.tp > 1 || setup.sizes.pp > 1) {
    return fmt::format("{} runs DeepSpeed with TP 1 and PP 1, found TP {} and PP {}", engine,
                       setup.sizes.tp, setup.sizes.pp);
  }
  if (setup.recompute == Recompute::kSelective) {
    return fmt::format("{} recomputes whole layers or nothing, found selective", engine);
  }
  return std::nullopt;
}

Problem trl_problem(const TrainingSetup& setup) {
  if (trl_backend(setup) == TrlBackend::kDeepspeed) return deepspeed_problem(setup, "trl");
  if (auto problem = static_groups_problem(setup, "trl")) return problem;
  if (auto problem = experts_problem(setup, "trl")) return problem;
  const ParallelSizes& sizes = setup.sizes;
  if (sizes.pp > 1) return fmt::format("trl has no pipelines, found PP {}", sizes.pp);
  if (setup.exchange == CpExchange::kHybrid) return "trl has no exchange a2a+p2p";
  if (setup.recompute == Recompute::kSelective) {
    return "trl recomputes whole layers or nothing, found selective";
  }
  if (setup.optimizer == OptimizerShards::kFsdp) {
    if (sizes.cp == 1 && sizes.dp == 1) {
      return "accelerate's FSDP needs ranks to shard over, found CP 1 and DP 1";
    }
    return std::nullopt;
  }
  if (sizes.cp > 1) return fmt::format("accelerate needs fsdp for CP {}", sizes.cp);
  if (sizes.tp > 1 && sizes.dp > 1) {
    return fmt::format("accelerate needs fsdp for TP {} with DP {}", sizes.tp, sizes.dp);
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(TrainingEngine engine) {
  switch (engine) {
    case TrainingEngine::kMegatron:
      return "megatron";
    case TrainingEngine::kTorchtitan:
      return "torchtitan";
    case TrainingEngine::kTrl:
      return "trl";
    case TrainingEngine::kDeepspeed:
      return "deepspeed";
    case TrainingEngine::kContextile:
      return "contextile";
  }
  fail_argument("engine: expected megatron, torchtitan, trl, deepspeed or contextile, found {}",
                static_cast<int>(engine));
}

TrainingEngine parse_training_engine(std::string_view text) {
  return parse_name<TrainingEngine>("engine", kEngines, text);
}

std::optional<std::string> engine_note(const TrainingSetup& setup, TrainingEngine engine) {
  if (engine != TrainingEngine::kMegatron) return std::nullopt;
  std::vector<std::string> notes;
  if (setup.recompute == Recompute::kSelective) {
    notes.emplace_back(
        "megatron's module mlp also runs the products of the feed-forward again, which the "
        "prediction leaves out");
  }
  // Its tests leave these out for packed sequences in releases up to 2025.
  if (setup.sizes.cp > 1 && setup.exchange != CpExchange::kP2p) {
    notes.push_back(
        fmt::format("packed sequences of separate documents (THD) with --cp-comm-type {} need a "
                    "recent Transformer Engine; older ones refuse them, and have p2p alone",
                    to_string(setup.exchange)));
  }
  if (notes.empty()) return std::nullopt;
  return fmt::format("{}", fmt::join(notes, "\n"));
}

std::optional<std::string> engine_problem(const TrainingSetup& setup, TrainingEngine engine) {
  if (auto problem = sizes_problem(setup)) return problem;
  if (auto problem = tokens_problem(setup)) return problem;
  if (engine == TrainingEngine::kContextile) return std::nullopt;
  if (auto problem = own_methods_problem(setup, to_string(engine))) return problem;
  switch (engine) {
    case TrainingEngine::kMegatron:
      return megatron_problem(setup);
    case TrainingEngine::kTorchtitan:
      return torchtitan_problem(setup);
    case TrainingEngine::kTrl:
      return trl_problem(setup);
    default:
      return deepspeed_problem(setup, to_string(engine));
  }
}

TrlBackend trl_backend(const TrainingSetup& setup) {
  const bool a2a = setup.sizes.cp > 1 && setup.exchange == CpExchange::kA2a;
  if (a2a || setup.optimizer == OptimizerShards::kZero1) return TrlBackend::kDeepspeed;
  return setup.optimizer == OptimizerShards::kFsdp ? TrlBackend::kFsdp : TrlBackend::kReplicated;
}

std::int64_t rows_of_step(const TrainingSetup& setup) {
  return setup.tokens == 0 ? 0 : setup.step_tokens / setup.tokens;
}

}  // namespace contextile

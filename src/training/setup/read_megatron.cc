// Megatron-LM's arguments, and the same names in YAML of Megatron-Bridge.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/advanced/engine_setup.h"
#include "training/setup/megatron_tables.h"
#include "training/setup/setting_reader.h"

namespace contextile {
namespace {

void read_megatron_sizes(SettingReader& reader, ReadSetup& result) {
  ParallelSizes& sizes = result.setup.sizes;
  if (const auto tp = reader.count("tensor-model-parallel-size")) {
    sizes.tp = *tp;
    result.given.emplace_back("tp");
  }
  if (const auto cp = reader.count("context-parallel-size")) {
    sizes.cp = *cp;
    result.given.emplace_back("cp");
  }
  if (const auto pp = reader.count("pipeline-model-parallel-size")) {
    sizes.pp = *pp;
    result.given.emplace_back("pp");
  }
  if (const auto ep = reader.count("expert-model-parallel-size")) {
    result.setup.sizes.ep = *ep;
    result.given.emplace_back("ep");
  }
  const bool sequence_parallel = reader.flag("sequence-parallel");
  if (sizes.tp > 1 && !sequence_parallel) {
    reader.approximate("tensor-model-parallel-size", "predicted with --sequence-parallel");
  }
}

// The group sizes of a2a+p2p: those of a2a first.
void read_megatron_hierarchy(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kName = "hierarchical-context-parallel-sizes";
  const auto words = reader.words(kName);
  TrainingSetup& setup = result.setup;
  if (setup.exchange != CpExchange::kHybrid) {
    if (words) reader.fail(kName, "no sizes without the exchange a2a+p2p");
    return;
  }
  const std::int32_t cp = setup.sizes.cp;
  const std::string expected = fmt::format("two sizes whose product is CP {}", cp);
  if (!words || words->size() != 2) reader.fail(kName, expected);
  for (std::int32_t a2a = 1; a2a <= cp; ++a2a) {
    if (cp % a2a != 0) continue;
    if (std::to_string(a2a) != (*words)[0] || std::to_string(cp / a2a) != (*words)[1]) continue;
    // With one level of ranks there is one exchange.
    if (a2a == 1) setup.exchange = CpExchange::kP2p;
    if (a2a == cp) setup.exchange = CpExchange::kA2a;
    if (setup.exchange == CpExchange::kHybrid) setup.a2a_ranks = a2a;
    result.given.emplace_back("a2a_ranks");
    return;
  }
  reader.fail(kName, expected);
}

void read_megatron_exchange(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kName = "cp-comm-type";
  TrainingSetup& setup = result.setup;
  if (auto words = reader.words(kName)) {
    if (words->empty()) reader.fail(kName, "p2p, a2a, all_gather or a2a+p2p");
    for (std::string& word : *words) {
      if (word == "allgather") word = "all_gather";  // as its help text says
      if (word != words->front()) reader.fail(kName, "one exchange for all layers");
    }
    constexpr std::string_view kNames[] = {"p2p", "a2a", "all_gather", "a2a+p2p"};
    const auto* const found = std::find(std::begin(kNames), std::end(kNames), words->front());
    if (found == std::end(kNames)) reader.fail(kName, "p2p, a2a, all_gather or a2a+p2p");
    const CpExchange exchange = parse_cp_exchange(*found);
    if (setup.sizes.cp > 1) {
      setup.exchange = exchange;
      result.given.emplace_back("exchange");
    }
  }
  read_megatron_hierarchy(reader, result);
}

void read_megatron_tokens(SettingReader& reader, ReadSetup& result) {
  TrainingSetup& setup = result.setup;
  const auto length = reader.count("seq-length");
  const std::int32_t rows = reader.count("micro-batch-size").value_or(1);
  const auto step_rows = reader.count("global-batch-size");
  if (rows > 1) {
    reader.approximate("micro-batch-size", "the sequences of a micro-batch are predicted as one");
  }
  if (!length) return;
  setup.tokens = checked_product({*length, rows}, "megatron: tokens of a micro-batch");
  result.given.emplace_back("tokens");
  if (!step_rows && result.has("dp")) {
    // Megatron's default. Not given: a job may have another number.
    setup.step_tokens = checked_product({setup.tokens, setup.sizes.dp}, "megatron: step");
  }
  if (!step_rows) return;
  setup.step_tokens = checked_product({*length, *step_rows}, "megatron: tokens of a step");
  result.given.emplace_back("step_tokens");
  const std::int64_t rows_at_once =
      checked_product({rows, setup.sizes.dp}, "megatron: sequences of all replicas");
  if (*step_rows % rows_at_once != 0) {
    reader.fail("global-batch-size", fmt::format("a multiple of {} sequences a micro-batch x DP {}",
                                                 rows, setup.sizes.dp));
  }
}

void read_megatron_packing(SettingReader& reader, ReadSetup& result) {
  const bool dynamic = reader.flag("hybrid-context-parallel");
  const auto most = reader.count("max-seqlen-per-dp-cp-rank");
  if (!dynamic) {
    if (most) reader.approximate("max-seqlen-per-dp-cp-rank", "no effect without dynamic CP");
    return;
  }
  TrainingSetup& setup = result.setup;
  setup.packing = DocumentPacking::kDynamic;
  result.given.emplace_back("packing");
  if (!most) {
    reader.fail("hybrid-context-parallel", "--max-seqlen-per-dp-cp-rank with it");
  }
  const std::int64_t tokens =
      checked_product({*most, setup.sizes.cp}, "megatron: tokens of a rank");
  if (setup.tokens == 0) {
    setup.tokens = tokens;
    result.given.emplace_back("tokens");
  } else if (tokens != setup.tokens) {
    reader.approximate("max-seqlen-per-dp-cp-rank", "predicted as --seq-length divided by CP");
  }
}

void read_megatron_documents(SettingReader& reader, ReadSetup& result) {
  const bool reset = reader.flag("reset-attention-mask");
  const bool packed = reader.flag("sft");
  if (reset || packed || result.setup.packing == DocumentPacking::kDynamic) return;
  result.assumed.emplace_back(
      "documents attend to themselves alone, as with --reset-attention-mask or --sft");
}

void read_megatron_recompute(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kModules = "recompute-modules";
  TrainingSetup& setup = result.setup;
  const auto granularity = reader.choice("recompute-granularity", {"full", "selective"});
  const bool activations = reader.flag("recompute-activations");
  const auto method = reader.choice("recompute-method", {"uniform", "block"});
  const auto layers = reader.count("recompute-num-layers");
  const auto modules = reader.words(kModules);
  if (!granularity && !activations) return;
  result.given.emplace_back("recompute");
  if (granularity == std::size_t{0}) {
    setup.recompute = Recompute::kFull;
    if (method == std::size_t{1}) reader.fail("recompute-method", "uniform");
    if (layers && *layers > 1) {
      reader.approximate("recompute-num-layers", "every layer is predicted to keep its input");
    }
    return;
  }
  setup.recompute = Recompute::kSelective;
  const std::string_view name = granularity ? "recompute-granularity" : "recompute-activations";
  if (!modules) {
    reader.approximate(name,
                       "predicted to recompute norms and the feed-forward's activation, not "
                       "the core of attention");
  } else {
    reader.approximate(kModules, "predicted to recompute norms and the feed-forward's activation");
  }
}

void read_megatron_optimizer(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kSharding = "data-parallel-sharding-strategy";
  TrainingSetup& setup = result.setup;
  setup.optimizer = OptimizerShards::kNone;  // Megatron's default
  if (reader.flag("use-distributed-optimizer")) {
    setup.optimizer = OptimizerShards::kZero1;
    result.given.emplace_back("optimizer");
  }
  const bool own_fsdp = reader.flag("use-megatron-fsdp");
  const auto sharding =
      reader.choice(kSharding, {"no_shard", "optim", "optim_grads", "optim_grads_params"});
  if (own_fsdp || reader.flag("use-torch-fsdp2")) {
    if (own_fsdp && sharding && *sharding != 3) reader.fail(kSharding, "optim_grads_params");
    if (own_fsdp && !sharding) reader.fail("use-megatron-fsdp", "--" + std::string(kSharding));
    setup.optimizer = OptimizerShards::kFsdp;
    if (!result.has("optimizer")) result.given.emplace_back("optimizer");
  }
  result.gradient_overlap =
      reader.flag("overlap-grad-reduce") ? GradientOverlap::kOn : GradientOverlap::kOff;
}

void keep_size(ReadSetup& result, std::string_view name, std::optional<std::int64_t> value) {
  if (value) result.model.emplace(name, *value);
}

void read_megatron_heads(SettingReader& reader, ReadSetup& result) {
  const auto heads = reader.count("num-attention-heads");
  const auto groups = reader.count("num-query-groups");
  const bool grouped = reader.flag("group-query-attention");
  const bool from_words = reader.key_of("num-query-groups").starts_with("--");
  if (groups && !grouped && from_words) {
    reader.fail("num-query-groups", "--group-query-attention with it");
  }
  keep_size(result, "q_heads", heads);
  if (groups || grouped) {
    keep_size(result, "kv_heads", groups.value_or(1));
  } else {
    keep_size(result, "kv_heads", heads);
  }
  keep_size(result, "head_dim", reader.count("kv-channels"));
}

void read_megatron_model(SettingReader& reader, ReadSetup& result) {
  keep_size(result, "layers", reader.count("num-layers"));
  const auto hidden = reader.count("hidden-size");
  const auto ffn = reader.count("ffn-hidden-size");
  const bool gated = reader.flag("swiglu");
  keep_size(result, "hidden", hidden);
  if (ffn) {
    keep_size(result, "ffn", ffn);
  } else if (hidden) {
    // The same as Megatron's validate_args.
    const std::int64_t wide = std::int64_t{4} * *hidden;
    keep_size(result, "ffn", gated ? wide * 2 / 3 / 64 * 64 : wide);
  }
  if (hidden) result.model.emplace("gated_ffn", gated ? 1 : 0);
  read_megatron_heads(reader, result);
  const auto padded = reader.count("padded-vocab-size");
  const auto vocabulary = reader.count("vocab-size");
  keep_size(result, "vocabulary", padded ? padded : vocabulary);
  keep_size(result, "vocabulary_multiple", reader.count("make-vocab-size-divisible-by"));
  std::optional<bool> untied = reader.given_flag("untie-embeddings-and-output-weights");
  if (const auto shared = reader.given_flag("share-embeddings-and-output-weights")) {
    untied = !*shared;
  }
  if (untied || hidden) result.model.emplace("untied", untied.value_or(false) ? 1 : 0);
  keep_size(result, "experts", reader.count("num-experts"));
  keep_size(result, "active_experts", reader.count("moe-router-topk"));
  keep_size(result, "expert_ffn", reader.count("moe-ffn-hidden-size"));
  keep_size(result, "shared_expert_ffn", reader.count("moe-shared-expert-intermediate-size"));
  const auto expert_tp = reader.count("expert-tensor-parallel-size");
  keep_size(result, "expert_tp", expert_tp);
  // Megatron splits experts like all other weights unless a flag says otherwise.
  const std::int32_t tp = result.setup.sizes.tp;
  if (result.model.contains("experts") && !expert_tp && tp > 1) keep_size(result, "expert_tp", tp);
}

void read_megatron_chunks(SettingReader& reader, ReadSetup& result) {
  constexpr std::string_view kLayers = "num-layers-per-virtual-pipeline-stage";
  TrainingSetup& setup = result.setup;
  const auto chunks = reader.count("num-virtual-stages-per-pipeline-rank");
  const auto layers = reader.count(kLayers);
  if (chunks && layers) reader.fail(kLayers, "no other number of virtual stages with it");
  if (!chunks && !layers) return;
  if (chunks) {
    setup.chunks = *chunks;
  } else {
    const auto all = result.model.find("layers");
    if (all == result.model.end()) reader.fail(kLayers, "--num-layers with it");
    const std::int64_t stage = checked_product({*layers, setup.sizes.pp}, "megatron: layers");
    if (all->second % stage != 0) {
      reader.fail(kLayers, fmt::format("a number that, times PP {}, divides {} layers",
                                       setup.sizes.pp, all->second));
    }
    setup.chunks = checked_cast<std::int32_t>(all->second / stage, "megatron: chunks");
  }
  if (setup.chunks > 1 && setup.sizes.pp < 2) {
    reader.fail(chunks ? "num-virtual-stages-per-pipeline-rank" : kLayers,
                "--pipeline-model-parallel-size of at least 2 with it");
  }
  if (setup.chunks > 1) setup.schedule = PipelineSchedule::kInterleaved;
  result.given.emplace_back("chunks");
}

}  // namespace

void read_megatron(std::vector<GivenSetting> settings, ReadSetup& result) {
  SettingReader reader("megatron", std::move(settings));
  read_megatron_sizes(reader, result);
  settle_replicas("megatron", result);
  read_megatron_exchange(reader, result);
  read_megatron_tokens(reader, result);
  read_megatron_packing(reader, result);
  read_megatron_documents(reader, result);
  read_megatron_recompute(reader, result);
  read_megatron_optimizer(reader, result);
  read_megatron_model(reader, result);
  read_megatron_chunks(reader, result);
  if (!reader.flag("bf16")) reader.approximate("bf16", "predicted in bf16");
  reader.finish(megatron_tables(), result);
}

}  // namespace contextile

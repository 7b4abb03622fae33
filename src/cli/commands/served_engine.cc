#include "cli/commands/served_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

Dtype parse_wire(const std::string& text) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    if (text == to_string(dtype)) return dtype;
  }
  fail_argument("--wire: expected f32, bf16 or f16, found {}", quote(text));
}

// The memory that a model takes of ranks of this process, about weights once and their pages.
struct Memory {
  double weights = 0;
  double pages = 0;

  void add(const ServedDecoder& decoder, std::int32_t ranks_here) {
    const double experts = static_cast<double>(num_expert_parameters(decoder.model.config));
    const double others = static_cast<double>(num_parameters(decoder.model.config)) - experts;
    weights += 4.0 * ranks_here *
               (others / decoder.part.tensor_parallel() + experts / decoder.part.num_ranks);
    pages += static_cast<double>(decoder.page_bytes()) * ranks_here;
  }
  // Throws InvalidArgument unless this machine has so much.
  void check() const {
    constexpr double kGiB = 1 << 30;
    const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                          static_cast<double>(::sysconf(_SC_PAGESIZE));
    CONTEXTILE_CHECK(
        weights + pages <= memory,
        "serve: expected a model and a cache of at most this machine's {:.1f} GiB, found "
        "{:.1f} GiB of weights and {:.1f} GiB of pages",
        memory / kGiB, weights / kGiB, pages / kGiB);
  }
};

DecodeMode mode_of(const std::string& text, const DecoderConfig& config, std::int32_t num_ranks) {
  if (text != "auto") return parse_decode_mode(text);
  return config.q_heads % num_ranks == 0 ? DecodeMode::kA2a : DecodeMode::kQReplicated;
}

void set_mode(DecodeMode mode, ServedDecoder& decoder) {
  decoder.decoder.mode = mode;
  decoder.part.all_queries = mode == DecodeMode::kQReplicated;
}

// The draft model has the ranks and pages of the model. Heads that the ranks do not divide have one
// mode only.
ServedDecoder draft_of(const ServeCommandOptions& options, const Serving& serving) {
  constexpr std::string_view kOption = "--draft-model";
  ServedDecoder draft = {parse_served_model(options.draft.model, kOption), serving.part,
                         serving.decoder};
  const DecoderConfig& config = draft.model.config;
  check_draft_config(kOption, serving.model.config, config, draft.part);
  try {
    draft.decoder.prefill = prefill_policy(options.split, config, draft.part);
  } catch (const InvalidArgument& error) {
    fail_argument("{}: {}", kOption, error.what());
  }
  const bool divides = config.q_heads % draft.part.num_ranks == 0;
  set_mode(mode_of(divides ? options.mode : "auto", config, draft.part.num_ranks), draft);
  return draft;
}

// A long request's pages, if all layers have windows.
std::string window_text(const EngineOptions& engine) {
  if (engine.cache.window == 0) return "";
  const std::int64_t any_length = std::int64_t{1} << 40;
  return fmt::format("; a window of {} tokens, at most {} pages a request", engine.cache.window,
                     most_pages(engine.cache, any_length, engine.max_step_tokens));
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::int64_t ServedDecoder::page_bytes() const {
  return std::int64_t{decoder.num_pages} * decoder.layout.page_size *
         kv_bytes_per_token(model.config, decoder.kv_dtype,
                            part.kv_heads(model.config.kv_heads).size());
}

Serving serving_of(const ServeCommandOptions& options, std::int32_t num_ranks) {
  Serving serving;
  serving.model =
      parse_served_model(options.model.empty() ? ServeCommandOptions::kRandom : options.model);
  const DecoderConfig& config = serving.model.config;
  serving.engine = options.engine;
  serving.engine.speculation = speculation_of(options.engine.speculation, options.draft);
  serving.part = part_of(options.split, num_ranks);
  try {
    check_decoder_part(config, serving.part);
  } catch (const InvalidArgument& error) {
    fail_argument("--ranks, --tensor-parallel, --context-parallel: {}", error.what());
  }
  KvCacheOptions& cache = serving.engine.cache;
  cache.window = cache_window(config);
  cache.layout.num_ranks = serving.part.token_ranks();
  check_kv_layout(cache.layout);
  cache.num_pages = checked_cast<std::int32_t>(
      cache.layout.num_blocks(options.kv_tokens.value_or(ServeCommandOptions::kKvTokens)),
      "--kv-tokens: pages");
  serving.decoder.layout = cache.layout;
  serving.decoder.num_pages = cache.num_pages;
  serving.decoder.kv_dtype = parse_kv_dtype(options.kv_dtype);
  serving.decoder.wire = parse_wire(options.wire);
  serving.decoder.hop_b = options.hop_b;
  serving.decoder.hop_b_groups = options.hop_b_groups;
  serving.decoder.prefill = prefill_policy(options.split, config, serving.part);
  set_mode(mode_of(options.mode, config, num_ranks), serving);
  const std::int32_t ranks_here = options.transport.name == "inproc" ? num_ranks : 1;
  Memory memory;
  memory.add(serving, ranks_here);
  if (!options.draft.model.empty()) {
    serving.draft = draft_of(options, serving);
    cache.window = cache_window(config, serving.draft->model.config);
    memory.add(*serving.draft, ranks_here);
  }
  memory.check();
  return serving;
}

std::vector<EngineSetting> settings_of(const Serving& serving, const ServingRanks& split) {
  const KvLayout& layout = serving.decoder.layout;
  const EngineOptions& engine = serving.engine;
  std::vector<EngineSetting> settings = {{"model", config_text(serving.model.config)},
                                         {"weights", weights_identity(serving.model)},
                                         {"--ranks", std::to_string(serving.part.num_ranks)}};
  // Before what follows from them, such as the number of pages.
  const std::vector<EngineSetting> groups = settings_of(split, serving.part);
  const std::vector<EngineSetting> others = {
      {"--page-size", std::to_string(layout.page_size)},
      {"--interleave", std::to_string(layout.interleave)},
      {"KV pages (--kv-tokens)", std::to_string(serving.decoder.num_pages)},
      {"--kv-dtype", std::string(to_string(serving.decoder.kv_dtype))},
      {"--mode", std::string(to_string(serving.decoder.mode))},
      {"--wire", std::string(to_string(serving.decoder.wire))},
      {"--hop-b", std::string(to_string(serving.decoder.hop_b))},
      {"--hop-b-groups", std::to_string(serving.decoder.hop_b_groups)},
      {"--pace", fmt::format("{:g}", engine.pace)},
      {"--max-running", std::to_string(engine.max_running)},
      {"--max-waiting", std::to_string(engine.max_waiting)},
      {"--step-tokens", std::to_string(engine.max_step_tokens)},
      {"--speculate", to_string(engine.speculation)},
      {"--share-prefixes", engine.cache.share_prefixes ? "on" : "off"}};
  settings.insert(settings.end(), groups.begin(), groups.end());
  settings.insert(settings.end(), others.begin(), others.end());
  if (serving.draft) {
    const ServedModel& draft = serving.draft->model;
    settings.push_back({"--draft-model", config_text(draft.config)});
    settings.push_back({"weights of --draft-model", weights_identity(draft)});
    settings.push_back({"--draft-tokens", std::to_string(engine.speculation.num_tokens)});
  } else {
    settings.push_back({"--draft-model", "none"});
  }
  return settings;
}

std::string cache_text(const Serving& serving) {
  const KvCacheOptions& cache = serving.engine.cache;
  const std::int64_t pages = cache.num_pages;
  return fmt::format("KV cache  {} tokens in {} pages of {} tokens, {:.1f} MiB a rank{}\n",
                     pages * cache.layout.block_tokens(), pages, cache.layout.page_size,
                     mib(serving.page_bytes()), window_text(serving.engine));
}

std::string drafts_text(const Serving& serving) {
  if (!serving.draft) return drafts_text(serving.engine.speculation);
  const ServedModel& draft = serving.draft->model;
  return fmt::format(
      "drafts    at most {} of a request and step, by {}: {} layers, {:.1f} million parameters, "
      "{:.1f} MiB of cache a rank\n",
      serving.engine.speculation.num_tokens, printable(draft.name), draft.config.num_layers,
      static_cast<double>(num_parameters(draft.config)) * 1e-6, mib(serving.draft->page_bytes()));
}

}  // namespace contextile

#include "cli/options/serving_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "cli/options/types.h"
#include "contextile/cluster.h"
#include "contextile/planner.h"

namespace contextile {
namespace {

constexpr std::string_view kPlan = "plan:";

// Plans shared parts of prompts for one node of so many devices.
PrefillPlanner planner_of(const std::string& strategy, const DecoderConfig& config,
                          const DecoderPart& part) {
  const std::vector<StrategyChoice> choices = parse_strategies(strategy);
  CONTEXTILE_CHECK(choices.size() == 1, "expected one strategy, found {}", choices.size());
  const Cluster cluster = load_cluster(fmt::format("dgx-h200:1x{}", part.context_parallel));
  PlanOptions options;
  options.backward = false;
  const PrefillSequence sequence = {0, 4096, {}};
  std::set<std::int32_t> windows;
  for (std::int32_t i = 0; i < config.num_layers; ++i) windows.insert(config.window(i));
  for (const std::int32_t window : windows) {
    const PrefillBatch batch = {{.num_ranks = part.context_parallel},
                                std::span(&sequence, 1),
                                PrefillChunks::kEven,
                                window_mask(window)};
    const auto reason = unsupported_reason(prefill_workload(batch, prompt_attention(config, part)),
                                           cluster, choices.front(), options);
    CONTEXTILE_CHECK(!reason, "expected a strategy that plans prompts, found {}: {}",
                     quote(strategy), *reason);
  }
  return remembered_plans([cluster, options, choice = choices.front()](const Workload& workload) {
    return plan_and_check(workload, cluster, choice, options).plan;
  });
}

void check_prefill(const std::string& text) {
  constexpr std::array<std::string_view, 6> kWords = {"auto",   "off",        "pass_kv",
                                                      "pass_q", "all_gather", "ulysses"};
  CONTEXTILE_CHECK(text.starts_with(kPlan) || std::ranges::find(kWords, text) != kWords.end(),
                   "--prefill: expected one of {} and plan:STRATEGY, found {}",
                   fmt::join(kWords, ", "), quote(text));
}

}  // namespace

void add_serving_ranks_options(CLI::App& app, ServingRanks& ranks) {
  add_size_as<std::int32_t>(app, "--tensor-parallel", ranks.tensor_parallel, 1,
                            {"T", "ranks that split the model's heads and feed-forward",
                             "all ranks over those of --context-parallel"});
  add_size_as<std::int32_t>(app, "--context-parallel", ranks.context_parallel, 1,
                            {"C",
                             "ranks that share the tokens of prompts; each has the weights of its "
                             "tensor-parallel place",
                             "1"});
  add_size_as<std::int32_t>(app, "--decode-context-parallel", ranks.decode_context_parallel, 1,
                            {"K",
                             "tensor-parallel ranks that share the tokens of the cache and hold "
                             "the same KV heads",
                             "1 with --tensor-parallel, else all ranks"});
  add_value(app, "--prefill",
            {"auto|off|pass_kv|pass_q|all_gather|ulysses|plan:STRATEGY",
             "with --context-parallel: how attention of prompts meets the keys of other ranks; "
             "auto: the mode that a simulation with measured rates prefers for every step; off: as "
             "decoding does; plan: of a strategy, and as with auto what it cannot plan",
             "auto"},
            [&ranks](const std::string& text) {
              check_prefill(text);
              ranks.prefill = text;
            });
  add_size_as<std::int64_t>(app, "--prefill-tokens", ranks.prefill_tokens, 1,
                            {"N", "shorter parts of prompts are computed as decoding does",
                             std::to_string(PrefillPolicy{}.min_tokens)});
}

std::optional<std::int32_t> num_ranks_of(const ServingRanks& ranks) {
  if (!ranks.is_set()) return std::nullopt;
  if (!ranks.tensor_parallel && !ranks.context_parallel) return std::nullopt;
  return checked_cast<std::int32_t>(
      std::int64_t{ranks.tensor_parallel.value_or(1)} * ranks.context_parallel.value_or(1),
      "--tensor-parallel x --context-parallel");
}

DecoderPart part_of(const ServingRanks& ranks, std::int32_t num_ranks) {
  DecoderPart part;
  part.num_ranks = num_ranks;
  if (!ranks.is_set()) return part;
  const std::int32_t context = ranks.context_parallel.value_or(
      ranks.tensor_parallel && num_ranks % *ranks.tensor_parallel == 0
          ? num_ranks / *ranks.tensor_parallel
          : 1);
  const std::int32_t tensor = ranks.tensor_parallel.value_or(num_ranks / context);
  CONTEXTILE_CHECK(std::int64_t{tensor} * context == num_ranks,
                   "--ranks: expected --tensor-parallel x --context-parallel = {} x {}, found {}",
                   tensor, context, num_ranks);
  part.context_parallel = context;
  if (context > 1) {
    CONTEXTILE_CHECK(ranks.decode_context_parallel.value_or(1) == 1,
                     "--decode-context-parallel: expected 1 with --context-parallel {}, whose "
                     "ranks share the cache already, found {}",
                     context, *ranks.decode_context_parallel);
    part.kv_ranks = context;
    return part;
  }
  part.kv_ranks = ranks.decode_context_parallel.value_or(1);
  CONTEXTILE_CHECK(num_ranks % part.kv_ranks == 0,
                   "--decode-context-parallel: expected a divisor of {} tensor-parallel ranks, "
                   "found {}",
                   num_ranks, part.kv_ranks);
  return part;
}

PrefillPolicy prefill_policy(const ServingRanks& ranks, const DecoderConfig& config,
                             const DecoderPart& part) {
  PrefillPolicy policy;
  policy.min_tokens = ranks.prefill_tokens.value_or(policy.min_tokens);
  CONTEXTILE_CHECK(part.context_parallel > 1 || !ranks.prefill_tokens,
                   "--prefill-tokens: expected with --context-parallel above 1, found it with 1");
  const bool is_default = ranks.prefill == "auto";
  CONTEXTILE_CHECK(part.context_parallel > 1 || is_default,
                   "--prefill: expected with --context-parallel above 1, found {} with 1",
                   quote(ranks.prefill));
  if (is_default) return policy;
  if (ranks.prefill == "off") {
    CONTEXTILE_CHECK(!ranks.prefill_tokens,
                     "--prefill-tokens: expected without --prefill off, which shares no prompts");
    policy.min_tokens = std::numeric_limits<std::int64_t>::max();
  } else if (ranks.prefill.starts_with(kPlan)) {
    try {
      policy.plan = planner_of(ranks.prefill.substr(kPlan.size()), config, part);
    } catch (const InvalidArgument& error) {
      fail_argument("--prefill {}: {}", printable(ranks.prefill), error.what());
    }
  } else {
    policy.mode = parse_prefill_mode(ranks.prefill);
  }
  return policy;
}

std::vector<EngineSetting> settings_of(const ServingRanks& ranks, const DecoderPart& part) {
  return {{"--context-parallel", std::to_string(part.context_parallel)},
          {"--tensor-parallel", std::to_string(part.tensor_parallel())},
          {"--decode-context-parallel", std::to_string(part.token_ranks())},
          {"--prefill", ranks.prefill},
          {"--prefill-tokens",
           std::to_string(ranks.prefill_tokens.value_or(PrefillPolicy{}.min_tokens))}};
}

std::string ranks_text(const ServingRanks& ranks, const DecoderPart& part) {
  if (!ranks.is_set()) return std::to_string(part.num_ranks);
  std::string text = fmt::format("{}, {} tensor-parallel", part.num_ranks, part.tensor_parallel());
  if (part.context_parallel > 1) {
    return text +
           fmt::format(" x {} context-parallel, prefill {}", part.context_parallel, ranks.prefill);
  }
  if (part.token_ranks() == 1) return text;
  return text + fmt::format(", groups of {} share tokens of the cache", part.token_ranks());
}

}  // namespace contextile

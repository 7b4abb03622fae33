#include "cli/options/speculation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/parse_number.h"
#include "base/quote.h"
#include "cli/options/types.h"

namespace contextile {
namespace {

constexpr std::string_view kNgram = "ngram";

void set_value(Speculation& speculation, std::string_view name, std::string_view value) {
  const auto whole = [&](std::int64_t least) {
    const std::string where = fmt::format("--speculate, {}", name);
    return checked_cast<std::int32_t>(parse_size(where, value, least), where);
  };
  if (name == "num_speculative_tokens") {
    speculation.num_tokens = whole(1);
  } else if (name == "prompt_lookup_max") {
    speculation.prompt_lookup_max = whole(1);
  } else if (name == "prompt_lookup_min") {
    speculation.prompt_lookup_min = whole(1);
  } else {
    fail_argument(
        "--speculate: expected num_speculative_tokens, prompt_lookup_max or prompt_lookup_min, "
        "found {}",
        quote(name));
  }
}

}  // namespace

Speculation parse_speculation(std::string_view text) {
  Speculation speculation;
  if (text == "off") return speculation;
  CONTEXTILE_CHECK(text == kNgram || text.starts_with("ngram:"),
                   "--speculate: expected off, ngram or ngram:NAME=NUMBER,..., found {}",
                   quote(text));
  speculation.num_tokens = kDefaultDrafts;
  text.remove_prefix(std::min(text.size(), kNgram.size() + 1));
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(','));
    const std::size_t middle = pair.find('=');
    CONTEXTILE_CHECK(middle != std::string_view::npos,
                     "--speculate: expected NAME=NUMBER behind ngram, found {}", quote(pair));
    set_value(speculation, pair.substr(0, middle), pair.substr(middle + 1));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
  }
  check_speculation(speculation);
  return speculation;
}

void add_speculation_option(CLI::App& app, Speculation& speculation) {
  add_value(app, "--speculate",
            {"off|ngram:NAME=NUMBER,...",
             "ngram: compute drafts together with the next token of a request, as they followed "
             "its last tokens earlier in prompt and output; the tokens are the same. "
             "num_speculative_tokens (4): most drafts of a step; prompt_lookup_max (4) and "
             "prompt_lookup_min (2): how many last tokens are looked up",
             "off"},
            [&speculation](const std::string& text) { speculation = parse_speculation(text); });
}

void add_draft_model_options(CLI::App& app, DraftOptions& draft) {
  add_value(app, "--draft-model",
            {"FOLDER|random",
             "a smaller model of the same vocabulary, as --model, that chooses the drafts, on the "
             "same ranks and with a cache of as many tokens; the tokens are the same. Its heads "
             "have --mode where the ranks divide them, else q_replicated",
             "none"},
            [&draft](const std::string& text) { draft.model = text; });
  add_size_as<std::int32_t>(app, "--draft-tokens", draft.tokens, 1,
                            {"N", "most drafts of a request and step by --draft-model",
                             fmt::format("{}", kDefaultDrafts)});
}

Speculation speculation_of(const Speculation& lookups, const DraftOptions& draft) {
  if (draft.model.empty()) {
    CONTEXTILE_CHECK(!draft.tokens, "--draft-tokens: expected with --draft-model, found {} alone",
                     *draft.tokens);
    return lookups;
  }
  CONTEXTILE_CHECK(lookups.num_tokens == 0,
                   "--draft-model: expected without --speculate, found it with {}",
                   to_string(lookups));
  return {.num_tokens = draft.tokens.value_or(kDefaultDrafts), .from_model = true};
}

std::string to_string(const Speculation& speculation) {
  if (speculation.num_tokens == 0 || speculation.from_model) return "off";
  return fmt::format("ngram:num_speculative_tokens={},prompt_lookup_max={},prompt_lookup_min={}",
                     speculation.num_tokens, speculation.prompt_lookup_max,
                     speculation.prompt_lookup_min);
}

std::string drafts_text(const Speculation& speculation) {
  if (speculation.num_tokens == 0) return "";
  return fmt::format("drafts    at most {} of a request and step, behind {} to {} equal tokens\n",
                     speculation.num_tokens, speculation.prompt_lookup_min,
                     speculation.prompt_lookup_max);
}

std::string accepted_text(const EngineStats& stats) {
  if (stats.num_draft_tokens == 0) return "";
  return fmt::format("drafts    {} of {} accepted ({:.0f}%), {} tokens given out in {} steps\n",
                     stats.num_accepted_tokens, stats.num_draft_tokens,
                     100 * static_cast<double>(stats.num_accepted_tokens) /
                         static_cast<double>(stats.num_draft_tokens),
                     stats.num_output_tokens, stats.num_steps);
}

}  // namespace contextile

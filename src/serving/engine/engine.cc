#include "contextile/serving/engine.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "serving/engine/model_drafts.h"
#include "serving/engine/step_times.h"

namespace contextile {
namespace {

constexpr std::int64_t kMostScoredBytes = 64 << 20;  // of logits of a step

void check_vocabulary(std::string_view where, const DecoderConfig& config,
                      const DecoderConfig& draft) {
  CONTEXTILE_CHECK(draft.vocab_size == config.vocab_size,
                   "{}: expected the model's vocabulary of {} tokens, found {}", where,
                   config.vocab_size, draft.vocab_size);
}

// The options with what the models set: the window of their cache, a bound on logits, and where
// drafts come from.
EngineOptions options_for(EngineOptions options, const DecoderConfig& config,
                          const DraftModel& draft) {
  const std::int64_t most = kMostScoredBytes / (4 * std::max<std::int64_t>(config.vocab_size, 1));
  options.max_scored_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(options.max_scored_tokens, std::max<std::int64_t>(most, 1)));
  options.cache.window = cache_window(config);
  CONTEXTILE_CHECK(draft.rank != nullptr || !options.speculation.from_model,
                   "engine: expected a draft model with drafts from one, found none");
  if (draft.rank == nullptr) return options;
  check_vocabulary("draft model", config, draft.config);
  CONTEXTILE_CHECK(options.speculation.num_tokens >= 1,
                   "draft model: expected at least 1 draft of a request and step, found {}",
                   options.speculation.num_tokens);
  options.cache.window = cache_window(config, draft.config);
  options.speculation.from_model = true;
  return options;
}

// Chooses the next token of a request, of those that are allowed if it is guided.
EngineEvent choose(std::span<const float> logits, const GenerationRequest& asked,
                   std::span<const std::int32_t> tokens, const TokenSet& allowed) {
  EngineEvent event;
  event.request = asked.id;
  const auto number = static_cast<std::int64_t>(tokens.size() - asked.prompt.size());
  const bool is_plain = !has_penalties(asked.sampling) && !asked.is_guided;
  if (is_plain && asked.num_logprobs == 0) {
    const SampledToken sampled = sample(logits, asked.sampling, number);
    event.token = sampled.token;
    event.logprob = sampled.logprob;
    return event;
  }
  const TokenLogprobs logprobs(logits);
  std::vector<float> changed;
  std::span<const float> row = logits;
  if (has_penalties(asked.sampling)) {
    row = changed = penalized(row, asked.sampling, tokens, asked.prompt.size());
  }
  if (asked.is_guided) row = changed = only(row, allowed);
  event.token = sample(row, asked.sampling, number).token;
  event.logprob = logprobs.of(event.token);
  event.top = logprobs.likeliest(asked.num_logprobs);
  return event;
}

// Enters the log-probabilities of the prompt's tokens that follow `tokens`.
void score(std::span<const float> logits, Range tokens, const GenerationRequest& asked,
           PromptLogprobs& scores) {
  const auto num_scores = static_cast<std::int64_t>(asked.prompt.size()) - 1;
  const auto num_top = static_cast<std::size_t>(asked.num_logprobs);
  scores.tokens.resize(static_cast<std::size_t>(num_scores));
  scores.top.resize(static_cast<std::size_t>(num_scores) * num_top, {EngineEvent::kNoToken, 0});
  const std::size_t width = logits.size() / static_cast<std::size_t>(tokens.size());
  for (std::int64_t i = tokens.begin; i < std::min(tokens.end, num_scores); ++i) {
    const TokenLogprobs row(
        logits.subspan(static_cast<std::size_t>(i - tokens.begin) * width, width));
    const auto place = static_cast<std::size_t>(i);
    scores.tokens[place] = row.of(asked.prompt[place + 1]);
    const std::vector<TokenLogprob> top = row.likeliest(asked.num_logprobs);
    std::copy(top.begin(), top.end(),
              scores.top.begin() + static_cast<std::ptrdiff_t>(place * num_top));
  }
}

// The tokens that a step computes of each request. Those with drafts behind them are in
// `with_drafts`.
std::vector<StepRequest> step_requests(const Scheduler& scheduler,
                                       std::span<const ScheduledTokens> scheduled,
                                       std::deque<std::vector<std::int32_t>>& with_drafts) {
  std::vector<StepRequest> requests;
  for (const ScheduledTokens& part : scheduled) {
    std::span<const std::int32_t> tokens =
        scheduler.tokens(part.request)
            .subspan(static_cast<std::size_t>(part.tokens.begin),
                     static_cast<std::size_t>(part.tokens.size()));
    if (!part.drafts.empty()) {
      std::vector<std::int32_t>& all = with_drafts.emplace_back(tokens.begin(), tokens.end());
      all.insert(all.end(), part.drafts.begin(), part.drafts.end());
      tokens = all;
    }
    requests.push_back({tokens, part.tokens.begin, scheduler.cache().table(part.request),
                        part.num_logits, static_cast<std::int32_t>(part.drafts.size())});
  }
  return requests;
}

}  // namespace

void check_draft_config(std::string_view where, const DecoderConfig& config,
                        const DecoderConfig& draft, const DecoderPart& part) {
  check_vocabulary(where, config, draft);
  try {
    check_decoder_part(draft, part);
  } catch (const InvalidArgument& error) {
    fail_argument("{}: {}", where, error.what());
  }
}

Engine::Engine(DecoderRank& model, const DecoderConfig& config, const EngineOptions& options,
               const DraftModel& draft)
    : model_(model),
      scheduler_(options_for(options, config, draft), config.max_length),
      pace_(options.pace),
      times_(std::make_unique<StepTimes>()) {
  if (draft.rank != nullptr) drafts_ = std::make_unique<ModelDrafts>(draft);
}
Engine::~Engine() = default;

StepLimit Engine::limit() const { return times_->limit(pace_); }

std::vector<EngineEvent> Engine::step(const StepLimit& limit) {
  std::vector<ScheduledTokens> scheduled = scheduler_.next(limit);
  if (scheduled.empty()) return {};
  const Clock::time_point begin = Clock::now();
  StepContents contents;
  for (const ScheduledTokens& part : scheduled) {
    const auto prompt = std::ssize(scheduler_.request(part.request).prompt);
    if (part.tokens.size() > 1 || part.tokens.begin < prompt) contents.add(part.tokens);
  }
  const std::vector<PageCopy> copies = scheduler_.cache().take_copies();
  model_.copy_pages(copies);
  if (drafts_ != nullptr) drafts_->add_to(scheduled, copies, scheduler_);
  std::deque<std::vector<std::int32_t>> with_drafts;
  const HostTensor logits = model_.forward(step_requests(scheduler_, scheduled, with_drafts));
  times_->add(seconds_since(begin), contents);
  std::span<const float> rows = logits.values<float>();
  const auto width = static_cast<std::size_t>(logits.dim());
  std::vector<EngineEvent> events;
  for (const ScheduledTokens& part : scheduled) {
    if (part.num_logits == 0) continue;
    const std::size_t count = static_cast<std::size_t>(part.num_logits) * width;
    try {
      take_tokens(part, rows.first(count), width, events);
    } catch (const InvalidArgument& error) {  // the same on all ranks, whose logits are
      cancel(part.request);
      events.push_back({});
      events.back().request = part.request;
      events.back().failure = error.what();
    }
    rows = rows.subspan(count);
  }
  return events;
}

// Every token is chosen as if there were no drafts: from the logits after those before it, by its
// number. So the tokens are the same with drafts as without.
void Engine::take_tokens(const ScheduledTokens& part, std::span<const float> rows,
                         std::size_t width, std::vector<EngineEvent>& events) {
  const GenerationRequest& asked = scheduler_.request(part.request);
  if (asked.scores_prompt && scheduler_.tokens(part.request).size() == asked.prompt.size()) {
    score(rows, part.tokens, asked, scores_[part.request]);
  }
  if (!part.needs_logits) return;
  PromptLogprobs prompt;
  if (const auto found = scores_.find(part.request); found != scores_.end()) {
    prompt = std::move(found->second);
    scores_.erase(found);
  }
  if (asked.max_tokens == 0) {
    events.push_back(scheduler_.end(part.request));
    events.back().prompt = std::move(prompt);
    return;
  }
  const TokenSet allowed = asked.is_guided ? take_allowed(part.request) : TokenSet();
  rows = rows.last((1 + part.drafts.size()) * width);
  for (std::size_t i = 0; i <= part.drafts.size(); ++i) {
    EngineEvent chosen =
        choose(rows.subspan(i * width, width), asked, scheduler_.tokens(part.request), allowed);
    EngineEvent& event =
        events.emplace_back(scheduler_.take(part.request, chosen.token, chosen.logprob));
    event.top = std::move(chosen.top);
    if (i == 0) event.prompt = std::move(prompt);
    if (event.finish || i == part.drafts.size() || event.token != part.drafts[i]) return;
  }
}

bool Engine::allow(RequestId request, TokenSet tokens) {
  if (!scheduler_.has(request) || !scheduler_.request(request).is_guided) return false;
  allowed_.insert_or_assign(request, std::move(tokens));
  return true;
}

TokenSet Engine::take_allowed(RequestId request) {
  const auto found = allowed_.find(request);
  CONTEXTILE_CHECK(found != allowed_.end(),
                   "request: expected the tokens that may come next, found none given");
  TokenSet tokens = std::move(found->second);
  allowed_.erase(found);
  return tokens;
}

bool Engine::cancel(RequestId request) {
  scores_.erase(request);
  allowed_.erase(request);
  return scheduler_.cancel(request);
}

}  // namespace contextile

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "contextile/serving/engine.h"

namespace contextile {
namespace {

struct Request {
  GenerationRequest asked;
  std::vector<std::int32_t> tokens;  // prompt and output
  std::int64_t computed =
      0;  // tokens whose keys and values are in the cache, or will be after this step
  std::int64_t cached_tokens = -1;  // -1: it has not begun
  bool is_running = false;
  std::vector<std::int32_t> drafts;  // in the cache behind `computed` tokens
  std::int64_t may_draft = 0;        // that a model may add in this step
  // Set while it waits for another request to compute a beginning that both have: the arrival of
  // that request, and how many tokens they share, in whole blocks of the cache.
  std::int64_t leader = -1;
  std::int64_t shared_tokens = 0;

  [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  [[nodiscard]] std::int64_t missing() const { return length() - computed; }
  [[nodiscard]] std::int64_t num_output() const {
    return length() - static_cast<std::int64_t>(asked.prompt.size());
  }
  // Logits of all tokens of the prompt are still needed: none may come from the cache.
  [[nodiscard]] bool is_scored() const { return asked.scores_prompt && num_output() == 0; }
};

}  // namespace

std::int64_t longest_request(const EngineOptions& options, std::int64_t max_length) {
  const KvCacheOptions& cache = options.cache;
  const std::int64_t room = cache.num_pages * cache.layout.block_tokens();
  if (max_length <= room) return max_length;
  // With a window, a longer request needs no more pages than this one.
  const std::int64_t pages = most_pages(cache, room + 1, options.max_step_tokens);
  return pages <= cache.num_pages ? max_length : room;
}

std::string_view to_string(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

struct Scheduler::State {
  using Arrival = std::int64_t;

  State(const EngineOptions& given, std::int64_t longest)
      : options(given), cache(given.cache), max_length(longest) {
    const auto check = [](std::string_view name, std::int32_t value) {
      CONTEXTILE_CHECK(value >= 1, "engine, {}: expected at least 1, found {}", name, value);
    };
    check("max_running", given.max_running);
    check("max_step_tokens", given.max_step_tokens);
    check("max_waiting", given.max_waiting);
    check("max_scored_tokens", given.max_scored_tokens);
    check_speculation(given.speculation);
    CONTEXTILE_CHECK(given.pace == 0 || (given.pace >= 1 && std::isfinite(given.pace)),
                     "engine, pace: expected 0, or 1 and more, found {}", given.pace);
  }

  [[nodiscard]] Request& at(RequestId id) {
    const auto found = arrivals.find(id);
    CONTEXTILE_CHECK(found != arrivals.end(), "engine: expected a request under way, found {}",
                     id.value);
    return requests.at(found->second);
  }

  void check(const GenerationRequest& request) const {
    CONTEXTILE_CHECK(request.id.valid() && !arrivals.contains(request.id),
                     "request: expected a new number of at least 0, found {}{}", request.id.value,
                     request.id.valid() ? ", which is under way" : "");
    CONTEXTILE_CHECK(!request.prompt.empty(),
                     "request: expected a prompt of at least 1 token, found none");
    CONTEXTILE_CHECK(request.max_tokens >= 0, "request, max_tokens: expected at least 0, found {}",
                     request.max_tokens);
    CONTEXTILE_CHECK(
        request.num_logprobs >= 0 && request.num_logprobs <= GenerationRequest::kMostLogprobs,
        "request, num_logprobs: expected 0 to {}, found {}", GenerationRequest::kMostLogprobs,
        request.num_logprobs);
    const auto length = static_cast<std::int64_t>(request.prompt.size()) + request.max_tokens;
    CONTEXTILE_CHECK(length <= max_length,
                     "request: expected at most {} tokens of prompt and output, found {} + {}",
                     max_length, request.prompt.size(), request.max_tokens);
    const std::int64_t longest = longest_request(options, max_length);
    CONTEXTILE_CHECK(
        length <= longest,
        "request: expected at most the cache's {} tokens of prompt and output, found {} + {}",
        longest, request.prompt.size(), request.max_tokens);
    check_sampling(request.sampling);
  }

  // Frees the pages of a request; it begins again when there is room.
  void preempt(Request& request) {
    cache.free(request.asked.id);
    request.is_running = false;
    request.computed = 0;
    request.drafts.clear();
    request.may_draft = 0;
    --num_running;
    ++stats.num_preemptions;
  }

  // The request that came last of those with pages.
  [[nodiscard]] Request& last_running() {
    return std::find_if(requests.rbegin(), requests.rend(),
                        [](const auto& entry) { return entry.second.is_running; })
        ->second;
  }

  // Appends to a request that runs. Requests behind it give way if there are too few pages, and at
  // last the request itself.
  [[nodiscard]] bool append(Request& request, std::int64_t count) {
    const auto tokens =
        std::span(request.tokens)
            .subspan(static_cast<std::size_t>(request.computed), static_cast<std::size_t>(count));
    while (!cache.append(request.asked.id, tokens)) {
      Request& last = last_running();
      preempt(last);
      if (&last == &request) return false;
    }
    request.computed += count;
    return true;
  }

  // The same as KvCache::add, which looks up neither a single token in the cache nor those that are
  // appended later.
  [[nodiscard]] std::optional<std::int64_t> add(const Request& request,
                                                std::span<const std::int32_t> tokens) {
    if (!request.is_scored()) return cache.add(request.asked.id, tokens);
    // A block that is added and not computed would stay in the cache.
    if (cache.layout().num_blocks(std::ssize(tokens)) > cache.free_pages()) return std::nullopt;
    const auto added = cache.add(request.asked.id, tokens.first(1));
    CONTEXTILE_CHECK(added && cache.append(request.asked.id, tokens.subspan(1)),
                     "engine: expected {} free pages, found fewer",
                     cache.layout().num_blocks(std::ssize(tokens)));
    return added;
  }

  // Gives drafts to the first `decodes` requests that decode, or the right to get some from a
  // model. Returns the number of drafts, or the most that it may become.
  std::int64_t propose(std::int64_t decodes) {
    const Speculation& speculation = options.speculation;
    const std::int64_t budget = options.max_step_tokens / 2;
    std::int64_t num_drafts = 0;
    for (auto& [arrival, request] : requests) {
      request.may_draft = 0;
      if (speculation.num_tokens == 0 || decodes == 0) continue;
      if (!request.is_running || request.missing() != 1 || request.is_scored()) continue;
      --decodes;
      if (request.asked.is_guided) continue;
      // The step gives one more token than there are drafts.
      const std::int64_t most =
          std::min(budget - num_drafts, request.asked.max_tokens - request.num_output() - 1);
      if (speculation.from_model) {
        request.may_draft = std::clamp<std::int64_t>(most, 0, speculation.num_tokens);
      } else {
        request.drafts = lookup_drafts(request.tokens, speculation, most);
      }
      num_drafts += std::ssize(request.drafts) + request.may_draft;
    }
    return num_drafts;
  }

  // Appends the next token of a request with its drafts. No other gives way for drafts: returns
  // false and forgets them if there are too few pages.
  [[nodiscard]] bool append_with_drafts(Request& request) {
    if (request.drafts.empty()) return false;
    std::vector<std::int32_t> tokens = {request.tokens.back()};
    tokens.insert(tokens.end(), request.drafts.begin(), request.drafts.end());
    if (!cache.append(request.asked.id, tokens)) {
      request.drafts.clear();
      return false;
    }
    ++request.computed;
    return true;
  }

  // Number of its tokens that the cache has; none if there is no room for the tokens that are to be
  // computed first.
  [[nodiscard]] std::optional<std::int64_t> begin(Request& request, std::int64_t budget) {
    const std::span<const std::int32_t> tokens = request.tokens;
    const std::int64_t hit = request.is_scored() ? 0 : cache.cached_tokens(tokens);
    const std::int64_t count = std::min(budget, request.length() - hit);
    const auto added = add(request, tokens.first(static_cast<std::size_t>(hit + count)));
    if (!added) return std::nullopt;
    request.computed = hit + count;
    request.is_running = true;
    ++num_running;
    if (request.cached_tokens < 0) {
      request.cached_tokens = *added;
      stats.num_prompt_tokens += request.length();
      stats.num_cached_tokens += *added;
    }
    return added;
  }

  // True if a request that did not fit in an earlier step cannot fit now. Looking up how many
  // tokens of a long prompt the cache has takes too long for every step in which it waits.
  [[nodiscard]] bool is_still_short(Arrival arrival, std::int64_t count) const {
    return num_running > 0 && shortage.arrival == arrival && count >= shortage.count &&
           cache.free_pages() <= shortage.num_free;
  }

  // Number of running requests that need one token, their next.
  [[nodiscard]] std::int64_t num_decoding() const {
    return std::count_if(requests.begin(), requests.end(), [](const auto& entry) {
      const Request& request = entry.second;
      return request.is_running && request.missing() == 1 && !request.is_scored();
    });
  }

  // True if a request should let `other` compute a beginning that both have: one that the other has
  // still to compute, and that the cache then gives to this one.
  [[nodiscard]] bool may_lead(const Request& other, Request& request, Arrival arrival) const {
    const std::vector<std::int32_t>& a = request.tokens;
    const std::vector<std::int32_t>& b = other.tokens;
    if (a.front() != b.front() || other.missing() <= 1) return false;
    // The last token of a request is always computed, for its logits.
    const std::size_t most = std::min(a.size() - 1, b.size());
    const auto end = a.begin() + static_cast<std::ptrdiff_t>(most);
    const std::int64_t common = std::mismatch(a.begin(), end, b.begin()).first - a.begin();
    const std::int64_t whole = common - common % cache.layout().block_tokens();
    if (whole <= other.computed) return false;
    request.leader = arrival;
    request.shared_tokens = whole;
    return true;
  }

  // True if a request that has not begun waits for one that runs, or that begins in this step.
  [[nodiscard]] bool follows(Request& request, const std::vector<Arrival>& beginning) {
    if (!options.cache.share_prefixes || request.is_scored()) return false;
    const auto leads = [&](Arrival arrival) {
      const auto found = requests.find(arrival);
      if (found == requests.end()) return false;
      const bool is_alive =
          found->second.is_running || std::ranges::find(beginning, arrival) != beginning.end();
      return is_alive && found->second.computed < request.shared_tokens;
    };
    if (request.leader >= 0 && leads(request.leader)) return true;
    request.leader = -1;
    for (const auto& [arrival, other] : requests) {
      if (other.is_running && may_lead(other, request, arrival)) return true;
    }
    return std::ranges::any_of(beginning, [&](Arrival arrival) {
      return may_lead(requests.at(arrival), request, arrival);
    });
  }

  // Tokens that prompts may get in a step in which `decodes` requests decode.
  [[nodiscard]] std::int64_t prompt_budget(const StepLimit& limit, std::int64_t decodes) const {
    const std::int64_t room = options.max_step_tokens - decodes;
    if (decodes == 0) return room;
    std::int64_t position = 0;
    for (const auto& [arrival, request] : requests) {
      if (request.is_running && request.missing() > 1) {
        position = std::max(position, request.computed);
      }
    }
    return std::min(room, limit.tokens(position));
  }

  // The most tokens that a step computes of each prompt: all, or else as many as of the others. The
  // tokens that the cache holds of a waiting prompt are not looked up here, in every step. Requests
  // that follow another are passed over.
  [[nodiscard]] std::map<Arrival, std::int64_t> shares(std::int64_t budget) {
    std::vector<std::pair<std::int64_t, Arrival>> wanted;
    std::vector<Arrival> beginning;
    std::int64_t may_begin = options.max_running - num_running;
    std::int64_t may_score = options.max_scored_tokens;
    const auto want = [&](const Request& request, Arrival arrival, std::int64_t count) {
      if (request.is_scored()) {
        count = std::min(count, may_score);
        may_score -= count;
      }
      wanted.emplace_back(count, arrival);
    };
    for (auto& [arrival, request] : requests) {
      if (request.is_running) {
        if (request.missing() > 1 || request.is_scored()) want(request, arrival, request.missing());
      } else if (may_begin > 0 && !follows(request, beginning)) {
        --may_begin;
        beginning.push_back(arrival);
        want(request, arrival, request.length());
      }
    }
    std::sort(wanted.begin(), wanted.end());
    std::map<Arrival, std::int64_t> shares;
    auto rest = static_cast<std::int64_t>(wanted.size());
    for (const auto& [tokens, arrival] : wanted) {
      const std::int64_t share = std::min(tokens, (budget + rest - 1) / rest);
      shares[arrival] = share;
      budget -= share;
      --rest;
    }
    return shares;
  }

  // Tokens [first, computed) of a request are in this step.
  void schedule(const Request& request, std::int64_t first, std::vector<ScheduledTokens>& step) {
    const bool needs_logits = request.missing() == 0;
    const std::int64_t num_drafts = std::ssize(request.drafts);
    const std::int64_t num_logits = request.is_scored() ? request.computed - first
                                    : needs_logits      ? 1 + num_drafts
                                                        : 0;
    step.push_back({request.asked.id,
                    {first, request.computed},
                    needs_logits,
                    num_logits,
                    request.drafts,
                    request.may_draft});
    stats.num_draft_tokens += num_drafts;
    stats.num_computed_tokens += request.computed - first + num_drafts;
  }

  // The request that was last put off for lack of pages, how many of its tokens, and how many pages
  // were free.
  struct Shortage {
    Arrival arrival = -1;
    std::int64_t count = 0;
    std::int64_t num_free = 0;
  };

  EngineOptions options;
  KvCache cache;
  std::int64_t max_length;
  std::map<Arrival, Request> requests;  // in the order they came
  std::map<RequestId, Arrival> arrivals;
  Arrival next_arrival = 0;
  std::int32_t num_running = 0;
  Shortage shortage;
  EngineStats stats;
};

Scheduler::Scheduler(const EngineOptions& options, std::int64_t max_length)
    : state_(std::make_unique<State>(options, max_length)) {}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

bool Scheduler::submit(GenerationRequest request) {
  state_->check(request);
  const std::int32_t can_begin = state_->options.max_running - state_->num_running;
  if (num_waiting() >= state_->options.max_waiting + can_begin) return false;
  Request added;
  added.tokens = request.prompt;
  added.asked = std::move(request);
  state_->arrivals.emplace(added.asked.id, state_->next_arrival);
  state_->requests.emplace(state_->next_arrival++, std::move(added));
  return true;
}

bool Scheduler::cancel(RequestId request) {
  const auto found = state_->arrivals.find(request);
  if (found == state_->arrivals.end()) return false;
  if (state_->requests.at(found->second).is_running) {
    state_->cache.free(request);
    --state_->num_running;
  }
  state_->requests.erase(found->second);
  state_->arrivals.erase(found);
  return true;
}

std::vector<ScheduledTokens> Scheduler::next(const StepLimit& limit) {
  State& state = *state_;
  std::vector<ScheduledTokens> step;
  // Next tokens of running requests go before prompts.
  std::int64_t decodes =
      std::min<std::int64_t>(state.num_decoding(), state.options.max_step_tokens);
  const std::int64_t drafts = state.propose(decodes);
  const std::map<State::Arrival, std::int64_t> shares =
      state.shares(state.prompt_budget(limit, decodes + drafts));
  const std::int64_t preemptions = state.stats.num_preemptions;
  for (auto& [arrival, request] : state.requests) {
    if (!request.is_running) continue;
    const auto share = shares.find(arrival);
    const std::int64_t count =
        share != shares.end() ? share->second : std::min<std::int64_t>(decodes, 1);
    if (count == 0) continue;
    if (share == shares.end()) --decodes;
    const std::int64_t first = request.computed;
    if (!state.append_with_drafts(request) && !state.append(request, count)) break;
    state.schedule(request, first, step);
  }
  for (const auto& [arrival, count] : shares) {
    Request& request = state.requests.at(arrival);
    // No request begins if pages were short just now.
    if (state.stats.num_preemptions > preemptions) break;
    if (request.is_running || count == 0) continue;
    if (state.is_still_short(arrival, count)) break;
    const auto first = state.begin(request, count);
    if (!first) {
      state.shortage = {arrival, count, state.cache.free_pages()};
      break;
    }
    state.schedule(request, *first, step);
  }
  state.stats.num_steps += step.empty() ? 0 : 1;
  return step;
}

bool Scheduler::draft(ScheduledTokens& part, std::int32_t token) {
  State& state = *state_;
  Request& request = state.at(part.request);
  CONTEXTILE_CHECK(std::ssize(part.drafts) < part.may_draft,
                   "engine: expected at most {} drafts of request {} in this step, found one more",
                   part.may_draft, part.request.value);
  // Behind a window, pages stay that the part's own tokens see.
  if (!state.cache.append(part.request, std::span(&token, 1), part.tokens.begin)) return false;
  request.drafts.push_back(token);
  part.drafts.push_back(token);
  ++part.num_logits;
  ++state.stats.num_draft_tokens;
  ++state.stats.num_computed_tokens;
  return true;
}

EngineEvent Scheduler::take(RequestId id, std::int32_t token, float logprob) {
  State& state = *state_;
  Request& request = state.at(id);
  request.tokens.push_back(token);
  ++state.stats.num_output_tokens;
  EngineEvent event = {id, token, logprob, request.cached_tokens, std::nullopt};
  const std::vector<std::int32_t>& stops = request.asked.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
    event.finish = FinishReason::kStop;
  } else if (request.num_output() >= request.asked.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  const bool is_draft = !request.drafts.empty() && request.drafts.front() == token;
  if (is_draft) ++state.stats.num_accepted_tokens;
  if (event.finish) {
    cancel(id);
  } else if (is_draft) {
    request.drafts.erase(request.drafts.begin());
    ++request.computed;
  } else if (!request.drafts.empty()) {
    request.drafts.clear();
    state.cache.truncate(id, request.computed);
  }
  return event;
}

EngineEvent Scheduler::end(RequestId id) {
  const EngineEvent event = {id, EngineEvent::kNoToken, 0, state_->at(id).cached_tokens,
                             FinishReason::kLength};
  cancel(id);
  return event;
}

const GenerationRequest& Scheduler::request(RequestId request) const {
  return state_->at(request).asked;
}
std::span<const std::int32_t> Scheduler::tokens(RequestId request) const {
  return state_->at(request).tokens;
}
bool Scheduler::has(RequestId request) const { return state_->arrivals.contains(request); }

bool Scheduler::has_begun(RequestId request) const {
  const auto found = state_->arrivals.find(request);
  return found != state_->arrivals.end() && state_->requests.at(found->second).cached_tokens >= 0;
}
bool Scheduler::idle() const { return state_->requests.empty(); }
std::int32_t Scheduler::num_running() const { return state_->num_running; }
std::int32_t Scheduler::num_waiting() const {
  return static_cast<std::int32_t>(state_->requests.size()) - state_->num_running;
}
const EngineStats& Scheduler::stats() const { return state_->stats; }
KvCache& Scheduler::cache() { return state_->cache; }
const KvCache& Scheduler::cache() const { return state_->cache; }

}  // namespace contextile

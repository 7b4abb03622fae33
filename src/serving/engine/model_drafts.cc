#include "serving/engine/model_drafts.h"

#include <algorithm>
#include <utility>

namespace contextile {
namespace {

// The token that a request would get by these logits, behind its tokens and the drafts. It is drawn
// with the random number of the token that it stands for, so models that agree draw the same one.
std::int32_t token_by(std::span<const float> logits, const GenerationRequest& asked,
                      std::span<const std::int32_t> tokens, std::span<const std::int32_t> drafts) {
  const auto number =
      static_cast<std::int64_t>(tokens.size() + drafts.size() - asked.prompt.size());
  if (!has_penalties(asked.sampling)) return sample(logits, asked.sampling, number).token;
  std::vector<std::int32_t> all(tokens.begin(), tokens.end());
  all.insert(all.end(), drafts.begin(), drafts.end());
  const std::vector<float> changed = penalized(logits, asked.sampling, all, asked.prompt.size());
  return sample(changed, asked.sampling, number).token;
}

}  // namespace

// A draft is computed, too, even if none follows it: a block of the cache may end with it.
void ModelDrafts::add_to(std::span<ScheduledTokens> step, std::span<const PageCopy> copies,
                         Scheduler& scheduler) {
  model_.copy_pages(copies);
  std::vector<Behind> parts;
  for (ScheduledTokens& part : step) {
    const auto tokens = scheduler.tokens(part.request)
                            .subspan(static_cast<std::size_t>(part.tokens.begin),
                                     static_cast<std::size_t>(part.tokens.size()));
    parts.push_back({&part,
                     {tokens.begin(), tokens.end()},
                     std::min(part.may_draft, max_length_ - part.tokens.end)});
  }
  while (!parts.empty()) advance(parts, scheduler);
}

void ModelDrafts::advance(std::vector<Behind>& parts, Scheduler& scheduler) {
  std::vector<StepRequest> requests;
  for (const Behind& its : parts) {
    const std::int64_t end = its.part->tokens.end + std::ssize(its.part->drafts);
    requests.push_back({its.tokens, end - std::ssize(its.tokens),
                        scheduler.cache().table(its.part->request), its.wants_draft() ? 1 : 0});
  }
  const HostTensor logits = model_.forward(requests);
  std::span<const float> rows = logits.values<float>();
  const auto width = static_cast<std::size_t>(logits.dim());
  std::vector<Behind> next;
  for (Behind& its : parts) {
    if (!its.wants_draft()) continue;
    if (draft(its, rows.first(width), scheduler)) next.push_back(std::move(its));
    rows = rows.subspan(width);
  }
  parts = std::move(next);
}

bool ModelDrafts::draft(Behind& its, std::span<const float> logits, Scheduler& scheduler) {
  ScheduledTokens& part = *its.part;
  try {
    const std::int32_t token = token_by(logits, scheduler.request(part.request),
                                        scheduler.tokens(part.request), part.drafts);
    if (!scheduler.draft(part, token)) return false;
    its.tokens = {token};
    return true;
  } catch (const InvalidArgument&) {  // logits that are not numbers choose nothing
    return false;
  }
}

}  // namespace contextile

#include <algorithm>

#include "base/check.h"
#include "contextile/serving/engine.h"

namespace contextile {

void check_speculation(const Speculation& speculation) {
  CONTEXTILE_CHECK(speculation.num_tokens >= 0,
                   "speculation: expected at least 0 drafts of a request, found {}",
                   speculation.num_tokens);
  CONTEXTILE_CHECK(speculation.prompt_lookup_min >= 1 &&
                       speculation.prompt_lookup_max >= speculation.prompt_lookup_min,
                   "speculation: expected lookups of at least 1 token, the least no more than the "
                   "most, found {} and {}",
                   speculation.prompt_lookup_min, speculation.prompt_lookup_max);
}

std::vector<std::int32_t> lookup_drafts(std::span<const std::int32_t> tokens,
                                        const Speculation& speculation, std::int64_t most) {
  const std::int64_t length = std::ssize(tokens);
  most = std::min<std::int64_t>(most, speculation.num_tokens);
  if (most < 1 || length < 2) return {};
  const auto at = [&](std::int64_t i) { return tokens[static_cast<std::size_t>(i)]; };
  std::int64_t best = 0;     // tokens of the longest run found so far
  std::int64_t follows = 0;  // the place behind it
  // `end`: the place behind an earlier run that may equal the last tokens.
  for (std::int64_t end = length - 1; end >= 1 && best < speculation.prompt_lookup_max; --end) {
    if (at(end - 1) != at(length - 1)) continue;
    std::int64_t run = 1;
    while (run < speculation.prompt_lookup_max && run < end &&
           at(end - 1 - run) == at(length - 1 - run)) {
      ++run;
    }
    if (run <= best) continue;
    best = run;
    follows = end;
  }
  if (best < speculation.prompt_lookup_min) return {};
  // A run that reaches into its own repetition goes on as it does.
  std::vector<std::int32_t> drafts;
  for (std::int64_t i = follows; std::ssize(drafts) < most; ++i) {
    drafts.push_back(i < length ? at(i) : drafts[static_cast<std::size_t>(i - length)]);
  }
  return drafts;
}

}  // namespace contextile

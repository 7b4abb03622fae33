#include "length_sources.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "base/portable_math.h"
#include "base/rng.h"
#include "contextile/data.h"

namespace contextile::bench {
namespace {

std::int64_t rounded(double tokens, std::int64_t most) {
  const auto nearest = static_cast<std::int64_t>(std::floor(tokens + 0.5));
  return std::clamp<std::int64_t>(nearest, 1, most);
}

std::int64_t log_uniform(Rng& rng, double least, double most) {
  return rounded(least * portable_exp(rng.uniform() * portable_log(most / least)),
                 static_cast<std::int64_t>(most));
}

constexpr std::int64_t kMostCodeTokens = 131072;

std::int64_t chat_tokens(Rng& rng) {
  constexpr double kMedian = 350;
  constexpr double kNinthDecile = 1200;
  constexpr double kNormalNinthDecile = 1.2815515655446004;  // of a standard normal
  const double sigma = portable_log(kNinthDecile / kMedian) / kNormalNinthDecile;
  return rounded(kMedian * portable_exp(sigma * rng.normal()), kMostCodeTokens);
}

std::int64_t code_tokens(Rng& rng) {
  constexpr double kTailShare = 0.1;
  constexpr double kTailLeast = 10'000;
  constexpr double kSigma = 0.9;
  // Makes 2.5K the median of all files: 5 in 9 of these are below it.
  constexpr double kBodyMedian = 2205;
  if (rng.uniform() >= kTailShare) {
    return rounded(kBodyMedian * portable_exp(kSigma * rng.normal()), kMostCodeTokens);
  }
  const double longest_share = 1 - kTailLeast / static_cast<double>(kMostCodeTokens);
  return rounded(kTailLeast / (1 - rng.uniform() * longest_share), kMostCodeTokens);
}

// Adds documents until the batch is full.
void fill(SourceBatch& batch, std::int64_t tokens, const std::function<std::int64_t()>& next) {
  while (tokens > 0) {
    batch.lengths_tokens.push_back(std::min(tokens, next()));
    tokens -= batch.lengths_tokens.back();
  }
}

// Draws a prompt with its answers. Segments that exceed `most_tokens` together are cut or left out.
MaskSpec rollout_group(Rng& rng, std::int64_t most_tokens) {
  constexpr int kAnswers = 8;
  MaskSpec tree{.rule = MaskSpec::Rule::kTree};
  for (int segment = 0; segment <= kAnswers && most_tokens > 0; ++segment) {
    const bool is_prompt = segment == 0;
    const std::int64_t drawn =
        is_prompt ? log_uniform(rng, 256, 4096) : log_uniform(rng, 2048, 16384);
    tree.lengths.push_back(std::min(drawn, most_tokens));
    tree.parents.push_back(is_prompt ? -1 : 0);
    most_tokens -= tree.lengths.back();
  }
  return tree;
}

SourceBatch draw_rollouts(Rng& rng, std::int64_t tokens) {
  SourceBatch batch;
  fill(batch, tokens, [&, left = tokens]() mutable {
    batch.trees.push_back(rollout_group(rng, left));
    std::int64_t group_tokens = 0;
    for (const std::int64_t length : batch.trees.back().lengths) group_tokens += length;
    left -= group_tokens;
    return group_tokens;
  });
  return batch;
}

}  // namespace

std::vector<std::string> length_sources() {
  std::vector<std::string> names;
  for (const Dataset& dataset : datasets()) names.emplace_back(dataset.name);
  names.insert(names.end(), {"chat", "code", "rollouts", "single"});
  return names;
}

SourceBatch draw_batch(std::string_view source, std::int64_t tokens, std::uint64_t seed) {
  Rng rng(seed);
  SourceBatch batch;
  if (source == "single") {
    batch.lengths_tokens = {tokens};
  } else if (source == "rollouts") {
    batch = draw_rollouts(rng, tokens);
  } else if (source == "chat") {
    fill(batch, tokens, [&] { return chat_tokens(rng); });
  } else if (source == "code") {
    fill(batch, tokens, [&] { return code_tokens(rng); });
  } else {
    batch.lengths_tokens = batches_from_dataset(source, {.tokens = tokens, .seed = seed}).front();
  }
  return batch;
}

Workload workload_of(const SourceBatch& batch, const AttentionShape& shape, std::string_view mask) {
  if (batch.trees.empty()) return make_workload(batch.lengths_tokens, shape, parse_mask_use(mask));
  Workload workload = make_workload(batch.lengths_tokens, shape);
  workload.masks = {{"tree", 1, build_document_mask(batch.trees, workload.sequences)}};
  workload.positions.clear();
  for (std::size_t i = 0; i < batch.trees.size(); ++i) {
    for (PositionSegment segment :
         build_positions(batch.trees[i], std::span(&workload.sequences[i], 1))) {
      segment.sequence = static_cast<std::int64_t>(i);
      workload.positions.push_back(segment);
    }
  }
  check_workload(workload);
  return workload;
}

}  // namespace contextile::bench

#include "base/check.h"
#include "contextile/serving/decoder_model.h"

namespace contextile {
namespace {

void check_split(std::string_view what, std::int64_t count, std::int64_t groups) {
  CONTEXTILE_CHECK(count % groups == 0,
                   "decoder: expected {} that the {} groups of ranks divide, found {}", what,
                   groups, count);
}

}  // namespace

std::vector<Rank> DecoderPart::tensor_group() const {
  const std::int32_t tp = tensor_parallel();
  std::vector<Rank> ranks;
  for (std::int32_t t = 0; t < tp; ++t) ranks.emplace_back(rank.value / tp * tp + t);
  return ranks;
}

std::vector<Rank> DecoderPart::token_group() const {
  const std::int32_t first = place() / token_ranks() * token_ranks();
  std::vector<Rank> ranks;
  for (std::int32_t i = first; i < first + token_ranks(); ++i) {
    ranks.emplace_back(i % context_parallel * tensor_parallel() + i / context_parallel);
  }
  return ranks;
}

AttentionShape prompt_attention(const DecoderConfig& config, const DecoderPart& part) {
  AttentionShape shape;
  shape.q_heads = static_cast<std::int32_t>(part.group(config.q_heads).size());
  // Latent keys are expanded for prompts.
  shape.kv_heads = config.latent ? shape.q_heads
                                 : static_cast<std::int32_t>(part.kv_heads(config.kv_heads).size());
  shape.head_dim = config.head_dim;
  shape.value_dim = config.output_dim();
  shape.dtype = Dtype::kF32;
  shape.scale = config.scale;
  shape.sink = config.sinks;
  return shape;
}

MaskSpec window_mask(std::int32_t window) {
  MaskSpec mask;
  if (window > 0) {
    mask.rule = MaskSpec::Rule::kSlidingWindow;
    mask.window = window;
  }
  return mask;
}

void check_decoder_part(const DecoderConfig& config, const DecoderPart& part) {
  CONTEXTILE_CHECK(part.num_ranks >= 1 && part.rank.value >= 0 && part.rank.value < part.num_ranks,
                   "decoder: expected a rank of {}, found {}", part.num_ranks, part.rank.value);
  CONTEXTILE_CHECK(part.num_ranks <= config.q_heads,
                   "decoder: expected at most as many ranks as query heads, {}, found {}",
                   config.q_heads, part.num_ranks);
  CONTEXTILE_CHECK(part.context_parallel >= 1 && part.num_ranks % part.context_parallel == 0,
                   "decoder: expected context-parallel ranks that divide all {}, found {}",
                   part.num_ranks, part.context_parallel);
  CONTEXTILE_CHECK(part.kv_ranks >= 0 && part.num_ranks % part.token_ranks() == 0,
                   "decoder: expected ranks that share tokens to divide all {}, found {}",
                   part.num_ranks, part.kv_ranks);
  CONTEXTILE_CHECK(
      part.context_parallel == 1 || part.token_ranks() == part.context_parallel,
      "decoder: expected the {} context-parallel ranks to share tokens, found {} ranks",
      part.context_parallel, part.token_ranks());
  const std::int32_t groups = part.head_groups();
  if (groups == 1) return;
  check_split("query heads", config.q_heads, groups);
  CONTEXTILE_CHECK(config.kv_heads % groups == 0 || groups % config.kv_heads == 0,
                   "decoder: expected KV heads that the {} groups of ranks divide, or that divide "
                   "them, found {}",
                   groups, config.kv_heads);
}

}  // namespace contextile

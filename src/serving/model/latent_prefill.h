// Latent attention of shared prompts: keys and values of all heads, expanded from latent vectors.
#pragma once

#include <span>
#include <vector>

#include "contextile/serving/prefill.h"
#include "serving/model/decoder_core.h"
#include "serving/prefill/cache_exchange.h"
#include "serving/prefill/cached_rows.h"

namespace contextile {

// Keys and values of rows, [rows, heads of this rank, dim].
struct ExpandedKv {
  HostTensor k;
  HostTensor v;
};

// The cached and the new tokens of one batch.
class LatentPrefill {
 public:
  LatentPrefill(DecoderCore& core, const PrefillBatch& batch);

  // The sequences with tables of the expanded pages, for cached tokens alone.
  [[nodiscard]] std::span<const PrefillSequence> sequences() const { return sequences_; }
  // Expands the cached tokens of this rank that a new one sees. The pages are good until the next
  // call.
  [[nodiscard]] PagedKv cached(std::int32_t layer);
  // Expands latent rows [rows, key_dim].
  [[nodiscard]] ExpandedKv expanded(std::int32_t layer, std::span<const float> latents);
  // Sends new latent rows to the ranks whose pages they belong to, and keeps this rank's.
  void keep(std::int32_t layer, std::span<const float> latents);

 private:
  DecoderCore& core_;
  PrefillGeometry geometry_;
  CacheExchange exchange_;
  std::vector<std::vector<PageId>> tables_;  // of expanded pages
  std::vector<PrefillSequence> sequences_;
  std::vector<PageRun> cached_runs_;    // of latent pages, whose rows follow each other
  std::vector<PageRun> expanded_runs_;  // the same tokens' places among expanded pages
  std::int64_t num_rows_ = 0;
  HostTensor k_;  // [expanded pages · page size, heads, dim]
  HostTensor v_;
};

}  // namespace contextile

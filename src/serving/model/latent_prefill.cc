#include "serving/model/latent_prefill.h"

#include <algorithm>
#include <cstddef>

#include "kernel/tensor.h"
#include "serving/prefill/check_prefill.h"

namespace contextile {
namespace {

void copy_rows(const HostTensor& from, std::int64_t first, HostTensor& to, std::int64_t into,
               std::int64_t rows) {
  const std::int64_t size = std::int64_t{from.view().heads} * from.view().dim;
  std::copy_n(from.values<float>().begin() + first * size, rows * size,
              to.values<float>().begin() + into * size);
}

}  // namespace

LatentPrefill::LatentPrefill(DecoderCore& core, const PrefillBatch& batch)
    : core_(core),
      geometry_(batch),
      exchange_(geometry_, core.token_group().rank(), batch),
      tables_(batch.sequences.size()) {
  exchange_.check_tables();
  std::int32_t num_pages = 0;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const PrefillSequence& sequence = batch.sequences[i];
    const std::int64_t blocks = batch.layout.num_blocks(sequence.cached_tokens);
    while (std::ssize(tables_[i]) < blocks) tables_[i].emplace_back(num_pages++);
    sequences_.push_back({sequence.cached_tokens, sequence.new_tokens, tables_[i]});
  }
  PrefillBatch expanded = batch;
  expanded.sequences = sequences_;
  const Rank me = core.token_group().rank();
  cached_runs_ = page_runs(geometry_, me, batch);
  expanded_runs_ = page_runs(geometry_, me, expanded);
  for (PageRun& run : cached_runs_) {
    run.row = num_rows_;
    num_rows_ += run.tokens;
  }
  const AttentionShape shape = prompt_attention(core.config(), core.part());
  const std::int64_t slots = std::int64_t{num_pages} * batch.layout.page_size;
  k_ = HostTensor(Dtype::kF32, slots, shape.kv_heads, shape.head_dim);
  v_ = HostTensor(Dtype::kF32, slots, shape.kv_heads, shape.value_dim);
}

PagedKv LatentPrefill::cached(std::int32_t layer) {
  const PagedKv latent = core_.paged_kv(layer);
  HostTensor rows(Dtype::kF32, num_rows_, 1, latent.k.dim);
  copy_pages(latent.k, page_dtype(latent.dtype), cached_runs_, rows.view());
  const ExpandedKv all = expanded(layer, rows.values<float>());
  for (std::size_t i = 0; i < cached_runs_.size(); ++i) {
    const PageRun& from = cached_runs_[i];
    const PageRun& to = expanded_runs_[i];
    const std::int64_t slot = std::int64_t{to.page.value} * latent.page_size + to.first_token;
    copy_rows(all.k, from.row, k_, slot, from.tokens);
    copy_rows(all.v, from.row, v_, slot, from.tokens);
  }
  const std::int32_t page_size = latent.page_size;
  return {paged_tensor(k_, page_size), paged_tensor(v_, page_size), KvDtype::kF32, k_.view().heads,
          page_size};
}

ExpandedKv LatentPrefill::expanded(std::int32_t layer, std::span<const float> latents) {
  const DecoderConfig& config = core_.config();
  const auto rank = static_cast<std::size_t>(config.latent->kv_rank);
  const auto rope = static_cast<std::size_t>(config.latent->rope_dim);
  const std::size_t plain = static_cast<std::size_t>(config.head_dim) - rope;
  const auto value = static_cast<std::size_t>(config.latent->value_dim);
  const std::size_t rows = latents.size() / (rank + rope);
  Floats vectors;
  for (std::size_t n = 0; n < rows; ++n) {
    const auto its = latents.subspan(n * (rank + rope), rank);
    vectors.insert(vectors.end(), its.begin(), its.end());
  }
  const Floats all = core_.expanded(core_.layer(layer), vectors);
  const AttentionShape shape = prompt_attention(config, core_.part());
  const auto count = static_cast<std::int64_t>(rows);
  ExpandedKv kv = {HostTensor(Dtype::kF32, count, shape.kv_heads, shape.head_dim),
                   HostTensor(Dtype::kF32, count, shape.kv_heads, shape.value_dim)};
  auto k = kv.k.values<float>().begin();
  auto v = kv.v.values<float>().begin();
  auto from = all.begin();
  for (std::size_t n = 0; n < rows; ++n) {
    const auto rotated = latents.subspan(n * (rank + rope) + rank, rope);
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
      k = std::copy_n(from, plain, k);
      k = std::copy(rotated.begin(), rotated.end(), k);
      v = std::copy_n(from + static_cast<std::ptrdiff_t>(plain), value, v);
      from += static_cast<std::ptrdiff_t>(plain + value);
    }
  }
  return kv;
}

// The rotated key takes the place of values in the exchange.
void LatentPrefill::keep(std::int32_t layer, std::span<const float> latents) {
  const LatentConfig& latent = *core_.config().latent;
  const std::int64_t dim = core_.config().key_dim();
  const std::int64_t rows = std::ssize(latents) / dim;
  AttentionShape shape;
  shape.q_heads = shape.kv_heads = 1;
  shape.head_dim = latent.kv_rank;
  shape.value_dim = latent.rope_dim;
  shape.dtype = Dtype::kF32;
  TensorView all = contiguous(const_cast<float*>(latents.data()), Dtype::kF32, rows, 1,
                              static_cast<std::int32_t>(dim));
  TensorView vectors = all;
  vectors.dim = latent.kv_rank;
  TensorView rotated = all;
  rotated.data = const_cast<float*>(latents.data()) + latent.kv_rank;
  rotated.dim = latent.rope_dim;
  const NewKv kept = exchange_.run(core_.token_group(), shape, vectors, rotated,
                                   page_dtype(core_.options().kv_dtype));
  Floats keys;
  for (std::int64_t n = 0; n < std::ssize(kept.slots); ++n) {
    const auto k = kept.k_THD.values<float>().begin() + n * latent.kv_rank;
    const auto r = kept.v_THD.values<float>().begin() + n * latent.rope_dim;
    keys.insert(keys.end(), k, k + latent.kv_rank);
    keys.insert(keys.end(), r, r + latent.rope_dim);
  }
  core_.keep(layer, kept.slots, keys, {});
}

}  // namespace contextile

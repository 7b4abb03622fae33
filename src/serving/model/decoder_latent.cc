// Queries and outputs of latent attention: the matrices that would expand keys and values are
// multiplied with queries and outputs instead (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "serving/model/decoder_core.h"

namespace contextile {
namespace {

// Elements [begin, end) of every row, one after another.
Floats columns_of(std::span<const float> rows, std::size_t width, std::size_t begin,
                  std::size_t end) {
  Floats some;
  some.reserve(rows.size() / width * (end - begin));
  for (std::size_t first = 0; first < rows.size(); first += width) {
    const auto its = rows.subspan(first + begin, end - begin);
    some.insert(some.end(), its.begin(), its.end());
  }
  return some;
}

// Writes rows of `size` elements to columns of `to`, from `begin` on.
void put_columns(std::span<const float> rows, std::size_t size, std::span<float> to,
                 std::size_t width, std::size_t begin) {
  for (std::size_t n = 0; n * size < rows.size(); ++n) {
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(n * size), size,
                to.begin() + static_cast<std::ptrdiff_t>(n * width + begin));
  }
}

}  // namespace

WeightsView DecoderCore::latent_rows(const DecoderWeights::Layer& layer, std::int64_t head,
                                     Range rows) const {
  const LatentConfig& latent = *config_.latent;
  const std::int64_t of_head = config_.head_dim - latent.rope_dim + latent.value_dim;
  const std::int64_t first = (head - part().queries(config_.q_heads).begin) * of_head;
  return weights_view(layer.kv_b, latent.kv_rank).rows({first + rows.begin, first + rows.end});
}

Floats DecoderCore::latent_queries(const DecoderWeights::Layer& layer, std::span<const float> q,
                                   Range heads) {
  const auto dim = static_cast<std::size_t>(config_.head_dim);
  const auto rope = static_cast<std::size_t>(config_.latent->rope_dim);
  const auto rank = static_cast<std::size_t>(config_.latent->kv_rank);
  const std::size_t plain = dim - rope;
  const auto count = static_cast<std::size_t>(heads.size());
  const std::size_t rows = count == 0 ? 0 : q.size() / (count * dim);
  Floats all(rows * count * (rank + rope));
  const std::size_t width = count * (rank + rope);
  for (std::size_t h = 0; h < count; ++h) {
    const Floats part = columns_of(q, count * dim, h * dim, h * dim + plain);
    Floats y(rows * rank);
    multiply_transposed(part,
                        latent_rows(layer, heads.begin + static_cast<std::int64_t>(h),
                                    {0, static_cast<std::int64_t>(plain)}),
                        y);
    put_columns(y, rank, all, width, h * (rank + rope));
    put_columns(columns_of(q, count * dim, h * dim + plain, (h + 1) * dim), rope, all, width,
                h * (rank + rope) + rank);
  }
  work_.projection_flops += 2 * static_cast<std::int64_t>(rows * count * plain * rank);
  return all;
}

Floats DecoderCore::outputs_of_latent(const DecoderWeights::Layer& layer, std::span<const float> o,
                                      Range heads) {
  const auto rank = static_cast<std::size_t>(config_.latent->kv_rank);
  const auto value = static_cast<std::size_t>(config_.latent->value_dim);
  const auto count = static_cast<std::size_t>(heads.size());
  const std::size_t rows = count == 0 ? 0 : o.size() / (count * rank);
  const std::int64_t plain = config_.head_dim - config_.latent->rope_dim;
  Floats all(rows * count * value);
  for (std::size_t h = 0; h < count; ++h) {
    const Floats y = product(columns_of(o, count * rank, h * rank, (h + 1) * rank),
                             latent_rows(layer, heads.begin + static_cast<std::int64_t>(h),
                                         {plain, plain + config_.latent->value_dim}),
                             work_.projection_flops);
    put_columns(y, value, all, count * value, h * value);
  }
  return all;
}

Floats DecoderCore::expanded(const DecoderWeights::Layer& layer, std::span<const float> latents) {
  return product(latents, weights_view(layer.kv_b, config_.latent->kv_rank),
                 work_.projection_flops);
}

// A sink is a key without a value.
void DecoderCore::apply_sinks(const DecoderWeights::Layer& layer, Range heads,
                              std::span<const float> lse, std::span<float> o) {
  if (lse.empty()) return;
  const std::size_t dim = o.size() / lse.size();
  const auto count = static_cast<std::size_t>(heads.size());
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const float sink = layer.sinks[static_cast<std::size_t>(heads.begin) + i % count];
    const float weight = 1 / (1 + std::exp(sink - lse[i]));
    for (float& value : o.subspan(i * dim, dim)) value *= weight;
  }
}

}  // namespace contextile

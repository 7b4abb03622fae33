#include "serving/model/decoder_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernel/tensor.h"
#include "serving/model/activation_rows.h"
#include "serving/model/blas.h"
#include "serving/model/expert_layer.h"
#include "serving/prefill/check_prefill.h"
#include "transport/all_reduce.h"

namespace contextile {
namespace {

// Ranges of heads or elements become rows or columns of the matrices that a rank holds: they are
// counted from the first one held, then in elements instead of heads.
Range shifted(Range range, std::int64_t by) { return {range.begin - by, range.end - by}; }

Range scaled(Range range, std::int64_t by) { return {range.begin * by, range.end * by}; }

// The epsilon of norms of latent vectors, whatever a model's other norms have.
constexpr double kLatentEpsilon = 1e-6;

}  // namespace

DecoderCore::DecoderCore(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
                         const DecoderOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      options_(options),
      world_(transport),
      // The first member that depends on a valid part checks it.
      tensor_group_(world_, checked_part().tensor_group()),
      token_group_(world_, weights_.part.token_group()),
      rotary_(config.rope, config.rope_dim()) {
  static_cast<void>(blas());  // loaded now: if it cannot be, no request is lost
  const std::int64_t slots = std::int64_t{options.num_pages} * options.layout.page_size;
  const Dtype dtype = page_dtype(options.kv_dtype);
  const auto heads = static_cast<std::int32_t>(part().kv_heads(config.kv_heads).size());
  // Values of latent attention are elements of keys, so they have no pages.
  for (std::int32_t i = 0; i < config.num_layers; ++i) {
    pages_.push_back({HostTensor(dtype, slots, heads, config.key_dim()),
                      config.latent ? HostTensor(dtype, 0, heads, config.value_dim())
                                    : HostTensor(dtype, slots, heads, config.value_dim())});
  }
}

const DecoderPart& DecoderCore::checked_part() const {
  check_decoder_config(config_);
  check_decoder_part(config_, part());
  check_kv_layout(options_.layout);
  const std::int32_t ranks = world_.size();
  CONTEXTILE_CHECK(part().rank == world_.rank() && part().num_ranks == ranks,
                   "weights: expected those of rank {} of {}, found rank {} of {}",
                   world_.rank().value, ranks, part().rank.value, part().num_ranks);
  CONTEXTILE_CHECK(options_.layout.num_ranks == part().token_ranks(),
                   "layout: expected the group's {} ranks, found {}", part().token_ranks(),
                   options_.layout.num_ranks);
  // With q_replicated, a rank projects the queries of all ranks that share its tokens. In the other
  // modes each rank projects its own heads and sends queries, in equal parts.
  const bool has_all = options_.mode == DecodeMode::kQReplicated;
  CONTEXTILE_CHECK(part().all_queries == has_all,
                   "weights: expected queries of {} heads for mode {}, found them of {}",
                   has_all ? "all" : "the rank's own", to_string(options_.mode),
                   has_all ? "the rank's own" : "all");
  CONTEXTILE_CHECK(has_all || config_.q_heads % ranks == 0,
                   "mode {}: expected ranks that divide {} query heads, found {}; q_replicated "
                   "takes any number",
                   to_string(options_.mode), config_.q_heads, ranks);
  CONTEXTILE_CHECK(options_.hop_b_groups >= 1, "hop_b_groups: expected at least 1, found {}",
                   options_.hop_b_groups);
  CONTEXTILE_CHECK(options_.hop_b != HopBReading::kOff || options_.hop_b_groups == 1,
                   "hop_b off: expected 1 group, found {}", options_.hop_b_groups);
  CONTEXTILE_CHECK(options_.num_pages >= 1, "num_pages: expected at least 1, found {}",
                   options_.num_pages);
  CONTEXTILE_CHECK(options_.prefill.min_tokens >= 0,
                   "prefill: expected min_tokens of 0 and more, found {}",
                   options_.prefill.min_tokens);
  return part();
}

void DecoderCore::check_token(std::int32_t token) const {
  CONTEXTILE_CHECK(token >= 0 && token < config_.vocab_size,
                   "step: expected tokens of 0 to {}, found {}", config_.vocab_size - 1, token);
}

// Looks up the rows of tokens, widened to fp32.
Floats DecoderCore::embed(std::span<const std::int32_t> tokens) const {
  Floats x(tokens.size() * hidden());
  std::size_t at = 0;
  for (const std::int32_t token : tokens) {
    weights_.embeddings.read(static_cast<std::size_t>(token) * hidden(),
                             std::span(x).subspan(at, hidden()));
    at += hidden();
  }
  return x;
}

Floats DecoderCore::rows_at(std::span<const float> x, std::span<const std::size_t> rows) const {
  Floats some;
  some.reserve(rows.size() * hidden());
  for (const std::size_t row : rows) {
    const auto its = x.subspan(row * hidden(), hidden());
    some.insert(some.end(), its.begin(), its.end());
  }
  return some;
}

Floats DecoderCore::normed(std::span<const float> x, std::span<const float> weight) const {
  Floats y(x.size());
  rms_norm(x, weight, config_.norm_epsilon, y);
  return y;
}

// Returns y with as many rows as x. A rank that has no part of a matrix has no inputs for it, and
// gets nothing.
Floats DecoderCore::product(std::span<const float> x, const WeightsView& weights,
                            std::int64_t& flops) {
  if (weights.inputs == 0) return {};
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / weights.inputs;
  Floats y(static_cast<std::size_t>(rows * weights.outputs));
  multiply(x, weights, y);
  flops += 2 * rows * weights.outputs * weights.inputs;
  return y;
}

// Norms each head if the model does so, then rotates it. A row of `rms_norm` is as long as its
// weight, which is one head. Only the last `rope_dim` of a head's `dim` elements are rotated.
void DecoderCore::finish_heads(std::span<const float> norm, std::span<const std::int64_t> positions,
                               std::int32_t dim, Floats& heads) const {
  if (!norm.empty()) rms_norm(heads, norm, config_.norm_epsilon, heads);
  if (positions.empty()) return;
  const std::size_t row = heads.size() / positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    rotary_.turn(positions[i], std::span(heads).subspan(i * row, row), dim);
  }
}

Floats DecoderCore::queries(const DecoderWeights::Layer& layer, std::span<const float> x,
                            Range heads, std::span<const std::int64_t> positions) {
  const Range rows =
      scaled(shifted(heads, part().queries(config_.q_heads).begin), config_.head_dim);
  // Queries of latent attention may have a latent vector, too: down, norm, up (DeepSeek-V2, section
  // 2.1).
  Floats latents;
  std::int64_t inputs = config_.hidden_size;
  if (config_.latent && config_.latent->q_rank > 0) {
    latents = product(x, weights_view(layer.q_a, inputs), work_.projection_flops);
    rms_norm(latents, layer.q_a_norm, kLatentEpsilon, latents);
    x = latents;
    inputs = config_.latent->q_rank;
  }
  Floats q = product(x, weights_view(layer.q, inputs).rows(rows), work_.projection_flops);
  // The bias has an element for each row that the rank holds, as the matrix does.
  if (!layer.q_bias.empty()) {
    add(q,
        std::span(layer.q_bias)
            .subspan(static_cast<std::size_t>(rows.begin), static_cast<std::size_t>(rows.size())));
  }
  finish_heads(layer.q_norm, positions, config_.head_dim, q);
  return q;
}

Floats DecoderCore::keys(const DecoderWeights::Layer& layer, std::span<const float> x,
                         std::span<const std::int64_t> positions) {
  const WeightElements& weights = config_.latent ? layer.kv_a : layer.k;
  Floats k = product(x, weights_view(weights, config_.hidden_size), work_.projection_flops);
  if (!layer.k_bias.empty()) add(k, layer.k_bias);
  // A row is the latent vector, then the key that all heads share. The norm is of the latent vector
  // alone, and the rotation below is of the rest.
  if (config_.latent) {
    const auto row = static_cast<std::size_t>(config_.key_dim());
    for (std::size_t first = 0; first < k.size(); first += row) {
      const auto vector = std::span(k).subspan(first, layer.kv_a_norm.size());
      rms_norm(vector, layer.kv_a_norm, kLatentEpsilon, vector);
    }
  }
  finish_heads(layer.k_norm, positions, config_.key_dim(), k);
  return k;
}

Floats DecoderCore::values(const DecoderWeights::Layer& layer, std::span<const float> x) {
  if (config_.latent) return {};
  Floats v = product(x, weights_view(layer.v, config_.hidden_size), work_.projection_flops);
  if (!layer.v_bias.empty()) add(v, layer.v_bias);
  return v;
}

void DecoderCore::add_outputs(const DecoderWeights::Layer& layer, std::span<const float> o,
                              Range heads, Transport& ranks, Floats& x) {
  // A rank multiplies the outputs of some heads with the columns for these heads. The products of
  // all ranks add up to the layer's output.
  const Range held = scaled(part().held(config_.q_heads), config_.output_dim());
  const Range columns = shifted(scaled(heads, config_.output_dim()), held.begin);
  Floats y =
      product(o, weights_view(layer.o, held.size()).columns(columns), work_.projection_flops);
  y.resize(x.size());  // of a rank that has no part
  sum(ranks, y);
  // The bias follows the sum. Before it, every rank would add the bias.
  if (!layer.o_bias.empty()) add(y, layer.o_bias);
  add(x, y);
}

void DecoderCore::add_feed_forward(std::int32_t index, RowsOf rows, Floats& x) {
  const DecoderWeights::Layer& weights = layer(index);
  const bool is_step = rows == RowsOf::kStep;
  const std::int32_t size = config_.dense_size(index);
  // Inner elements are split: gate and up by rows, down by columns, so only the outputs are summed.
  // All ranks have the rows of a step, so each computes the share that it owns. Only the tensor
  // group has the rows of a prompt, so its ranks use all that they hold.
  const Range held = part().held(size);
  const Range some = shifted(is_step ? part().own(size) : held, held.begin);
  const Floats input = normed(x, weights.ffn_norm);
  std::int64_t& flops = work_.feed_forward_flops;
  Floats y;
  if (!some.empty()) {
    Floats gate = product(input, weights_view(weights.gate, config_.hidden_size).rows(some), flops);
    gate_by_silu(gate,
                 product(input, weights_view(weights.up, config_.hidden_size).rows(some), flops));
    y = product(gate, weights_view(weights.down, held.size()).columns(some), flops);
  }
  y.resize(x.size());  // of a rank that has no part
  // Experts add to the same partial sums. For a step, each rank adds its own experts' outputs. The
  // rows of a prompt first travel to the experts of the token group; the sum below adds those of
  // the tensor group.
  if (config_.has_experts(index)) {
    const ExpertLayer experts(config_, weights, part(), flops);
    const std::vector<Route> routes = experts.routes(input);
    if (is_step) {
      experts.add_own(input, routes, y);
    } else {
      world_.meter(traffic_.expert_bytes);
      experts.add_over(token_group_, input, routes, y);
    }
  }
  sum(is_step ? static_cast<Transport&>(world_) : tensor_group_, y);
  add(x, y);
}

void DecoderCore::sum(Transport& ranks, Floats& values) {
  world_.meter(traffic_.reduction_bytes);
  all_reduce(ranks, values);
}

HostTensor DecoderCore::logits(const Floats& sampled) {
  const Floats last = normed(sampled, weights_.norm);
  const Floats mine =
      product(last, weights_view(weights_.logits, config_.hidden_size), work_.logits_flops);
  const std::size_t count = sampled.size() / hidden();
  // Each rank computes the logits of its part of the vocabulary. Parts of ranks lie one after
  // another, [rank, row, tokens of the rank], so that each is sent as one piece.
  const std::vector<std::int64_t> vocabulary = equal_splits(config_.vocab_size, world_.size());
  std::vector<std::int64_t> splits;
  splits.reserve(vocabulary.size());
  for (const std::int64_t split : vocabulary) {
    splits.push_back(split * static_cast<std::int64_t>(count));
  }
  Floats parts(count * static_cast<std::size_t>(config_.vocab_size));
  std::copy(mine.begin(), mine.end(), parts.begin() + splits[world_.rank().index()]);
  world_.meter(traffic_.logits_bytes);
  all_gather(world_, parts, splits);
  // Reorders the parts to [row, vocabulary].
  HostTensor all(Dtype::kF32, static_cast<std::int64_t>(count), 1, config_.vocab_size);
  for (std::size_t r = 0; r + 1 < splits.size(); ++r) {
    const std::int64_t width = vocabulary[r + 1] - vocabulary[r];
    for (std::size_t n = 0; n < count; ++n) {
      const auto row = static_cast<std::int64_t>(n);
      std::copy_n(parts.begin() + splits[r] + row * width, width,
                  all.values<float>().begin() + row * config_.vocab_size + vocabulary[r]);
    }
  }
  return all;
}

void DecoderCore::keep(std::int32_t layer, std::span<const std::int64_t> slots,
                       std::span<const float> keys, std::span<const float> values) {
  const LayerPages& its = pages(layer);
  const std::int32_t heads = its.k.view().heads;
  // Rows are [token, head, dim], as pages are; `write_row` rounds to the dtype of pages.
  const auto write = [&](const TensorView& pages, std::span<const float> rows) {
    const auto dim = static_cast<std::size_t>(pages.dim);
    std::size_t at = 0;
    for (const std::int64_t slot : slots) {
      for (std::int32_t h = 0; h < heads; ++h, at += dim) {
        write_row(pages, slot, h, rows.subspan(at, dim));
      }
    }
  };
  write(its.k.view(), keys);
  if (!config_.latent) write(its.v.view(), values);
}

PagedTensor paged_tensor(const HostTensor& tensor, std::int32_t page_size) {
  const TensorView view = tensor.view();
  return {view.data, view.token_stride * page_size, view.token_stride, view.head_stride, view.dim,
          {}};
}

PagedKv DecoderCore::paged_kv(std::int32_t layer) const {
  const LayerPages& pages = pages_[static_cast<std::size_t>(layer)];
  const std::int32_t page_size = options_.layout.page_size;
  const PagedTensor k = paged_tensor(pages.k, page_size);
  // Latent attention reads the first elements of keys as values.
  PagedTensor v = config_.latent ? k : paged_tensor(pages.v, page_size);
  v.dim = config_.value_dim();
  return {k, v, options_.kv_dtype, pages.k.view().heads, page_size};
}

void DecoderCore::copy_pages(std::span<const PageCopy> copies) {
  // Pages lie one after another and are of one size in a tensor, so a page is one run of bytes.
  for (const PageCopy& copy : copies) {
    for (LayerPages& layer : pages_) {
      for (HostTensor* tensor : {&layer.k, &layer.v}) {
        const std::size_t bytes =
            tensor->bytes().size() / static_cast<std::size_t>(options_.num_pages);
        if (bytes == 0) continue;
        auto* base = static_cast<std::byte*>(tensor->view().data);
        std::memcpy(base + copy.to.index() * bytes, base + copy.from.index() * bytes, bytes);
      }
    }
  }
}

}  // namespace contextile

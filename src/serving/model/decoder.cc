#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "contextile/serving/decoder_model.h"
#include "kernel/tensor.h"
#include "serving/decode/even_runs.h"
#include "serving/model/activation_rows.h"
#include "serving/model/linear.h"
#include "serving/model/metered_transport.h"
#include "serving/model/rotary.h"
#include "transport/all_reduce.h"

namespace contextile {
namespace {

using Floats = std::vector<float>;

Dtype dtype_of_pages(KvDtype dtype) {
  if (dtype == KvDtype::kF32) return Dtype::kF32;
  if (dtype == KvDtype::kBf16) return Dtype::kBf16;
  CONTEXTILE_CHECK(dtype == KvDtype::kF16, "kv_dtype: expected f32, bf16 or f16, found {}",
                   to_string(dtype));
  return Dtype::kF16;
}

// Keys and values of a layer. Pages that were never written are NaN, so that reading one shows.
struct LayerPages {
  HostTensor k;  // [pages · page size, kv_heads, head_dim]
  HostTensor v;
};

// The tokens of a step, and which of them this rank keeps.
struct StepRows {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  std::vector<std::size_t> kept;     // rows whose keys and values lie here
  std::vector<std::int64_t> slots;   // where, of the kept
  std::vector<std::size_t> sampled;  // rows that need logits
};

// Neighbouring requests of a step that compute a layer together.
struct StepGroup {
  std::span<const StepRequest> requests;
  StepRows rows;
  Floats x;  // [rows, hidden]
};

// A group's attention whose outputs are on their way; moving the object leaves them in place.
struct PendingLayer {
  std::int32_t layer = 0;
  StepGroup* group = nullptr;
  HostTensor o;
  HostTensor lse;
  PendingAttention attention;
};

// At most `num_groups` runs of requests, with about as many tokens each.
std::vector<std::span<const StepRequest>> token_groups(std::span<const StepRequest> requests,
                                                       std::int32_t num_groups) {
  std::vector<std::int64_t> tokens;
  for (const StepRequest& request : requests) tokens.push_back(std::ssize(request.tokens));
  const std::int64_t all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  std::vector<std::span<const StepRequest>> groups;
  for (const Range& run : even_runs(tokens, all, num_groups)) {
    groups.push_back(requests.subspan(static_cast<std::size_t>(run.begin),
                                      static_cast<std::size_t>(run.size())));
  }
  return groups;
}

}  // namespace

class DecoderRank::State {
 public:
  State(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
        const DecoderOptions& options)
      : transport_(transport),
        config_(config),
        weights_(std::move(weights)),
        options_(options),
        group_(transport_, find_paged_kernel()),
        rotary_(config.rope, config.head_dim) {
    check();
    const std::int64_t slots = std::int64_t{options.num_pages} * options.layout.page_size;
    const Dtype dtype = dtype_of_pages(options.kv_dtype);
    for (std::int32_t i = 0; i < config.num_layers; ++i) {
      pages_.push_back({HostTensor(dtype, slots, config.kv_heads, config.head_dim),
                        HostTensor(dtype, slots, config.kv_heads, config.head_dim)});
    }
  }

  void copy_pages(std::span<const PageCopy> copies) {
    for (const PageCopy& copy : copies) {
      for (LayerPages& layer : pages_) {
        for (HostTensor* tensor : {&layer.k, &layer.v}) {
          const std::size_t bytes =
              tensor->bytes().size() / static_cast<std::size_t>(options_.num_pages);
          auto* base = static_cast<std::byte*>(tensor->view().data);
          std::memcpy(base + copy.to.index() * bytes, base + copy.from.index() * bytes, bytes);
        }
      }
    }
  }

  [[nodiscard]] HostTensor forward(std::span<const StepRequest> requests) {
    // A request reads what earlier ones write in the same step, and groups begin a layer in order.
    const bool by_layers = options_.hop_b == HopBReading::kFeedForward;
    std::vector<StepGroup> groups;
    for (const auto some : token_groups(requests, by_layers ? options_.hop_b_groups : 1)) {
      groups.push_back({some, rows_of(some), {}});
      groups.back().x = embed(groups.back().rows.tokens);
    }
    compute_layers(groups);
    Floats sampled;
    for (const StepGroup& group : groups) {
      const Floats some = rows_at(group.x, group.rows.sampled);
      sampled.insert(sampled.end(), some.begin(), some.end());
    }
    return logits(sampled);
  }

  [[nodiscard]] const DecoderTraffic& traffic() const { return traffic_; }
  [[nodiscard]] std::int64_t kv_bytes() const {
    return std::int64_t{options_.num_pages} * options_.layout.page_size *
           kv_bytes_per_token(config_, options_.kv_dtype);
  }

 private:
  void check() const {
    check_decoder_config(config_);
    check_kv_layout(options_.layout);
    const std::int32_t ranks = transport_.size();
    CONTEXTILE_CHECK(options_.layout.num_ranks == ranks,
                     "layout: expected the group's {} ranks, found {}", ranks,
                     options_.layout.num_ranks);
    CONTEXTILE_CHECK(weights_.part.rank == transport_.rank() && weights_.part.num_ranks == ranks,
                     "weights: expected those of rank {} of {}, found rank {} of {}",
                     transport_.rank().value, ranks, weights_.part.rank.value,
                     weights_.part.num_ranks);
    const bool has_all = options_.mode == DecodeMode::kQReplicated;
    CONTEXTILE_CHECK(weights_.part.all_queries == has_all,
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
  }

  [[nodiscard]] StepRows rows_of(std::span<const StepRequest> requests) const {
    StepRows rows;
    for (const StepRequest& request : requests) {
      const auto count = static_cast<std::int64_t>(request.tokens.size());
      CONTEXTILE_CHECK(count >= 1, "step: expected at least 1 token of every request, found none");
      const Range range = {request.position, request.position + count};
      const std::vector<std::int64_t> slots =
          slots_of(options_.layout, request.table, transport_.rank(), range);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t token = request.tokens[static_cast<std::size_t>(i)];
        CONTEXTILE_CHECK(token >= 0 && token < config_.vocab_size,
                         "step: expected tokens of 0 to {}, found {}", config_.vocab_size - 1,
                         token);
        if (slots[static_cast<std::size_t>(i)] >= 0) {
          rows.kept.push_back(rows.tokens.size());
          rows.slots.push_back(slots[static_cast<std::size_t>(i)]);
        }
        rows.tokens.push_back(token);
        rows.positions.push_back(request.position + i);
      }
      if (request.needs_logits) rows.sampled.push_back(rows.tokens.size() - 1);
    }
    return rows;
  }

  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden_size); }

  [[nodiscard]] Floats embed(std::span<const std::int32_t> tokens) const {
    Floats x;
    x.reserve(tokens.size() * hidden());
    for (const std::int32_t token : tokens) {
      const auto row = std::span(weights_.embeddings)
                           .subspan(static_cast<std::size_t>(token) * hidden(), hidden());
      x.insert(x.end(), row.begin(), row.end());
    }
    return x;
  }

  [[nodiscard]] Floats rows_at(std::span<const float> x, std::span<const std::size_t> rows) const {
    Floats some;
    some.reserve(rows.size() * hidden());
    for (const std::size_t row : rows) {
      const auto its = x.subspan(row * hidden(), hidden());
      some.insert(some.end(), its.begin(), its.end());
    }
    return some;
  }

  [[nodiscard]] Floats normed(std::span<const float> x, std::span<const float> weight) const {
    Floats y(x.size());
    rms_norm(x, weight, config_.norm_epsilon, y);
    return y;
  }

  // Returns y with as many rows as x.
  [[nodiscard]] static Floats product(std::span<const float> x, std::span<const float> weights,
                                      std::size_t inputs) {
    Floats y(inputs == 0 ? 0 : x.size() / inputs * (weights.size() / inputs));
    if (inputs > 0) multiply(x, weights, static_cast<std::int64_t>(inputs), y);
    return y;
  }

  // Queries or keys of some rows: projected, normed by head if the model does so, and rotated.
  [[nodiscard]] Floats heads_of(std::span<const float> x, std::span<const float> weights,
                                std::span<const float> bias, std::span<const float> norm,
                                std::span<const std::int64_t> positions) const {
    Floats heads = product(x, weights, hidden());
    if (!bias.empty()) add(heads, bias);
    if (!norm.empty()) rms_norm(heads, norm, config_.norm_epsilon, heads);
    const std::size_t row = weights.size() / hidden();
    for (std::size_t i = 0; i < positions.size(); ++i) {
      rotary_.turn(positions[i], std::span(heads).subspan(i * row, row));
    }
    return heads;
  }

  void keep(LayerPages& pages, const DecoderWeights::Layer& layer, const StepRows& rows,
            std::span<const float> x) {
    const Floats mine = rows_at(x, rows.kept);
    std::vector<std::int64_t> positions;
    for (const std::size_t row : rows.kept) positions.push_back(rows.positions[row]);
    const Floats k = heads_of(mine, layer.k, layer.k_bias, layer.k_norm, positions);
    Floats v = product(mine, layer.v, hidden());
    if (!layer.v_bias.empty()) add(v, layer.v_bias);
    const auto dim = static_cast<std::size_t>(config_.head_dim);
    std::size_t at = 0;
    for (const std::int64_t slot : rows.slots) {
      for (std::int32_t h = 0; h < config_.kv_heads; ++h) {
        write_row(pages.k.view(), slot, h, std::span(k).subspan(at, dim));
        write_row(pages.v.view(), slot, h, std::span(v).subspan(at, dim));
        at += dim;
      }
    }
  }

  [[nodiscard]] PagedTensor paged(const HostTensor& tensor) const {
    const TensorView view = tensor.view();
    return {view.data,         view.token_stride * options_.layout.page_size,
            view.token_stride, view.head_stride,
            view.dim,          {}};
  }

  // A group's layer is finished while the exchange of the next group's layer is on its way. For a
  // layer's last group, the next one is the first group of the next layer. A single group is
  // finished at once.
  void compute_layers(std::vector<StepGroup>& groups) {
    std::optional<PendingLayer> before;
    for (std::int32_t i = 0; i < config_.num_layers; ++i) {
      for (StepGroup& group : groups) {
        if (before && before->group == &group) {
          finish_layer(std::move(*before));
          before.reset();
        }
        PendingLayer next = begin_layer(i, group);
        if (before) finish_layer(std::move(*before));
        before.emplace(std::move(next));
      }
    }
    if (before) finish_layer(std::move(*before));
  }

  // Computes a layer up to attention.
  [[nodiscard]] PendingLayer begin_layer(std::int32_t index, StepGroup& group) {
    const auto i = static_cast<std::size_t>(index);
    const DecoderWeights::Layer& layer = weights_.layers[i];
    const Floats normed_x = normed(group.x, layer.attention_norm);
    keep(pages_[i], layer, group.rows, normed_x);
    Floats q = heads_of(normed_x, layer.q, layer.q_bias, layer.q_norm, group.rows.positions);
    return begin_attention(index, group, q);
  }

  // x += attention, then x += the output of the feed-forward.
  void finish_layer(PendingLayer pending) {
    pending.attention.finish();
    const DecoderWeights::Layer& layer = weights_.layers[static_cast<std::size_t>(pending.layer)];
    Floats& x = pending.group->x;
    const auto inputs = weights_.part.of(config_.q_heads).size() * config_.head_dim;
    Floats y = product(pending.o.values<float>(), layer.o, static_cast<std::size_t>(inputs));
    sum(y);
    if (!layer.o_bias.empty()) add(y, layer.o_bias);
    add(x, y);
    feed_forward(layer, x);
  }

  // Attention of this rank's query heads.
  [[nodiscard]] PendingLayer begin_attention(std::int32_t index, StepGroup& group, Floats& q) {
    const StepRows& rows = group.rows;
    const std::int64_t window = config_.window(index);
    std::vector<Range> keys;
    std::vector<PagedRequest> paged_requests;
    std::int64_t first_row = 0;
    keys.reserve(rows.tokens.size());
    for (const std::int64_t position : rows.positions) {
      const Range seen = {window == 0 ? 0 : std::max<std::int64_t>(0, position + 1 - window),
                          position + 1};
      keys.push_back({options_.layout.local_length(transport_.rank(), seen.begin),
                      options_.layout.local_length(transport_.rank(), seen.end)});
    }
    for (const StepRequest& request : group.requests) {
      const auto count = static_cast<std::int64_t>(request.tokens.size());
      paged_requests.push_back({first_row, count, request.table,
                                std::span(keys).subspan(static_cast<std::size_t>(first_row),
                                                        static_cast<std::size_t>(count))});
      first_row += count;
    }
    const auto i = static_cast<std::size_t>(index);
    const PagedKv kv = {paged(pages_[i].k), paged(pages_[i].v), options_.kv_dtype, config_.kv_heads,
                        options_.layout.page_size};
    const auto heads = static_cast<std::int32_t>(weights_.part.of(config_.q_heads).size());
    const auto q_heads = weights_.part.all_queries ? config_.q_heads : heads;
    HostTensor o(Dtype::kF32, first_row, heads, config_.head_dim);
    HostTensor lse(Dtype::kF32, first_row, heads, 1);
    transport_.meter(traffic_.attention_bytes);
    PendingAttention attention =
        group_.begin({options_.mode,
                      {1 / std::sqrt(static_cast<float>(config_.head_dim)), 0},
                      options_.wire,
                      options_.hop_b == HopBReading::kAttention ? options_.hop_b_groups : 1},
                     kv, contiguous(q.data(), Dtype::kF32, first_row, q_heads, config_.head_dim),
                     paged_requests, {o.view(), lse.stats()});
    return {index, &group, std::move(o), std::move(lse), std::move(attention)};
  }

  // x += the output of the feed-forward.
  void feed_forward(const DecoderWeights::Layer& layer, Floats& x) {
    const Floats input = normed(x, layer.ffn_norm);
    Floats gate = product(input, layer.gate, hidden());
    gate_by_silu(gate, product(input, layer.up, hidden()));
    const auto inner = static_cast<std::size_t>(weights_.part.of(config_.ffn_size).size());
    Floats y = product(gate, layer.down, inner);
    y.resize(x.size());  // of a rank that has no part
    sum(y);
    add(x, y);
  }

  void sum(Floats& values) {
    transport_.meter(traffic_.reduction_bytes);
    all_reduce(transport_, values);
  }

  // The logits of all tokens. Every rank computes those of its part of the vocabulary.
  [[nodiscard]] HostTensor logits(const Floats& sampled) {
    const Floats last = normed(sampled, weights_.norm);
    const Floats mine = product(last, weights_.logits, hidden());
    const std::size_t count = sampled.size() / hidden();
    const std::vector<std::int64_t> vocabulary =
        equal_splits(config_.vocab_size, transport_.size());
    std::vector<std::int64_t> splits;
    for (const std::int64_t split : vocabulary) {
      splits.push_back(split * static_cast<std::int64_t>(count));
    }
    Floats parts(count * static_cast<std::size_t>(config_.vocab_size));
    std::copy(mine.begin(), mine.end(), parts.begin() + splits[transport_.rank().index()]);
    transport_.meter(traffic_.logits_bytes);
    all_gather(transport_, parts, splits);
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

  DecoderTraffic traffic_;
  MeteredTransport transport_;
  const DecoderConfig config_;
  const DecoderWeights weights_;
  const DecoderOptions options_;
  DecodeGroup group_;
  Rotary rotary_;
  std::vector<LayerPages> pages_;
};

DecoderRank::DecoderRank(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
                         const DecoderOptions& options)
    : state_(std::make_unique<State>(transport, config, std::move(weights), options)) {}
DecoderRank::~DecoderRank() = default;

void DecoderRank::copy_pages(std::span<const PageCopy> copies) { state_->copy_pages(copies); }
HostTensor DecoderRank::forward(std::span<const StepRequest> requests) {
  return state_->forward(requests);
}
const DecoderTraffic& DecoderRank::traffic() const { return state_->traffic(); }
std::int64_t DecoderRank::kv_bytes() const { return state_->kv_bytes(); }

}  // namespace contextile

#include "serving/model/decode_pass.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kernel/tensor.h"
#include "serving/decode/even_runs.h"

namespace contextile {

// The tokens of a step, and which of them this rank keeps.
struct DecodePass::Rows {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  std::vector<std::size_t> kept;     // rows whose keys and values lie here
  std::vector<std::int64_t> slots;   // where, of the kept
  std::vector<std::size_t> sampled;  // rows that need logits
};

// Neighbouring requests of a step that compute a layer together.
struct DecodePass::Group {
  std::span<const StepRequest> requests;
  Rows rows;
  Floats x;  // [rows, hidden]
};

// A group's attention whose outputs are on their way; moving the object leaves them in place.
struct DecodePass::PendingLayer {
  std::int32_t layer = 0;
  Group* group = nullptr;
  HostTensor o;
  HostTensor lse;
  PendingAttention attention;
};

namespace {

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

DecodePass::DecodePass(DecoderCore& core)
    : core_(core), group_(core.token_group(), find_paged_kernel()) {}

Floats DecodePass::forward(std::span<const StepRequest> requests) {
  const DecoderOptions& options = core_.options();
  // A request reads what earlier ones write in the same step, and groups begin a layer in order.
  const bool by_layers = options.hop_b == HopBReading::kFeedForward;
  std::vector<Group> groups;
  for (const auto some : token_groups(requests, by_layers ? options.hop_b_groups : 1)) {
    groups.push_back({some, rows_of(some), {}});
    groups.back().x = core_.embed(groups.back().rows.tokens);
  }
  compute_layers(groups);
  Floats sampled;
  for (const Group& group : groups) {
    const Floats some = core_.rows_at(group.x, group.rows.sampled);
    sampled.insert(sampled.end(), some.begin(), some.end());
  }
  return sampled;
}

DecodePass::Rows DecodePass::rows_of(std::span<const StepRequest> requests) const {
  Rows rows;
  for (const StepRequest& request : requests) {
    const std::int64_t count = std::ssize(request.tokens);
    const Range range = {request.position, request.position + count};
    const std::vector<std::int64_t> slots =
        slots_of(core_.options().layout, request.table, core_.token_group().rank(), range);
    for (std::int64_t i = 0; i < count; ++i) {
      if (slots[static_cast<std::size_t>(i)] >= 0) {
        rows.kept.push_back(rows.tokens.size());
        rows.slots.push_back(slots[static_cast<std::size_t>(i)]);
      }
      rows.tokens.push_back(request.tokens[static_cast<std::size_t>(i)]);
      rows.positions.push_back(request.position + i);
    }
    for (std::int64_t i = request.num_logits; i > 0; --i) {
      rows.sampled.push_back(rows.tokens.size() - static_cast<std::size_t>(i));
    }
  }
  return rows;
}

void DecodePass::keep(std::int32_t layer, const Rows& rows, std::span<const float> x) {
  const Floats mine = core_.rows_at(x, rows.kept);
  std::vector<std::int64_t> positions;
  for (const std::size_t row : rows.kept) positions.push_back(rows.positions[row]);
  const Floats k = core_.keys(core_.layer(layer), mine, positions);
  const Floats v = core_.values(core_.layer(layer), mine);
  core_.keep(layer, rows.slots, k, v);
}

// A group's layer is finished while the exchange of the next group's layer is on its way. For a
// layer's last group, the next one is the first group of the next layer. A single group is finished
// at once.
void DecodePass::compute_layers(std::vector<Group>& groups) {
  std::optional<PendingLayer> before;
  for (std::int32_t i = 0; i < core_.config().num_layers; ++i) {
    for (Group& group : groups) {
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
DecodePass::PendingLayer DecodePass::begin_layer(std::int32_t index, Group& group) {
  const DecoderWeights::Layer& layer = core_.layer(index);
  const Floats normed_x = core_.normed(group.x, layer.attention_norm);
  keep(index, group.rows, normed_x);
  const DecoderPart& part = core_.part();
  const std::int64_t all_heads = core_.config().q_heads;
  Floats q =
      core_.queries(layer, normed_x, part.all_queries ? part.group(all_heads) : part.own(all_heads),
                    group.rows.positions);
  if (core_.config().latent) {
    q = core_.latent_queries(layer, q,
                             part.all_queries ? part.group(all_heads) : part.own(all_heads));
  }
  return begin_attention(index, group, q);
}

void DecodePass::finish_layer(PendingLayer pending) {
  pending.attention.finish();
  const DecoderWeights::Layer& layer = core_.layer(pending.layer);
  const DecoderPart& part = core_.part();
  Floats& x = pending.group->x;
  const Range heads = part.own(core_.config().q_heads);
  const std::span<float> o = pending.o.values<float>();
  if (core_.config().sinks) {
    DecoderCore::apply_sinks(layer, heads, pending.lse.values<float>(), o);
  }
  if (core_.config().latent) {
    core_.add_outputs(layer, core_.outputs_of_latent(layer, o, heads), heads, core_.world(), x);
  } else {
    core_.add_outputs(layer, o, heads, core_.world(), x);
  }
  core_.add_feed_forward(pending.layer, RowsOf::kStep, x);
}

// This rank's keys that every row sees.
std::vector<Range> DecodePass::keys_of(std::int32_t layer, const Rows& rows) {
  const KvLayout& layout = core_.options().layout;
  const std::int64_t window = core_.config().window(layer);
  const Rank rank = core_.token_group().rank();
  std::vector<Range> keys;
  keys.reserve(rows.tokens.size());
  std::int64_t pairs = 0;
  for (const std::int64_t position : rows.positions) {
    const Range seen = {window == 0 ? 0 : std::max<std::int64_t>(0, position + 1 - window),
                        position + 1};
    keys.push_back({layout.local_length(rank, seen.begin), layout.local_length(rank, seen.end)});
    pairs += keys.back().size();
  }
  core_.work().attention_flops += 2 * pairs *
                                  (core_.config().key_dim() + core_.config().value_dim()) *
                                  core_.part().group(core_.config().q_heads).size();
  return keys;
}

// Attention of this rank's query heads.
DecodePass::PendingLayer DecodePass::begin_attention(std::int32_t index, Group& group, Floats& q) {
  const DecoderOptions& options = core_.options();
  const DecoderConfig& config = core_.config();
  const std::vector<Range> keys = keys_of(index, group.rows);
  std::vector<PagedRequest> paged_requests;
  std::int64_t first_row = 0;
  for (const StepRequest& request : group.requests) {
    const std::int64_t count = std::ssize(request.tokens);
    paged_requests.push_back({first_row, count, request.table,
                              std::span(keys).subspan(static_cast<std::size_t>(first_row),
                                                      static_cast<std::size_t>(count))});
    first_row += count;
  }
  const auto heads = static_cast<std::int32_t>(core_.part().own(config.q_heads).size());
  const std::int64_t group_heads = core_.part().group(config.q_heads).size();
  const auto q_heads =
      options.mode == DecodeMode::kQReplicated ? static_cast<std::int32_t>(group_heads) : heads;
  HostTensor o(Dtype::kF32, first_row, heads, config.value_dim());
  HostTensor lse(Dtype::kF32, first_row, heads, 1);
  core_.meter(core_.traffic().attention_bytes);
  PendingAttention attention =
      group_.begin({options.mode,
                    {static_cast<float>(config.score_scale()), 0},
                    options.wire,
                    options.hop_b == HopBReading::kAttention ? options.hop_b_groups : 1},
                   core_.paged_kv(index),
                   contiguous(q.data(), Dtype::kF32, first_row, q_heads, config.key_dim()),
                   paged_requests, {o.view(), lse.stats()});
  return {index, &group, std::move(o), std::move(lse), std::move(attention)};
}

}  // namespace contextile

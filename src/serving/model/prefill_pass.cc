#include "serving/model/prefill_pass.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kernel/tensor.h"
#include "serving/model/latent_prefill.h"
#include "serving/prefill/check_prefill.h"
#include "transport/all_reduce.h"

namespace contextile {

// The attention of the layers that have one window.
struct PrefillPass::Attention {
  std::int32_t window = 0;
  std::optional<PrefillGroup> group;
  std::optional<PlannedPrefill> planned;
  std::int64_t flops = 0;  // of this rank, for a layer
};

struct PrefillPass::Batch {
  std::vector<PrefillSequence> sequences;
  PrefillBatch batch;
  PrefillRows rows;  // this rank's
  std::vector<std::int64_t> positions;
  std::vector<std::unique_ptr<Attention>> attentions;
  std::optional<LatentPrefill> latent;
};

namespace {

// Keys or values rounded as the cache rounds them, so that new tokens are seen as cached ones are.
Floats rounded(Floats values, Dtype dtype) {
  if (dtype == Dtype::kF32) return values;
  for (float& value : values) value = static_cast<float>(round_to(dtype, value));
  return values;
}

TensorView view_of(const Floats& values, std::int64_t rows, std::int32_t heads, std::int32_t dim) {
  return contiguous(const_cast<float*>(values.data()), Dtype::kF32, rows, heads, dim);
}

// Attended pairs that a rank computes, in heads of one rank.
std::int64_t pairs_of(PrefillMode mode, const PrefillWork& work, Rank rank) {
  const auto ranks = static_cast<std::size_t>(work.num_ranks);
  std::int64_t pairs = 0;
  for (std::size_t a = 0; a < ranks; ++a) {
    for (std::size_t b = 0; b < ranks; ++b) {
      const std::size_t at = mode == PrefillMode::kPassQ ? b : a;
      if (mode == PrefillMode::kUlysses || at == rank.index()) pairs += work.pairs[a * ranks + b];
    }
  }
  return mode == PrefillMode::kUlysses ? pairs / work.num_ranks : pairs;
}

}  // namespace

PrefillPass::PrefillPass(DecoderCore& core)
    : core_(core),
      shape_(prompt_attention(core.config(), core.part())),
      kernel_(find_kernel("", Dtype::kF32)) {
  const std::optional<PrefillMode> mode = core.options().prefill.mode;
  if (mode == PrefillMode::kUlysses) check_ulysses(shape_, core.token_group().size());
  // Now, so that the first prompt need not wait for it.
  const bool chooses = core.part().context_parallel > 1 && !mode &&
                       core.options().prefill.min_tokens < std::numeric_limits<std::int64_t>::max();
  if (chooses) rates_ = measure_prefill_rates(core.token_group(), kernel_, shape_);
}

PrefillPass::~PrefillPass() = default;

PrefillMode PrefillPass::mode_of(const PrefillWork& work) {
  if (core_.options().prefill.mode) return *core_.options().prefill.mode;
  std::vector<PrefillMode> modes = {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                    PrefillMode::kAllGather};
  if (fits_ulysses(shape_, core_.token_group().size())) modes.push_back(PrefillMode::kUlysses);
  return simulated_prefill_mode(modes, work, shape_, *rates_, core_.options().wire, kv_wire());
}

// Keys are rounded as the cache has them, except those that latent vectors are expanded to.
Dtype PrefillPass::kv_wire() const {
  return core_.config().latent ? Dtype::kF32 : page_dtype(core_.options().kv_dtype);
}

PrefillPass::Attention& PrefillPass::attention_of(Batch& batch, std::int32_t layer) {
  const std::int32_t window = core_.config().window(layer);
  const auto found =
      std::ranges::find(batch.attentions, window, [](const auto& its) { return its->window; });
  if (found != batch.attentions.end()) return **found;
  auto made = std::make_unique<Attention>();
  made->window = window;
  PrefillBatch masked = batch.batch;
  if (batch.latent) masked.sequences = batch.latent->sequences();
  masked.mask = window_mask(window);
  Transport& ranks = core_.token_group();
  const PrefillPlanner& planner = core_.options().prefill.plan;
  if (std::shared_ptr<const Plan> plan = planner ? planner(masked, shape_) : nullptr) {
    made->flops =
        static_cast<std::int64_t>(statistics(*plan).forward->devices[ranks.rank().index()].flops);
    made->planned.emplace(ranks, kernel_);
    made->planned->prepare(std::move(plan), masked);
  } else {
    const PrefillWork work = prefill_work(masked);
    const PrefillMode mode = mode_of(work);
    made->flops = 2 * pairs_of(mode, work, ranks.rank()) * shape_.q_heads *
                  (shape_.head_dim + shape_.value_dim);
    made->group.emplace(ranks, kernel_);
    made->group->prepare(masked, shape_,
                         {.mode = mode, .wire = core_.options().wire, .kv_wire = kv_wire()});
  }
  batch.attentions.push_back(std::move(made));
  return *batch.attentions.back();
}

Floats PrefillPass::forward(std::span<const StepRequest> requests) {
  core_.meter(core_.traffic().prefill_bytes);
  Batch batch;
  std::vector<std::int32_t> tokens;
  for (const StepRequest& request : requests) {
    batch.sequences.push_back({request.position, std::ssize(request.tokens), request.table});
    tokens.insert(tokens.end(), request.tokens.begin(), request.tokens.end());
  }
  batch.batch = {core_.options().layout, batch.sequences, core_.options().prefill.chunks, {}};
  batch.rows = prefill_rows(batch.batch)[core_.token_group().rank().index()];
  batch.positions = batch.rows.positions(batch.sequences);
  if (core_.config().latent) batch.latent.emplace(core_, batch.batch);
  std::vector<std::int32_t> mine;
  for (const std::int64_t i : batch.rows.tokens(batch.sequences)) {
    mine.push_back(tokens[static_cast<std::size_t>(i)]);
  }
  Floats x = core_.embed(mine);
  for (std::int32_t i = 0; i < core_.config().num_layers; ++i) compute_layer(i, batch, x);
  return last_rows(batch, requests, x);
}

void PrefillPass::compute_layer(std::int32_t index, Batch& batch, Floats& x) {
  const DecoderWeights::Layer& layer = core_.layer(index);
  const Range heads = core_.part().held(core_.config().q_heads);
  const Floats normed_x = core_.normed(x, layer.attention_norm);
  Floats q = core_.queries(layer, normed_x, heads, batch.positions);
  const std::int64_t rows = std::ssize(batch.positions);
  const Dtype dtype = core_.pages(index).k.view().dtype;
  const Floats keys = rounded(core_.keys(layer, normed_x, batch.positions), dtype);
  const Floats values = rounded(core_.values(layer, normed_x), dtype);
  HostTensor o(Dtype::kF32, rows, shape_.q_heads, shape_.value_dim);
  HostTensor lse(Dtype::kF32, rows, shape_.q_heads, 1);
  core_.meter(core_.traffic().prefill_bytes);
  Attention& attention = attention_of(batch, index);
  const TensorView q_view =
      contiguous(q.data(), Dtype::kF32, rows, shape_.q_heads, shape_.head_dim);
  const auto sinks = shape_.sink ? std::span(layer.sinks)
                                       .subspan(static_cast<std::size_t>(heads.begin),
                                                static_cast<std::size_t>(heads.size()))
                                 : std::span<const float>{};
  const auto run = [&](auto& with) {
    const PartialOutput out = {o.view(), lse.stats()};
    if (batch.latent) {
      const ExpandedKv kv = batch.latent->expanded(index, keys);
      with.attend(q_view, kv.k.view(), kv.v.view(), batch.latent->cached(index), out, sinks);
      batch.latent->keep(index, keys);
      return;
    }
    const TensorView k = view_of(keys, rows, shape_.kv_heads, shape_.head_dim);
    const TensorView v = view_of(values, rows, shape_.kv_heads, shape_.head_dim);
    with.attend(q_view, k, v, core_.paged_kv(index), out, sinks);
    const NewKv kept = with.to_cache(k, v);
    core_.keep(index, kept.slots, kept.k_THD.values<float>(), kept.v_THD.values<float>());
  };
  if (attention.planned) {
    run(*attention.planned);
  } else {
    run(*attention.group);
  }
  core_.work().attention_flops += attention.flops;
  core_.add_outputs(layer, o.values<float>(), heads, core_.tensor_group(), x);
  core_.add_feed_forward(index, RowsOf::kOwnTokens, x);
}

// Each row comes from the ranks that have its token; the others add 0.
Floats PrefillPass::last_rows(const Batch& batch, std::span<const StepRequest> requests,
                              std::span<const float> x) {
  std::vector<std::size_t> first_of;  // rows of `last`, by request
  std::size_t num_rows = 0;
  for (const StepRequest& request : requests) {
    first_of.push_back(num_rows);
    num_rows += static_cast<std::size_t>(request.num_logits);
  }
  Floats last(num_rows * core_.hidden());
  auto row = x.begin();
  for (const PrefillSegment& segment : batch.rows.segments) {
    const auto i = static_cast<std::size_t>(segment.sequence);
    const std::int64_t first = std::ssize(requests[i].tokens) - requests[i].num_logits;
    for (std::int64_t token = segment.tokens.begin; token < segment.tokens.end; ++token) {
      const auto end = row + static_cast<std::ptrdiff_t>(core_.hidden());
      if (token >= first) {
        const std::size_t at = first_of[i] + static_cast<std::size_t>(token - first);
        std::copy(row, end, last.begin() + static_cast<std::ptrdiff_t>(at * core_.hidden()));
      }
      row = end;
    }
  }
  core_.meter(core_.traffic().logits_bytes);
  all_reduce(core_.token_group(), last);
  return last;
}

}  // namespace contextile

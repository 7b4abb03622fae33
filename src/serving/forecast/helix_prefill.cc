#include <algorithm>
#include <vector>

#include "base/check.h"
#include "contextile/serving/helix.h"
#include "serving/forecast/helix_parts.h"
#include "serving/forecast/helix_weights.h"

namespace contextile {
namespace {

constexpr double kLseBytes = 4;  // of a row and query head

// One layer's attention of rows that are dealt evenly, and the messages around it. The times of the
// modes are those of simulate_prefill_s where all ranks have the same work.
class EvenAttention {
 public:
  EvenAttention(const HelixModel& model, const HelixHardware& hardware, const HelixLayout& layout,
                const HelixRows& rows)
      : hardware_(hardware), ranks_(layout.kvp) {
    const double heads = static_cast<double>(model.shape.q_heads) / layout.tpa;
    const double own_rows = static_cast<double>(rows.rows) / ranks_;
    const auto keys = static_cast<double>(rows.keys);
    const double key_bytes = token_elements(model, layout) * model.kv_bytes;
    const double dim = model.latent ? static_cast<double>(kv_elements(model))
                                    : static_cast<double>(model.shape.head_dim);
    kv_heads_ = kv_heads_of_device(model, layout);
    kv_block_ = keys / ranks_ * key_bytes;
    new_kv_ = own_rows * key_bytes;
    q_block_ = own_rows * heads * dim * model.activation_bytes;
    o_block_ = own_rows * heads *
               (static_cast<double>(partial_elements(model)) * model.activation_bytes + kLseBytes);
    attention_ =
        std::max(read_us(hardware, keys * key_bytes),
                 compute_us(hardware, pair_flops(model) * rows.pairs / layout.group_devices()));
  }

  [[nodiscard]] double ranks() const { return ranks_; }
  [[nodiscard]] double attention_us() const { return attention_; }

  // Time from the first message to the end of attention.
  [[nodiscard]] double total_us(PrefillMode mode) const {
    switch (mode) {
      case PrefillMode::kPassKv:
        return (ranks_ - 1) * std::max(block(), sending(kv_block_)) + block();
      case PrefillMode::kPassQ:
        return pass_q_us();
      case PrefillMode::kAllGather:
        return std::max(block(), sending((ranks_ - 1) * kv_block_, ranks_ - 1)) +
               (ranks_ - 1) * block();
      case PrefillMode::kUlysses:
        break;
    }
    return attention_ + sent_us(mode);
  }
  // Time of the messages of a rank, whether they are hidden or not.
  [[nodiscard]] double sent_us(PrefillMode mode) const {
    const double others = ranks_ - 1;
    switch (mode) {
      case PrefillMode::kPassKv:
      case PrefillMode::kAllGather:
        return sending(others * kv_block_, others);
      case PrefillMode::kPassQ:
        return sending(others * (q_block_ + o_block_), 2 * others);
      case PrefillMode::kUlysses:
        break;
    }
    const double to_each = q_block_ / ranks_ + kv_block_ / std::min(kv_heads_, ranks_);
    return sending(others * (to_each + o_block_ / ranks_), 2 * others);
  }
  // Time of new keys and values on their way to the pages of their owners.
  [[nodiscard]] double to_cache_us() const {
    return send_us(hardware_, new_kv_ * (1 - 1. / ranks_));
  }

 private:
  [[nodiscard]] double block() const { return attention_ / ranks_; }
  [[nodiscard]] double sending(double bytes, double messages = 1) const {
    return send_us(hardware_, bytes) + (messages - 1) * hardware_.latency_us;
  }

  // A rank hands on the queries that it has, computes with them, and sends their outputs home.
  [[nodiscard]] double pass_q_us() const {
    double has = 0;   // the queries of the step
    double free = 0;  // has computed those before
    double link = 0;  // has sent everything so far
    for (std::int32_t step = 0; step < ranks_; ++step) {
      const double starts = std::max(has, free);
      if (step + 1 < ranks_) has = link = std::max(link, starts) + sending(q_block_);
      free = starts + block();
      if (step > 0) link = std::max(link, free) + sending(o_block_);
    }
    return std::max(free, link);
  }

  const HelixHardware& hardware_;
  std::int32_t ranks_;
  std::int32_t kv_heads_ = 0;  // of a device
  double kv_block_ = 0;        // bytes of a rank's keys and values, cached and new
  double new_kv_ = 0;          // of the new ones
  double q_block_ = 0;         // of its queries
  double o_block_ = 0;         // of their outputs
  double attention_ = 0;
};

PrefillMode fastest_mode(const EvenAttention& attention, const HelixModel& model,
                         const HelixLayout& layout) {
  std::vector<PrefillMode> modes;
  for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kPassQ, PrefillMode::kAllGather,
                                 PrefillMode::kUlysses}) {
    if (takes_prefill_mode(model, layout, mode)) modes.push_back(mode);
  }
  return *std::ranges::min_element(modes, {},
                                   [&](PrefillMode mode) { return attention.total_us(mode); });
}

}  // namespace

bool takes_prefill_mode(const HelixModel& model, const HelixLayout& layout, PrefillMode mode) {
  const std::int32_t q_heads = model.shape.q_heads / layout.tpa;
  const std::int32_t kv_heads = kv_heads_of_device(model, layout);
  return mode != PrefillMode::kUlysses ||
         (q_heads % layout.kvp == 0 && (kv_heads % layout.kvp == 0 || layout.kvp % kv_heads == 0));
}

HelixPrefill helix_prefill(const HelixModel& model, const HelixHardware& hardware,
                           const HelixLayout& layout, const HelixRows& rows,
                           std::optional<PrefillMode> mode) {
  check_helix_layout(model, layout);
  check_helix_hardware(hardware);
  check_devices(hardware, layout);
  check_rows(rows);
  CONTEXTILE_CHECK(layout.prompts == HelixPrompts::kOwnRows,
                   "layout {}: expected groups that compute their own rows of prompts, found all "
                   "rows",
                   to_string(layout));
  const EvenAttention attention(model, hardware, layout, rows);
  CONTEXTILE_CHECK(!mode || takes_prefill_mode(model, layout, *mode),
                   "layout {}: expected heads that KVP {} divides for {}, found {} query and {} KV "
                   "heads on a device",
                   to_string(layout), layout.kvp, to_string(*mode),
                   model.shape.q_heads / layout.tpa, kv_heads_of_device(model, layout));
  HelixPrefill found;
  found.mode = mode ? *mode : fastest_mode(attention, model, layout);
  HelixRows own = rows;
  own.rows = (rows.rows + layout.kvp - 1) / layout.kvp;
  own.logits = 0;
  const double layers = model.shape.layers;
  const HelixLayout whole = own_layout(layout);
  HelixStep& step = found.step;
  step.kv_us = layers * attention.attention_us();
  step.weights_us = mixed_weights_us(model, hardware, whole, own) +
                    logits_us(model, hardware, {layout.kvp, layout.tpa, layout.devices()}, rows);
  step.all_reduce_us =
      layers * all_reduces_us(model, hardware, whole, static_cast<double>(own.rows));
  step.exchange_us = layers * (attention.sent_us(found.mode) + attention.to_cache_us());
  step.exposed_us = layers * (attention.total_us(found.mode) - attention.attention_us() +
                              attention.to_cache_us());
  step.launch_us = layers * hardware.launch_us;
  return found;
}

}  // namespace contextile

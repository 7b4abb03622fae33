#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/serving/helix.h"
#include "serving/forecast/helix_parts.h"
#include "serving/forecast/helix_weights.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostRequests = 1 << 20;
constexpr std::int64_t kMostRows = std::int64_t{1} << 32;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr double kStatBytes = 8;  // maximum and sum of a row's scores, f32 each

void check_batch(std::int64_t batch) {
  CONTEXTILE_CHECK(batch >= 1 && batch <= kMostRequests,
                   "batch: expected 1 to {} requests, found {}", kMostRequests, batch);
}
void check_context(std::int64_t context) {
  CONTEXTILE_CHECK(context >= 1 && context <= kMostTokens,
                   "context: expected 1 to {} tokens, found {}", kMostTokens, context);
}

// The most of those requests that one device attends to.
double attended_requests(const HelixLayout& layout, double requests) {
  return layout.dp == 1 ? requests : std::ceil(requests / layout.dp);
}

// Experts that `tokens` tokens are expected to reach, each taking its `active` ones at random.
double reached_experts(const HelixExperts& experts, double tokens) {
  const double missed = 1 - static_cast<double>(experts.active) / experts.routed;
  return experts.routed * (1 - std::pow(missed, tokens));
}

// Time of a product of rows with matrices: `read` elements are read, and a row is multiplied with
// `used` of them.
double product_us(const HelixModel& model, const HelixHardware& hardware, double read, double used,
                  double rows) {
  return std::max(read_us(hardware, read * model.weight_bytes),
                  compute_us(hardware, 2 * used * rows));
}

}  // namespace

double read_us(const HelixHardware& hardware, double bytes) {
  return bytes / (1e3 * hardware.memory_gbytes_per_s);
}

double send_us(const HelixHardware& hardware, double bytes) {
  return hardware.latency_us + bytes / (1e3 * hardware.network_gbytes_per_s);
}

double compute_us(const HelixHardware& hardware, double flops) {
  return flops / (1e6 * hardware.tflops);
}

double token_elements(const HelixModel& model, const HelixLayout& layout) {
  return static_cast<double>(kv_heads_of_device(model, layout)) * kv_elements(model);
}

double pair_flops(const HelixModel& model) {
  const auto key_elements =
      model.latent ? static_cast<double>(kv_elements(model)) : model.shape.head_dim;
  return 2 * (key_elements + static_cast<double>(partial_elements(model))) * model.shape.q_heads;
}

double all_reduces_us(const HelixModel& model, const HelixHardware& hardware,
                      const HelixLayout& layout, double requests) {
  const auto all_reduce_bytes = [&](std::int32_t devices, double its_requests) {
    return 2.0 * (devices - 1) / devices * its_requests * model.shape.hidden *
           model.activation_bytes;
  };
  if (layout.ffn_devices() == 1) return 0;
  const double whole = send_us(hardware, all_reduce_bytes(layout.ffn_devices(), requests));
  if (layout.dp == 1) return 2 * whole;
  const double own = attended_requests(layout, requests);
  const double projected =
      layout.tpa == 1 ? 0 : send_us(hardware, all_reduce_bytes(layout.tpa, own));
  return projected + whole + hardware.latency_us;
}

double mixed_weights_us(const HelixModel& model, const HelixHardware& hardware,
                        const HelixLayout& layout, const HelixRows& rows) {
  const LayerShares shares = layer_shares(model, layout);
  const auto count = static_cast<double>(rows.rows);
  const auto product = [&](double elements, double used) {
    return product_us(model, hardware, elements, used, count);
  };
  const double dense_layers = num_dense_layers(model);
  const double dense = shares.output + shares.dense;
  double us = model.shape.layers * product(shares.before_attention, shares.before_attention) +
              dense_layers * product(dense, dense);
  if (model.experts) {
    const double all = shares.output + shares.shared;
    const double expert = shares.expert / layout.ep;
    us += (model.shape.layers - dense_layers) *
          product(all + reached_experts(*model.experts, count) * expert,
                  all + model.experts->active * expert);
  }
  return us + logits_us(model, hardware, layout, rows);
}

double logits_us(const HelixModel& model, const HelixHardware& hardware, const HelixLayout& layout,
                 const HelixRows& rows) {
  if (rows.logits == 0) return 0;
  const double head = head_share(model, layout);
  return product_us(model, hardware, head, head, static_cast<double>(rows.logits));
}

void check_rows(const HelixRows& rows) {
  CONTEXTILE_CHECK(rows.rows >= 1 && rows.rows <= kMostRows,
                   "rows: expected 1 to {} of a step, found {}", kMostRows, rows.rows);
  CONTEXTILE_CHECK(rows.logits >= 0 && rows.logits <= rows.rows,
                   "rows: expected logits of at most {} rows, found {}", rows.rows, rows.logits);
  CONTEXTILE_CHECK(rows.keys >= 0 && std::isfinite(rows.pairs) && rows.pairs >= 0,
                   "rows: expected keys and pairs of at least 0, found {} and {}", rows.keys,
                   rows.pairs);
}

void check_devices(const HelixHardware& hardware, const HelixLayout& layout) {
  CONTEXTILE_CHECK(layout.devices() <= hardware.max_devices,
                   "layout {}: expected at most {} devices of hardware {}, found {}",
                   to_string(layout), hardware.max_devices, quote(hardware.name), layout.devices());
}

namespace {

// One layer's times for groups of `requests` requests each.
struct GroupTimes {
  double kv = 0;
  double before_attention = 0;
  double exchange = 0;
  double after_attention[2] = {};  // dense, experts
  double all_reduce = 0;           // both
};

double exchange_us(const HelixModel& model, const HelixHardware& hardware,
                   const HelixLayout& layout, double requests) {
  if (layout.kvp == 1) return 0;
  const double heads = requests * model.shape.q_heads / layout.group_devices();
  const double row_bytes = static_cast<double>(partial_elements(model)) * model.activation_bytes;
  const double merged = send_us(hardware, (layout.kvp - 1) * heads * (row_bytes + kStatBytes));
  const std::int32_t repeats = layout.devices() / layout.ffn_devices();
  return repeats == 1 ? merged : merged + send_us(hardware, (repeats - 1) * heads * row_bytes);
}

GroupTimes group_times(const HelixModel& model, const HelixHardware& hardware,
                       const HelixLayout& layout, const HelixLoad& load, double requests) {
  const LayerShares shares = layer_shares(model, layout);
  const auto weights_us = [&](double elements) {
    return read_us(hardware, elements * model.weight_bytes);
  };
  GroupTimes times;
  times.kv = read_us(hardware, attended_requests(layout, requests) * token_elements(model, layout) *
                                   static_cast<double>(load.context) / layout.kvp * model.kv_bytes);
  times.before_attention = weights_us(shares.before_attention);
  times.exchange = exchange_us(model, hardware, layout, requests);
  times.after_attention[0] = weights_us(shares.output + shares.dense);
  if (model.experts) {
    times.after_attention[1] =
        weights_us(shares.output + shares.shared +
                   reached_experts(*model.experts, requests) / layout.ep * shares.expert);
  }
  times.all_reduce = all_reduces_us(model, hardware, layout, requests);
  return times;
}

// The step when the batch is divided into groups that alternate.
HelixStep grouped_step(const HelixModel& model, const HelixHardware& hardware,
                       const HelixLayout& layout, const HelixLoad& load, HopBReading reading,
                       std::int32_t groups) {
  const double layers = model.shape.layers;
  const GroupTimes group =
      group_times(model, hardware, layout, load, static_cast<double>(load.batch) / groups);
  // Either each group reads the matrices, or the whole batch at once.
  const bool whole_layers = reading == HopBReading::kFeedForward;
  const std::int32_t turns = whole_layers ? groups : 1;
  const GroupTimes turn =
      whole_layers ? group : group_times(model, hardware, layout, load, load.batch);

  std::vector<double> feed_forward;
  double after_attention = 0;
  for (std::int32_t layer = 0; layer < model.shape.layers; ++layer) {
    const double after = turn.after_attention[layer < num_dense_layers(model) ? 0 : 1];
    after_attention += after;
    feed_forward.push_back(after + turn.all_reduce);
  }
  HelixStep step;
  step.groups = groups;
  step.kv_us = layers * groups * group.kv;
  step.weights_us = turns * (layers * turn.before_attention + after_attention) +
                    read_us(hardware, head_share(model, layout) * model.weight_bytes);
  step.all_reduce_us = turns * layers * turn.all_reduce;
  step.exchange_us = layers * groups * group.exchange;
  step.launch_us = layers * hardware.launch_us;
  if (groups == 1) {
    step.exposed_us = step.exchange_us;
  } else if (whole_layers) {
    const double attention = group.before_attention + group.kv;
    const double alone = hop_b_feed_forward(groups, attention, 0, feed_forward);
    step.exposed_us = hop_b_feed_forward(groups, attention, group.exchange, feed_forward) - alone;
  } else {
    step.exposed_us =
        layers * (hop_b_attention(groups, group.kv, group.exchange) - groups * group.kv);
  }
  return step;
}

// One layer's attention of a step with any rows.
double mixed_attention_us(const HelixModel& model, const HelixHardware& hardware,
                          const HelixLayout& layout, const HelixRows& rows) {
  const double read =
      read_us(hardware, token_elements(model, layout) * static_cast<double>(rows.keys) /
                            layout.kvp * model.kv_bytes);
  return std::max(read,
                  compute_us(hardware, pair_flops(model) / layout.group_devices() * rows.pairs));
}

double memory_for_cache(const HelixModel& model, const HelixHardware& hardware,
                        const HelixLayout& layout) {
  check_helix_hardware(hardware);
  const HelixMemory memory = helix_memory(model, layout, {});
  return static_cast<double>(hardware.memory_bytes - hardware.reserve_bytes) - memory.weights;
}

}  // namespace

HelixStep helix_step(const HelixModel& model, const HelixHardware& hardware,
                     const HelixLayout& layout, const HelixLoad& load, const HopB& hop_b) {
  check_helix_layout(model, layout);
  check_helix_hardware(hardware);
  check_batch(load.batch);
  check_context(load.context);
  check_devices(hardware, layout);
  const bool off = hop_b.reading == HopBReading::kOff;
  CONTEXTILE_CHECK(
      hop_b.groups >= 0 &&
          (off ? hop_b.groups <= 1 : hop_b.groups == 0 || load.batch % hop_b.groups == 0),
      "HOP-B {}: expected {}, found {} groups", to_string(hop_b.reading),
      off ? "no groups" : fmt::format("groups that divide {} requests", load.batch), hop_b.groups);
  if (layout.kvp == 1) {
    return grouped_step(model, hardware, layout, load, HopBReading::kOff, 1);
  }
  if (off || hop_b.groups != 0) {
    return grouped_step(model, hardware, layout, load, hop_b.reading, std::max(1, hop_b.groups));
  }
  HelixStep best = grouped_step(model, hardware, layout, load, hop_b.reading, 1);
  for (std::int32_t groups = 2; groups <= load.batch; ++groups) {
    if (load.batch % groups != 0) continue;
    const HelixStep step = grouped_step(model, hardware, layout, load, hop_b.reading, groups);
    if (step.total_us() < best.total_us()) best = step;
  }
  return best;
}

HelixStep helix_mixed_step(const HelixModel& model, const HelixHardware& hardware,
                           const HelixLayout& layout, const HelixRows& rows) {
  check_helix_layout(model, layout);
  check_helix_hardware(hardware);
  check_devices(hardware, layout);
  check_rows(rows);
  CONTEXTILE_CHECK(layout.dp == 1, "layout {}: expected DP 1 for a step of any rows, found {}",
                   to_string(layout), layout.dp);
  const double layers = model.shape.layers;
  const auto count = static_cast<double>(rows.rows);
  HelixStep step;
  step.kv_us = layers * mixed_attention_us(model, hardware, layout, rows);
  step.weights_us = mixed_weights_us(model, hardware, layout, rows);
  step.all_reduce_us = layers * all_reduces_us(model, hardware, layout, count);
  step.exchange_us = layers * exchange_us(model, hardware, layout, count);
  step.exposed_us = step.exchange_us;
  step.launch_us = layers * hardware.launch_us;
  return step;
}

HelixMemory helix_memory(const HelixModel& model, const HelixLayout& layout,
                         const HelixLoad& load) {
  check_helix_layout(model, layout);
  check_batch(load.batch);
  check_context(load.context);
  const HelixLayout held = layout.prompts == HelixPrompts::kOwnRows ? own_layout(layout) : layout;
  const LayerShares shares = layer_shares(model, held);
  const double layers = model.shape.layers;
  const double dense = num_dense_layers(model);
  double elements = layers * (shares.before_attention + shares.output) + dense * shares.dense +
                    2 * head_share(model, held);
  if (model.experts) {
    const double experts = static_cast<double>(model.experts->routed) / held.ep;
    elements += (layers - dense) * (shares.shared + experts * shares.expert);
  }
  const std::int64_t tokens = (load.context + layout.kvp - 1) / layout.kvp;
  return {.weights = elements * model.weight_bytes,
          .kv = layers * attended_requests(layout, load.batch) * token_elements(model, layout) *
                static_cast<double>(tokens) * model.kv_bytes};
}

std::int64_t helix_max_context(const HelixModel& model, const HelixHardware& hardware,
                               const HelixLayout& layout, std::int32_t batch) {
  check_batch(batch);
  const double room = memory_for_cache(model, hardware, layout);
  const double of_token = helix_memory(model, layout, {.batch = batch, .context = 1}).kv;
  const double tokens = std::floor(std::max(0.0, room / of_token)) * layout.kvp;
  return static_cast<std::int64_t>(std::min(tokens, static_cast<double>(kMostTokens)));
}

std::int32_t helix_max_batch(const HelixModel& model, const HelixHardware& hardware,
                             const HelixLayout& layout, std::int64_t context) {
  check_context(context);
  const double room = memory_for_cache(model, hardware, layout);
  const double of_request = helix_memory(model, layout, {.batch = 1, .context = context}).kv;
  const double requests = std::floor(std::max(0.0, room / of_request)) * layout.dp;
  return static_cast<std::int32_t>(std::min(requests, static_cast<double>(kMostRequests)));
}

}  // namespace contextile

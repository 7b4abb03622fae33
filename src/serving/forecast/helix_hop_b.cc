#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "contextile/serving/helix.h"

namespace contextile {
namespace {

void check_times(std::int32_t groups, double attention, double exchange) {
  CONTEXTILE_CHECK(groups >= 1, "HOP-B: expected at least 1 group of requests, found {}", groups);
  for (const double time : {attention, exchange}) {
    CONTEXTILE_CHECK(std::isfinite(time) && time >= 0,
                     "HOP-B: expected times of at least 0, found {}", time);
  }
}

}  // namespace

double hop_b_attention(std::int32_t groups, double attention, double exchange) {
  check_times(groups, attention, exchange);
  return attention + (groups - 1) * std::max(attention, exchange) + exchange;
}

double hop_b_feed_forward(std::int32_t groups, double attention, double exchange,
                          std::span<const double> feed_forward) {
  check_times(groups, attention, exchange);
  double total = 0;
  for (const double time : feed_forward) {
    check_times(groups, time, exchange);
    total += groups * (attention + (groups == 1 ? exchange + time : std::max(exchange, time)));
  }
  if (groups == 1 || feed_forward.empty()) return total;
  // The first exchange has no feed-forward before it, the last feed-forward no exchange after it.
  const double last = feed_forward.back();
  return total + exchange + last - std::max(exchange, last);
}

}  // namespace contextile

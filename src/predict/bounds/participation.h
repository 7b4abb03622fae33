// The time that devices lose to transfers even if compute hides them: launching them, and another
// call or an idle moment around the first input or the last result.
#pragma once

#include <cstdint>
#include <span>

#include "predict/bounds/components.h"
#include "predict/bounds/least_kernel_time.h"

namespace contextile {

// Components that are alike, as one load.
struct ComponentLoad {
  MaskComponent component;
  KernelCost cost;
  double count = 1;
};

struct DevicePace {
  double devices = 1;
  double owned_tokens = 0;  // most tokens of a device
  double us_per_cost = 0;   // of one pair at peak, all head groups
  double call_us = 0;
  double launch_us = 0;
  double latency_us = 0;  // of any message, at least
};

// The least time of devices that compute the loads, µs; at least that of work spread evenly and one
// call. `even_us`: that time, which no plan undercuts.
//
// Let w be the time of a device's work on tiles. A device is one of three:
// * alone: it takes part in no transfer. Its time is call + w. Then all pairs of its tokens are its
//   own work: a device that computes one of them reads both tokens or writes their results, and
//   every unit that another device owns is sent. So it owns tokens that attended pairs connect
//   together or not at all, and works on its own tokens.
// * local: it launches, but computes only pairs of tokens it owns. Its time is call + launch + w.
// * foreign: it computes a pair of a token that it does not own. In forward a call reads an input
//   that has come; in backward, where Q, K and V may have stayed, a call writes a result that
//   leaves (dQ, or dK and dV), and a plan waits for all it launches. If that is the device's only
//   call, the launch and the latency come before it or after it. Else there are two calls. Its time
//   is call + launch + min(call, latency) + w.
//
// Work: take a component's prices (extend/kernel.h), with its δ shared out among its rows. A
// device's w is at least its pairs, rows and diagonal tokens at these prices, and all devices' sum
// is at least the loads' cost W. A device that owns n tokens of a component has at most n rows and
// n diagonal tokens among them. It has at most n·min(max_degree, n) pairs, and
// n·min(max_degree, (n + 1)/2) if no token attends a later one, so its work per token grows with n.
// Let M(m) be the most that m devices' tokens can be worth by that, the dearest tokens first, each
// component's as many as it has. Let M'(m) be the same for devices alone: tokens of a component
// that is connected are worth their share of its cost if one device can own them all, nothing
// otherwise.
//
// One document: a device alone or local works at most T - call, and n tokens of a document in which
// no token attends a later one have at most Σ min(i, max_degree) pairs, i = 1 … n. Both are convex
// in n. So such devices do most on a document if as many as possible own the tokens that are worth
// T - call (or the most they may own), and one the rest. Let S be the sum over the documents.
// Let A be the cost of the components that one device can own and compute in T - call, with all
// those that are not connected: devices alone do at most that.
//
// With m' devices alone and m local ones, of K, in time T:
//   W <= (K - m - m')·(T - foreign) +
//        min(S, min(m·(T - local), M(m)) + min(m'·(T - alone), M'(m'), A)).
// The right side grows with T. The bound is the T from which on it holds for some m and m'.
[[nodiscard]] double participation_us(std::span<const ComponentLoad> loads, const DevicePace& pace,
                                      double even_us);

}  // namespace contextile

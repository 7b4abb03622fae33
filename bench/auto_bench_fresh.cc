#include "auto_bench_fresh.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/planner.h"
#include "contextile/workload.h"
#include "geometric_mean.h"
#include "length_sources.h"

namespace contextile::bench {
namespace {

// A preset and the devices of a node that are used. Nodes of gb200-nvl72 have 72 devices, so 16 and
// 32 devices are in one node, and 128 in two.
struct FreshCluster {
  const char* preset;
  std::int32_t most_per_node;
};
constexpr FreshCluster kFreshClusters[] = {
    {"dgx-h100", 8}, {"dgx-h200", 8}, {"p4de", 8}, {"gb200-nvl72", 64}};
constexpr std::int32_t kFreshDevices[] = {16, 32, 128};
constexpr std::int32_t kFreshKvHeads[] = {8, 32};
constexpr std::size_t kMaskCards = 10;
// Seven cards in ten are causal.
std::string fresh_mask(std::size_t card) {
  constexpr const char* kOthers[] = {"lambda:64,4096", "causal_blockwise:256,2,1",
                                     "shared_question:0.2,4"};
  constexpr std::size_t kCausalCards = kMaskCards - std::size(kOthers);
  return card < kCausalCards ? "causal" : kOthers[card - kCausalCards];
}

// Deals 0 … kinds - 1 in random order, each about equally often.
std::vector<std::size_t> shuffled_deck(Rng& rng, std::size_t kinds, std::size_t cards) {
  std::vector<std::size_t> deck(cards);
  for (std::size_t i = 0; i < cards; ++i) deck[i] = i % kinds;
  for (std::size_t i = cards; i > 1; --i) {
    std::swap(deck[i - 1], deck[static_cast<std::size_t>(rng.uniform() * static_cast<double>(i))]);
  }
  return deck;
}

struct FreshWorkload {
  std::size_t number = 0;  // in the draw
  std::string source;
  FreshCluster cluster;
  std::int32_t devices = 0;
  std::int32_t kv_heads = 0;
  std::string mask;
  std::uint64_t seed = 0;  // of the lengths

  [[nodiscard]] std::string name() const {
    return fmt::format("{} x {} {} {} KV heads {}", cluster.preset, devices, source, kv_heads,
                       mask);
  }
};

// Each property is dealt from a deck of its own, so every value occurs about equally often, in
// random combinations.
std::vector<FreshWorkload> draw_workloads(std::size_t count, std::uint64_t seed) {
  const std::vector<std::string> sources = length_sources();
  Rng rng(seed);
  const auto of_sources = shuffled_deck(rng, sources.size(), count);
  const auto of_clusters = shuffled_deck(rng, std::size(kFreshClusters), count);
  const auto of_devices = shuffled_deck(rng, std::size(kFreshDevices), count);
  const auto of_heads = shuffled_deck(rng, std::size(kFreshKvHeads), count);
  const auto of_masks = shuffled_deck(rng, kMaskCards, count);
  std::vector<FreshWorkload> workloads;
  std::size_t masks = 0;  // rollouts take none
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& source = sources[of_sources[i]];
    workloads.push_back({.number = i,
                         .source = source,
                         .cluster = kFreshClusters[of_clusters[i]],
                         .devices = kFreshDevices[of_devices[i]],
                         .kv_heads = kFreshKvHeads[of_heads[i]],
                         .mask = source == "rollouts" ? "tree" : fresh_mask(of_masks[masks++]),
                         .seed = rng.next()});
  }
  return workloads;
}

struct FreshResult {
  FreshWorkload workload;
  PredictedPlan ours;
  PredictedPlan best;  // of all other strategies
  double took_s = 0;

  [[nodiscard]] double gain() const { return best.time_us / ours.time_us; }
  [[nodiscard]] double room() const { return best.time_us / ours.bound_us; }
  // A plan that `auto` took over has the same time, to the last bits.
  [[nodiscard]] bool is_loss() const { return gain() < 1 - 1e-9; }
};

// Every variant of every strategy is planned, verified and simulated, so the best other is exact.
// Bounds would spare little: arranging takes most of the time, and what they need comes after it.
FreshResult compare_fresh(const FreshWorkload& fresh, AutoBenchOptions options) {
  const auto start = std::chrono::steady_clock::now();
  const std::int32_t per_node = std::min(fresh.devices, fresh.cluster.most_per_node);
  const Cluster cluster = load_cluster(
      fmt::format("{}:{}x{}", fresh.cluster.preset, fresh.devices / per_node, per_node));
  options.shape.kv_heads = fresh.kv_heads;
  const Workload workload =
      workload_of(draw_batch(fresh.source, options.tokens_per_device * fresh.devices, fresh.seed),
                  options.shape, fresh.mask);
  FreshResult result;
  result.workload = fresh;
  for (const Strategy* strategy : strategies()) {
    const PredictedPlan fastest = fastest_of(*strategy, workload, cluster, options).any;
    if (strategy->name() == "auto") {
      result.ours = fastest;
    } else if (fastest.time_us < result.best.time_us) {
      result.best = fastest;
    }
  }
  result.took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void print_result(const FreshResult& result) {
  fmt::print(
      "{:3} {:64} {:.4f}x faster than {}; auto {:.3f} ms, {:.3f}x bound ({}): {}; {:.1f} s\n",
      result.workload.number, result.workload.name(), result.gain(), result.best.text,
      result.ours.time_us / 1e3, result.ours.time_us / result.ours.bound_us, result.ours.binding,
      result.ours.found, result.took_s);
  std::fflush(stdout);
}

// The findings on workloads that have something in common.
struct FreshSummary {
  GeometricMean gain;
  GeometricMean room;  // best other over the bound
  int losses = 0;

  void add(const FreshResult& result) {
    gain.add(result.gain());
    room.add(result.room());
    losses += result.is_loss() ? 1 : 0;
  }
  // The part of the room that `auto` gained, both as logarithms; 0 without room.
  [[nodiscard]] double share() const {
    return room.value() > 1 ? std::log(gain.value()) / std::log(room.value()) : 0;
  }
};

// Aims for all workloads and for chat.
constexpr double kAimGain = 1.06;
constexpr double kAimChatGain = 1.03;
constexpr double kAimShare = 0.5;

using Classes = std::map<std::string, FreshSummary>;

void print_classes(std::string_view title, const Classes& classes) {
  fmt::print("\n{:24}{:>10}{:>8}{:>8}{:>8}{:>8}{:>8}\n", title, "workloads", "gain", "least",
             "losses", "room", "share");
  for (const auto& [name, summary] : classes) {
    fmt::print("{:24}{:10}{:8.3f}{:8.3f}{:8}{:8.3f}{:7.0f}%\n", name, summary.gain.count(),
               summary.gain.value(), summary.gain.least(), summary.losses, summary.room.value(),
               100 * summary.share());
  }
}

void print_aims(const FreshSummary& all, const Classes& sources) {
  const auto verdict = [](std::string_view name, double value, double aim) {
    fmt::print("{:24}{:10.3f}  aim {:.2f} {}\n", name, value, aim, value >= aim ? "met" : "missed");
  };
  fmt::print("\n");
  verdict("gain", all.gain.value(), kAimGain);
  if (const auto chat = sources.find("chat"); chat != sources.end()) {
    verdict("gain, chat", chat->second.gain.value(), kAimChatGain);
  }
  verdict("share of the room", all.share(), kAimShare);
  fmt::print("{:24}{:10}  aim 0 {}\n", "losses", all.losses, all.losses == 0 ? "met" : "missed");
}

void print_summaries(const std::vector<FreshResult>& results) {
  FreshSummary all;
  Classes sources;
  Classes clusters;
  Classes devices;
  Classes heads;
  Classes masks;
  for (const FreshResult& result : results) {
    const FreshWorkload& fresh = result.workload;
    all.add(result);
    sources[fresh.source].add(result);
    for (const Dataset& dataset : datasets()) {
      if (dataset.name == fresh.source) sources["(all built-in)"].add(result);
    }
    clusters[fresh.cluster.preset].add(result);
    devices[fmt::format("{:3}", fresh.devices)].add(result);
    heads[fmt::format("{:2}", fresh.kv_heads)].add(result);
    masks[fresh.mask].add(result);
  }
  print_classes("", {{"all", all}});
  print_classes("source", sources);
  print_classes("cluster", clusters);
  print_classes("devices", devices);
  print_classes("KV heads", heads);
  print_classes("mask", masks);
  print_aims(all, sources);
  fmt::print("\nlosses\n");
  for (const FreshResult& result : results) {
    if (result.is_loss()) print_result(result);
  }
}

}  // namespace

int run_fresh(const AutoBenchOptions& options) {
  std::vector<FreshResult> results;
  for (const FreshWorkload& fresh :
       draw_workloads(static_cast<std::size_t>(options.fresh), options.seed)) {
    const auto& only = options.only;
    if (!only.empty() && std::ranges::find(only, std::to_string(fresh.number)) == only.end()) {
      continue;
    }
    results.push_back(compare_fresh(fresh, options));
    if (options.rows) print_result(results.back());
  }
  print_summaries(results);
  return 0;
}

}  // namespace contextile::bench

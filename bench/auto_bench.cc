// `auto` against every other strategy, by predicted time, over datasets, masks, clusters and sizes.
//
//   auto_bench [--devices 8,32] [--tokens-per-device 4096] [--heads 32] [--kv-heads 8]
//              [--clusters p4de,dgx-h200] [--datasets prolong,single] [--seed 1] [--rows]
//              [--steps 300000,600000] [--objective layer|attention] [--limit 600000]
//   auto_bench --fresh 100 [--seed 2026] [--tokens-per-device 4096] [--limit 600000] [--rows]
//              [--only 11,38]
//
// The time of a plan is that of a layer: attention, and linear layers of the device that owns the
// most tokens (guessed_linear_us_per_token), or of attention alone.
// Every strategy counts with the fastest of its variants (Strategy::variants) and block sizes, and
// every plan that counts is verified first. Classes of workload go by the time of the best plan: 2
// ms and more, 0.5 to 2 ms, below. For each class it prints:
// - geometric means of how much faster `auto` is than each strategy, than the best of dcp, fcp,
//   distca and magi, and than the best of all, of any plans and of those that own no more tokens
//   than `auto` may;
// - its distance to the lower bound, the whole one and the old one without its joint part;
// - how much slower the plan of a search with 50 ms and one thread is, and its wall time; the same
//   of searches with those limits in steps, and their CPU time.
// `auto` searches without a limit, or with that of --limit in steps, which grows in proportion
// above 32 devices.
// --rows prints every workload.
//
// --fresh draws that many workloads by the seed, of all sources of length_sources.h, on dgx-h100,
// dgx-h200, p4de and gb200-nvl72, with 16, 32 and 128 devices and 8 and 32 KV heads, each about
// equally often. Seven in ten masks are causal, the others as above; rollouts have trees. For every
// source, cluster and so on it prints, over all other strategies and options:
// - gain: geometric mean of the time of the best other plan over that of `auto`, and the least;
// - losses: workloads in which the best other is faster; they are listed with its options;
// - room: geometric mean of the time of the best other plan over the lower bound;
// - share: the part of the room that is gained, log(gain) / log(room).
// --only runs those workloads of the draw alone, by the numbers that rows begin with.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "auto_bench_fresh.h"
#include "auto_bench_plans.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "geometric_mean.h"

namespace contextile {
namespace {

using bench::AutoBenchOptions;
using bench::fastest_of;
using bench::FastestPlans;
using bench::GeometricMean;
using bench::PredictedPlan;

// A limit of `auto`: an option and its value.
struct Limit {
  std::string option;
  std::string value;

  [[nodiscard]] bool is_timed() const { return option == "budget_ms"; }
  [[nodiscard]] std::string text() const {
    return value + (is_timed() ? " ms" : " steps") + " on one thread";
  }
  friend auto operator<=>(const Limit&, const Limit&) = default;
};

// The findings on one class of workloads.
struct Summary {
  std::map<std::string, GeometricMean> gain;  // over each strategy
  GeometricMean gain_over_best;               // of dcp, fcp, distca, magi
  GeometricMean gain_over_all;
  GeometricMean gain_over_even;  // all that own no more tokens than `auto` may
  GeometricMean to_bound;
  GeometricMean to_separate_bound;
  GeometricMean planning_s;
  struct Limited {
    GeometricMean ratio;  // time over that of the whole search
    GeometricMean took_ms;
  };
  std::map<Limit, Limited> limited;
};

std::size_t class_of(double time_us) { return time_us >= 2000 ? 0 : time_us >= 500 ? 1 : 2; }
constexpr const char* kClasses[] = {"2 ms and more", "0.5 to 2 ms", "below 0.5 ms"};

double cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

// The plan that one thread finds.
struct LimitedPlan {
  double time_us = 0;
  double took_ms = 0;  // wall time of a limit in time, CPU time of one in steps
};
LimitedPlan limited_plan(const Workload& workload, const Cluster& cluster, const Limit& limit,
                         const AutoBenchOptions& options) {
  const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  StrategyRequest request;
  request.max_roundings = kAnyRoundings;  // as the originals
  request.options[limit.option] = limit.value;
  request.options["objective"] = options.objective;
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start_ms = cpu_ms();
  const Plan plan =
      build_plan(workload, cluster, find_strategy("auto").arrange(workload, cluster, request));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  const double took_ms = limit.is_timed() ? took.count() : cpu_ms() - cpu_start_ms;
  if (!verify(plan).ok()) {
    fmt::print(stderr, "auto with {}: a plan that does not verify\n", limit.text());
    std::exit(1);
  }
  return {simulate(plan, cluster).time_us() + linear_us(statistics(plan), cluster, options),
          took_ms};
}

void print_row(const std::string& name, const PredictedPlan& ours, bool even,
               const PredictedPlan& best, const PredictedPlan& best_even) {
  fmt::print(
      "  {:56} auto {:9.3f} ms, attention {:.3f}, tokens +{:.1f}%{} {:.2f}x bound ({}), {:.2f}x "
      "old; planned {:.2f} s; {:.3f}x faster than {}; even {:.3f}x than {}\n",
      name, ours.time_us / 1e3, ours.attention_us / 1e3, 100 * ours.overload,
      even ? "" : " (uneven)", ours.time_us / ours.bound_us, ours.binding,
      ours.time_us / ours.separate_bound_us, ours.planning_s, best.time_us / ours.time_us,
      best.text, best_even.time_us / ours.time_us, best_even.text);
  std::fflush(stdout);
}

std::vector<Limit> limits_of(const AutoBenchOptions& options) {
  std::vector<Limit> limits = {{"budget_ms", "50"}};
  for (const std::string& steps : options.steps) limits.push_back({"steps", steps});
  return limits;
}

void compare(const std::string& name, const Workload& workload, const Cluster& cluster,
             const AutoBenchOptions& options, std::vector<Summary>& classes) {
  std::map<std::string, double> times;
  FastestPlans ours;
  PredictedPlan best;
  PredictedPlan best_even;
  double best_planner = std::numeric_limits<double>::infinity();
  for (const Strategy* strategy : strategies()) {
    const FastestPlans plans = fastest_of(*strategy, workload, cluster, options);
    if (strategy->name() == "auto") {
      ours = plans;
      continue;
    }
    if (plans.any.text.empty()) continue;
    times[std::string(strategy->name())] = plans.any.time_us;
    if (plans.any.time_us < best.time_us) best = plans.any;
    if (plans.even.time_us < best_even.time_us) best_even = plans.even;
    const std::string_view planner = strategy->name();
    if (planner == "dcp" || planner == "fcp" || planner == "distca" || planner == "magi") {
      best_planner = std::min(best_planner, plans.any.time_us);
    }
  }
  Summary& summary = classes[class_of(ours.any.time_us)];
  for (const auto& [strategy, time_us] : times) {
    summary.gain[strategy].add(time_us / ours.any.time_us);
  }
  summary.gain_over_best.add(best_planner / ours.any.time_us);
  summary.gain_over_all.add(best.time_us / ours.any.time_us);
  summary.gain_over_even.add(best_even.time_us / ours.any.time_us);
  summary.planning_s.add(ours.any.planning_s);
  std::string limited_rows;
  for (const Limit& limit : limits_of(options)) {
    const LimitedPlan limited = limited_plan(workload, cluster, limit, options);
    const double ratio = limited.time_us / ours.any.time_us;
    summary.limited[limit].ratio.add(ratio);
    summary.limited[limit].took_ms.add(limited.took_ms);
    limited_rows += fmt::format("  {:56} {}: {:.3f}x, took {:.0f} ms\n", "", limit.text(), ratio,
                                limited.took_ms);
  }
  summary.to_bound.add(ours.any.time_us / ours.any.bound_us);
  summary.to_separate_bound.add(ours.any.time_us / ours.any.separate_bound_us);
  if (options.rows) {
    print_row(name, ours.any, !ours.even.text.empty(), best, best_even);
    fmt::print("{}", limited_rows);
  }
}

// Aims for plans of 2 ms and more, and of 0.5 to 2 ms (docs/results/auto.md has the results). For
// the layer, only the gain has one.
struct Aims {
  double gain[2] = {1.15, 1.2};
  double old_bound[2];
  double joint_bound[2] = {1.10, 1.15};
};

std::string verdict(bool met, double aim) {
  return fmt::format("aim {:.2f} {}", aim, met ? "met" : "missed");
}

void print_summary(const std::vector<Summary>& classes, const AutoBenchOptions& options) {
  const bool grouped = options.shape.kv_heads < options.shape.q_heads;
  const bool is_layer = options.objective == "layer";
  Aims aims = {.old_bound = {grouped ? 1.15 : 1.25, grouped ? 1.30 : 1.40}};
  if (is_layer) aims.gain[0] = aims.gain[1] = 1.06;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const Summary& summary = classes[c];
    if (summary.gain_over_best.count() == 0) continue;
    const auto judged = [&](double value, const double(&of)[2], bool at_least) {
      if (c >= std::size(of)) return std::string();
      return verdict(at_least ? value >= of[c] : value <= of[c], of[c]);
    };
    fmt::print("\n{} ({} workloads)\n", kClasses[c], summary.gain_over_best.count());
    fmt::print("  faster than any option of any strategy, even    {:5.3f}x  least {:.3f}x  {}\n",
               summary.gain_over_even.value(), summary.gain_over_even.least(),
               judged(summary.gain_over_even.value(), aims.gain, true));
    fmt::print("  … uneven ones too                               {:5.3f}x  least {:.3f}x\n",
               summary.gain_over_all.value(), summary.gain_over_all.least());
    fmt::print("  faster than the best of dcp, fcp, distca, magi  {:5.3f}x\n",
               summary.gain_over_best.value());
    fmt::print("  distance to the bound without joint part        {:5.3f}x  worst {:.2f}x  {}\n",
               summary.to_separate_bound.value(), summary.to_separate_bound.worst(),
               is_layer ? "" : judged(summary.to_separate_bound.value(), aims.old_bound, false));
    fmt::print("  distance to the bound                           {:5.3f}x  worst {:.2f}x  {}\n",
               summary.to_bound.value(), summary.to_bound.worst(),
               is_layer ? "" : judged(summary.to_bound.value(), aims.joint_bound, false));
    fmt::print("  planning time {:.2f} s, longest {:.1f} s\n", summary.planning_s.value(),
               summary.planning_s.worst());
    for (const auto& [limit, limited] : summary.limited) {
      fmt::print("  {}: {:.3f}x slower, most {:.2f}x; took {:.0f} ms, most {:.0f}\n", limit.text(),
                 limited.ratio.value(), limited.ratio.worst(), limited.took_ms.value(),
                 limited.took_ms.worst());
    }
    for (const auto& [strategy, gain] : summary.gain) {
      fmt::print("  faster than {:18} {:6.2f}x, least {:.2f}x ({} workloads)\n", strategy,
                 gain.value(), gain.least(), gain.count());
    }
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

AutoBenchOptions parse(const std::vector<std::string>& args) {
  AutoBenchOptions options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& key = args[i];
    if (key == "--rows") {
      options.rows = true;
      continue;
    }
    if (i + 1 == args.size()) {
      fmt::print(stderr, "auto_bench: expected a value after '{}'\n", key);
      std::exit(2);
    }
    const std::string& value = args[++i];
    if (key == "--devices") {
      options.devices.clear();
      for (const std::string& part : split(value)) options.devices.push_back(std::stoi(part));
    } else if (key == "--clusters") {
      options.clusters = split(value);
    } else if (key == "--datasets") {
      options.datasets = split(value);
    } else if (key == "--steps") {
      options.steps = split(value);
    } else if (key == "--objective") {
      options.objective = value;
    } else if (key == "--fresh") {
      options.fresh = std::stoi(value);
    } else if (key == "--only") {
      options.only = split(value);
    } else if (key == "--limit") {
      options.limit = value;
    } else if (key == "--seed") {
      options.seed = std::stoull(value);
    } else if (key == "--tokens-per-device") {
      options.tokens_per_device = std::stoll(value);
    } else if (key == "--heads") {
      options.shape.q_heads = std::stoi(value);
    } else if (key == "--kv-heads") {
      options.shape.kv_heads = std::stoi(value);
    } else {
      fmt::print(stderr, "auto_bench: unknown option '{}'\n", key);
      std::exit(2);
    }
  }
  return options;
}

int run(const AutoBenchOptions& options) {
  if (options.fresh > 0) return bench::run_fresh(options);
  std::vector<Summary> classes(std::size(kClasses));
  for (const std::string& preset : options.clusters) {
    for (const std::int32_t devices : options.devices) {
      const Cluster cluster =
          load_cluster(fmt::format("{}:{}x8", preset, std::max(1, devices / 8)));
      const std::int64_t tokens = options.tokens_per_device * devices;
      std::vector<std::pair<std::string, std::vector<std::int64_t>>> batches;
      for (const Dataset& dataset : datasets()) {
        batches.emplace_back(
            dataset.name,
            batches_from_dataset(dataset.name, {.tokens = tokens, .seed = options.seed}).front());
      }
      batches.emplace_back("single", std::vector<std::int64_t>{tokens});
      std::erase_if(batches, [&](const auto& batch) {
        return !options.datasets.empty() &&
               std::ranges::find(options.datasets, batch.first) == options.datasets.end();
      });
      for (const auto& [name, lengths] : batches) {
        for (const char* mask :
             {"causal", "lambda:64,4096", "causal_blockwise:256,2,1", "shared_question:0.2,4"}) {
          const MaskUse use = parse_mask_use(mask);
          compare(fmt::format("{} x {} {} {}", preset, devices, name, mask),
                  make_workload(lengths, options.shape, {&use, 1}), cluster, options, classes);
        }
      }
    }
  }
  print_summary(classes, options);
  return 0;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  return contextile::run(contextile::parse(std::vector<std::string>(argv + 1, argv + argc)));
}

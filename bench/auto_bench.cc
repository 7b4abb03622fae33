// `auto` against every other strategy, by predicted time, over datasets, masks, clusters and sizes.
//
//   auto_bench [--devices 8,32] [--tokens-per-device 4096] [--heads 32] [--kv-heads 8]
//              [--clusters p4de,dgx-h200] [--rows]
//
// Every plan that counts is verified first. Prints, by class of workload (time of the best plan: 2
// ms and more, 0.5 to 2 ms, below), geometric means of how much faster `auto` is than each strategy
// and than the best of dcp, fcp, distca and magi, and its distance to the lower bound. --rows
// prints every workload.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "contextile/bounds.h"
#include "contextile/data.h"
#include "contextile/plan.h"
#include "contextile/plan_build.h"
#include "contextile/registry.h"
#include "contextile/simulate.h"
#include "contextile/strategy.h"
#include "contextile/verify.h"
#include "geometric_mean.h"

namespace contextile {
namespace {

struct Options {
  std::vector<std::int32_t> devices = {8, 32};
  std::vector<std::string> clusters = {"p4de", "dgx-h200"};
  std::int64_t tokens_per_device = 4096;
  AttentionShape shape;
  bool rows = false;
};

using bench::GeometricMean;

// What was found on one class of workloads.
struct Summary {
  std::map<std::string, GeometricMean> gain;  // over each strategy
  GeometricMean gain_over_best;               // of dcp, fcp, distca, magi
  GeometricMean to_bound;
  GeometricMean planning_s;
};

std::size_t class_of(double time_us) { return time_us >= 2000 ? 0 : time_us >= 500 ? 1 : 2; }
constexpr const char* kClasses[] = {"2 ms and more", "0.5 to 2 ms", "below 0.5 ms"};

struct Predicted {
  double time_us = 0;
  double planning_s = 0;
  double bound_us = 0;
  std::string binding;  // of the bound's longer direction
};

std::optional<Predicted> predict(const Strategy& strategy, const Workload& workload,
                                 const Cluster& cluster) {
  if (strategy.unsupported(workload, cluster, {})) return std::nullopt;
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = build_plan(workload, cluster, strategy.arrange(workload, cluster, {}));
  Predicted predicted;
  predicted.planning_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const VerifyReport report = verify(plan);
  if (!report.ok()) {
    fmt::print(stderr, "{}: {}\n", strategy.name(), report.violations.front());
    std::exit(1);
  }
  predicted.time_us = simulate(plan, cluster).time_us();
  const BoundOptions beside = bound_options_beside(plan, workload, cluster);
  double longest_us = 0;
  for (const Direction direction : kDirections) {
    const TimeBound bound = lower_bound(workload, cluster, direction, beside);
    predicted.bound_us += bound.time_us;
    if (bound.time_us > longest_us) predicted.binding = bound.binding;
    longest_us = std::max(longest_us, bound.time_us);
  }
  if (predicted.bound_us > predicted.time_us) {
    fmt::print(stderr, "{}: {} us is below the bound of {} us\n", strategy.name(),
               predicted.time_us, predicted.bound_us);
    std::exit(1);
  }
  return predicted;
}

void compare(const std::string& name, const Workload& workload, const Cluster& cluster, bool rows,
             std::vector<Summary>& classes) {
  std::map<std::string, double> times;
  Predicted ours;
  for (const Strategy* strategy : strategies()) {
    const auto predicted = predict(*strategy, workload, cluster);
    if (!predicted) continue;
    times[std::string(strategy->name())] = predicted->time_us;
    if (strategy->name() == "auto") ours = *predicted;
  }
  Summary& summary = classes[class_of(ours.time_us)];
  double best_planner = std::numeric_limits<double>::infinity();
  std::string best_name;
  for (const auto& [strategy, time_us] : times) {
    if (strategy == "auto") continue;
    summary.gain[strategy].add(time_us / ours.time_us);
    const bool is_planner =
        strategy == "dcp" || strategy == "fcp" || strategy == "distca" || strategy == "magi";
    if (is_planner && time_us < best_planner) {
      best_planner = time_us;
      best_name = strategy;
    }
  }
  summary.gain_over_best.add(best_planner / ours.time_us);
  summary.planning_s.add(ours.planning_s);
  summary.to_bound.add(ours.time_us / ours.bound_us);
  if (rows) {
    fmt::print(
        "  {:56} auto {:9.3f} ms  {:.2f}x bound ({})  {:6.2f}x faster than {:6}  planned {:.1f} "
        "s\n",
        name, ours.time_us / 1e3, ours.time_us / ours.bound_us, ours.binding,
        best_planner / ours.time_us, best_name, ours.planning_s);
    std::fflush(stdout);
  }
}

void print_summary(const std::vector<Summary>& classes) {
  constexpr double kGainTargets[] = {1.28, 1.65, 2.0};
  constexpr double kBoundTargets[] = {1.10, 1.20, 1.30};
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const Summary& summary = classes[c];
    if (summary.gain_over_best.count() == 0) continue;
    fmt::print("\n{} ({} workloads)\n", kClasses[c], summary.gain_over_best.count());
    const auto verdict = [](bool met) { return met ? "met" : "missed"; };
    fmt::print("  faster than the best of dcp, fcp, distca, magi  {:5.2f}x  target {:.2f}x {}\n",
               summary.gain_over_best.value(), kGainTargets[c],
               verdict(summary.gain_over_best.value() >= kGainTargets[c]));
    fmt::print(
        "  distance to the lower bound                     {:5.2f}x  target {:.2f}x {}; "
        "worst {:.2f}x\n",
        summary.to_bound.value(), kBoundTargets[c],
        verdict(summary.to_bound.value() <= kBoundTargets[c]), summary.to_bound.worst());
    fmt::print("  planning time {:.2f} s, longest {:.1f} s\n", summary.planning_s.value(),
               summary.planning_s.worst());
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

Options parse(const std::vector<std::string>& args) {
  Options options;
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

int run(const Options& options) {
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
            batches_from_dataset(dataset.name, {.tokens = tokens, .seed = 1}).front());
      }
      batches.emplace_back("single", std::vector<std::int64_t>{tokens});
      for (const auto& [name, lengths] : batches) {
        for (const char* mask :
             {"causal", "lambda:64,4096", "causal_blockwise:256,2,1", "shared_question:0.2,4"}) {
          const MaskUse use = parse_mask_use(mask);
          compare(fmt::format("{} x {} {} {}", preset, devices, name, mask),
                  make_workload(lengths, options.shape, {&use, 1}), cluster, options.rows, classes);
        }
      }
    }
  }
  print_summary(classes);
  return 0;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  return contextile::run(contextile::parse(std::vector<std::string>(argv + 1, argv + argc)));
}

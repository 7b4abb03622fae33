// Planning at the largest sizes: processor time and wall time of planning, verifying and simulating
// one batch by one strategy, and the most memory that took. Every case runs in a process of its
// own, so that the memory is that of this case. The process is ended after a limit of wall time,
// and fails if it needs more than a limit of memory.
//   scale_bench [--limit SECONDS] [--memory GIB] [FILTER ...]: cases whose name contains a filter;
//   all without.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "contextile/workload.h"
#include "planner/timed_block_size.h"

namespace contextile {
namespace {

struct Size {
  std::string_view name;
  std::int64_t tokens;
  std::string_view cluster;
  std::vector<std::string_view> strategies;
};

struct Case {
  std::string name;
  std::string strategy;
  std::string cluster;
  std::string dataset;  // empty: one document
  std::int64_t tokens = 0;
};

std::vector<Case> cases() {
  const std::vector<std::string_view> at_every_size = {"zigzag", "fcp", "auto:budget_ms=1",
                                                       "auto:budget_ms=5000"};
  const std::vector<std::string_view> all = {"ring",
                                             "zigzag",
                                             "hybrid",
                                             "all_gather",
                                             "double_ring",
                                             "wlb",
                                             "magi",
                                             "dcp",
                                             "fcp",
                                             "distca",
                                             "bytescale",
                                             "auto",
                                             "auto:budget_ms=1",
                                             "auto:budget_ms=5000"};
  const std::vector<Size> sizes = {{"1M_512", 1 << 20, "dgx-h200:64x8", all},
                                   {"4M_1024", 4 << 20, "dgx-h200:128x8", all},
                                   {"16M_4096", 16 << 20, "dgx-h200:512x8", at_every_size}};
  std::vector<Case> result;
  for (const Size& size : sizes) {
    for (const std::string_view dataset : {"", "prolong"}) {
      for (const std::string_view strategy : size.strategies) {
        const std::string_view documents = dataset.empty() ? "single" : dataset;
        result.push_back({fmt::format("{}/{}/{}", size.name, documents, strategy),
                          std::string(strategy), std::string(size.cluster), std::string(dataset),
                          size.tokens});
      }
    }
  }
  return result;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Prints the phase's values at once, so that a case that is ended keeps them.
template <typename Body>
auto timed(Body body) {
  const double start = cpu_seconds();
  const double wall_start = wall_seconds();
  auto result = body();
  fmt::print("{:>8.2f}/{:<7.2f}", cpu_seconds() - start, wall_seconds() - wall_start);
  std::fflush(stdout);
  return result;
}

void run(const Case& c) {
  const MaskUse causal = parse_mask_use("causal");
  const std::vector<std::int64_t> lengths =
      c.dataset.empty() ? std::vector<std::int64_t>{c.tokens}
                        : batches_from_dataset(c.dataset, {.tokens = c.tokens, .seed = 1}).front();
  const Workload workload = make_workload(lengths, {}, {&causal, 1});
  const Cluster cluster = load_cluster(c.cluster);
  const StrategyChoice choice = parse_strategies(c.strategy).front();
  const Strategy& strategy = find_strategy(choice.name);
  StrategyRequest request;
  request.max_roundings = kAnyRoundings;  // as the originals
  request.options = choice.options;
  Arrangement arrangement =
      timed([&] { return arrange_timed(strategy, workload, cluster, request); });
  const Plan plan = timed([&] { return build_plan(workload, cluster, arrangement); });
  arrangement = {};  // as plan_batch does
  const VerifyReport report = timed([&] { return verify(plan); });
  const Simulation simulation = timed([&] { return simulate(plan, cluster); });
  fmt::print("{:>10.2f}  {:016x} {:.17g}{}\n", peak_gib(), plan.digest, simulation.time_us(),
             report.ok() ? "" : "  " + report.violations.front());
}

struct Limits {
  unsigned wall_s = 120;
  rlim_t memory_gib = 0;  // 0: none
};

void limit_memory(rlim_t gib) {
  if (gib == 0) return;
  const rlim_t bytes = gib << 30U;
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

// Measures a case in a process of its own.
void measure(const Case& c, const Limits& limits) {
  fmt::print("{:<34}", c.name);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(limits.wall_s);
    limit_memory(limits.memory_gib);
    try {
      run(c);
    } catch (const std::exception& error) {
      fmt::print("  {}\n", error.what());
    }
    std::fflush(stdout);
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    fmt::print("  ended after {} s or for want of memory\n", limits.wall_s);
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  contextile::Limits limits;
  std::vector<std::string_view> filters;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--limit" && i + 1 < arguments.size()) {
      limits.wall_s = static_cast<unsigned>(std::strtoul(argv[++i + 1], nullptr, 10));
    } else if (arguments[i] == "--memory" && i + 1 < arguments.size()) {
      limits.memory_gib = std::strtoul(argv[++i + 1], nullptr, 10);
    } else {
      filters.push_back(arguments[i]);
    }
  }
  fmt::print("{:<34}{:^16}{:^16}{:^16}{:^16}{:>10}  digest, simulated µs\n",
             "case, seconds of processor/wall", "arrange", "build", "verify", "simulate",
             "peak GiB");
  for (const contextile::Case& c : contextile::cases()) {
    const bool wanted =
        filters.empty() || std::ranges::any_of(filters, [&](std::string_view filter) {
          return c.name.find(filter) != std::string::npos;
        });
    if (wanted) contextile::measure(c, limits);
  }
  return 0;
}

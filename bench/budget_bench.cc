// The time that `auto` promises to take and the time it takes, on workloads that are hard to
// foresee.
//
//   budget_bench [--budgets-ms 100,1000]
//
// Prints for every workload and budget the wall time of the search, with as many threads as there
// are processors, how many plans it simulated and whether it kept its promise: at most 20% or 10 ms
// more than the budget.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "contextile/data.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

struct Hostile {
  std::string name;
  std::string cluster;
  std::vector<std::int64_t> lengths;
  std::optional<std::int64_t> block_size = {};
};

std::vector<std::int64_t> sampled(std::int64_t tokens) {
  return batches_from_dataset("prolong", {.tokens = tokens, .seed = 7}).front();
}

std::vector<Hostile> hostile_workloads() {
  constexpr const char* kFourNodes = "dgx-h200:4x8";
  constexpr std::int64_t kTokens = 131'072;
  constexpr std::int64_t kMany = 1'048'576;
  const auto equal = [](std::int64_t documents, std::int64_t tokens) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(documents), tokens);
  };
  return {
      {"sampled documents", kFourNodes, sampled(kTokens)},
      {"one document", kFourNodes, {kTokens}},
      {"2048 documents of 64", kFourNodes, equal(2048, 64)},
      {"8192 documents of 16", kFourNodes, equal(8192, 16)},
      {"32768 documents of 4", kFourNodes, equal(32'768, 4)},
      {"131072 documents of 1", kFourNodes, equal(kTokens, 1)},
      {"one and 4096 documents of 16", kFourNodes,
       [&] {
         std::vector<std::int64_t> lengths = equal(4096, 16);
         lengths.push_back(kTokens / 2);
         return lengths;
       }()},
      {"sampled, blocks of 128", kFourNodes, sampled(kTokens), 128},
      {"one document, blocks of 64", kFourNodes, {kTokens / 4}, 64},
      {"8192 tokens, blocks of 16", kFourNodes, {8192}, 16},
      {"1M tokens sampled, 512 devices", "dgx-h200:64x8", sampled(kMany)},
      {"1M tokens in one, 512 devices", "dgx-h200:64x8", {kMany}},
      {"8192 documents of 16, 512 devices", "dgx-h200:64x8", equal(8192, 16)},
  };
}

void measure(const Hostile& hostile, std::int64_t budget_ms) {
  const MaskUse use = parse_mask_use("causal");
  const Workload workload = make_workload(hostile.lengths, {}, {&use, 1});
  StrategyRequest request;
  request.max_roundings = kAnyRoundings;  // as the originals
  request.options["budget_ms"] = fmt::format("{}", budget_ms);
  request.block_size = hostile.block_size;
  const Cluster cluster = load_cluster(hostile.cluster);
  const auto start = std::chrono::steady_clock::now();
  const Arrangement found = find_strategy("auto").arrange(workload, cluster, request);
  const double took_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  const auto promised = static_cast<double>(budget_ms);
  const bool kept = took_ms <= std::max(1.2 * promised, promised + 10);
  fmt::print("| {:36} | {:6} | {:8.0f} | {:5} | {:10} | {:4} |\n", hostile.name, budget_ms, took_ms,
             found.options.at("tried"), found.options.at("chosen"), kept ? "yes" : "no");
  std::fflush(stdout);
}

std::vector<std::int64_t> parse_budgets(int argc, char** argv) {
  if (argc == 1) return {100, 1000};
  if (argc != 3 || std::string(argv[1]) != "--budgets-ms") {
    fmt::print(stderr, "budget_bench: expected --budgets-ms MS,MS\n");
    std::exit(2);
  }
  std::vector<std::int64_t> budgets;
  std::stringstream stream(argv[2]);
  for (std::string part; std::getline(stream, part, ',');) budgets.push_back(std::stoll(part));
  return budgets;
}

void run(const std::vector<std::int64_t>& budgets_ms) {
  fmt::print("| workload | ms promised | ms taken | plans simulated | chosen | kept |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const Hostile& hostile : hostile_workloads()) {
    for (const std::int64_t budget_ms : budgets_ms) measure(hostile, budget_ms);
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  contextile::run(contextile::parse_budgets(argc, argv));
  return 0;
}

// DistCA's balance and bytes, and the effect of two-sided balancing.
//
//   strategy_bench [--batches N] [--vectors FOLDER]
//
// Batches are samples of the built-in ProLong-like lengths. FOLDER (default: as for the tests) may
// hold plans of the original for real ones; every one that is there must come out item by item
// before anything is printed, and every plan behind a row is verified. Bytes are one layer's
// forward: Q, K, V and O without LSE, as the engine counts them; a plan of every kind of row is
// checked to move the same.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "contextile/workload.h"
#include "strategy/distca/distca_plan.h"

namespace contextile {
namespace {

struct Model {
  std::string name;
  AttentionShape shape;
  std::int64_t tokens_per_device = 0;
};

Model llama_8b() { return {"8B", {.q_heads = 32, .kv_heads = 8}, 131072}; }
Model llama_34b() { return {"34B", {.q_heads = 64, .kv_heads = 16}, 65536}; }

[[noreturn]] void stop(const std::string& message) {
  fmt::print(stderr, "strategy_bench: {}\n", message);
  std::exit(1);
}

std::int64_t bytes_per_token(Kind kind, const AttentionShape& shape) {
  return unit_bytes(kind, 1, shape, 1, shape.dtype);
}

MigrationOptions options_for(const Model& model) {
  MigrationOptions options;
  options.q_bytes_per_token = static_cast<double>(bytes_per_token(Kind::kQ, model.shape));
  options.kv_bytes_per_token = static_cast<double>(bytes_per_token(Kind::kKv, model.shape));
  return options;
}

MigrationOptions upstream_options(const Model& model) {
  MigrationOptions options = options_for(model);
  options.kv = KvAccounting::kDocument;
  options.granularity_tokens = 1;
  options.balance = TaskBalance::kOneSided;
  options.fidelity = Fidelity::kUpstream;
  return options;
}

// ---------------------------------------------------------------------------------- checks

// Checks a plan of the original: loads after migration and bytes must equal the library's. Tests
// compare the items.
void check_original(const nlohmann::json& file) {
  const Model model = file["model"] == "llama8b" ? llama_8b() : llama_34b();
  std::vector<DocumentRows> documents;
  for (const auto& batch : file["batch"]) {
    for (const auto& length : batch) {
      documents.push_back(
          {static_cast<std::int32_t>(documents.size()), {0, length.get<std::int64_t>()}});
    }
  }
  const std::int32_t devices = file["servers"];
  const MigrationOptions options = upstream_options(model);
  std::vector<CaItem> items = place_documents(documents, devices);
  migrate(items, devices, options);
  const std::vector<double> loads = server_loads(items, devices, options);
  const CaVolume volume = forward_volume(items, devices, bytes_per_token(Kind::kQ, model.shape),
                                         bytes_per_token(Kind::kKv, model.shape));
  if (loads != file["flops_after"].get<std::vector<double>>() ||
      volume.q_bytes != file["fwd_bytes_q"].get<std::int64_t>() ||
      volume.kv_bytes != file["fwd_bytes_kv"].get<std::int64_t>()) {
    stop("expected the original's loads and bytes, found others");
  }
}

int check_originals(const std::filesystem::path& folder) {
  int checked = 0;
  if (!std::filesystem::exists(folder)) return 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    check_original(nlohmann::json::parse(std::ifstream(entry.path())));
    ++checked;
  }
  return checked;
}

// Checks that the plan of a strategy call is valid and moves the engine's bytes.
void check_plan(const Model& model, const std::vector<std::int64_t>& lengths, std::int32_t devices,
                const std::map<std::string, std::string>& options, const CaVolume& volume) {
  const MaskUse causal;
  const Workload workload = make_workload(lengths, model.shape, {&causal, 1});
  Cluster cluster;
  cluster.devices_per_node = devices;
  StrategyRequest request;
  request.max_roundings = kAnyRoundings;  // as the originals
  request.options = options;
  request.options["nano_batches"] = "1";
  const Plan plan =
      build_plan(workload, cluster, find_strategy("distca").arrange(workload, cluster, request));
  const VerifyReport report = verify(plan);
  if (!report.ok()) stop(report.violations.front());
  const auto moved = statistics(plan).forward->bytes_by_kind;
  if (moved[static_cast<std::size_t>(Kind::kQ)] != volume.q_bytes ||
      moved[static_cast<std::size_t>(Kind::kKv)] != volume.kv_bytes) {
    stop("expected the plan to move what the engine counts, found other bytes");
  }
}

// ---------------------------------------------------------------------------------- tables

using Batches = std::vector<std::vector<std::int64_t>>;

Batches sampled(std::int64_t tokens, std::int64_t longest, std::int64_t count) {
  BatchOptions options;
  options.tokens = tokens;
  options.batches = count;
  options.max_length = longest;
  options.seed = 1;
  return batches_from_dataset("prolong", options);
}

// A row's figures of its batches: the worst balance, the mean bytes.
struct Row {
  double overload = 0;
  double underload = 0;
  double sent_mbytes = 0;          // mean over devices
  double largest_sent_mbytes = 0;  // of the device that sends most
};

Row measure(const Model& model, const Batches& batches, std::int32_t devices,
            const MigrationOptions& options,
            const std::optional<std::map<std::string, std::string>>& as_strategy) {
  Row row;
  for (const std::vector<std::int64_t>& lengths : batches) {
    CaPlanOptions plan_options;
    plan_options.migration = options;
    plan_options.nano_batches = 1;
    const std::vector<CaItem> items =
        plan_tasks(sequences_from_lengths(lengths), {}, devices, plan_options)->nano_batches[0];
    const std::vector<double> loads = server_loads(items, devices, options);
    double mean = 0;
    for (const double load : loads) mean += load / devices;
    row.overload = std::max(row.overload, *std::max_element(loads.begin(), loads.end()) / mean - 1);
    row.underload =
        std::max(row.underload, 1 - *std::min_element(loads.begin(), loads.end()) / mean);
    const CaVolume volume = forward_volume(items, devices, bytes_per_token(Kind::kQ, model.shape),
                                           bytes_per_token(Kind::kKv, model.shape));
    if (as_strategy) check_plan(model, lengths, devices, *as_strategy, volume);
    const double share = 1e-6 / static_cast<double>(batches.size());
    std::int64_t most = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(devices); ++d) {
      most = std::max(most, volume.input_sent_bytes[d] + volume.output_sent_bytes[d]);
    }
    row.largest_sent_mbytes += share * static_cast<double>(most);
    row.sent_mbytes +=
        share * static_cast<double>(volume.q_bytes + volume.kv_bytes + volume.o_bytes) / devices;
  }
  return row;
}

void print_row(const std::string& name, const Row& row) {
  fmt::print("  {:<34}{:>8.1f}%{:>8.1f}%{:>10.1f}{:>10.1f}{:>8.1f}x\n", name, 100 * row.overload,
             100 * row.underload, row.sent_mbytes, row.largest_sent_mbytes,
             row.largest_sent_mbytes / row.sent_mbytes);
}

void print_balance(const Model& model, std::int32_t devices, std::int64_t longest,
                   std::int64_t count) {
  const Batches batches = sampled(model.tokens_per_device * devices, longest, count);
  fmt::print("\n{}, {} devices x {}K tokens, documents up to {}K, {} batches, tolerance 0.1\n",
             model.name, devices, model.tokens_per_device / 1024, longest / 1024, batches.size());
  fmt::print("  {:<34}{:>9}{:>9}{:>10}{:>10}{:>9}\n", "", "over", "under", "MB/device", "MB most",
             "peak");
  const MigrationOptions ours = options_for(model);
  MigrationOptions nothing = ours;
  nothing.tolerance = 1000;
  print_row("placement alone", measure(model, batches, devices, nothing, std::nullopt));
  print_row("one_sided as the original's code",
            measure(model, batches, devices, upstream_options(model), std::nullopt));
  MigrationOptions variant = ours;
  std::map<std::string, std::string> options = {{"cost", "pairs"}, {"balance", "one_sided"}};
  variant.balance = TaskBalance::kOneSided;
  print_row("one_sided", measure(model, batches, devices, variant, options));
  variant.balance = TaskBalance::kTwoSided;
  options["balance"] = "two_sided";
  print_row("two_sided", measure(model, batches, devices, variant, options));
  variant.kv_subrange = true;
  options["kv_subrange"] = "on";
  print_row("two_sided, kv_subrange", measure(model, batches, devices, variant, options));
}

int run(std::int64_t count, const std::filesystem::path& vectors) {
  fmt::print("plans of the original reproduced: {}\n", check_originals(vectors / "distca"));
  for (const Model& model : {llama_8b(), llama_34b()}) {
    for (const std::int32_t devices : {8, 16, 32}) {
      print_balance(model, devices, devices == 32 ? 131072 : 524288, count);
    }
  }
  return 0;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  std::int64_t count = 6;
  std::filesystem::path vectors = CONTEXTILE_GOLDEN;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--batches") {
      count = std::max(1LL, std::atoll(argv[i + 1]));
    } else if (name == "--vectors") {
      vectors = argv[i + 1];
    } else {
      fmt::print(stderr, "strategy_bench: expected --batches or --vectors, found {}\n", name);
      return 2;
    }
  }
  return contextile::run(count, vectors);
}

// contextile run: executes a plan on real ranks and checks the result.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "base/standard_stream.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/plan_cluster.h"
#include "cli/options/shared.h"
#include "cli/options/transport_option.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/this_machine.h"
#include "contextile/advanced/executor.h"
#include "contextile/advanced/flight_record.h"
#include "contextile/advanced/gpu.h"
#include "contextile/advanced/oracle.h"
#include "contextile/cluster.h"
#include "contextile/extend/kernel.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/run_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

constexpr std::string_view kEmulated = "emulated";  // --gpu

// Comparing is on by default up to this cost of the oracle: a few seconds.
constexpr double kMaxDefaultCompareFlops = 1e11;

struct RunCommandOptions {
  std::string plan_path;
  std::string cluster;  // empty: not checked, predicted on this machine
  bool predict = false;
  TransportOptions transport;
  std::string kernel;      // empty: the preferred one for the dtype
  std::string gpu;         // a number or "emulated"; empty: the CPU
  std::string gpu_kernel;  // empty: the fastest that the GPU has
  Graphs graphs = Graphs::kAuto;
  std::optional<bool> compare;
  std::optional<std::uint64_t> seed;
  std::int32_t repeats = 1;
  std::optional<std::string> flight_folder;  // "none": nowhere; unset: the default
  bool json = false;
  bool csv = false;
};

// Threads share their memory and need no records; processes may leave nothing else behind.
std::string flight_folder(const RunCommandOptions& options) {
  if (options.flight_folder) return *options.flight_folder == "none" ? "" : *options.flight_folder;
  const bool is_named = options.transport.name != "inproc" && options.plan_path != kStandardStream;
  return is_named ? options.plan_path + ".flight" : "";
}

// The seed of the run. Ranks of a group of processes without a given one take that of rank 0.
std::uint64_t shared_seed(Transport* rank, const std::optional<std::uint64_t>& given) {
  std::uint64_t seed = given_or_random(given);
  if (rank == nullptr) return seed;
  const auto seeds = all_gather(rank->control(), std::as_bytes(std::span(&seed, 1)));
  std::memcpy(&seed, seeds.front().data(), sizeof seed);
  return given.value_or(seed);
}

RunOptions run_options(const RunCommandOptions& options, const Plan& plan, Transport* rank,
                       RankHost* host) {
  RunOptions run;
  run.kernel = options.kernel;
  run.seed = shared_seed(rank, options.seed);
  run.compare = options.compare.value_or(oracle_flops(plan) < kMaxDefaultCompareFlops);
  run.repeats = options.repeats;
  run.transport = inproc_options(options.transport);
  run.rank = rank;
  run.host = host;
  run.executor.flight_folder = flight_folder(options);
  return run;
}

void check_options(const RunCommandOptions& options) {
  check_formats(options.json, options.csv);
  if (options.gpu == kEmulated && options.transport.name != "inproc") {
    fail_argument("--transport {}: expected inproc with --gpu emulated", options.transport.name);
  }
  check_transport_options(options.transport);
  static_cast<void>(find_kernel(options.kernel));
  if (!options.gpu_kernel.empty() && options.gpu.empty()) {
    fail_argument("--gpu-kernel {}: expected --gpu, found none", options.gpu_kernel);
  }
  if (options.gpu == kEmulated && options.predict) {
    fail_argument("--predict: expected a GPU to measure, found --gpu emulated, which has no times");
  }
  if (!options.gpu.empty() && options.predict && options.cluster.empty()) {
    fail_argument("--predict: expected --cluster with --gpu; only CPUs are measured on the way");
  }
  if (options.predict && options.cluster.empty() && options.transport.name != "inproc") {
    fail_argument(
        "--predict: expected --cluster, the machines of these ranks, with --transport {}; only "
        "inproc is measured on the way",
        options.transport.name);
  }
}

void print_broken(const RunCommandOptions& options, const VerifyReport& verified) {
  if (options.json) {
    print_json({{"command", "run"},
                {"file", options.plan_path},
                {"ok", false},
                {"verify", verify_json(verified)}});
  } else {
    print(verify_text(verified, stdout_shows_colour()));
  }
}

// The plan that ran, the cluster it was predicted on, and how it went.
struct FinishedRun {
  const Plan& plan;
  const RunOptions& settings;
  std::string_view kernel;
  const std::optional<Cluster>& cluster;
  const std::optional<Simulation>& predicted;
  const RunReport& report;
};

std::string finished_text(const RunCommandOptions& options, const FinishedRun& run) {
  std::string text =
      fmt::format("plan      {}\n", printable(options.plan_path)) + describe_plan(run.plan) +
      fmt::format("run       {} ranks on {}, kernel {}, seed {}\n\n", run.plan.num_devices(),
                  options.transport.name, run.kernel, run.settings.seed) +
      run_text(run.report, stdout_shows_colour());
  if (!run.predicted) return text;
  const std::string machine = options.cluster.empty() ? "for this machine (a quick profile)"
                              : run.cluster->name == "local"
                                  ? "on local (round guesses: without --cluster it is measured)"
                                  : "on " + printable(run.cluster->name);
  return text + fmt::format("\ntime, predicted {} and measured here\n\n", machine) +
         run_prediction_table(run.report, *run.predicted).text();
}

void print_finished(const RunCommandOptions& options, const FinishedRun& run) {
  if (options.csv) {
    Json masks = run_json(run.report)["masks"];
    if (run.predicted) add_prediction(*run.predicted, masks);
    print(table_of(run_rows_json(masks)).csv());
  } else if (options.json) {
    Json document = {{"command", "run"},          {"file", options.plan_path},
                     {"kernel", run.kernel},      {"transport", options.transport.name},
                     {"seed", run.settings.seed}, {"plan", plan_json(run.plan)}};
    document.update(run_json(run.report));
    if (run.predicted) add_prediction(*run.predicted, document["masks"]);
    print_json(document);
  } else {
    print(finished_text(options, run));
  }
}

std::string kernel_name(const RunOptions& settings, const Plan& plan, const Gpu* gpu) {
  if (gpu != nullptr) return fmt::format("{} on {}", gpu->kernel_name(), gpu->name());
  return std::string(find_kernel(settings.kernel, plan.shape.dtype).name());
}

// The GPU of this process; null: it has none.
std::unique_ptr<Gpu> gpu_of(const RunCommandOptions& options, Transport* rank) {
  if (options.gpu.empty()) return nullptr;
  GpuOptions gpu;
  gpu.kernel = options.gpu_kernel;
  gpu.graphs = options.graphs;
  const InprocOptions transport = inproc_options(options.transport);
  if (rank == nullptr) return open_gpu(options.gpu, gpu, transport);
  const std::int64_t wanted = parse_size("--gpu", options.gpu, 0) + rank_on_machine(*rank);
  gpu.ordinal = checked_cast<std::int32_t>(wanted % std::max(1, num_gpus(gpu)), "--gpu");
  return open_gpu(gpu, transport);
}

// Runs this process's part if there is a `rank`, and rank 0 prints for all. Null runs everything in
// this process.
int run_on(const RunCommandOptions& options, const std::shared_ptr<const Plan>& plan,
           Transport* rank) {
  const bool prints = rank == nullptr || rank->rank() == Rank{0};
  std::optional<Cluster> cluster;
  if (!options.cluster.empty()) cluster = cluster_of_plan(*plan, options.cluster);
  const VerifyReport verified = verify(*plan);
  if (!verified.ok()) {
    if (prints) print_broken(options, verified);
    return kExitCheckFailed;
  }
  check_run_memory(*plan, statistics(*plan));
  const std::unique_ptr<Gpu> gpu = gpu_of(options, rank);
  const std::unique_ptr<Transport> joined =
      gpu == nullptr || rank == nullptr
          ? nullptr
          : gpu->join(*rank, inproc_options(options.transport).timeout);
  const RunOptions settings =
      run_options(options, *plan, joined == nullptr ? rank : joined.get(), gpu.get());
  const std::string kernel = kernel_name(settings, *plan, gpu.get());
  std::optional<Simulation> predicted;
  if (options.predict && prints) {
    if (!cluster) {
      cluster = measured_machine(plan->nodes, plan->devices_per_node, plan->shape, kernel);
    }
    predicted = simulate(*plan, *cluster);
  }
  const RunReport report = run_plan(plan, settings);
  if (prints) print_finished(options, {*plan, settings, kernel, cluster, predicted, report});
  for (const std::string& failure : run_failures(report)) {
    print_check_failed(failure);
  }
  return report.ok() ? kExitOk : kExitCheckFailed;
}

// The error of a group, and where to find more about it.
TransportError with_records(const TransportError& error, const std::string& folder, Rank rank) {
  if (folder.empty() || !std::filesystem::exists(flight_path(folder, rank))) return error;
  return TransportError(fmt::format("{}; contextile report {} shows who stopped the group",
                                    error.what(), printable(folder)));
}

// Removes records of an earlier run before a rank can fail. A rank that finds no group leaves a new
// one.
std::unique_ptr<Transport> join_group(const RunCommandOptions& options, const Plan& plan) {
  const std::string folder = flight_folder(options);
  const auto open = [&] {
    return open_transport(options.transport, plan.num_devices(), "device of the plan");
  };
  if (!options.transport.rank || folder.empty()) {  // over MPI a rank knows its number only then
    std::unique_ptr<Transport> rank = open();
    if (rank != nullptr && !folder.empty()) remove_flight_record(folder, rank->rank());
    return rank;
  }
  const Rank rank{*options.transport.rank};
  remove_flight_record(folder, rank);
  const auto began = std::chrono::system_clock::now();
  try {
    return open();
  } catch (const TransportError& error) {
    try {
      save_flight_record(rendezvous_record(rank, options.transport.name, plan, began, error),
                         folder);
    } catch (const Error&) {  // a full disk must not hide why there is no group
    }
    throw with_records(error, folder, rank);
  }
}

int run(const RunCommandOptions& options) {
  check_options(options);
  const auto plan = std::make_shared<const Plan>(load_plan(options.plan_path));
  const std::unique_ptr<Transport> rank = join_group(options, *plan);
  try {
    return run_on(options, plan, rank.get());
  } catch (const TransportError& error) {
    if (rank == nullptr) throw;
    rank->abort(error.what());  // so that no rank waits for this one
    throw with_records(error, flight_folder(options), rank->rank());
  } catch (const std::exception& error) {
    if (rank != nullptr) rank->abort(error.what());
    throw;
  }
}

}  // namespace

Action add_run_command(CLI::App& app) {
  auto options = std::make_shared<RunCommandOptions>();
  add_plan_argument(app, options->plan_path);
  add_transport_options(app, options->transport);
  add_kernel_option(app, options->kernel, "attention kernel");
  add_value(app, "--gpu",
            {"N|emulated",
             "all ranks run on GPU N of this machine; ranks as processes (launch, mpirun) take "
             "GPUs N, N + 1, … of their machine, data by NCCL. --kernel is then what one device is "
             "compared with. emulated: the kernels' PTX runs on the CPU, slowly and without times",
             "on its CPU"},
            [options](const std::string& name) {
              const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
              if (name != kEmulated && !is_number) {
                fail_argument("--gpu: expected the number of a GPU or emulated, found {}",
                              quote(name));
              }
              options->gpu = name;
            });
  add_value(app, "--gpu-kernel",
            {"NAME", "attention on the GPU: cuda:wgmma (compute capability 9.0) or cuda:mma",
             "cuda:wgmma where the GPU and the compiled kernels have it"},
            [options](const std::string& name) { options->gpu_kernel = name; });
  add_value(
      app, "--graphs",
      {"auto|on|off",
       "with --gpu: a call that comes again (--repeats) is one CUDA graph; on: from the first "
       "time on. Not where data go by NCCL",
       "auto"},
      [options](const std::string& name) { options->graphs = parse_graphs(name); });
  add_toggle(app, "compare", "check against the fp64 oracle and one device",
             "when the oracle costs less than 1e11 FLOPs",
             [options](bool compare) { options->compare = compare; });
  add_random_seed_option(app, options->seed, "seed of the random inputs");
  add_size<std::int32_t>(app, "--repeats", options->repeats, 1,
                         {"N", "timed repetitions, the fastest counts", ""});
  add_value(app, "--flight",
            {"FOLDER",
             "when the run fails, every rank that still can writes what it did last to "
             "FOLDER/rank-R.json; none: no rank does",
             "PLAN.flight with mpi and gloo, none with inproc or PLAN -"},
            [options](const std::string& folder) { options->flight_folder = folder; });
  add_cluster_option(app, options->cluster,
                     "refuse a plan that is for another number of devices; with --predict, the "
                     "machine to predict on",
                     "not checked; this machine, measured for some seconds");
  add_switch(app, "--predict", options->predict,
             "print the times that simulate predicts next to the measured ones");
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "a row for each mask and direction");
  add_examples(app, {"contextile plan -o small.plan --dataset prolong --tokens 512 --scale 0.01 "
                     "--cluster local:1x4",
                     "contextile run small.plan --seed 3",
                     "mpirun -n 4 contextile run small.plan --transport mpi",
                     "contextile run small.plan --predict --repeats 3"});
  show_first(app,
             {"--transport", "--kernel", "--gpu", "--seed", "--repeats", "--predict", "--json"});
  return [options] { return run(*options); };
}

}  // namespace contextile

// contextile profile: measures this machine into a cluster file.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/replaced_file.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/outputs.h"
#include "cli/options/shared.h"
#include "cli/options/transport_option.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/advanced/profile.h"
#include "contextile/cluster.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct ProfileCommandOptions {
  ProfileOptions profile;
  std::string output_path;  // empty: the cluster file goes to stdout
  TransportOptions transport;
  std::optional<std::int32_t> ranks;  // unset: 4 threads, or as many as the MPI job has
  bool quick = false;
  bool json = false;
  bool csv = false;
};

// GFLOP/s of a rank: one row per number of q rows, one column per number of keys.
std::string rates_text(const MachineProfile& machine, const AttentionShape& shape,
                       Direction direction) {
  const std::vector<std::int64_t>& sizes = machine.cluster.attention.kv_rows;
  std::vector<Column> columns = {{"q_rows", "q rows \\ keys"}};
  for (const std::int64_t size : sizes) {
    columns.push_back({fmt::format("{}", size), fmt::format("{}", size)});
  }
  Table table(std::move(columns));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<Cell> cells = {fmt::format("{}", sizes[i])};
    for (std::size_t j = 0; j < sizes.size(); ++j) {
      const KernelSample& sample = machine.kernel_samples[i * sizes.size() + j];
      const std::int64_t pairs = sample.tiles * sample.q_rows * sample.kv_rows;
      cells.emplace_back(direction == Direction::kForward
                             ? forward_flops(pairs, shape.q_heads, shape) / sample.forward_s * 1e-9
                             : backward_flops(pairs, shape.q_heads, shape) / sample.backward_s *
                                   1e-9);
    }
    table.add_row(std::move(cells));
  }
  return table.text();
}

Table transfer_table(const MachineProfile& machine) {
  Table table({{"pattern", "pattern"},
               {"ranks", "ranks"},
               {"bytes", "bytes"},
               {"microseconds", "us"},
               {"gbytes_per_s", "GB/s of\na message"}});
  for (const TransferSample& sample : machine.transfers) {
    table.add_row({std::string(to_string(sample.pattern)), fmt::format("{}", sample.ranks),
                   sample.bytes, 1e6 * sample.seconds,
                   static_cast<double>(sample.bytes) / sample.seconds * 1e-9});
  }
  return table;
}

std::string constants_text(const Cluster& cluster) {
  Table shown({{"key", "key of the cluster file"}, {"value", "value"}}, 30);
  for (const auto& [key, value] :
       {std::pair("attention_tflops", cluster.attention_tflops),
        std::pair("attention.call_us", cluster.attention.call_us),
        std::pair("attention.kernel_tile_rows",
                  static_cast<double>(cluster.attention.kernel_tile_rows)),
        std::pair("memory_gbytes_per_s", cluster.memory_gbytes_per_s),
        std::pair("intra_gbytes_per_s", cluster.intra_gbytes_per_s),
        std::pair("intra_latency_us", cluster.intra_latency_us),
        std::pair("inter_gbytes_per_s_per_node", cluster.inter_gbytes_per_s_per_node),
        std::pair("inter_latency_us", cluster.inter_latency_us),
        std::pair("launch_us", cluster.launch_us),
        std::pair("transfer_compute_us_per_mb", cluster.transfer_compute_us_per_mb),
        std::pair("compute_slots_per_node", cluster.compute_slots_per_node)}) {
    shown.add_row({std::string(key), fmt::format("{:.4g}", value)});
  }
  return shown.text();
}

std::string report_text(const ProfileCommandOptions& options, const MachineProfile& machine) {
  const AttentionShape& shape = options.profile.shape;
  return fmt::format(
             "kernel {}, {} ranks at once, {}/{} heads of {}, {}\n\n"
             "forward, GFLOP/s of a rank on full tiles\n{}\n"
             "backward, GFLOP/s of a rank on full tiles\n{}\n"
             "messages on {}\n{}\n",
             machine.kernel, machine.cluster.num_devices(), shape.q_heads, shape.kv_heads,
             shape.head_dim, to_string(shape.dtype),
             rates_text(machine, shape, Direction::kForward),
             rates_text(machine, shape, Direction::kBackward), options.transport.name,
             transfer_table(machine).text()) +
         constants_text(machine.cluster);
}

Json document_of(const ProfileCommandOptions& options, const MachineProfile& machine) {
  Json kernel_samples = Json::array();
  for (const KernelSample& sample : machine.kernel_samples) {
    kernel_samples.push_back({{"q_rows", sample.q_rows},
                              {"kv_rows", sample.kv_rows},
                              {"tiles", sample.tiles},
                              {"forward_s", sample.forward_s},
                              {"backward_s", sample.backward_s}});
  }
  Json transfers = Json::array();
  for (const TransferSample& sample : machine.transfers) {
    transfers.push_back({{"pattern", to_string(sample.pattern)},
                         {"ranks", sample.ranks},
                         {"bytes", sample.bytes},
                         {"seconds", sample.seconds}});
  }
  Json busy = Json::array();
  for (const BusySample& sample : machine.busy) {
    busy.push_back({{"pattern", to_string(sample.pattern)},
                    {"bytes", sample.bytes},
                    {"quiet_s", sample.quiet_s},
                    {"busy_s", sample.busy_s}});
  }
  Json document = {{"command", "profile"},
                   {"kernel", machine.kernel},
                   {"transport", options.transport.name},
                   {"ranks", machine.cluster.num_devices()},
                   {"cluster", Json::parse(to_json(machine.cluster))},
                   {"kernel_samples", std::move(kernel_samples)},
                   {"transfers", std::move(transfers)},
                   {"busy", std::move(busy)}};
  if (!options.output_path.empty()) document["file"] = options.output_path;
  return document;
}

void check_options(const ProfileCommandOptions& options) {
  check_formats(options.json, options.csv);
  check_transport_options(options.transport);
  if (options.transport.name == "gloo" && !options.ranks) {
    fail_argument("--transport gloo: expected --ranks, the processes of the group, found none");
  }
  if (options.transport.name == "inproc" && options.profile.nodes != 0) {
    fail_argument("--nodes: expected with ranks as processes, found it with inproc");
  }
}

void print_measured(const ProfileCommandOptions& options, const MachineProfile& machine) {
  if (options.json) {
    print_json(document_of(options, machine));
  } else if (options.csv) {
    print(table_of(document_of(options, machine)["kernel_samples"]).csv());
  } else if (options.output_path.empty()) {
    print(to_json(machine.cluster) + "\n");
  } else {
    print(report_text(options, machine));
  }
}

// All ranks of a group measure; rank 0 writes and prints.
int run_on(const ProfileCommandOptions& options, const ProfileOptions& profile, Transport* rank) {
  if (rank != nullptr && rank->rank() != Rank{0}) {
    static_cast<void>(measure_machine(profile, *rank));
    return kExitOk;
  }
  std::optional<ReplacedFile> file;
  if (!options.output_path.empty()) file.emplace(options.output_path);
  ProgressBar progress(profile_steps(profile));
  const auto on_step = [&](std::string_view what) { progress.step(what); };
  const MachineProfile machine = rank == nullptr ? measure_machine(profile, on_step)
                                                 : measure_machine(profile, *rank, on_step);
  if (file) {
    file->write(to_json(machine.cluster) + '\n');
    file->commit();
  }
  print_measured(options, machine);
  return kExitOk;
}

int run(const ProfileCommandOptions& options) {
  check_options(options);
  ProfileOptions profile = options.profile;
  profile.shape.value_dim = profile.shape.head_dim;
  if (options.quick) profile.effort = ProfileEffort::kQuick;
  if (options.ranks) profile.ranks = *options.ranks;
  const bool knows_ranks = options.ranks || options.transport.name != "mpi";
  if (knows_ranks) check_profile_options(profile);
  const std::unique_ptr<Transport> rank =
      open_transport(options.transport, options.ranks, "of --ranks");
  if (rank == nullptr) return run_on(options, profile, nullptr);
  try {
    profile.ranks = rank->size();
    return run_on(options, profile, rank.get());
  } catch (const std::exception& error) {
    rank->abort(error.what());  // so that no rank waits for this one
    throw;
  }
}

}  // namespace

Action add_profile_command(CLI::App& app) {
  auto options = std::make_shared<ProfileCommandOptions>();
  ProfileOptions& profile = options->profile;
  add_output(app, "-o,--output",
             {"FILE", "where the cluster file goes; the tables go to stdout", "stdout, no tables"},
             [options](const std::string& path) { options->output_path = path; });
  add_kernel_option(app, profile.kernel, "attention kernel");
  add_transport_options(app, options->transport);
  add_size_as<std::int32_t>(
      app, "--ranks", options->ranks, 1,
      {"N",
       "ranks that compute at the same time: the devices of the cluster file; with gloo the "
       "processes of the group",
       "4; those of the MPI job"});
  add_size<std::int32_t>(
      app, "--nodes", profile.nodes, 1,
      {"N", "mpi, gloo: machines that the ranks are on, an equal run each", "one per rank"});
  add_size<std::int32_t>(app, "--heads", profile.shape.q_heads, 1, {"N", "query heads", ""});
  add_size<std::int32_t>(app, "--kv-heads", profile.shape.kv_heads, 1,
                         {"N", "key and value heads; divides --heads", ""});
  add_size<std::int32_t>(app, "--head-dim", profile.shape.head_dim, 1,
                         {"N", "elements of one head", ""});
  add_dtype_option(app, profile.shape.dtype, "of activations");
  add_switch(app, "--quick", options->quick, "a coarse grid and short samples: a few seconds");
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "the measured calls of the kernel");
  add_examples(app, {"contextile profile -o machine.json --quick",
                     "contextile launch -n 4 -- profile --nodes 1 -o machine.json --quick",
                     "mpirun -n 4 contextile profile --transport mpi -o machine.json",
                     "contextile compare --lengths lengths.txt --cluster machine.json --strategy "
                     "zigzag,magi --run"});
  show_first(app, {"--output", "--kernel", "--transport", "--ranks", "--quick", "--json"});
  return [options] { return run(*options); };
}

}  // namespace contextile

// contextile profile: measures this machine into a cluster file.
#include "contextile/profile.h"

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
#include "cli/commands/command.h"
#include "cli/help.h"
#include "cli/options/outputs.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/cluster.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct ProfileCommandOptions {
  ProfileOptions profile;
  std::string output_path;  // empty: the cluster file goes to stdout
  std::string transport = "inproc";
  bool quick = false;
  bool json = false;
  bool csv = false;
};

// GFLOP/s of a rank: one row a size of q rows, one column a size of keys.
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
  Table table({{"ranks", "ranks"},
               {"bytes", "bytes"},
               {"microseconds", "us"},
               {"gbytes_per_s", "GB/s\na rank"}});
  for (const TransferSample& sample : machine.transfers) {
    table.add_row({fmt::format("{}", sample.ranks), sample.bytes, 1e6 * sample.seconds,
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
        std::pair("launch_us", cluster.launch_us),
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
             "{}, every rank sends to the next\n{}\n",
             machine.kernel, options.profile.ranks, shape.q_heads, shape.kv_heads, shape.head_dim,
             to_string(shape.dtype), rates_text(machine, shape, Direction::kForward),
             rates_text(machine, shape, Direction::kBackward), options.transport,
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
    transfers.push_back(
        {{"ranks", sample.ranks}, {"bytes", sample.bytes}, {"seconds", sample.seconds}});
  }
  Json document = {{"command", "profile"},
                   {"kernel", machine.kernel},
                   {"transport", options.transport},
                   {"ranks", options.profile.ranks},
                   {"cluster", Json::parse(to_json(machine.cluster))},
                   {"kernel_samples", std::move(kernel_samples)},
                   {"transfers", std::move(transfers)}};
  if (!options.output_path.empty()) document["file"] = options.output_path;
  return document;
}

int run(const ProfileCommandOptions& options) {
  check_formats(options.json, options.csv);
  check_transport(options.transport);
  ProfileOptions profile = options.profile;
  profile.shape.value_dim = profile.shape.head_dim;
  if (options.quick) profile.effort = ProfileEffort::kQuick;
  check_profile_options(profile);
  std::optional<ReplacedFile> file;
  if (!options.output_path.empty()) file.emplace(options.output_path);
  ProgressBar progress(profile_steps(profile));
  const MachineProfile machine =
      measure_machine(profile, [&](std::string_view what) { progress.step(what); });
  if (file) {
    file->write(to_json(machine.cluster) + '\n');
    file->commit();
  }
  if (options.json) {
    print_json(document_of(options, machine));
  } else if (options.csv) {
    print(table_of(document_of(options, machine)["kernel_samples"]).csv());
  } else if (options.output_path.empty()) {
    print(to_json(machine.cluster) + "\n");
  } else {
    print(report_text(options, machine));
  }
  return kExitOk;
}

}  // namespace

Action add_profile_command(CLI::App& app) {
  auto options = std::make_shared<ProfileCommandOptions>();
  ProfileOptions& profile = options->profile;
  add_output(app, "-o,--output",
             {"FILE", "where the cluster file goes; the tables go to stdout", "stdout, no tables"},
             [options](const std::string& path) { options->output_path = path; });
  add_kernel_option(app, profile.kernel, "attention kernel");
  add_transport_option(app, options->transport);
  add_size<std::int32_t>(
      app, "--ranks", profile.ranks, 1,
      {"N", "ranks that compute at the same time: the devices of the cluster file", ""});
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
                     "contextile compare --lengths lengths.txt --cluster machine.json --strategy "
                     "zigzag,magi --run"});
  return [options] { return run(*options); };
}

}  // namespace contextile

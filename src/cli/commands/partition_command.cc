// contextile partition: the hypergraph partitioner on its own, from an .hgr file to a partition
// file.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/quote.h"
#include "base/standard_stream.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/outputs.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/extend/hypergraph.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

struct PartitionOptions {
  std::string hgr_path;
  std::string fixed_path;   // empty: none
  std::string start_path;   // empty: none
  std::string output_path;  // empty: FILE.hgr.part.K
  HypergraphSpec spec;
  bool json = false;
  bool csv = false;
};

double parse_not_negative(std::string_view option, std::string_view text) {
  const double value = parse_number(option, text);
  if (value < 0)
    fail_argument("{}: expected a number of at least 0, found {}", option, quote(text));
  return value;
}

// "E" for both dimensions or "E,E2".
void parse_eps(const std::string& text, HypergraphSpec& spec) {
  const std::size_t comma = text.find(',');
  spec.eps_compute = parse_not_negative("--eps", text.substr(0, comma));
  spec.eps_data = comma == std::string::npos ? spec.eps_compute
                                             : parse_not_negative("--eps", text.substr(comma + 1));
}

struct Result {
  std::string output_path;
  std::int32_t vertices;
  std::int32_t nets;
  HypergraphQuality quality;
  double partition_s;
};

Json result_json(const PartitionOptions& options, const Result& result) {
  return {{"command", "partition"},
          {"file", options.hgr_path},
          {"output", result.output_path},
          {"vertices", result.vertices},
          {"nets", result.nets},
          {"parts", options.spec.num_parts},
          {"seed", options.spec.seed},
          {"feasible", result.quality.feasible},
          {"objective", result.quality.objective},
          {"connectivity", result.quality.connectivity},
          {"cut_nets", result.quality.cut_nets},
          {"max_part_traffic", result.quality.max_part_traffic},
          {"compute_overload", result.quality.compute_overload},
          {"data_overload", result.quality.data_overload},
          {"partition_s", result.partition_s}};
}

std::string result_text(const PartitionOptions& options, const Result& result) {
  const HypergraphQuality& quality = result.quality;
  std::string text =
      fmt::format("hypergraph       {}: {}, {}\n", options.hgr_path,
                  result.vertices == 1 ? "1 vertex" : fmt::format("{} vertices", result.vertices),
                  count(result.nets, "net"));
  text +=
      fmt::format("partition        {}: {} parts\n", result.output_path, options.spec.num_parts);
  text += fmt::format("connectivity     {} ({} cut)\n", quality.connectivity,
                      count(quality.cut_nets, "net"));
  text += fmt::format("busiest part     {}\n", quality.max_part_traffic);
  if (options.spec.traffic_weight > 0) {
    text += fmt::format("objective        {}\n", format_number(quality.objective));
  }
  text += fmt::format("overload         compute {}, data {}{}\n",
                      format_cell(quality.compute_overload, Format::kPercent),
                      format_cell(quality.data_overload, Format::kPercent),
                      quality.feasible ? "" : ": above the capacity of a part");
  return text + fmt::format("partitioned in   {} ms\n",
                            format_cell(result.partition_s, Format::kMilliseconds));
}

int run(PartitionOptions options) {
  check_formats(options.json, options.csv);
  const std::string output_path = output_beside(
      options.hgr_path, fmt::format(".part.{}", options.spec.num_parts), options.output_path);
  check_no_input("--output", output_path,
                 {options.hgr_path, options.fixed_path, options.start_path});
  check_results_elsewhere(output_path, options.json || options.csv);
  const Hypergraph hypergraph = read_hgr(options.hgr_path);
  HypergraphSpec& spec = options.spec;
  if (!options.fixed_path.empty()) {
    spec.fixed = read_fixed(options.fixed_path, hypergraph.num_vertices(), spec.num_parts);
  }
  if (!options.start_path.empty()) {
    spec.start = read_partition(options.start_path, hypergraph.num_vertices(), spec.num_parts).part;
  }
  const auto begin = std::chrono::steady_clock::now();
  const HypergraphPartition partition = partition_hypergraph(hypergraph, spec);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const Result result = {.output_path = output_path,
                         .vertices = hypergraph.num_vertices(),
                         .nets = hypergraph.num_nets(),
                         .quality = evaluate_hypergraph(hypergraph, spec, partition),
                         .partition_s = elapsed.count()};
  write_partition(partition, result.output_path);
  if (options.json) {
    print_json(result_json(options, result));
  } else if (options.csv) {
    print(table_of(Json::array({result_json(options, result)})).csv());
  } else if (output_path != kStandardStream) {
    print(result_text(options, result));
  }
  return result.quality.feasible ? kExitOk : kExitCheckFailed;
}

void add_search_options(CLI::App& app, HypergraphSpec& spec) {
  add_value(app, "--traffic", {"W", "weight of the busiest part's traffic in the objective", "0"},
            [&spec](const std::string& text) {
              spec.traffic_weight = parse_not_negative("--traffic", text);
            });
  add_value(app, "--effort", {"X", "search steps, in multiples of the default", "1"},
            [&spec](const std::string& text) {
              spec.effort = parse_number("--effort", text);
              if (spec.effort <= 0) {
                fail_argument("--effort: expected a number above 0, found {}", quote(text));
              }
            });
  add_size<std::int32_t>(app, "--starts", spec.num_starts, 1,
                         {"N", "initial partitions to choose from", ""});
  add_size<std::uint64_t>(app, "--seed", spec.seed, 0, {"N", "seed of the search", ""});
}

}  // namespace

Action add_partition_command(CLI::App& app) {
  auto options = std::make_shared<PartitionOptions>();
  add_required(app, "FILE", {"", "hypergraph, hMETIS format", ""},
               [options](const std::string& path) { options->hgr_path = path; });
  add_required(app, "-k,--parts", {"K", "number of parts", ""}, [options](const std::string& text) {
    options->spec.num_parts = checked_cast<std::int32_t>(parse_size("--parts", text, 1), "--parts");
  });
  add_value(app, "--eps",
            {"E[,E2]", "a part may hold (1 + E) of the mean; E2 of the second weight", "0.03"},
            [options](const std::string& text) { parse_eps(text, options->spec); });
  add_value(app, "--fix", {"FILE", "part of every vertex that must be there, -1: free", "all free"},
            [options](const std::string& path) { options->fixed_path = path; });
  add_value(app, "--start", {"FILE", "partition to improve on", "none"},
            [options](const std::string& path) { options->start_path = path; });
  add_search_options(app, options->spec);
  add_output(app, "-o,--output",
             {"FILE", "where the partition goes; to be given with FILE -", "FILE.part.K"},
             [options](const std::string& path) { options->output_path = path; });
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "the result, one row,");
  add_examples(app, {"contextile partition graph.hgr --parts 2 --eps 0.05 -o graph.part"});
  return [options] { return run(*options); };
}

}  // namespace contextile

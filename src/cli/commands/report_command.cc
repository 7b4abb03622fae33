// contextile report: one HTML page about a plan, two plans side by side, or a failed group.
#include <fmt/format.h>

#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/replaced_file.h"
#include "base/standard_stream.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/outputs.h"
#include "cli/options/plan_cluster.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/advanced/flight_record.h"
#include "contextile/advanced/flight_report.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "report/flight_tables.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct ReportCommandOptions {
  std::string plan_path;
  std::string other_path;   // empty: one plan
  std::string cluster;      // empty: each plan's preset
  std::string output_path;  // empty: the first plan's path with .html
  std::int64_t max_bytes = ReportOptions{}.max_bytes;
  bool json = false;
};

struct LoadedPlan {
  std::string path;
  Plan plan;
  Cluster cluster;
  VerifyReport verified;
  Simulation simulation;  // when verified.ok()
};

LoadedPlan load(const std::string& path, const std::string& cluster, ProgressBar& progress) {
  progress.step(quote(path));
  LoadedPlan loaded{path, load_plan(path), {}, {}, {}};
  loaded.cluster = cluster_of_plan(loaded.plan, cluster);
  loaded.verified = verify(loaded.plan);
  if (loaded.verified.ok()) {
    loaded.simulation = simulate(loaded.plan, loaded.cluster,
                                 {.timeline = true, .progress = progress.within_step()});
  }
  return loaded;
}

int report_flight(const ReportCommandOptions& options) {
  CONTEXTILE_CHECK(options.other_path.empty() && options.cluster.empty(),
                   "{}: a folder of flight records: expected no second plan and no --cluster with "
                   "it, found {}",
                   printable(options.plan_path),
                   quote(options.other_path.empty() ? options.cluster : options.other_path));
  std::string folder = options.plan_path;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  const std::string page = options.output_path.empty() ? folder + ".html" : options.output_path;
  check_results_elsewhere(page, options.json);
  const std::vector<FlightRecord> records = load_flight_records(folder);
  for (const FlightRecord& record : records) {
    check_no_input("--output", page, {flight_path(folder, record.rank)});
  }
  const FlightVerdict verdict = judge_flight(records);
  ReplacedFile file(page);
  write_flight_report(records, verdict, file.stream(), {.max_bytes = options.max_bytes});
  file.commit();
  if (options.json) {
    Json document = {{"command", "report"}, {"ok", true}, {"folder", options.plan_path}};
    document.update(flight_json(records, verdict));
    document["page"] = page;
    print_json(document);
  } else if (page != kStandardStream) {
    print(flight_text(records, verdict) + fmt::format("\n{}: open it in a browser\n", page));
  }
  return kExitOk;
}

int run(const ReportCommandOptions& options) {
  std::error_code ignored;
  if (std::filesystem::is_directory(options.plan_path, ignored)) return report_flight(options);
  const std::string page = output_beside(options.plan_path, ".html", options.output_path);
  check_no_input("--output", page, {options.plan_path, options.other_path, options.cluster});
  check_results_elsewhere(page, options.json);
  ReplacedFile file(page);
  ProgressBar progress(options.other_path.empty() ? 1 : 2);
  std::deque<LoadedPlan> plans;
  plans.push_back(load(options.plan_path, options.cluster, progress));
  if (!options.other_path.empty()) {
    plans.push_back(load(options.other_path, options.cluster, progress));
  }
  Json files = Json::array();
  std::vector<ReportedPlan> reported;
  for (const LoadedPlan& plan : plans) {
    if (!plan.verified.ok()) {
      if (options.json) {
        print_json({{"command", "report"},
                    {"file", plan.path},
                    {"ok", false},
                    {"verify", verify_json(plan.verified)}});
      } else {
        print(fmt::format("plan      {}\n", printable(plan.path)) +
              verify_text(plan.verified, stdout_shows_colour()));
      }
      return kExitCheckFailed;
    }
    reported.push_back({plan.path, plan.plan, plan.cluster, plan.simulation, plan.verified});
    files.push_back(plan.path);
  }
  write_report(reported, file.stream(), {.max_bytes = options.max_bytes});
  file.commit();
  if (options.json) {
    print_json({{"command", "report"},
                {"ok", true},
                {"files", std::move(files)},
                {"page", page},
                {"size_bytes", file.num_bytes()}});
  } else if (page != kStandardStream) {
    print(fmt::format("{}: {} MB, open it in a browser\n", page,
                      format_cell(Cell{file.num_bytes()}, Format::kMegabytes)));
  }
  return kExitOk;
}

}  // namespace

Action add_report_command(CLI::App& app) {
  auto options = std::make_shared<ReportCommandOptions>();
  add_required(app, "PLAN",
               {"", "plan file, - for stdin; or a folder of flight records (run --flight)", ""},
               [options](const std::string& path) { options->plan_path = path; });
  add_value(app, "PLAN_B", {"", "a second plan file, shown next to the first", ""},
            [options](const std::string& path) { options->other_path = path; });
  add_output(app, "-o,--output", {"FILE", "the HTML page; to be given with PLAN -", "PLAN.html"},
             [options](const std::string& path) { options->output_path = path; });
  add_cluster_option(app, options->cluster,
                     "the machine to predict on, of as many devices as the plan's",
                     "the preset the plan is for");
  add_size<std::int64_t>(app, "--max-size", options->max_bytes, 1,
                         {"BYTES",
                          "about how large the page may become; pictures of large plans "
                          "show less detail, and say so",
                          ""});
  add_json_option(app, options->json);
  add_examples(
      app, {"contextile report batch.plan", "contextile report batch.plan other.plan -o both.html",
            "contextile report batch.plan.flight"});
  return [options] { return run(*options); };
}

}  // namespace contextile

// contextile verify: every violation of a plan file.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/quote.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct VerifyCommandOptions {
  std::string plan_path;
  std::int64_t max_shown = 1000;
  bool json = false;
  bool csv = false;
};

Table movement_table(const VerifyReport& report) {
  Table table({{"direction", "direction"},
               {"transfers", "transfers"},
               {"redundant_transfers", "redundant"},
               {"redundant_bytes", "redundant\nMB", Format::kMegabytes},
               {"unused_by_receiver_transfers", "passed on\nonly"},
               {"unused_by_receiver_bytes", "passed on\nMB", Format::kMegabytes}});
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const DataMovement& movement = report.movement[static_cast<std::size_t>(direction)];
    table.add_row({std::string(to_string(direction)), movement.transfers,
                   movement.redundant_transfers, movement.redundant_bytes,
                   movement.unused_by_receiver_transfers, movement.unused_by_receiver_bytes});
  }
  return table;
}

Table violation_table(const VerifyReport& report) {
  Table table(std::vector<Column>{{"violation", "violation"}});
  for (const std::string& violation : report.violations) table.add_row({violation});
  return table;
}

int run(const VerifyCommandOptions& options) {
  check_formats(options.json, options.csv);
  const Plan plan = load_plan(options.plan_path);
  const VerifyReport report = [&] {
    ProgressBar progress(1);
    progress.step(quote(options.plan_path));
    return verify(plan, {.max_shown = options.max_shown, .progress = progress.within_step()});
  }();
  if (options.json) {
    Json document = {{"command", "verify"}, {"file", options.plan_path}};
    document.update(verify_json(report));
    document["plan"] = plan_json(plan);
    print_json(document);
  } else if (options.csv) {
    if (report.ok()) print(movement_table(report).csv());
    if (!report.ok()) print(violation_table(report).csv());
  } else {
    print(fmt::format("plan      {}\n", printable(options.plan_path)) + describe_plan(plan) + "\n");
    if (report.ok()) print(movement_table(report).text());
    print(verify_text(report, stdout_shows_colour()));
  }
  return report.ok() ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_verify_command(CLI::App& app) {
  auto options = std::make_shared<VerifyCommandOptions>();
  add_plan_argument(app, options->plan_path);
  add_size<std::int64_t>(app, "--max-shown", options->max_shown, 0,
                         {"N", "violations and warnings that are listed; all are counted", ""});
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "what moves in each direction, or the violations,");
  add_examples(app, {"contextile plan -o batch.plan --dataset prolong --tokens 128K",
                     "contextile verify batch.plan"});
  return [options] { return run(*options); };
}

}  // namespace contextile

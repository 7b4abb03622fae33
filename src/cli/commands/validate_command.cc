// contextile validate: predicted times of plans, held against times that others measured.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/advanced/validation.h"
#include "contextile/planner.h"
#include "report/json.h"
#include "report/table.h"
#include "report/validation_tables.h"

namespace contextile {
namespace {

struct ValidateOptions {
  std::string rows_path;
  std::string cluster;  // empty: each row's own
  bool json = false;
  bool csv = false;
};

int run(const ValidateOptions& options) {
  check_formats(options.json, options.csv);
  const MeasuredRows measured = read_measured_rows(options.rows_path);
  ValidationOptions how;
  if (!options.cluster.empty()) how.cluster = load_cluster(options.cluster);
  ProgressBar progress(1);
  how.progress = [&](std::string_view what, std::int64_t done, std::int64_t total) {
    progress.step(done, total, what);
  };
  try {
    const Validation validation = validate_rows(measured, how);
    if (options.json) {
      Json document = {{"command", "validate"}, {"file", options.rows_path}};
      document.update(validation_json(validation));
      print_json(document);
    } else if (options.csv) {
      print(held_rows_table(validation).csv());
    } else {
      print(validation_text(validation, stdout_shows_colour()));
    }
  } catch (const CheckFailed& failure) {
    print_check_failed(failure.what());
    return kExitCheckFailed;
  }
  return kExitOk;
}

}  // namespace

Action add_validate_command(CLI::App& app) {
  auto options = std::make_shared<ValidateOptions>();
  add_required(
      app, "FILE",
      {"", "CSV file of measured times, - for standard input; its columns: docs/predict.md", ""},
      [options](const std::string& path) { options->rows_path = path; });
  add_cluster_option(app, options->cluster,
                     "the machine to predict on, instead of each row's cluster, kernel and engine; "
                     "rows of other numbers of nodes and devices are listed without a prediction",
                     "each row's own");
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "all rows");
  add_examples(app, {"contextile validate rows.csv"});
  return [options] { return run(*options); };
}

}  // namespace contextile

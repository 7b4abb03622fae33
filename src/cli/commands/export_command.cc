// contextile export: a plan file as JSON.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/replaced_file.h"
#include "base/standard_stream.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/outputs.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

struct ExportOptions {
  std::string plan_path;
  std::string output_path = std::string(kStandardStream);
  std::optional<std::int32_t> rank;
  bool block_head_groups = false;
  bool json = false;  // the one format there is
};

int run(const ExportOptions& options) {
  const Plan plan = load_plan(options.plan_path);
  std::optional<Rank> only;
  if (options.rank) {
    if (*options.rank >= plan.num_devices()) {
      fail_argument("--rank: expected 0 to {}, found {}", plan.num_devices() - 1, *options.rank);
    }
    only = Rank{*options.rank};
  }
  ReplacedFile file(options.output_path);
  export_json(
      plan, file.stream(), only,
      options.block_head_groups ? ExportedHeadGroups::kOfBlocks : ExportedHeadGroups::kEven);
  file.commit();
  return kExitOk;
}

}  // namespace

Action add_export_command(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  add_plan_argument(app, options->plan_path);
  add_switch(app, "--json", options->json, "the JSON document of docs/plan-format.md (always)");
  add_size_as<std::int32_t>(app, "--rank", options->rank, 0,
                            {"R", "only that device's programs", "all devices"});
  add_switch(app, "--block-head-groups", options->block_head_groups,
             "the plan as it is where blocks have head groups of their own, not with all of them "
             "split as the most are");
  add_output(app, "-o,--output", {"FILE", "where the export goes", "stdout"},
             [options](const std::string& path) { options->output_path = path; });
  add_examples(app, {"contextile export batch.plan --rank 0 -o rank0.json"});
  return [options] { return run(*options); };
}

}  // namespace contextile

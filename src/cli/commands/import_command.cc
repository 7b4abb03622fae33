// contextile import: a plan's JSON to a plan file.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file_bytes.h"
#include "base/out_of_memory.h"
#include "base/quote.h"
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
#include "contextile/verify.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct ImportOptions {
  std::string json_path;  // "-": stdin
  std::string output_path;
  bool json = false;
};

struct ImportedPlan {
  Plan plan;
  PlanStats statistics;
  VerifyReport verified;
  double import_s = 0;
  double verify_s = 0;
};

// The document of a large plan has gigabytes, more than any other text. Input that cannot be one is
// therefore refused by its first byte.
std::uint64_t expect_json(std::span<const std::uint8_t> first, std::string_view name) {
  static_cast<void>(expect_text("a plan as JSON")(first, name));
  const auto begin = std::ranges::find_if(
      first, [](std::uint8_t byte) { return byte != ' ' && (byte < '\t' || byte > '\r'); });
  if (begin != first.end() && *begin != '{') {
    fail_argument("{}: expected a plan as JSON, an object, found {} at byte {}", name,
                  quote(std::string_view(reinterpret_cast<const char*>(&*begin), 1)),
                  begin - first.begin());
  }
  return std::uint64_t{1} << 34;
}

ImportedPlan import_from(const std::string& path) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  const FileBytes file(path, expect_json);
  ImportedPlan imported;
  const auto start = Clock::now();
  imported.plan = with_memory_for(
      [&] {
        return fmt::format("the plan in {}, {} bytes of JSON", file.name(), file.text().size());
      },
      [&] { return import_json(file.text(), file.name()); });
  const auto read = Clock::now();
  imported.verified = verify(imported.plan);
  imported.verify_s = seconds(Clock::now() - read);
  imported.import_s = seconds(read - start);
  imported.statistics = statistics(imported.plan);
  return imported;
}

Json imported_json(const ImportedPlan& imported, const ImportOptions& options) {
  Json document = {{"command", "import"}, {"file", options.output_path}};
  document.update(plan_json(imported.plan));
  document["import_s"] = imported.import_s;
  document["verify_s"] = imported.verify_s;
  document["verify"] = verify_json(imported.verified);
  document["statistics"] = statistics_json(imported.statistics);
  return document;
}

// A plan that does not verify is written all the same: other commands can then look at it.
int run(const ImportOptions& options) {
  check_results_elsewhere(options.output_path, options.json);
  ReplacedFile file(options.output_path);
  const ImportedPlan imported = import_from(options.json_path);
  file.write(serialize(imported.plan));
  file.commit();
  if (options.json) {
    print_json(imported_json(imported, options));
  } else if (options.output_path != kStandardStream) {
    print(fmt::format("plan      {}\n", printable(options.output_path)) +
          describe_plan(imported.plan) + "\n" + statistics_text(imported.statistics) +
          fmt::format("imported in {} ms, verified in {} ms\n",
                      format_number(imported.import_s * 1e3),
                      format_number(imported.verify_s * 1e3)) +
          verify_text(imported.verified, stdout_shows_colour()));
  }
  return imported.verified.ok() ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_import_command(CLI::App& app) {
  auto options = std::make_shared<ImportOptions>();
  add_required(app, "PLAN.json", {"", "a document as contextile export writes it; -: stdin", ""},
               [options](const std::string& path) { options->json_path = path; });
  add_required_output(app, "-o,--output", {"FILE", "where the plan goes, - for stdout", ""},
                      [options](const std::string& path) { options->output_path = path; });
  add_json_option(app, options->json);
  add_examples(app, {"contextile plan -o batch.plan --dataset prolong --tokens 128K",
                     "contextile export batch.plan -o batch.json",
                     "contextile import batch.json -o again.plan"});
  return [options] { return run(*options); };
}

}  // namespace contextile

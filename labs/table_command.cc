// contextile-labs table: a paper's table or figure again, from this program's own verified plans.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/quote.h"
#include "cli/commands/command.h"
#include "cli/help.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/planner.h"
#include "labs/papers/paper_table.h"
#include "labs/program.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

struct TableOptions {
  std::string name;
  TableOverrides overrides;
  bool list = false;
  bool json = false;
  bool csv = false;
};

Table list_of_tables() {
  Table table({{"name", "name"}, {"source", "source"}, {"shows", "shows"}});
  for (const PaperTable& paper : paper_tables()) {
    table.add_row({std::string(paper.name), std::string(paper.source), std::string(paper.shows)});
  }
  return table;
}

// "label     text", wrapped and indented under itself.
std::string labelled(std::string_view label, const std::string& text, std::size_t indent = 10) {
  return fmt::format("{:{}}{}\n", label, indent, wrap(text, kTextColumns, {indent, indent}));
}

std::string list_text() {
  std::size_t longest = 0;
  for (const PaperTable& paper : paper_tables()) longest = std::max(longest, paper.name.size());
  std::string text;
  for (const PaperTable& paper : paper_tables()) {
    text += labelled(paper.name, fmt::format("{}: {}", paper.source, paper.shows), longest + 2);
  }
  return text;
}

// A verdict on fewer batches would be one on the sample.
constexpr std::int64_t kFewestBatches = 20;

// Options that make it another experiment than the paper's, so that there is nothing to agree with,
// and samples too small for a verdict. Another seed only samples the same experiment.
std::vector<std::string> changes_of(const TableOverrides& overrides) {
  std::vector<std::string> changes;
  const auto note = [&](bool given, const char* option) {
    if (given) changes.emplace_back(option);
  };
  note(!overrides.dataset.empty(), "--dataset");
  note(!overrides.cluster.empty(), "--cluster");
  note(overrides.tokens.has_value(), "--tokens");
  note(overrides.block_size.has_value(), "--block-size");
  note(overrides.q_heads.has_value(), "--heads");
  note(overrides.kv_heads.has_value(), "--kv-heads");
  note(overrides.head_dim.has_value(), "--head-dim");
  note(overrides.wire.has_value(), "--wire");
  note(overrides.batches.value_or(kFewestBatches) < kFewestBatches, "--batches below 20");
  return changes;
}

// How text calls the sides of a finding, and the remarks below the findings.
struct FindingWords {
  std::string_view claim;
  std::string_view agrees;
  std::string_view differs;
  std::string_view remarks;
};
constexpr FindingWords kOfPapers = {"paper", "agrees", "DIFFERS",
                                    "what differs from the paper's experiment"};
constexpr FindingWords kOfAims = {"aim", "met", "MISSED", "about these rows"};

std::string result_text(const PaperTable& paper, const PaperResult& result,
                        const std::vector<std::string>& changes) {
  const FindingWords& words = result.against == Against::kPaper ? kOfPapers : kOfAims;
  std::string text = wrap(fmt::format("{}: {}", paper.source, paper.shows), kTextColumns) + '\n';
  for (const auto& [what, value] : result.setting) text += labelled(what, value);
  text += '\n' + result.table.text(stdout_shows_colour()) + '\n';
  for (const Finding& finding : result.findings) {
    text += labelled(words.claim, finding.claim);
    text += labelled(!changes.empty() ? "here"
                     : finding.agrees ? words.agrees
                                      : words.differs,
                     finding.ours);
    if (changes.empty() && !finding.criterion.empty()) text += labelled("if", finding.criterion);
  }
  text += fmt::format("\n{}\n", words.remarks);
  if (!changes.empty()) {
    text += labelled("", fmt::format("{}: no verdicts", fmt::join(changes, ", ")));
  }
  for (const std::string& difference : result.differences) text += labelled("", difference);
  return text;
}

Json result_json(const PaperTable& paper, const PaperResult& result,
                 const std::vector<std::string>& changes) {
  Json setting = Json::object();
  for (const auto& [what, value] : result.setting) setting[what] = value;
  Json findings = Json::array();
  for (const Finding& finding : result.findings) {
    findings.push_back(
        {{"claim", finding.claim}, {"ours", finding.ours}, {"agrees", finding.agrees}});
    if (!finding.criterion.empty()) findings.back()["criterion"] = finding.criterion;
  }
  Json plots = Json::array();
  for (const TablePlot& plot : result.plots) {
    plots.push_back(
        {{"x", plot.x}, {"y", plot.y}, {"series", plot.series}, {"panels", plot.panels}});
  }
  return {{"command", "table"},   {"name", paper.name}, {"source", paper.source},
          {"shows", paper.shows}, {"setting", setting}, {"rows", result.table.json()},
          {"findings", findings}, {"changes", changes}, {"differences", result.differences},
          {"plots", plots}};
}

int list(const TableOptions& options) {
  if (!options.name.empty()) {
    fail_argument("expected either --list or a name, found both");
  }
  const Table table = list_of_tables();
  if (options.json) {
    print_json({{"command", "table"}, {"tables", table.json()}});
  } else {
    print(options.csv ? table.csv() : list_text());
  }
  return kExitOk;
}

int run(const TableOptions& options) {
  check_formats(options.json, options.csv);
  if (options.list) return list(options);
  if (options.name.empty()) {
    fail_argument("table: expected the name of a table (contextile-labs table --list), found none");
  }
  const PaperTable& paper = find_paper_table(options.name);
  if (!options.overrides.rows.empty() && !paper.reads_rows) {
    fail_argument("{}: expected no --rows, which only measured reads, found it", paper.name);
  }
  try {
    TableOverrides overrides = options.overrides;
    ProgressBar progress(1);
    overrides.progress = [&](std::string_view what, std::int64_t done, std::int64_t total) {
      progress.step(done, total, what);
    };
    const PaperResult result = paper.make(overrides);
    const std::vector<std::string> changes = changes_of(overrides);
    if (options.json) {
      print_json(result_json(paper, result, changes));
    } else {
      print(options.csv ? result.table.csv() : result_text(paper, result, changes));
    }
  } catch (const CheckFailed& failure) {
    print_check_failed(failure.what());
    return kExitCheckFailed;
  }
  return kExitOk;
}

void add_overrides(CLI::App& app, TableOverrides& overrides) {
  const std::string paper = "as the table";
  add_dataset_option(app, overrides.dataset, "built-in length distribution to sample", paper);
  add_size_as<std::int64_t>(app, "--tokens", overrides.tokens, 1,
                            {"N", "tokens of one batch", paper});
  add_size_as<std::int64_t>(app, "--batches", overrides.batches, 1,
                            {"N", "batches to average over", paper});
  add_size_as<std::uint64_t>(app, "--seed", overrides.seed, 0,
                             {"N", "seed of the samples and of strategies that draw", "0"});
  add_size_as<std::int32_t>(app, "--heads", overrides.q_heads, 1, {"N", "query heads", paper});
  add_size_as<std::int32_t>(app, "--kv-heads", overrides.kv_heads, 1,
                            {"N", "key and value heads", paper});
  add_size_as<std::int32_t>(app, "--head-dim", overrides.head_dim, 1,
                            {"N", "elements of one head", paper});
  add_cluster_option(app, overrides.cluster, "the machine", paper);
  add_size_as<std::int64_t>(app, "--block-size", overrides.block_size, 1,
                            {"N", "tokens of a block, where the table does not vary it", paper});
  add_wire_option(app, overrides.wire, "how all methods' partial results travel", paper);
  add_value(app, "--rows",
            {"FOLDER", "measured: folder of the measured rows (plans.csv, kernels.csv, or both)",
             "labs/measured of the source tree"},
            [&overrides](const std::string& folder) { overrides.rows = folder; });
}

}  // namespace

Action add_table_command(CLI::App& app) {
  auto options = std::make_shared<TableOptions>();
  std::vector<std::string> tables;
  for (const PaperTable& paper : paper_tables()) tables.emplace_back(paper.name);
  add_value(app, "NAME", {"", "which table; --list names them", "", std::move(tables)},
            [options](const std::string& name) { options->name = name; });
  add_switch(app, "--list", options->list, "the tables there are");
  add_overrides(app, options->overrides);
  add_json_option(app, options->json);
  add_switch(app, "--csv", options->csv, "the table alone as CSV, in bytes, fractions and seconds");
  add_examples(app, {"contextile-labs table --list", "contextile-labs table dcp-fig7"});
  return [options] { return run(*options); };
}

}  // namespace contextile

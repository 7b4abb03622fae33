// How --help looks, and the reference of docs/cli.md: both are made of the commands' own options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace contextile {

// --help in 80 columns: descriptions wrap, defaults stand behind them, examples come last.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  [[nodiscard]] std::string make_option_name(const CLI::Option* option,
                                             bool is_positional) const override;
  [[nodiscard]] std::string make_option_opts(const CLI::Option* option) const override;
  [[nodiscard]] std::string make_option_desc(const CLI::Option* option) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* command) const override;
  [[nodiscard]] std::string make_footer(const CLI::App* app) const override;

 private:
  static constexpr std::size_t kNameColumns = 30;
};

// Command lines that --help ends with. Each works as it stands when those before it were run in
// the same folder; the files they begin with are "lengths.txt" and "graph.hgr".
void add_examples(CLI::App& command, const std::vector<std::string>& lines);
[[nodiscard]] std::vector<std::string> examples_of(const CLI::App& command);

// The part of docs/cli.md that scripts/update-cli-docs keeps: commands, exit codes, and every
// command's options with defaults and examples, as Markdown between marker lines. Nothing in it
// depends on the machine.
[[nodiscard]] std::string reference_markdown(const CLI::App& program);

}  // namespace contextile

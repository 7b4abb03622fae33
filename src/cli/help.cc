#include "cli/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string_view>

#include "cli/command_text.h"
#include "cli/commands/command.h"
#include "cli/help_formatter.h"
#include "cli/options/types.h"
#include "report/table.h"

namespace contextile {
namespace {

constexpr std::string_view kExamplesTitle = "Examples:";
constexpr std::string_view kSuffixes =
    "N and BYTES take the suffixes K, M and G: 1024, 1024^2, 1024^3.";

// "-o", "--output"; "--compare", "--no-compare".
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<const CLI::Option*> shown_options(const CLI::App& command) {
  std::vector<const CLI::Option*> shown;
  for (const CLI::Option* option : command.get_options()) {
    if (option != command.get_help_ptr()) shown.push_back(option);
  }
  return shown;
}

// Text inside a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '*' || c == '<') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// Text in a code span of a cell, where only the cell's own border is escaped.
std::string code(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? std::string("\\|") : std::string(1, c);
  return fmt::format("`{}`", escaped);
}

std::string names_cell(const CLI::Option& option) {
  if (option.get_positional()) return code(option.get_name(true, false));
  std::vector<std::string> names = names_of(option);
  if (!option.get_option_text().empty()) names.back() += ' ' + option.get_option_text();
  for (std::string& name : names) name = code(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string options_table(const CLI::App& command) {
  std::string table = "| option | meaning | default |\n|---|---|---|\n";
  for (const CLI::Option* option : shown_options(command)) {
    table += fmt::format("| {} | {} | {} |\n", names_cell(*option), cell(option->get_description()),
                         option->get_required() ? "required" : cell(option->get_default_str()));
  }
  return table;
}

// The lines that scripts/update-cli-docs looks for.
std::string block(std::string_view name, const std::string& text) {
  return fmt::format(
      "<!-- generated: {0} (scripts/update-cli-docs) -->\n\n{1}\n<!-- end of generated: {0} -->\n",
      name, text);
}

std::string commands_text(const CLI::App& program) {
  std::string text = "| command | does |\n|---|---|\n";
  for (const CLI::App* command : program.get_subcommands({})) {
    text += fmt::format("| [`{0}`](#{0}) | {1} |\n", command->get_name(),
                        cell(command->get_description()));
  }
  text += "\n| exit code | means | for example |\n|---|---|---|\n";
  for (const ExitCode& exit : kExitCodes) {
    text += fmt::format("| {} | {} | {} |\n", exit.code, exit.name, exit.causes);
  }
  return text;
}

std::string options_text(const CLI::App& program) {
  std::string text = fmt::format("{}\n", kSuffixes);
  for (const CLI::App* command : program.get_subcommands({})) {
    text += fmt::format("\n### contextile {}\n\n{}", command->get_name(), options_table(*command));
    const std::vector<std::string> examples = examples_of(*command);
    if (!examples.empty()) text += fmt::format("\n```\n{}\n```\n", fmt::join(examples, "\n"));
  }
  return text;
}

}  // namespace

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  if (is_positional) return option->get_name(true, false);
  return fmt::format("{}", fmt::join(names_of(*option), ","));
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text;
  if (!option->get_option_text().empty()) text += ' ' + option->get_option_text();
  if (option->get_required()) text += " REQUIRED";
  return text;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  std::string text = option->get_description();
  if (!option->get_default_str().empty()) {
    text += fmt::format(" [default: {}]", option->get_default_str());
  }
  return wrap(text, kTextColumns - kNameColumns);
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  std::ostringstream out;
  CLI::detail::format_help(out, command->get_name(),
                           wrap(command->get_description(), kTextColumns - kNameColumns),
                           kNameColumns);
  return out.str();
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  if (app->get_parent() == nullptr) return "";
  return fmt::format("{}{}{}\n", kSuffixes, app->get_footer().empty() ? "" : "\n\n",
                     app->get_footer());
}

void add_examples(CLI::App& command, const std::vector<std::string>& lines) {
  std::string footer(kExamplesTitle);
  for (const std::string& line : lines) footer += '\n' + command_text(line);
  command.footer(footer);
}

std::vector<std::string> examples_of(const CLI::App& command) {
  std::istringstream footer(command.get_footer());
  std::vector<std::string> lines;
  for (std::string line; std::getline(footer, line);) {
    if (line != kExamplesTitle) lines.push_back(line.substr(2));
  }
  return lines;
}

std::string reference_markdown(const CLI::App& command) {
  const CLI::App& program = *command.get_parent();
  return block("commands", commands_text(program)) + block("options", options_text(program));
}

}  // namespace contextile

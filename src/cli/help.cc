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

constexpr std::string_view kMoreExamples = "More examples:";
constexpr const char* kMoreOptions = "More options";
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
    const bool is_help = option == command.get_help_ptr() || option == command.get_help_all_ptr();
    if (!is_help) shown.push_back(option);
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

// The examples of a footer, each with its continuation lines.
std::vector<std::string> blocks_of(const std::string& footer) {
  std::istringstream lines(footer);
  std::vector<std::string> blocks;
  bool is_new = true;
  for (std::string line; std::getline(lines, line);) {
    if (is_new) {
      blocks.push_back(line);
    } else {
      blocks.back() += '\n' + line;
    }
    is_new = !line.ends_with('\\');
  }
  return blocks;
}

// The lines that scripts/update-cli-docs looks for.
std::string block(std::string_view name, const std::string& text) {
  return fmt::format(
      "<!-- generated: {0} (scripts/update-cli-docs) -->\n\n{1}\n<!-- end of generated: {0} -->\n",
      name, text);
}

std::string commands_text(const CLI::App& program) {
  std::string text = "| for | command | does |\n|---|---|---|\n";
  std::string group;
  for (const CLI::App* command : program.get_subcommands({})) {
    text += fmt::format("| {0} | [`{1}`](#{1}) | {2} |\n",
                        command->get_group() == group ? "" : command->get_group(),
                        command->get_name(), cell(command->get_description()));
    group = command->get_group();
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

std::string HelpFormatter::make_description(const CLI::App* app) const {
  if (app->get_parent() == nullptr) return CLI::Formatter::make_description(app);
  const std::vector<std::string> examples = blocks_of(app->get_footer());
  return fmt::format("{}\n{}\n", app->get_description(),
                     examples.empty() ? "" : '\n' + examples.front() + '\n');
}

std::string HelpFormatter::option_groups(const CLI::App* app, bool all) const {
  std::string text;
  std::size_t num_more = 0;
  for (const std::string& group : app->get_groups()) {
    const std::vector<const CLI::Option*> options =
        app->get_options([&](const CLI::Option* option) {
          return option->get_group() == group && option->nonpositional();
        });
    if (options.empty() || group.empty()) continue;
    if (group == kMoreOptions && !all) {
      num_more = options.size();
    } else {
      text += make_group(group, false, options);
    }
  }
  if (num_more > 0) {
    text += fmt::format("\n{} more options: {} {} --help-all\n", num_more,
                        app->get_parent()->get_name(), app->get_name());
  }
  return text;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  return make_description(app) + make_usage(app, std::move(name)) + make_positionals(app) +
         option_groups(app, mode == CLI::AppFormatMode::All) +
         make_subcommands(app, CLI::AppFormatMode::Normal) + '\n' + make_footer(app);
}

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
  if (app->get_parent() == nullptr) {
    return fmt::format("{} COMMAND --help explains a command.\n", app->get_name());
  }
  const std::vector<std::string> examples = blocks_of(app->get_footer());
  std::string text = fmt::format("{}\n", kSuffixes);
  if (examples.size() > 1) {
    text += fmt::format("\n{}\n{}\n", kMoreExamples,
                        fmt::join(examples.begin() + 1, examples.end(), "\n"));
  }
  return text;
}

void add_examples(CLI::App& command, const std::vector<std::string>& lines) {
  std::vector<std::string> blocks;
  for (const std::string& line : lines) blocks.push_back(command_text(line));
  command.footer(fmt::format("{}", fmt::join(blocks, "\n")));
}

std::vector<std::string> examples_of(const CLI::App& command) {
  std::istringstream footer(command.get_footer());
  std::vector<std::string> lines;
  for (std::string line; std::getline(footer, line);) lines.push_back(line.substr(2));
  return lines;
}

void show_first(CLI::App& command, const std::vector<std::string>& names) {
  command.set_help_all_flag("--help-all", "Print every option and exit");
  for (CLI::Option* option : command.get_options([](const CLI::Option*) { return true; })) {
    option->group(kMoreOptions);
  }
  for (const char* name : {"--help", "--help-all"}) command.get_option(name)->group("Options");
  for (const std::string& name : names) command.get_option(name)->group("Options");
}

std::string reference_markdown(const CLI::App& command) {
  const CLI::App& program = *command.get_parent();
  return block("commands", commands_text(program)) + block("options", options_text(program));
}

}  // namespace contextile

// The layout of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace contextile {

// --help in 80 columns. A command's help begins with a sentence and an example, and ends with the
// other examples. Descriptions wrap, and defaults follow them.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }

  [[nodiscard]] std::string make_help(const CLI::App* app, std::string name,
                                      CLI::AppFormatMode mode) const override;
  [[nodiscard]] std::string make_description(const CLI::App* app) const override;
  [[nodiscard]] std::string make_option_name(const CLI::Option* option,
                                             bool is_positional) const override;
  [[nodiscard]] std::string make_option_opts(const CLI::Option* option) const override;
  [[nodiscard]] std::string make_option_desc(const CLI::Option* option) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* command) const override;
  [[nodiscard]] std::string make_footer(const CLI::App* app) const override;

 private:
  // The options, by their headings; only those of show_first unless `all` is set.
  [[nodiscard]] std::string option_groups(const CLI::App* app, bool all) const;

  static constexpr std::size_t kNameColumns = 30;
};

}  // namespace contextile

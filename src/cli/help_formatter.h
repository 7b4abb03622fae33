// How --help looks.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

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

}  // namespace contextile

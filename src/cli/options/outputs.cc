#include "cli/options/outputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "base/standard_stream.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;

// Marks an option as an output; accepts every value.
constexpr const char* kOutputMark = "output";

void mark(CLI::App& app, const std::string& name) {
  const std::string first = name.substr(0, name.find(','));
  app.get_option(first)->check(
      CLI::Validator([](const std::string&) { return std::string(); }, "", kOutputMark));
}

bool is_output(const CLI::Option& option) {
  try {
    return const_cast<CLI::Option&>(option).get_validator(kOutputMark) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

// True if an output and another file of a command are the same. "-" is the file that the stream
// leads to, if it is a file.
bool same_file(const std::string& output, const std::string& other, bool other_is_output) {
  if (output.empty() || other.empty()) return false;
  const std::string a = output == kStandardStream ? "/dev/stdout" : output;
  const std::string b =
      other != kStandardStream ? other : (other_is_output ? "/dev/stdout" : "/dev/stdin");
  std::error_code missing;  // then they are not the same
  return fs::is_regular_file(a, missing) && fs::equivalent(a, b, missing);
}

[[noreturn]] void fail_same(const std::string& output, const std::string& other,
                            const std::string& path) {
  fail_argument("{}: expected another file than {}, found {} for both", output, other, quote(path));
}

void check_output(const CLI::App& command, const CLI::Option& output, const std::string& path) {
  for (const CLI::Option* other : command.get_options()) {
    if (other == &output) continue;
    for (const std::string& value : other->results()) {
      const bool both_outputs = is_output(*other);
      if (same_file(path, value, both_outputs) || (both_outputs && path == value)) {
        fail_same(output.get_name(), other->get_name(), value == kStandardStream ? path : value);
      }
    }
  }
}

}  // namespace

void add_output(CLI::App& app, const std::string& name, const OptionHelp& help,
                std::function<void(const std::string&)> take) {
  add_value(app, name, help, std::move(take));
  mark(app, name);
}

void add_required_output(CLI::App& app, const std::string& name, const OptionHelp& help,
                         std::function<void(const std::string&)> take) {
  add_required(app, name, help, std::move(take));
  mark(app, name);
}

void check_outputs(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (!is_output(*option)) continue;
    for (const std::string& path : option->results()) check_output(command, *option, path);
  }
}

void check_no_input(const std::string& option, const std::string& path,
                    const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    if (same_file(path, input, /*other_is_output=*/false)) fail_same(option, "the input", path);
  }
}

std::string output_beside(const std::string& input, const std::string& ending,
                          const std::string& given) {
  if (!given.empty()) return given;
  if (input == kStandardStream) {
    fail_argument("--output: expected a file, as the input is standard input, found none");
  }
  return input + ending;
}

void check_results_elsewhere(const std::string& path, bool json_or_csv) {
  if (path == kStandardStream && json_or_csv) {
    fail_argument("--output: expected a file with --json or --csv, found {}", quote(path));
  }
}

}  // namespace contextile

#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "report/json.h"

namespace contextile {

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& document) {
  // Names and paths come from outside: bytes that are no UTF-8 are replaced, not fatal.
  print(document.dump(2, ' ', false, Json::error_handler_t::replace) + '\n');
}

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

void check_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw OutputError("stdout: expected to write all results, but a write failed");
  }
}

OutputFile::OutputFile(std::string path, std::string what)
    : path_(std::move(path)), what_(std::move(what)) {
  if (path_.empty()) return;
  keep_ = std::filesystem::exists(path_);
  check(std::ofstream(path_, std::ios::binary | std::ios::app));
}

OutputFile::~OutputFile() {
  std::error_code ignored;  // nothing to lose, nobody to tell
  if (!keep_) std::filesystem::remove(path_, ignored);
}

void OutputFile::write(std::string_view text) {
  if (path_.empty()) return;
  keep_ = true;
  std::ofstream file(path_, std::ios::binary);
  file << text << std::flush;
  check(file);
}

void OutputFile::check(const std::ofstream& file) const {
  if (!file) {
    throw OutputError(
        fmt::format("{}: expected to write the {}, but a write failed", path_, what_));
  }
}

}  // namespace contextile

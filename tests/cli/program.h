// Runs the built program and collects its output.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace contextile {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Number of bytes of the longest line.
[[nodiscard]] std::size_t longest_line(const std::string& text);

// A test with a folder of its own.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest();
  ~ProgramTest() override;

  [[nodiscard]] std::string path(std::string_view name) const { return (folder_ / name).string(); }
  // Writes a file and returns its path.
  std::string file(std::string_view name, std::string_view content) const;
  [[nodiscard]] static std::string read(const std::string& path);

  // `contextile ARGUMENTS…`, stdout and stderr being files.
  [[nodiscard]] Outcome contextile(const std::vector<std::string>& arguments) const;
  // The same with another program.
  [[nodiscard]] Outcome started(const std::string& program,
                                const std::vector<std::string>& arguments) const;
  // Runs, expects exit code 0 and nothing on stderr, and returns stdout, or the JSON that it holds.
  [[nodiscard]] std::string output(const std::vector<std::string>& arguments) const;
  [[nodiscard]] nlohmann::json document(const std::vector<std::string>& arguments) const;
  // Options of small_batch with three documents.
  [[nodiscard]] std::vector<std::string> small() const;
  // `contextile plan` of a small batch on two nodes of two devices, by dcp unless `more` names
  // another strategy; returns the plan's path.
  [[nodiscard]] std::string small_plan(std::string_view name,
                                       const std::vector<std::string>& more = {}) const;
  // Writes the record of rank 0 of two into a folder of that name and returns its path. Rank 0
  // waited for rank 1, which wrote none.
  std::string flight_record(std::string_view folder, const std::string& host) const;

 private:
  std::filesystem::path folder_;
};

// Options of a batch that plans in milliseconds and runs in less than a second.
[[nodiscard]] std::vector<std::string> small_batch(const std::string& lengths_path);
[[nodiscard]] std::vector<std::string> joined(std::vector<std::string> first,
                                              const std::vector<std::string>& second);

// Exit code 2 and one line on stderr, "contextile: error: …", that holds every one of `words`.
void expect_bad_input(const Outcome& outcome, const std::vector<std::string>& words);

// A row of a CSV table: column to text.
using Row = std::map<std::string, std::string>;
// The rows of a table whose quoted fields hold no quotes.
[[nodiscard]] std::vector<Row> rows_of(const std::string& csv);

}  // namespace contextile

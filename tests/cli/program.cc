#include "cli/program.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

namespace contextile {
namespace {

// For the shell.
std::string shell_quoted(std::string_view argument) {
  std::string text = "'";
  for (const char c : argument) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  return text + "'";
}

}  // namespace

ProgramTest::ProgramTest() {
  std::string pattern = (std::filesystem::temp_directory_path() / "contextile-XXXXXX").string();
  folder_ = mkdtemp(pattern.data());
}

ProgramTest::~ProgramTest() { std::filesystem::remove_all(folder_); }

std::string ProgramTest::file(std::string_view name, std::string_view content) const {
  std::ofstream(path(name), std::ios::binary) << content;
  return path(name);
}

std::string ProgramTest::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Outcome ProgramTest::contextile(const std::vector<std::string>& arguments) const {
  return started(CONTEXTILE_PROGRAM, arguments);
}

Outcome ProgramTest::started(const std::string& program,
                             const std::vector<std::string>& arguments) const {
  std::string command = shell_quoted(program);
  for (const std::string& argument : arguments) command += " " + shell_quoted(argument);
  command += fmt::format(" >{} 2>{}", shell_quoted(path("stdout")), shell_quoted(path("stderr")));
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("stdout")), read(path("stderr"))};
}

std::string ProgramTest::output(const std::vector<std::string>& arguments) const {
  const Outcome outcome = contextile(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

nlohmann::json ProgramTest::document(const std::vector<std::string>& arguments) const {
  return nlohmann::json::parse(output(joined(arguments, {"--json"})));
}

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

std::vector<std::string> ProgramTest::small() const {
  return small_batch(file("lengths.txt", "100\n37\n119\n"));
}

std::string ProgramTest::small_plan(std::string_view name,
                                    const std::vector<std::string>& more) const {
  const std::string lengths = file("lengths.txt", "100\n37\n119\n");
  std::vector<std::string> arguments = joined({"plan", "-o", path(name)}, small_batch(lengths));
  // auto keeps such short documents whole, and its plan has no messages.
  if (std::ranges::find(more, "--strategy") == more.end()) {
    arguments = joined(arguments, {"--strategy", "dcp"});
  }
  const Outcome outcome = contextile(joined(arguments, more));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  return path(name);
}

std::string ProgramTest::flight_record(std::string_view folder, const std::string& host) const {
  const nlohmann::json record({{"contextile_flight", 1},
                               {"rank", 0},
                               {"num_ranks", 2},
                               {"transport", "gloo"},
                               {"version", "0.1.0"},
                               {"host", host},
                               {"process", 7},
                               {"plan", "00ff"},
                               {"strategy", "ring"},
                               {"error", "<b>"},
                               {"is_cause", false},
                               {"started_us", 6'000'000},
                               {"failed_us", 9'000'000},
                               {"num_steps", 1},
                               {"steps",
                                {{{"op", "wait"},
                                  {"call", 1},
                                  {"direction", "backward"},
                                  {"mask", 0},
                                  {"round", 0},
                                  {"instruction", 4},
                                  {"ticket", 3},
                                  {"began_us", 7'000'000},
                                  {"ended_us", -1}}}},
                               {"silent", {1}},
                               {"transfers",
                                {{{"ticket", 3},
                                  {"peer", 1},
                                  {"send", false},
                                  {"bytes", 4096},
                                  {"units", {"kv of block 3, group 0"}},
                                  {"num_units", 5}}}}});
  std::filesystem::create_directory(path(folder));
  return file(std::string(folder) + "/rank-0.json", record.dump());
}

std::vector<std::string> small_batch(const std::string& lengths_path) {
  return {"--lengths",  lengths_path, "--heads",      "4",  "--kv-heads", "2",
          "--head-dim", "32",         "--block-size", "16", "--cluster",  "dgx-h200:2x2"};
}

std::vector<std::string> joined(std::vector<std::string> first,
                                const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

void expect_bad_input(const Outcome& outcome, const std::vector<std::string>& words) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(
      outcome.err.rfind(
          fmt::format("{}: error: ", std::filesystem::path(CONTEXTILE_PROGRAM).filename().string()),
          0),
      0U)
      << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  for (const std::string& word : words) {
    EXPECT_NE(outcome.err.find(word), std::string::npos)
        << "expected '" << word << "' in: " << outcome.err;
  }
}

std::vector<Row> rows_of(const std::string& csv) {
  const auto fields = [](const std::string& line) {
    std::vector<std::string> list(1);
    bool quoted = false;
    for (const char c : line) {
      if (c == '"') {
        quoted = !quoted;
      } else if (c == ',' && !quoted) {
        list.emplace_back();
      } else {
        list.back() += c;
      }
    }
    return list;
  };
  std::istringstream in(csv);
  std::string line;
  std::getline(in, line);
  const std::vector<std::string> keys = fields(line);
  std::vector<Row> rows;
  while (std::getline(in, line)) {
    const std::vector<std::string> values = fields(line);
    EXPECT_EQ(values.size(), keys.size()) << line;
    rows.emplace_back();
    for (std::size_t i = 0; i < std::min(keys.size(), values.size()); ++i) {
      rows.back()[keys[i]] = values[i];
    }
  }
  return rows;
}

}  // namespace contextile

// Where results go: stdout, or a file.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "contextile/base.h"
#include "report/table.h"

namespace contextile {

// Results could not be written: the environment's fault, not the input's.
class OutputError : public IoError {
 public:
  using IoError::IoError;
};

// Prints to stdout.
void print(std::string_view text);
void print_json(const Json& document);
[[nodiscard]] bool stdout_is_terminal();
// Throws OutputError when stdout could not take everything printed so far.
void check_stdout();

// A file that results go to, tried before the work that makes them, so that a path nobody can write
// to costs no time; what it holds stays until then, and one that was not there is gone again when
// nothing was written. Without a path nothing is written.
class OutputFile {
 public:
  // `what` it holds, for messages. Throws OutputError when it cannot be opened.
  OutputFile(std::string path, std::string what);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  [[nodiscard]] bool wanted() const { return !path_.empty(); }
  // Replaces what the file held. Throws OutputError when not everything could be written.
  void write(std::string_view text);

 private:
  void check(const std::ofstream& file) const;

  std::string path_;
  std::string what_;
  bool keep_ = true;
};

}  // namespace contextile

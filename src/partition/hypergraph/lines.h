// Text files that are lines of whole numbers: .hgr, partitions, fix files.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace contextile {

// Reads one line after the other, without blank lines and comments, and the numbers in it. Every
// failure is an InvalidArgument "WHERE: line N: expected …, found …".
class NumberLines {
 public:
  // `comment` starts a comment line; '\0' means that there are none. Both texts must outlive the
  // object.
  NumberLines(std::string_view text, std::string_view where, char comment)
      : text_(text), where_(where), comment_(comment) {}

  // Goes to the next line that holds anything. Returns false at the end.
  [[nodiscard]] bool next_line();
  // Returns the number of the line, from 1.
  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] bool line_is_done();
  // Returns the line's next number, which must be there and from `least` to `most`. `what` names
  // it.
  [[nodiscard]] std::int64_t next_number(
      std::string_view what, std::int64_t least,
      std::int64_t most = std::numeric_limits<std::int64_t>::max());
  // Checks that the line has nothing more. `what` names its contents.
  void expect_line_done(std::string_view what);
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const;

 private:
  void skip_blanks();

  std::string_view text_;
  std::string_view where_;
  char comment_;
  std::string_view line_;  // the rest of the line
  std::int64_t number_ = 0;
};

}  // namespace contextile

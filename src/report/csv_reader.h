// Reads CSV as RFC 4180 has it, record by record.
//
//   CsvReader reader(text, "rows.csv");
//   for (CsvRecord record; reader.next(record);) use(record.line, record.fields);
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace contextile {

// More than any field of a sane file: a quote that is never closed ends here.
inline constexpr std::size_t kMaxCsvFieldBytes = std::size_t{1} << 16;
inline constexpr std::size_t kMaxCsvFields = 256;  // of a record

struct CsvRecord {
  std::size_t line = 0;  // where it begins, from 1
  std::vector<std::string> fields;
};

// Fields are separated by commas, records by LF or CR LF. A field in quotes may hold commas and
// line ends, and a quote written twice. Blank lines between records and a byte order mark are
// skipped.
//
// Throws InvalidArgument with the source, the line and the number of the field. It refuses text
// that is not UTF-8, control bytes (a tab is allowed; inside quotes also line ends), misplaced
// quotes, fields above kMaxCsvFieldBytes, and more than kMaxCsvFields of them. O(bytes).
class CsvReader {
 public:
  // `text` and `where`, the source in messages, must outlive the reader.
  CsvReader(std::string_view text, std::string_view where);

  // Reads the next record into `record`; false at the end, where `record` keeps its value.
  bool next(CsvRecord& record);

 private:
  [[nodiscard]] std::string read_field(std::size_t number);
  [[nodiscard]] std::string read_quoted(std::size_t number);
  // Moves the character at the front of the text to the field.
  void take(std::size_t number, std::string& field);
  void check_size(std::size_t number, const std::string& field) const;
  [[nodiscard]] bool at_line_end() const;
  void skip_line_end();

  std::string_view text_;  // what is not read yet
  std::string_view where_;
  std::size_t line_ = 1;
};

}  // namespace contextile

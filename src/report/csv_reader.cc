#include "report/csv_reader.h"

#include "base/check.h"
#include "base/quote.h"
#include "base/utf8.h"

namespace contextile {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == 0x7f || (byte < 0x20 && c != '\t');
}

}  // namespace

CsvReader::CsvReader(std::string_view text, std::string_view where) : text_(text), where_(where) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
}

bool CsvReader::at_line_end() const { return text_.starts_with('\n') || text_.starts_with("\r\n"); }

void CsvReader::skip_line_end() {
  text_.remove_prefix(text_.front() == '\r' ? 2 : 1);
  ++line_;
}

bool CsvReader::next(CsvRecord& record) {
  while (at_line_end()) skip_line_end();
  if (text_.empty()) return false;
  record.line = line_;
  record.fields.clear();
  while (true) {
    CONTEXTILE_CHECK(record.fields.size() < kMaxCsvFields,
                     "{}: line {}: expected at most {} fields, found more", where_, record.line,
                     kMaxCsvFields);
    record.fields.push_back(read_field(record.fields.size() + 1));
    if (!text_.starts_with(',')) break;
    text_.remove_prefix(1);
  }
  if (!text_.empty()) skip_line_end();
  return true;
}

// Ends in front of a comma, a line end, or the end of the text.
std::string CsvReader::read_field(std::size_t number) {
  if (text_.starts_with('"')) return read_quoted(number);
  std::string field;
  while (!text_.empty() && text_.front() != ',' && !at_line_end()) {
    if (text_.front() == '"') {
      fail_argument(
          "{}: line {}, field {}: expected the whole field in quotes, and every quote in it "
          "twice, found a quote behind {}",
          where_, line_, number, quote(field));
    }
    take(number, field);
  }
  return field;
}

std::string CsvReader::read_quoted(std::size_t number) {
  const std::size_t begin_line = line_;
  text_.remove_prefix(1);
  std::string field;
  while (!text_.empty()) {
    if (at_line_end()) {
      field += '\n';
      check_size(number, field);
      skip_line_end();
      continue;
    }
    if (text_.front() != '"') {
      take(number, field);
      continue;
    }
    text_.remove_prefix(1);
    if (!text_.starts_with('"')) {  // the closing quote
      if (!text_.empty() && text_.front() != ',' && !at_line_end()) {
        fail_argument(
            "{}: line {}, field {}: expected a comma or the line's end behind the closing quote, "
            "found {}",
            where_, line_, number, quote(text_.substr(0, 1)));
      }
      return field;
    }
    field += '"';
    text_.remove_prefix(1);
  }
  fail_argument("{}: line {}, field {}: expected a closing quote, found the end of the text",
                where_, begin_line, number);
}

void CsvReader::take(std::size_t number, std::string& field) {
  const std::size_t size = utf8_bytes(text_);
  CONTEXTILE_CHECK(size > 0 && !is_control(text_.front()),
                   "{}: line {}, field {}: expected text, found the byte 0x{:02x}", where_, line_,
                   number, static_cast<unsigned char>(text_.front()));
  field += text_.substr(0, size);
  text_.remove_prefix(size);
  check_size(number, field);
}

void CsvReader::check_size(std::size_t number, const std::string& field) const {
  CONTEXTILE_CHECK(field.size() <= kMaxCsvFieldBytes,
                   "{}: line {}, field {}: expected at most {} bytes, found more; is a quote not "
                   "closed?",
                   where_, line_, number, kMaxCsvFieldBytes);
}

}  // namespace contextile

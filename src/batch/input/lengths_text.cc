#include <charconv>
#include <string>
#include <system_error>

#include "base/quote.h"
#include "batch/input/length_formats.h"
#include "contextile/data.h"

namespace contextile {
namespace {

constexpr std::string_view kBlank = " \t\r\n";
constexpr std::size_t kMaxNumberLineBytes = 4096;
constexpr std::size_t kMaxJsonLineBytes = std::size_t{1} << 28;  // a line may hold the document

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) + 1 - first);
}

std::int64_t parse_length_line(std::string_view line, std::string_view where, std::size_t number) {
  std::int64_t value = 0;
  const char* const end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data(), end, value);
  CONTEXTILE_CHECK(error == std::errc{} && stop == end,
                   "{}: line {}: expected a length of 1 to {} tokens, found {}", where, number,
                   kMaxLength, quote(line));
  return checked_length(value, where, "line", number);
}

}  // namespace

std::vector<std::int64_t> parse_lengths_text(std::string_view text, std::string_view length_field,
                                             std::string_view where) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::size_t first = text.find_first_not_of(kBlank);
  CONTEXTILE_CHECK(first != std::string_view::npos, "{}: expected at least one length, found none",
                   where);
  if (text[first] == '[') return parse_lengths_json_array(text, where);
  const bool jsonl = text[first] == '{';

  std::vector<std::int64_t> lengths;
  std::size_t number = 0;
  const std::size_t longest = jsonl ? kMaxJsonLineBytes : kMaxNumberLineBytes;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = begin + std::min(text.substr(begin, longest + 1).find('\n'),
                                             std::min(longest + 1, text.size() - begin));
    CONTEXTILE_CHECK(end - begin <= longest,
                     "{}: line {}: expected at most {} bytes, found more: {}", where, number + 1,
                     longest, quote(text.substr(begin, longest)));
    const std::string_view line = trim(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    lengths.push_back(jsonl ? parse_length_json_object(line, length_field, where, number)
                            : parse_length_line(line, where, number));
  }
  return lengths;
}

}  // namespace contextile

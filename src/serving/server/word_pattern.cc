#include "serving/server/word_pattern.h"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/check.h"
#include "base/quote.h"
#include "base/utf8.h"

namespace contextile {
namespace {

// A pattern whose \s means White_Space: PCRE2 has U+180E among them, and other libraries do not.
std::string with_white_space(const std::string& pattern) {
  std::string result;
  bool in_class = false;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c != '\\' || at + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      result += c;
      continue;
    }
    const char escaped = pattern[++at];
    if (escaped == 's') {
      result += in_class ? kWhiteSpace : fmt::format("[{}]", kWhiteSpace);
    } else if (escaped == 'S' && !in_class) {
      result += fmt::format("[^{}]", kWhiteSpace);
    } else {
      result += c;
      result += escaped;
    }
  }
  return result;
}

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

const char* const kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
const char* const kWordCharacters =
    R"(\p{L}\p{Nl}\p{Nd}\p{M}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149})"
    R"(\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

struct WordPattern::Code {
  std::unique_ptr<pcre2_code, Free> compiled;
};

WordPattern::WordPattern(const std::string& pattern) : code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::string read = with_white_space(pattern);
  code_->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(read.data()), read.size(),
                                      PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr));
  CONTEXTILE_CHECK(code_->compiled != nullptr,
                   "tokenizer: expected a pattern of words, found {}, wrong at {}", quote(pattern),
                   at);
}
WordPattern::~WordPattern() = default;
WordPattern::WordPattern(WordPattern&&) noexcept = default;
WordPattern& WordPattern::operator=(WordPattern&&) noexcept = default;

std::vector<std::string_view> WordPattern::words(std::string_view text, RareLook& look) const {
  const std::unique_ptr<pcre2_match_data, Free> match(
      pcre2_match_data_create_from_pattern(code_->compiled.get(), nullptr));
  std::vector<std::string_view> words;
  std::size_t end = 0;
  std::size_t from = 0;
  while (from < text.size()) {
    look();
    const int found = pcre2_match(code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), from, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    CONTEXTILE_CHECK(
        found > 0, "tokenizer: expected text that can be cut into words, found error {} at byte {}",
        found, from);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    if (range[0] > end) words.push_back(text.substr(end, range[0] - end));
    if (range[1] > range[0]) words.push_back(text.substr(range[0], range[1] - range[0]));
    end = range[1];
    from =
        std::max(range[1], range[0] + std::max<std::size_t>(utf8_bytes(text.substr(range[0])), 1));
    if (range[1] > range[0]) from = range[1];
  }
  if (end < text.size()) words.push_back(text.substr(end));
  return words;
}

bool WordPattern::matches(std::string_view character) const {
  const std::unique_ptr<pcre2_match_data, Free> match(
      pcre2_match_data_create_from_pattern(code_->compiled.get(), nullptr));
  return pcre2_match(code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(character.data()),
                     character.size(), 0, PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0;
}

}  // namespace contextile

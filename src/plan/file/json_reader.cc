#include "plan/file/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "base/quote.h"
#include "base/suggest.h"
#include "base/utf8.h"

namespace contextile {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::uint32_t code, std::string& out) {
  const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  const auto rest = [&](unsigned shift) { put(0x80U | ((code >> shift) & 0x3fU)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0U | (code >> 6U));
  } else if (code < 0x10000) {
    put(0xe0U | (code >> 12U));
    rest(6);
  } else {
    put(0xf0U | (code >> 18U));
    rest(12);
    rest(6);
  }
  rest(0);
}

}  // namespace

// ------------------------------------------------------------------------------- structure

void JsonReader::object(std::initializer_list<JsonMember> members) {
  open('{', "an object");
  std::uint32_t seen = 0;
  std::size_t next = 0;  // the next member in the documented order
  for (std::int64_t i = 0; more('}', i); ++i) {
    const std::string_view name = key();
    if (next == members.size() || members.begin()[next].name() != name) {
      const auto* found = std::ranges::find(members, name, &JsonMember::name);
      if (found == members.end()) {
        std::vector<std::string> names;
        for (const JsonMember& member : members) names.emplace_back(member.name());
        fail("expected a key of this object, found {}{}", quote(name), did_you_mean(name, names));
      }
      next = static_cast<std::size_t>(found - members.begin());
    }
    const std::uint32_t bit = std::uint32_t{1} << next;
    if ((seen & bit) != 0) fail("expected every key once, found {} twice", quote(name));
    seen |= bit;
    const JsonMember& member = members.begin()[next++];
    path_.push_back({.key = member.name()});
    member.read();
    path_.pop_back();
  }
  for (const JsonMember& member : members) {
    if (member.required() && (seen & 1U) == 0)
      fail("expected a key '{}', found none", member.name());
    seen >>= 1U;
  }
}

void JsonReader::open(char bracket, std::string_view what) {
  skip_space();
  if (at_end() || next() != bracket) fail("expected {}, found {}", what, found());
  ++at_;
}

bool JsonReader::more(char close, std::int64_t taken) {
  skip_space();
  if (!at_end() && next() == close) {
    ++at_;
    return false;
  }
  if (taken == 0) return true;
  if (at_end() || next() != ',') fail_syntax(close == ']' ? "',' or ']'" : "',' or '}'");
  ++at_;
  return true;
}

std::string_view JsonReader::key() {
  skip_space();
  if (at_end() || next() != '"') fail_syntax("a key");
  const std::string_view name = string("a key");
  skip_space();
  if (at_end() || next() != ':') fail_syntax("':'");
  ++at_;
  return name;
}

void JsonReader::end() {
  skip_space();
  if (!at_end()) fail_syntax("the end of the document");
}

void JsonReader::skip_space() {
  while (!at_end() && (next() == ' ' || next() == '\n' || next() == '\r' || next() == '\t')) ++at_;
}

// --------------------------------------------------------------------------------- scalars

bool JsonReader::take_word(std::string_view word) {
  skip_space();
  if (!text_.substr(at_).starts_with(word)) return false;
  at_ += word.size();
  return true;
}

bool JsonReader::null() { return take_word("null"); }

bool JsonReader::boolean() {
  if (take_word("true")) return true;
  if (take_word("false")) return false;
  fail("expected true or false, found {}", found());
}

bool JsonReader::take_digits() {
  const std::size_t first = at_;
  while (!at_end() && is_digit(next())) ++at_;
  return at_ > first;
}

std::string_view JsonReader::take_number() {
  skip_space();
  const std::size_t first = at_;
  if (!at_end() && next() == '-') ++at_;
  const bool leading_zero = !at_end() && next() == '0';
  const std::size_t digits = at_;
  bool good = take_digits() && !(leading_zero && at_ - digits > 1);
  if (good && !at_end() && next() == '.') {
    ++at_;
    good = take_digits();
  }
  if (good && !at_end() && (next() == 'e' || next() == 'E')) {
    ++at_;
    if (!at_end() && (next() == '+' || next() == '-')) ++at_;
    good = take_digits();
  }
  const std::size_t size = good ? at_ - first : 0;
  at_ = first + size;
  return text_.substr(first, size);
}

std::int64_t JsonReader::whole(std::int64_t low, std::int64_t high, std::string_view what) {
  const std::string_view token = take_number();
  at_ -= token.size();  // messages name the text at at_
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (token.empty() || error != std::errc() || end != token.data() + token.size() || value < low ||
      value >= high) {
    fail("expected {} in [{}, {}), found {}", what, low, high, found());
  }
  at_ += token.size();
  return value;
}

double JsonReader::number(std::string_view what) {
  const std::string_view token = take_number();
  at_ -= token.size();
  double value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (token.empty() || error != std::errc() || !std::isfinite(value)) {
    fail("expected {}, a finite number, found {}", what, found());
  }
  at_ += token.size();
  return value;
}

// --------------------------------------------------------------------------------- strings

std::string_view JsonReader::string(std::string_view what) {
  skip_space();
  if (at_end() || next() != '"') fail("expected {}, found {}", what, found());
  ++at_;
  const std::size_t first = at_;
  while (!at_end()) {
    const auto byte = static_cast<unsigned char>(next());
    if (byte == '"') return text_.substr(first, at_++ - first);
    if (byte < 0x20 || byte >= 0x80 || byte == '\\') break;
    ++at_;
  }
  unescaped_ = text_.substr(first, at_ - first);
  return take_escaped_string();
}

std::string_view JsonReader::take_escaped_string() {
  while (!at_end() && next() != '"') {
    if (next() == '\\') {
      ++at_;
      take_escape();
      continue;
    }
    if (static_cast<unsigned char>(next()) < 0x20) fail_syntax("no control character in a string");
    const std::size_t size = utf8_bytes(text_.substr(at_));
    if (size == 0) fail_syntax("UTF-8");
    unescaped_ += text_.substr(at_, size);
    at_ += size;
  }
  if (at_end()) fail_syntax("the end of a string");
  ++at_;
  return unescaped_;
}

void JsonReader::take_escape() {
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const std::size_t simple = at_end() ? std::string_view::npos : kEscapes.find(next());
  if (simple != std::string_view::npos) {
    unescaped_ += kMeanings[simple];
    ++at_;
    return;
  }
  if (at_end() || next() != 'u') fail_syntax("an escape");
  ++at_;
  std::uint32_t code = take_hex();
  constexpr std::uint32_t kHigh = 0xd800;
  constexpr std::uint32_t kLow = 0xdc00;
  constexpr std::uint32_t kEnd = 0xe000;
  if (code >= kHigh && code < kLow) {  // the first of two halves
    if (!text_.substr(at_).starts_with("\\u")) fail_syntax("the second half of a surrogate pair");
    at_ += 2;
    const std::uint32_t low = take_hex();
    if (low < kLow || low >= kEnd) fail_syntax("the second half of a surrogate pair");
    code = 0x10000 + ((code - kHigh) << 10U) + (low - kLow);
  } else if (code >= kLow && code < kEnd) {
    fail_syntax("the first half of a surrogate pair");
  }
  append_utf8(code, unescaped_);
}

std::uint32_t JsonReader::take_hex() {
  constexpr std::size_t kDigits = 4;
  constexpr int kBase = 16;
  const std::string_view digits = text_.substr(at_, kDigits);
  std::uint32_t code = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), code, kBase);
  if (digits.size() < kDigits || error != std::errc() || end != digits.data() + kDigits) {
    fail_syntax("four hexadecimal digits");
  }
  at_ += kDigits;
  return code;
}

std::size_t JsonReader::one_of(std::span<const std::string_view> names) {
  skip_space();
  const std::size_t start = at_;
  if (!at_end() && next() == '"') {
    const auto at = std::ranges::find(names, string("a name"));
    if (at != names.end()) return static_cast<std::size_t>(at - names.begin());
    at_ = start;  // the message names the text at at_
  }
  fail("expected one of {}, found {}", fmt::join(names, ", "), found());
}

// -------------------------------------------------------------------------------- messages

std::string JsonReader::place() const {
  std::string out(where_);
  if (path_.empty()) return out;
  out += ": ";
  bool first = true;
  for (const Step& step : path_) {
    out += step.key.empty() ? fmt::format("[{}]", step.index)
                            : fmt::format("{}{}", first ? "" : ".", step.key);
    first = false;
  }
  return out;
}

std::string JsonReader::found() const {
  if (at_end()) return "the end of the document";
  if (next() == '{') return "an object";
  if (next() == '[') return "an array";
  if (next() == '"') {
    const std::size_t end = text_.find('"', at_ + 1);
    return quote(text_.substr(at_ + 1, end == std::string_view::npos ? end : end - at_ - 1));
  }
  std::size_t end = at_;
  const auto belongs = [](char c) {
    return std::string_view(" \t\r\n,:]}\"").find(c) == std::string_view::npos;
  };
  while (end < text_.size() && belongs(text_[end])) ++end;
  return quote(text_.substr(at_, std::max<std::size_t>(end - at_, 1)));
}

void JsonReader::fail_syntax(std::string_view expected) const {
  const std::string_view before = text_.substr(0, at_);
  const std::size_t newline = before.rfind('\n');
  const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
  throw InvalidPlan(fmt::format("{}, line {}, column {}: expected {}, found {}", place(),
                                1 + std::ranges::count(before, '\n'), 1 + at_ - begin, expected,
                                found()));
}

}  // namespace contextile

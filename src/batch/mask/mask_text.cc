#include "batch/mask/mask_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>
#include <system_error>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"

namespace contextile {
namespace {

using Rule = MaskSpec::Rule;

struct RuleText {
  Rule rule;
  std::string_view name;
  std::string_view parameters;  // as a user types them
  std::string_view meaning;
};

constexpr std::array kRules = {
    RuleText{Rule::kFull, "full", "", "every token sees its whole sequence"},
    RuleText{Rule::kCausal, "causal", "", "a token sees itself and what came before"},
    RuleText{Rule::kSlidingWindow, "sliding_window", "W",
             "the last W keys, the token itself included"},
    RuleText{Rule::kLambda, "lambda", "SINK,WINDOW",
             "the first SINK and the last WINDOW keys (default 64,4096)"},
    RuleText{Rule::kCausalBlockwise, "causal_blockwise", "B,W,SINK",
             "blocks of B tokens: the first SINK blocks and W blocks back, the last block causal "
             "(default 256,2,1)"},
    RuleText{Rule::kSharedQuestion, "shared_question", "F,ANSWERS",
             "a question of F of the sequence, ANSWERS answers that see it and themselves "
             "(default 0.2,4); or [Q,A1,A2,...], their lengths in tokens"},
    RuleText{Rule::kPrefixLm, "prefix_lm", "N", "the first N keys for every token, then causal"},
    RuleText{Rule::kChunked, "chunked", "N", "causal inside chunks of N tokens"},
    RuleText{Rule::kTree, "tree", "[L0,L1,...],[-1,P1,...]",
             "segments of L0, L1, ... tokens with the index of each one's parent, which is stored "
             "before it: a token sees all segments above its own, and its own causally"},
};

const RuleText& text_of(Rule rule) {
  for (const RuleText& text : kRules) {
    if (text.rule == rule) return text;
  }
  fail_argument("mask rule: expected one of {} rules, found number {}", kRules.size(),
                static_cast<int>(rule));
}

std::string form_of(const RuleText& text) {
  return text.parameters.empty() ? std::string(text.name)
                                 : fmt::format("{}:{}", text.name, text.parameters);
}

[[noreturn]] void fail_unknown_rule(std::string_view name) {
  std::vector<std::string> names;
  std::string forms;
  for (const RuleText& text : kRules) {
    names.emplace_back(text.name);
    forms += (forms.empty() ? "" : ", ") + form_of(text);
  }
  fail_argument("mask: expected one of {}; found {}{}", forms, quote(name),
                did_you_mean(name, names));
}

// A number and nothing after it.
template <typename Number>
Number parse_number(std::string_view text, std::string_view rule, std::string_view what) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CONTEXTILE_CHECK(error != std::errc::result_out_of_range,
                   "mask {}: {}: expected a number that fits, found {}", rule, what, quote(text));
  CONTEXTILE_CHECK(error == std::errc() && end == text.data() + text.size(),
                   "mask {}: {}: expected a number, found {}", rule, what, quote(text));
  return value;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t comma = text.find(','); comma != std::string_view::npos;
       comma = text.find(',')) {
    parts.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  parts.push_back(text);
  return parts;
}

// The parameters of one rule while a spec is read from them.
class ParameterReader {
 public:
  ParameterReader(const RuleText& rule, std::string_view text) : rule_(rule), text_(text) {}

  void expect(std::size_t count) {
    parts_ = split(text_);
    CONTEXTILE_CHECK(parts_.size() == count, "mask {}: expected {} ({} parameter{}), found {}",
                     rule_.name, form_of(rule_), count, count == 1 ? "" : "s", quote(text_));
  }
  std::int64_t tokens(std::size_t index, std::string_view what) const {
    return parse_number<std::int64_t>(parts_[index], rule_.name, what);
  }
  double fraction(std::size_t index, std::string_view what) const {
    return parse_number<double>(parts_[index], rule_.name, what);
  }
  // "[a,b,c]"
  bool is_list() const { return text_.starts_with('['); }
  std::vector<std::int64_t> list() const { return list_of(text_, "length"); }
  // "[a,b,c],[d,e,f]"
  void two_lists(std::vector<std::int64_t>& lengths, std::vector<std::int64_t>& parents) const {
    const std::size_t end = text_.find("],[");
    CONTEXTILE_CHECK(is_list() && end != std::string_view::npos,
                     "mask {}: expected {} (2 lists), found {}", rule_.name, form_of(rule_),
                     quote(text_));
    lengths = list_of(text_.substr(0, end + 1), "length");
    parents = list_of(text_.substr(end + 2), "parent");
  }

 private:
  std::vector<std::int64_t> list_of(std::string_view text, std::string_view what) const {
    CONTEXTILE_CHECK(text.ends_with(']'), "mask {}: expected a list that ends in ']', found {}",
                     rule_.name, quote(text));
    std::vector<std::int64_t> values;
    for (const std::string_view part : split(text.substr(1, text.size() - 2))) {
      values.push_back(parse_number<std::int64_t>(part, rule_.name, what));
    }
    return values;
  }

  const RuleText& rule_;
  std::string_view text_;
  std::vector<std::string_view> parts_;
};

void set_defaults(MaskSpec& spec, const RuleText& text) {
  switch (spec.rule) {
    case Rule::kCausalBlockwise:
      spec.block = 256;
      spec.window = 2;
      spec.sink = 1;
      return;
    case Rule::kFull:
    case Rule::kCausal:
    case Rule::kLambda:
    case Rule::kSharedQuestion:
      return;  // the struct's own defaults
    case Rule::kSlidingWindow:
    case Rule::kPrefixLm:
    case Rule::kChunked:
    case Rule::kTree:
      break;
  }
  fail_argument("mask {}: expected {}, found no parameter", text.name, form_of(text));
}

void read_parameters(MaskSpec& spec, ParameterReader& reader) {
  switch (spec.rule) {
    case Rule::kFull:
    case Rule::kCausal:
      return;  // take none
    case Rule::kSlidingWindow:
      reader.expect(1);
      spec.window = reader.tokens(0, "W");
      return;
    case Rule::kLambda:
      reader.expect(2);
      spec.sink = reader.tokens(0, "SINK");
      spec.window = reader.tokens(1, "WINDOW");
      return;
    case Rule::kCausalBlockwise:
      reader.expect(3);
      spec.block = reader.tokens(0, "B");
      spec.window = reader.tokens(1, "W");
      spec.sink = reader.tokens(2, "SINK");
      return;
    case Rule::kSharedQuestion:
      if (reader.is_list()) {
        spec.lengths = reader.list();
        return;
      }
      reader.expect(2);
      spec.fraction = reader.fraction(0, "F");
      spec.answers = reader.tokens(1, "ANSWERS");
      return;
    case Rule::kPrefixLm:
      reader.expect(1);
      spec.prefix = reader.tokens(0, "N");
      return;
    case Rule::kChunked:
      reader.expect(1);
      spec.chunk = reader.tokens(0, "N");
      return;
    case Rule::kTree:
      reader.two_lists(spec.lengths, spec.parents);
      return;
  }
}

void check_tokens(Rule rule, std::string_view what, std::int64_t value, std::int64_t least) {
  CONTEXTILE_CHECK(least <= value && value <= kMaxTokens,
                   "mask {}: {}: expected {} to {}, found {}", rule_name(rule), what, least,
                   kMaxTokens, value);
}

// Checks given lengths of at least `least` tokens each.
void check_lengths(const MaskSpec& spec, std::int64_t least) {
  std::int64_t total = 0;
  for (const std::int64_t length : spec.lengths) {
    check_tokens(spec.rule, "length", length, least);
    total += length;
    check_tokens(spec.rule, "sum of lengths", total, 0);
  }
  check_tokens(spec.rule, "sum of lengths", total, 1);
}

void check_shared_question(const MaskSpec& spec) {
  if (spec.lengths.empty()) {
    CONTEXTILE_CHECK(spec.fraction >= 0 && spec.fraction <= 1,
                     "mask {}: fraction: expected 0 to 1, found {}", rule_name(spec.rule),
                     spec.fraction);
    check_tokens(spec.rule, "answers", spec.answers, 1);
    return;
  }
  CONTEXTILE_CHECK(spec.lengths.size() >= 2,
                   "mask {}: lengths: expected a question and at least one answer, found {} length",
                   rule_name(spec.rule), spec.lengths.size());
  check_lengths(spec, 0);
}

void check_tree(const MaskSpec& spec) {
  CONTEXTILE_CHECK(spec.lengths.size() == spec.parents.size(),
                   "mask {}: expected a parent for each of {} lengths, found {}",
                   rule_name(spec.rule), spec.lengths.size(), spec.parents.size());
  check_lengths(spec, 1);
  CONTEXTILE_CHECK(spec.parents.front() == -1,
                   "mask {}: parent of segment 0: expected -1, because it is the root, found {}",
                   rule_name(spec.rule), spec.parents.front());
  for (std::size_t i = 1; i < spec.parents.size(); ++i) {
    CONTEXTILE_CHECK(0 <= spec.parents[i] && spec.parents[i] < static_cast<std::int64_t>(i),
                     "mask {}: parent of segment {}: expected 0 to {}, found {}",
                     rule_name(spec.rule), i, i - 1, spec.parents[i]);
  }
}

}  // namespace

std::string_view rule_name(MaskSpec::Rule rule) { return text_of(rule).name; }

void check_mask_spec(const MaskSpec& spec) {
  switch (spec.rule) {
    case Rule::kFull:
    case Rule::kCausal:
      return;
    case Rule::kSlidingWindow:
      check_tokens(spec.rule, "window", spec.window, 1);
      return;
    case Rule::kLambda:
      check_tokens(spec.rule, "sink", spec.sink, 0);
      check_tokens(spec.rule, "window", spec.window, 1);
      return;
    case Rule::kCausalBlockwise:
      check_tokens(spec.rule, "block", spec.block, 1);
      check_tokens(spec.rule, "window", spec.window, 1);
      check_tokens(spec.rule, "sink", spec.sink, 0);
      return;
    case Rule::kSharedQuestion:
      check_shared_question(spec);
      return;
    case Rule::kPrefixLm:
      check_tokens(spec.rule, "prefix", spec.prefix, 0);
      return;
    case Rule::kChunked:
      check_tokens(spec.rule, "chunk", spec.chunk, 1);
      return;
    case Rule::kTree:
      check_tree(spec);
      return;
  }
  (void)text_of(spec.rule);  // a number that is no rule
}

bool has_branches(MaskSpec::Rule rule) {
  return rule == Rule::kSharedQuestion || rule == Rule::kTree;
}

void check_sum_of_lengths(const MaskSpec& spec, std::int64_t length) {
  const std::int64_t total =
      std::accumulate(spec.lengths.begin(), spec.lengths.end(), std::int64_t{0});
  CONTEXTILE_CHECK(total == length,
                   "mask {}: expected lengths that sum to the sequence's {} tokens, found a sum "
                   "of {}",
                   rule_name(spec.rule), length, total);
}

std::vector<std::int64_t> shared_question_lengths(const MaskSpec& spec, std::int64_t length) {
  if (!spec.lengths.empty()) {
    check_sum_of_lengths(spec, length);
    return spec.lengths;
  }
  const auto question =
      static_cast<std::int64_t>(std::floor(spec.fraction * static_cast<double>(length)));
  const std::int64_t rest = length - question;
  const std::int64_t answer = rest / spec.answers;
  if (answer == 0) return {question, rest};  // the last answer takes all, the others are empty
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(spec.answers) + 1, answer);
  lengths.front() = question;
  lengths.back() = rest - answer * (spec.answers - 1);
  return lengths;
}

MaskSpec parse_mask_spec(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const RuleText& rule : kRules) {
    if (rule.name != name) continue;
    MaskSpec spec;
    spec.rule = rule.rule;
    if (colon == std::string_view::npos) {
      set_defaults(spec, rule);
    } else {
      const std::string_view parameters = text.substr(colon + 1);
      CONTEXTILE_CHECK(!rule.parameters.empty(), "mask {}: expected no parameters, found {}",
                       rule.name, quote(parameters));
      ParameterReader reader(rule, parameters);
      read_parameters(spec, reader);
    }
    check_mask_spec(spec);
    return spec;
  }
  fail_unknown_rule(name);
}

std::string to_string(const MaskSpec& spec) {
  const std::string_view name = rule_name(spec.rule);
  switch (spec.rule) {
    case Rule::kFull:
    case Rule::kCausal:
      break;
    case Rule::kSlidingWindow:
      return fmt::format("{}:{}", name, spec.window);
    case Rule::kLambda:
      return fmt::format("{}:{},{}", name, spec.sink, spec.window);
    case Rule::kCausalBlockwise:
      return fmt::format("{}:{},{},{}", name, spec.block, spec.window, spec.sink);
    case Rule::kSharedQuestion:
      if (!spec.lengths.empty()) {
        return fmt::format("{}:[{}]", name, fmt::join(spec.lengths, ","));
      }
      return fmt::format("{}:{},{}", name, spec.fraction, spec.answers);
    case Rule::kPrefixLm:
      return fmt::format("{}:{}", name, spec.prefix);
    case Rule::kChunked:
      return fmt::format("{}:{}", name, spec.chunk);
    case Rule::kTree:
      return fmt::format("{}:[{}],[{}]", name, fmt::join(spec.lengths, ","),
                         fmt::join(spec.parents, ","));
  }
  return std::string(name);
}

std::string mask_spec_help() {
  std::string help;
  for (const RuleText& text : kRules) {
    fmt::format_to(std::back_inserter(help), "{:<28} {}\n", form_of(text), text.meaning);
  }
  return help;
}

}  // namespace contextile

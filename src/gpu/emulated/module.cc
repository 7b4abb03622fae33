// Parses PTX (sections 4, 5 and 6 of the manual) as far as compilers of CUDA write it: kernels
// whose functions are all inlined, with one array of dynamic shared memory and no local memory.
#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/emulated/handlers.h"

namespace contextile::ptx {
namespace {

using Kind = Operand::Kind;
constexpr std::size_t kShownText = 160;  // characters of a statement in messages
constexpr std::uint32_t kMostRegisters = 1U << 16;
constexpr std::string_view kSpaces = " \t\n\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

// False outside of the text, too.
bool has_at(std::string_view text, std::size_t at, char c) {
  return at < text.size() && text[at] == c;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// The first word, and the rest behind it.
std::pair<std::string_view, std::string_view> first_word(std::string_view text) {
  const std::size_t end = text.find_first_of(kSpaces);
  if (end == std::string_view::npos) return {text, {}};
  return {text.substr(0, end), trimmed(text.substr(end))};
}

// Parts between commas that are outside of all brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '{' || text[at] == '[') ++depth;
    if (text[at] == '}' || text[at] == ']') --depth;
    if (text[at] != ',' || depth > 0) continue;
    parts.push_back(trimmed(text.substr(begin, at - begin)));
    begin = at + 1;
  }
  if (const std::string_view last = trimmed(text.substr(begin)); !last.empty())
    parts.push_back(last);
  return parts;
}

// Decimal and hexadecimal integers, and the bits of floating-point numbers after 0f and 0d.
std::uint64_t parse_number(std::string_view text) {
  const std::string_view whole = text;
  const bool is_negative = text.starts_with("-");
  if (is_negative) text.remove_prefix(1);
  int base = 10;
  for (const std::string_view prefix : {"0x", "0X", "0f", "0F", "0d", "0D"}) {
    if (!text.starts_with(prefix)) continue;
    text.remove_prefix(2);
    base = 16;
    break;
  }
  if (text.ends_with("U")) text.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) {
    fault("expected a number, found {}", whole);
  }
  return is_negative ? 0 - value : value;
}

// Parses the body of one kernel.
class Parser {
 public:
  Parser(Kernel& kernel, const std::set<std::string, std::less<>>& shared)
      : kernel_(kernel), shared_(shared) {}

  void parse(std::string_view body) {
    std::size_t at = 0;
    while (at < body.size()) {
      // Blocks in braces have registers of their own. Their names are reused, not nested.
      if (std::string_view(" \t\n\r{};").find(body[at]) != std::string_view::npos) {
        ++at;
        continue;
      }
      const std::size_t end = end_of_statement(body, at);
      const std::string_view text = trimmed(body.substr(at, end - at));
      if (end < body.size() && body[end] == ':') {
        labels_[std::string(text)] = static_cast<std::uint32_t>(kernel_.code.size());
      } else {
        parse_or_name(text);
      }
      at = end + 1;
    }
    for (const auto& [instruction, label] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) fault("{}: expected label {}", kernel_.name, label);
      kernel_.code[instruction].target = found->second;
    }
  }

 private:
  // The position of the ';' of a statement, the ':' of a label, or a closing brace.
  static std::size_t end_of_statement(std::string_view body, std::size_t at) {
    int depth = 0;
    for (; at < body.size(); ++at) {
      if (body[at] == '{') ++depth;
      if (body[at] == '}' && depth-- == 0) return at;
      if (depth > 0) continue;
      if (body[at] == ';') return at;
      // "::" is part of an opcode.
      const bool is_label =
          body[at] == ':' && !has_at(body, at - 1, ':') && !has_at(body, at + 1, ':');
      if (is_label) return at;
    }
    return at;
  }

  // ".reg .b32 %r<10>" gives names a kind: "%r" and a number.
  void declare(std::string_view text) {
    const auto [type, names] = first_word(first_word(text).second);
    const Kind kind = type == ".pred"        ? Kind::kPredicate
                      : type.ends_with("64") ? Kind::kWide
                                             : Kind::kWord;
    for (const std::string_view name : split(names)) {
      kinds_[std::string(name.substr(0, name.find('<')))] = kind;
    }
  }

  // The register of a name, or an operand of kind kNone.
  Operand register_of(std::string_view name) {
    const std::string key(name);
    if (const auto found = registers_.find(key); found != registers_.end()) return found->second;
    auto kind = kinds_.find(key);
    if (kind == kinds_.end()) {
      std::string_view stem = name;
      while (!stem.empty() && is_digit(stem.back())) stem.remove_suffix(1);
      kind = kinds_.find(std::string(stem));
      if (kind == kinds_.end()) return {};
    }
    Operand found;
    found.kind = kind->second;
    found.text = key;
    found.index = found.kind == Kind::kPredicate ? kernel_.num_predicates++
                  : found.kind == Kind::kWide    ? kernel_.num_wides++
                                                 : kernel_.num_words++;
    if (found.index >= kMostRegisters) {
      fault("{}: expected at most {} registers", kernel_.name, kMostRegisters);
    }
    registers_[key] = found;
    return found;
  }

  Operand constant_of(std::uint64_t bits) {
    const auto next = static_cast<std::uint32_t>(kernel_.constants.size());
    const auto [at, is_new] = constants_.try_emplace(bits, next);
    if (is_new) {
      Constant& constant = kernel_.constants.emplace_back();
      constant.word.fill(static_cast<std::uint32_t>(bits));
      constant.wide.fill(bits);
    }
    Operand found;
    found.kind = Kind::kConstant;
    found.index = at->second;
    found.value = static_cast<std::int64_t>(bits);
    return found;
  }

  // "[%rd1+16]", "[kernel_param_0+8]", "[shared]", and for TMA "[%rd1, {%r1, %r2, %r3}]".
  Operand parse_address(std::string_view text, int depth) {
    const std::vector<std::string_view> parts = split(text.substr(1, text.size() - 2));
    Operand found;
    if (parts.size() == 2) {
      found.kind = Kind::kVector;
      found.parts.push_back(parse_operand("[" + std::string(parts[0]) + "]", depth + 1));
      found.parts.push_back(parse_operand(parts[1], depth + 1));
      return found;
    }
    const std::size_t plus = parts.at(0).find('+');
    const std::string_view base = trimmed(parts[0].substr(0, plus));
    found.kind = Kind::kAddress;
    if (plus != std::string_view::npos) {
      found.value = static_cast<std::int64_t>(parse_number(trimmed(parts[0].substr(plus + 1))));
    }
    if (const Operand at = register_of(base); at.kind != Kind::kNone) {
      found.base = at.kind;
      found.index = at.index;
    } else if (base.find("_param_") != std::string_view::npos) {
      found.base = Kind::kParameter;
    } else if (shared_.contains(base)) {
      found.value += kSharedBegin;
    } else {
      found.value += static_cast<std::int64_t>(parse_number(base));
    }
    return found;
  }

  Operand parse_name(std::string_view text) {
    static const std::map<std::string_view, Special> kSpecials = {
        {"%tid.x", Special::kThread},
        {"%ctaid.x", Special::kBlockX},
        {"%ctaid.y", Special::kBlockY},
        {"%ntid.x", Special::kNumThreads}};
    Operand found;
    if (const auto special = kSpecials.find(text); special != kSpecials.end()) {
      found.kind = Kind::kSpecial;
      found.index = static_cast<std::uint32_t>(special->second);
    } else if (shared_.contains(text)) {
      found = constant_of(kSharedBegin);
    } else if (text.find("_param_") != std::string_view::npos) {
      found.kind = Kind::kParameter;
    } else if (text != "_") {
      found = register_of(text);
      if (found.kind == Kind::kNone) found.kind = Kind::kLabel;
    }
    return found;
  }

  // Addresses of TMA are the deepest: a vector in an address.
  Operand parse_operand(std::string_view text, int depth = 0) {
    if (text.empty() || depth > 2) fault("expected an operand, found '{}'", text);
    Operand found;
    if (text.starts_with("{")) {
      found.kind = Kind::kVector;
      for (const std::string_view part : split(text.substr(1, text.size() - 2))) {
        found.parts.push_back(parse_operand(part, depth + 1));
      }
    } else if (text.starts_with("[")) {
      found = parse_address(text, depth);
    } else if (is_digit(text[0]) || text[0] == '-') {
      found = constant_of(parse_number(text));
    } else {
      found = parse_name(text.substr(0, text.find('|')));  // "%r1|%p1": the second is not needed
    }
    found.text = text;
    return found;
  }

  void parse_or_name(std::string_view text) {
    try {
      parse_statement(text);
    } catch (const std::out_of_range&) {
      fault("{}: expected PTX, found {}", kernel_.name, text.substr(0, kShownText));
    }
  }

  void parse_statement(std::string_view text) {
    if (text.starts_with(".reg")) return declare(text);
    if (text.starts_with(".local") || text.starts_with(".shared")) {
      fault("{}: expected no local or static shared memory, found {}", kernel_.name, text);
    }
    if (text.starts_with(".")) return;  // .loc, .pragma
    Instruction in;
    in.text = text.substr(0, kShownText);
    if (text.starts_with("@")) {
      auto [guard, rest] = first_word(text.substr(1));
      in.is_guard_negated = guard.starts_with("!");
      if (in.is_guard_negated) guard.remove_prefix(1);
      const Operand predicate = register_of(guard);
      if (predicate.kind != Kind::kPredicate) fault("expected a predicate, found {}", guard);
      in.guard = static_cast<int>(predicate.index);
      text = rest;
    }
    const auto [opcode, operands] = first_word(text);
    in.opcode = opcode;
    for (const std::string_view operand : split(operands)) {
      in.operands.push_back(parse_operand(operand));
    }
    resolve(in);
    if (opcode == "bra" || opcode == "bra.uni") {
      jumps_.emplace_back(kernel_.code.size(), in.operands[0].text);
    }
    kernel_.code.push_back(std::move(in));
  }

  Kernel& kernel_;
  const std::set<std::string, std::less<>>& shared_;
  std::unordered_map<std::string, Kind> kinds_;
  std::unordered_map<std::string, Operand> registers_;
  std::unordered_map<std::uint64_t, std::uint32_t> constants_;
  std::unordered_map<std::string, std::uint32_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> jumps_;
};

std::string without_comments(std::string_view text) {
  std::string code;
  code.reserve(text.size());
  while (!text.empty()) {
    const std::size_t begin = text.find("//");
    code += text.substr(0, begin);
    if (begin == std::string_view::npos) break;
    const std::size_t end = text.find('\n', begin);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end);
  }
  return code;
}

// Names of arrays in dynamic shared memory: ".extern .shared .align 16 .b8 shared[];".
std::set<std::string, std::less<>> shared_names(std::string_view code) {
  std::set<std::string, std::less<>> names;
  for (std::size_t at = 0; (at = code.find(".extern .shared", at)) != std::string_view::npos;) {
    const std::size_t end = code.find('[', at);
    const std::string_view declaration = code.substr(at, end - at);
    names.emplace(declaration.substr(declaration.find_last_of(kSpaces) + 1));
    at = end;
  }
  return names;
}

// The size of the only parameter: ".param .align 8 .b8 kernel_param_0[640]".
std::size_t parameter_bytes(std::string_view parameters) {
  const std::size_t bracket = parameters.find('[');
  if (bracket == std::string_view::npos) return 0;
  const std::size_t end = parameters.find(']', bracket);
  return parse_number(parameters.substr(bracket + 1, end - bracket - 1));
}

// The place of a text in the code.
std::size_t found_at(std::string_view code, std::string_view text, std::size_t from) {
  const std::size_t at = code.find(text, from);
  if (at == std::string_view::npos) fault("expected '{}' behind a kernel's name, found none", text);
  return at;
}

std::size_t closing_brace(std::string_view code, std::size_t open) {
  int depth = 0;
  for (std::size_t at = open; at < code.size(); ++at) {
    if (code[at] == '{') ++depth;
    if (code[at] == '}' && --depth == 0) return at;
  }
  fault("expected a kernel that ends");
}

}  // namespace

Module::Module(std::string text) : text_(without_comments(text)) {
  constexpr std::string_view kEntry = ".entry ";
  const std::string_view code = text_;
  if (code.find(".version") == std::string_view::npos ||
      code.find(".target") == std::string_view::npos) {
    fault("expected PTX (.version and .target), found none");
  }
  shared_ = shared_names(code);
  for (std::size_t at = 0; (at = code.find(kEntry, at)) != std::string_view::npos;) {
    at += kEntry.size();
    const std::size_t open = found_at(code, "(", at);
    const std::size_t close = found_at(code, ")", open);
    const std::size_t begin = found_at(code, "{", close);
    const std::string name(trimmed(code.substr(at, open - at)));
    at = closing_brace(code, begin);
    Source& source = sources_[name];
    source.parameters = code.substr(open, close - open);
    source.body = code.substr(begin + 1, at - begin - 1);
  }
}

std::vector<std::string> Module::names() const {
  std::vector<std::string> names;
  for (const auto& [name, source] : sources_) names.push_back(name);
  return names;
}

const Kernel& Module::kernel(std::string_view name) {
  const auto found = sources_.find(name);
  if (found == sources_.end()) fault("expected a kernel {}, found none", name);
  Source& source = found->second;
  if (source.parsed == nullptr) {
    auto kernel = std::make_unique<Kernel>();
    kernel->name = name;
    kernel->parameter_bytes = parameter_bytes(source.parameters);
    Parser(*kernel, shared_).parse(source.body);
    source.parsed = std::move(kernel);
  }
  return *source.parsed;
}

}  // namespace contextile::ptx

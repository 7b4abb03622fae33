#include "serving/server/nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "serving/server/nfc_tables.inc"

namespace contextile {
namespace {

using Code = std::uint32_t;

// Hangul syllables are computed (Unicode Standard, 3.12).
constexpr Code kSyllables = 0xac00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11a7;
constexpr Code kNumLeading = 19, kNumVowels = 21, kNumTrailing = 28;
constexpr Code kNumSyllables = kNumLeading * kNumVowels * kNumTrailing;

struct Character {
  Code code;
  std::uint8_t combining;  // its canonical combining class
};

Code decode(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<Code>(bytes[i]) & 0x3fU; };
  const auto first = static_cast<unsigned char>(bytes[0]);
  switch (bytes.size()) {
    case 1:
      return first;
    case 2:
      return ((first & 0x1fU) << 6) | at(1);
    case 3:
      return ((first & 0x0fU) << 12) | (at(1) << 6) | at(2);
    default:
      return ((first & 0x07U) << 18) | (at(1) << 12) | (at(2) << 6) | at(3);
  }
}

void encode(Code code, std::string& out) {
  const auto rest = [&](int shift) { out += static_cast<char>(0x80U | ((code >> shift) & 0x3fU)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0U | (code >> 6));
    rest(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0U | (code >> 12));
    rest(6);
    rest(0);
  } else {
    out += static_cast<char>(0xf0U | (code >> 18));
    rest(12);
    rest(6);
    rest(0);
  }
}

std::uint8_t class_of(Code code) {
  const auto* const found = std::ranges::lower_bound(nfc::kClasses, code, {}, &nfc::Class::last);
  const bool is_in = found != std::end(nfc::kClasses) && found->first <= code;
  return is_in ? found->value : std::uint8_t{0};
}

void add_decomposed(Code code, std::vector<Character>& out) {
  if (code >= kSyllables && code < kSyllables + kNumSyllables) {
    const Code index = code - kSyllables;
    out.push_back({kLeading + index / (kNumVowels * kNumTrailing), 0});
    out.push_back({kVowels + index / kNumTrailing % kNumVowels, 0});
    if (index % kNumTrailing != 0) out.push_back({kTrailing + index % kNumTrailing, 0});
    return;
  }
  const auto* const found =
      std::ranges::lower_bound(nfc::kDecompositions, code, {}, &nfc::Decomposition::code);
  if (found == std::end(nfc::kDecompositions) || found->code != code) {
    out.push_back({code, class_of(code)});
    return;
  }
  add_decomposed(found->first, out);
  if (found->second != 0) add_decomposed(found->second, out);
}

// The character that two compose to; 0 if there is none.
Code composed(Code first, Code second) {
  static const auto kPairs = [] {
    std::unordered_map<std::uint64_t, Code> pairs;
    for (const nfc::Decomposition& one : nfc::kDecompositions) {
      if (one.composes) pairs.emplace((std::uint64_t{one.first} << 32) | one.second, one.code);
    }
    return pairs;
  }();
  if (first >= kLeading && first < kLeading + kNumLeading && second >= kVowels &&
      second < kVowels + kNumVowels) {
    return kSyllables + ((first - kLeading) * kNumVowels + second - kVowels) * kNumTrailing;
  }
  const bool is_open = first >= kSyllables && first < kSyllables + kNumSyllables &&
                       (first - kSyllables) % kNumTrailing == 0;
  if (is_open && second > kTrailing && second < kTrailing + kNumTrailing) {
    return first + second - kTrailing;
  }
  const auto found = kPairs.find((std::uint64_t{first} << 32) | second);
  return found == kPairs.end() ? 0 : found->second;
}

// Composes characters that are decomposed and in canonical order, in place.
void compose(std::vector<Character>& text) {
  std::size_t size = 0;
  std::size_t starter = text.size();  // the last one; none yet
  for (const Character character : text) {
    const bool is_next = starter + 1 == size;
    const bool is_blocked = !is_next && size > 0 && text[size - 1].combining >= character.combining;
    const Code both =
        starter < size && !is_blocked ? composed(text[starter].code, character.code) : 0;
    if (both != 0) {
      text[starter].code = both;
      continue;
    }
    if (character.combining == 0) starter = size;
    text[size++] = character;
  }
  text.resize(size);
}

}  // namespace

std::string to_nfc(std::string_view text) {
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
  if (is_ascii) return std::string(text);
  std::vector<Character> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = std::max<std::size_t>(utf8_bytes(text.substr(at)), 1);
    add_decomposed(decode(text.substr(at, size)), characters);
    at += size;
  }
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin =
        std::find_if(begin, characters.end(), [](const Character& c) { return c.combining != 0; });
    const auto end =
        std::find_if(begin, characters.end(), [](const Character& c) { return c.combining == 0; });
    std::stable_sort(begin, end, [](const Character& a, const Character& b) {
      return a.combining < b.combining;
    });
    begin = end;
  }
  compose(characters);
  std::string normalized;
  for (const Character& character : characters) encode(character.code, normalized);
  return normalized;
}

}  // namespace contextile

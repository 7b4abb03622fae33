// The contents of a tokenizer.json of Hugging Face's format, as far as they are supported.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serving/server/added_tokens.h"

namespace contextile {

inline constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which represents a space

// A change of text before it is cut into words.
struct Normalizer {
  enum class Kind : std::uint8_t { kNfc, kPrepend, kReplace };
  Kind kind = Kind::kNfc;
  std::string before;  // the text that is replaced
  std::string after;   // what replaces it, or is put before a text
};

// A step of cutting text into words.
struct WordStep {
  enum class Kind : std::uint8_t {
    kPattern,         // cuts at matches of a pattern
    kSpace,           // puts a space before a word that begins with none
    kMetaspaces,      // writes U+2581 for spaces, and puts one before a word that begins with none
    kFirstMetaspace,  // the same, but before the first word of a text alone
    kMetaspace,       // writes U+2581 for spaces
  };
  Kind kind = Kind::kPattern;
  std::string pattern;
};

// The contents of a tokenizer.json.
struct TokenizerFile {
  std::unordered_map<std::string, std::int32_t> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added;
  std::vector<std::int32_t> prefix;  // tokens before every text
  std::vector<std::int32_t> suffix;  // and behind it
  bool on_bytes = false;             // ByteLevel: each byte of a word is a character
  bool whole_words = false;          // a word that is a token is not looked into
  std::vector<Normalizer> normalizers;
  std::vector<WordStep> steps;
};

// Reads a file. Throws IoError, and InvalidArgument if the file is malformed or requests anything
// that would change tokens and that this program does not have.
[[nodiscard]] TokenizerFile read_tokenizer_file(const std::string& path);

// Returns the text after all normalizers, in order.
[[nodiscard]] std::string normalized(std::string_view text,
                                     const std::vector<Normalizer>& normalizers);

}  // namespace contextile

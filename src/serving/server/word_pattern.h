// Regular expressions of Hugging Face's tokenizers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/look.h"

namespace contextile {

// Classes of characters, to be put in brackets: Unicode's White_Space; and letters, marks, digits
// and connectors, which make words.
extern const char* const kWhiteSpace;
extern const char* const kWordCharacters;

// A pattern that cuts text into words. Like in other libraries, its \s is Unicode's White_Space.
class WordPattern {
 public:
  // Throws InvalidArgument if it is no pattern.
  explicit WordPattern(const std::string& pattern);
  ~WordPattern();
  WordPattern(WordPattern&&) noexcept;
  WordPattern& operator=(WordPattern&&) noexcept;

  // Matches and the text between them, in order.
  [[nodiscard]] std::vector<std::string_view> words(std::string_view text, RareLook& look) const;
  // True if the text, one character, matches.
  [[nodiscard]] bool matches(std::string_view character) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace contextile

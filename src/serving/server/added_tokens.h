// Tokens that a tokenizer finds in text before it splits the text into words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace contextile {

struct AddedToken {
  std::string text;
  std::int32_t token = 0;
  bool is_special = false;
  bool is_normalized = false;       // found in normalized text
  bool is_single_word = false;      // not found next to the characters of a word
  bool takes_space_before = false;  // white space around it belongs to it
  bool takes_space_after = false;
};

class AddedTokens {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t size = 0;
    const AddedToken* added = nullptr;
  };

  // If several tokens have one text, the first is found.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // The first added token at or after `from`; if several begin there, the longest. Looks at each
  // byte of the text at most as often as the longest added token has bytes.
  [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from) const;
  [[nodiscard]] std::optional<std::int32_t> special(std::string_view text) const;

 private:
  struct Node {
    std::unordered_map<char, std::int32_t> children;
    std::int32_t added = -1;  // the token that ends here
  };
  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // of a trie; 0 is its root
  std::unordered_map<std::string, std::int32_t> special_;
};

}  // namespace contextile

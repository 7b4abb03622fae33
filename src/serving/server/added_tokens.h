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
};

class AddedTokens {
 public:
  struct Match {
    std::size_t begin = 0;
    std::size_t size = 0;
    std::int32_t token = 0;
  };

  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  // The first added token at or after `from`; if several begin there, the longest. Looks at each
  // byte of the text at most as often as the longest added token has bytes.
  [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from) const;
  [[nodiscard]] std::optional<std::int32_t> special(std::string_view text) const;

 private:
  struct Node {
    std::unordered_map<char, std::int32_t> children;
    std::int32_t token = -1;  // the token that ends here
  };
  std::vector<Node> nodes_;  // of a trie; 0 is its root
  std::unordered_map<std::string, std::int32_t> special_;
};

}  // namespace contextile

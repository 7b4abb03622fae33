#include "serving/server/added_tokens.h"

#include <utility>

namespace contextile {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& added = tokens_[i];
    std::int32_t at = 0;
    for (const char c : added.text) {
      const auto next = static_cast<std::int32_t>(nodes_.size());
      const auto [child, is_new] =
          nodes_[static_cast<std::size_t>(at)].children.try_emplace(c, next);
      at = child->second;
      if (is_new) nodes_.emplace_back();
    }
    std::int32_t& first = nodes_[static_cast<std::size_t>(at)].added;
    if (first < 0) first = static_cast<std::int32_t>(i);
    if (added.is_special) special_.emplace(added.text, added.token);
  }
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    const Node* node = &nodes_.front();
    for (std::size_t end = begin; end < text.size(); ++end) {
      const auto child = node->children.find(text[end]);
      if (child == node->children.end()) break;
      node = &nodes_[static_cast<std::size_t>(child->second)];
      if (node->added < 0) continue;
      longest = {begin, end + 1 - begin, &tokens_[static_cast<std::size_t>(node->added)]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

std::optional<std::int32_t> AddedTokens::special(std::string_view text) const {
  const auto found = special_.find(std::string(text));
  if (found == special_.end()) return std::nullopt;
  return found->second;
}

}  // namespace contextile

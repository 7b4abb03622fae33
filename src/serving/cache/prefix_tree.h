// Prefixes of token ids and the pages that hold them: a radix tree whose edges are the tokens of
// one page of all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "contextile/serving/kv_cache.h"

namespace contextile {

class PrefixTree {
 public:
  using Tokens = std::span<const std::int32_t>;

  // Tokens of an edge, and how many pages there are.
  PrefixTree(std::int64_t block_tokens, std::int32_t num_pages);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Pages of the longest remembered prefix of whole blocks.
  [[nodiscard]] std::vector<PageId> find(Tokens tokens) const;
  // Remembers pages[i] as holding block i of the tokens, for the whole blocks from `first` on. A
  // prefix may have several pages: two requests that computed it side by side.
  void insert(Tokens tokens, std::span<const PageId> pages, std::int64_t first);
  // Forgets the contents of the page. Its continuations can be found again once it can.
  void erase(PageId page);

  [[nodiscard]] bool holds(PageId page) const { return node_of_page_[page.index()] != nullptr; }
  // Returns true if no prompt would miss the page: it holds no remembered prefix, or another page
  // holds the same one.
  [[nodiscard]] bool is_redundant(PageId page) const;
  [[nodiscard]] std::int32_t num_pages() const { return num_held_; }

  // Throws std::logic_error unless nodes and pages agree.
  void check_consistency() const;

 private:
  struct Node;

  [[nodiscard]] Node* child(const Node& node, Tokens block) const;
  [[nodiscard]] Tokens block(Tokens tokens, std::int64_t index) const;
  void prune(Node* node);

  std::int64_t block_tokens_;
  std::unique_ptr<Node> root_;
  std::vector<Node*> node_of_page_;  // null: holds no remembered prefix
  std::int32_t num_held_ = 0;
};

}  // namespace contextile

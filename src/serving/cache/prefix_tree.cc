#include "serving/cache/prefix_tree.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace contextile {

struct PrefixTree::Node {
  Node* parent = nullptr;
  std::uint64_t hash = 0;            // of its block, under which the parent has it
  std::vector<std::int32_t> tokens;  // of its block
  std::vector<PageId> pages;         // that hold it, in the order in which they came to
  // The children by hash; the tokens distinguish blocks that share a hash.
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Node>> children;
};

namespace {

std::uint64_t hash_of(std::span<const std::int32_t> block) {
  return XXH3_64bits(block.data(), block.size_bytes());
}

}  // namespace

PrefixTree::PrefixTree(std::int64_t block_tokens, std::int32_t num_pages)
    : block_tokens_(block_tokens),
      root_(std::make_unique<Node>()),
      node_of_page_(static_cast<std::size_t>(num_pages), nullptr) {}

PrefixTree::~PrefixTree() {
  // A long prompt is a deep tree, so it is taken apart without recursion.
  std::vector<std::unique_ptr<Node>> open;
  open.push_back(std::move(root_));
  while (!open.empty()) {
    const std::unique_ptr<Node> node = std::move(open.back());
    open.pop_back();
    for (auto& [hash, child] : node->children) open.push_back(std::move(child));
  }
}

PrefixTree::Tokens PrefixTree::block(Tokens tokens, std::int64_t index) const {
  return tokens.subspan(static_cast<std::size_t>(index * block_tokens_),
                        static_cast<std::size_t>(block_tokens_));
}

PrefixTree::Node* PrefixTree::child(const Node& node, Tokens block) const {
  const auto [begin, end] = node.children.equal_range(hash_of(block));
  for (auto it = begin; it != end; ++it) {
    if (std::equal(block.begin(), block.end(), it->second->tokens.begin(),
                   it->second->tokens.end())) {
      return it->second.get();
    }
  }
  return nullptr;
}

std::vector<PageId> PrefixTree::find(Tokens tokens) const {
  std::vector<PageId> pages;
  const Node* node = root_.get();
  const std::int64_t num_blocks = static_cast<std::int64_t>(tokens.size()) / block_tokens_;
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    node = child(*node, block(tokens, b));
    if (node == nullptr || node->pages.empty()) break;
    pages.push_back(node->pages.front());
  }
  return pages;
}

void PrefixTree::insert(Tokens tokens, std::span<const PageId> pages, std::int64_t first) {
  const std::int64_t num_blocks = static_cast<std::int64_t>(tokens.size()) / block_tokens_;
  if (first >= num_blocks) return;
  // Begins at the place of the block before, so that a long request is not walked for each of its
  // blocks.
  const PageId before = first > 0 ? pages[static_cast<std::size_t>(first - 1)] : PageId();
  Node* node = before.valid() ? node_of_page_[before.index()] : nullptr;
  const std::int64_t begin = node != nullptr ? first : 0;
  if (node == nullptr) node = root_.get();
  for (std::int64_t b = begin; b < num_blocks; ++b) {
    const Tokens its = block(tokens, b);
    Node* next = child(*node, its);
    if (next == nullptr) {
      auto made = std::make_unique<Node>();
      made->parent = node;
      made->hash = hash_of(its);
      made->tokens.assign(its.begin(), its.end());
      next = made.get();
      node->children.emplace(next->hash, std::move(made));
    }
    node = next;
    const PageId page = pages[static_cast<std::size_t>(b)];
    if (b < first || node_of_page_[page.index()] == node) continue;
    if (node_of_page_[page.index()] != nullptr) {
      throw std::logic_error("prefix tree: a page holds another prefix");
    }
    node->pages.push_back(page);
    node_of_page_[page.index()] = node;
    ++num_held_;
  }
}

bool PrefixTree::is_redundant(PageId page) const {
  const Node* node = node_of_page_[page.index()];
  return node == nullptr || node->pages.size() > 1;
}

void PrefixTree::erase(PageId page) {
  Node* node = std::exchange(node_of_page_[page.index()], nullptr);
  if (node == nullptr) return;
  std::erase(node->pages, page);
  --num_held_;
  prune(node);
}

void PrefixTree::prune(Node* node) {
  while (node->parent != nullptr && node->pages.empty() && node->children.empty()) {
    Node* parent = node->parent;
    const auto [begin, end] = parent->children.equal_range(node->hash);
    parent->children.erase(
        std::find_if(begin, end, [&](const auto& entry) { return entry.second.get() == node; }));
    node = parent;
  }
}

void PrefixTree::check_consistency() const {
  std::int32_t held = 0;
  std::vector<const Node*> open = {root_.get()};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (node != root_.get() && node->pages.empty() && node->children.empty()) {
      throw std::logic_error("prefix tree: a node holds nothing");
    }
    for (const PageId page : node->pages) {
      ++held;
      if (node_of_page_[page.index()] != node) {
        throw std::logic_error("prefix tree: a node has a page that is not its own");
      }
    }
    for (const auto& [hash, child] : node->children) {
      if (child->parent != node || child->hash != hash || hash != hash_of(child->tokens)) {
        throw std::logic_error("prefix tree: a node is not where it belongs");
      }
      open.push_back(child.get());
    }
  }
  const auto linked = std::count_if(node_of_page_.begin(), node_of_page_.end(),
                                    [](const Node* node) { return node != nullptr; });
  if (held != num_held_ || linked != held) {
    throw std::logic_error("prefix tree: pages are lost");
  }
}

}  // namespace contextile

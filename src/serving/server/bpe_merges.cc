#include "serving/server/bpe_merges.h"

#include <queue>
#include <tuple>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint32_t>(right);
}

// A piece of a word in a list of them. Small, because a word may be as long as a request.
struct Piece {
  std::int32_t token = 0;  // kGone: joined to the one before
  std::int32_t previous = -1;
  std::int32_t next = -1;
};
constexpr std::int32_t kGone = -1;

// Two neighbours as they were when they were found.
struct Candidate {
  std::int32_t order;
  std::int32_t at;
  std::int32_t left;
  std::int32_t right;

  friend bool operator>(const Candidate& a, const Candidate& b) {
    return std::tie(a.order, a.at) > std::tie(b.order, b.at);
  }
};

}  // namespace

BpeMerges::BpeMerges(std::unordered_map<std::string, std::int32_t> tokens,
                     const std::vector<std::pair<std::string, std::string>>& merges)
    : tokens_(std::move(tokens)) {
  const auto checked = [&](const std::string& text) {
    const auto found = token(text);
    CONTEXTILE_CHECK(found, "tokenizer: expected merges of tokens, found {}, which is none",
                     quote(text));
    return *found;
  };
  std::int32_t order = 0;
  for (const auto& [left, right] : merges) {
    const std::int32_t first = checked(left);
    const std::int32_t second = checked(right);
    merges_.emplace(key_of(first, second), Merge{order++, checked(left + right)});
  }
}

std::optional<std::int32_t> BpeMerges::token(const std::string& text) const {
  const auto found = tokens_.find(text);
  if (found == tokens_.end()) return std::nullopt;
  return found->second;
}

const BpeMerges::Merge* BpeMerges::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<std::int32_t> BpeMerges::join(const std::vector<std::int32_t>& tokens,
                                          RareLook& look_up) const {
  std::vector<Piece> pieces;
  const auto count = checked_cast<std::int32_t>(tokens.size(), "text: pieces of a word");
  pieces.reserve(tokens.size());
  for (std::int32_t i = 0; i < count; ++i) {
    pieces.push_back({tokens[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto at = [&](std::int32_t i) -> Piece& { return pieces[static_cast<std::size_t>(i)]; };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto look = [&](std::int32_t left) {
    if (left < 0 || at(left).next < 0) return;
    const std::int32_t right = at(at(left).next).token;
    if (const Merge* merge = find(at(left).token, right)) {
      queue.push({merge->order, left, at(left).token, right});
    }
  };
  for (std::int32_t i = 0; i < count; ++i) look(i);
  while (!queue.empty()) {
    look_up();
    const Candidate best = queue.top();
    queue.pop();
    Piece& left = at(best.at);
    if (left.token != best.left || left.next < 0) continue;
    Piece& right = at(left.next);
    if (right.token != best.right) continue;
    left.token = find(best.left, best.right)->token;
    right.token = kGone;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = best.at;
    look(left.previous);
    look(best.at);
  }
  std::vector<std::int32_t> joined;
  for (const Piece& piece : pieces) {
    if (piece.token != kGone) joined.push_back(piece.token);
  }
  return joined;
}

}  // namespace contextile

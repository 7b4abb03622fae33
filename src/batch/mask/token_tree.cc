#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

using Branches = std::span<const std::vector<std::int64_t>>;

void check_branches(Branches branches) {
  CONTEXTILE_CHECK(!branches.empty(), "token tree: expected at least one branch, found none");
  std::int64_t total = 0;
  for (std::size_t b = 0; b < branches.size(); ++b) {
    CONTEXTILE_CHECK(!branches[b].empty(),
                     "token tree: branch {}: expected at least one token, found none", b);
    CONTEXTILE_CHECK(branches[b].front() == branches[0].front(),
                     "token tree: branch {}: expected token {} first, as in branch 0, found {}: "
                     "branches that share nothing are other sequences",
                     b, branches[0].front(), branches[b].front());
    total += std::ssize(branches[b]);
    CONTEXTILE_CHECK(total <= kMaxTokens,
                     "token tree: expected at most {} tokens in all branches, found more in "
                     "branches 0 to {}",
                     kMaxTokens, b);
  }
}

// Branches that are equal up to a depth, and the segment that they have followed so far.
struct Group {
  std::vector<std::size_t> members;  // in the order of the lists
  std::size_t depth = 0;
  std::int64_t parent = -1;
};

// Returns the depth up to which the members are equal.
std::size_t common_depth(Branches branches, const Group& group) {
  const std::vector<std::int64_t>& first = branches[group.members.front()];
  std::size_t depth = first.size();
  for (const std::size_t member : group.members) {
    const std::vector<std::int64_t>& other = branches[member];
    std::size_t equal = group.depth;
    while (equal < std::min(depth, other.size()) && other[equal] == first[equal]) ++equal;
    depth = equal;
  }
  return depth;
}

// Returns the groups that go on behind a segment, by their next token, in the order of the lists.
std::vector<Group> parted(Branches branches, const Group& group, std::size_t depth,
                          std::int64_t segment) {
  std::vector<std::pair<std::int64_t, std::size_t>> next;  // (token, member)
  for (const std::size_t member : group.members) {
    if (depth < branches[member].size()) next.emplace_back(branches[member][depth], member);
  }
  std::ranges::sort(next);
  std::vector<Group> groups;
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (i == 0 || next[i].first != next[i - 1].first) groups.push_back({{}, depth, segment});
    groups.back().members.push_back(next[i].second);
  }
  std::ranges::sort(groups, {}, [](const Group& one) { return one.members.front(); });
  return groups;
}

}  // namespace

TokenTree build_token_tree(Branches branches) {
  check_branches(branches);
  TokenTree tree;
  tree.mask.rule = MaskSpec::Rule::kTree;
  tree.branches.resize(branches.size());
  std::vector<Group> waiting(1);  // the last one is next
  for (std::size_t b = 0; b < branches.size(); ++b) waiting.front().members.push_back(b);
  while (!waiting.empty()) {
    const Group group = std::move(waiting.back());
    waiting.pop_back();
    const std::size_t depth = common_depth(branches, group);
    const std::vector<std::int64_t>& first = branches[group.members.front()];
    Range own{std::ssize(tree.tokens), 0};
    tree.tokens.insert(tree.tokens.end(), first.begin() + static_cast<std::ptrdiff_t>(group.depth),
                       first.begin() + static_cast<std::ptrdiff_t>(depth));
    own.end = std::ssize(tree.tokens);
    for (const std::size_t member : group.members) {
      std::vector<Range>& path = tree.branches[member];
      if (!path.empty() && path.back().end == own.begin) {
        path.back().end = own.end;
      } else {
        path.push_back(own);
      }
    }
    const auto segment = static_cast<std::int64_t>(tree.mask.lengths.size());
    tree.mask.lengths.push_back(own.size());
    tree.mask.parents.push_back(group.parent);
    std::vector<Group> groups = parted(branches, group, depth, segment);
    std::move(groups.rbegin(), groups.rend(), std::back_inserter(waiting));
  }
  return tree;
}

}  // namespace contextile

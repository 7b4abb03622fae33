// Work of streams that is kept to be run again, as in a CUDA capture.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace contextile::cuda {

// Nodes in the order of streams and of the events between them. A stream takes part from the
// capture's begin (the origin) or from when it waits for an event of the capture.
template <typename Stream, typename Work>
class CapturedWork {
 public:
  struct Node {
    Work work;
    std::vector<std::size_t> after;  // earlier nodes
  };

  explicit CapturedWork(Stream origin) : origin_(origin) { last_[origin]; }

  [[nodiscard]] Stream origin() const { return origin_; }
  [[nodiscard]] bool has(Stream stream) const { return last_.contains(stream); }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }

  // Adds a node after the stream's nodes so far and after another node. The stream takes part from
  // here on.
  std::size_t add(Stream stream, Work work, std::optional<std::size_t> also_after = {}) {
    std::optional<std::size_t>& last = last_[stream];
    Node node{std::move(work), {}};
    if (last) node.after.push_back(*last);
    if (also_after) node.after.push_back(*also_after);
    nodes_.push_back(std::move(node));
    last = nodes_.size() - 1;
    return *last;
  }

  // True if all of it precedes work that the origin has waited for: else a capture cannot end.
  [[nodiscard]] bool is_joined() const {
    std::vector<bool> reached(nodes_.size());
    const std::optional<std::size_t> end = last_.at(origin_);
    if (end) reached[*end] = true;
    for (std::size_t n = nodes_.size(); n-- > 0;) {
      if (!reached[n]) return false;
      for (const std::size_t before : nodes_[n].after) reached[before] = true;
    }
    return true;
  }

 private:
  const Stream origin_;
  std::map<Stream, std::optional<std::size_t>> last_;
  std::vector<Node> nodes_;
};

}  // namespace contextile::cuda

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "hypergraph/pair.h"

namespace contextile {
namespace {

constexpr int kMaxRounds = 3;
// Partners of a part in one round: those it shares the heaviest cut nets with.
constexpr std::size_t kMostPartners = 12;
// Nets in more parts than this say little about which two belong together.
constexpr std::int32_t kLargestLambda = 64;

class PairwiseRefinement {
 public:
  PairwiseRefinement(HyperState& state, std::uint64_t seed)
      : state_(state),
        level_(state.level()),
        random_(seed),
        members_(static_cast<std::size_t>(state.problem().num_parts)),
        net_number_(static_cast<std::size_t>(level_.graph.num_nets()), -1) {
    for (std::int32_t v = 0; v < level_.num_vertices(); ++v) members(state.part(v)).push_back(v);
  }

  void run() {
    const auto num_parts = static_cast<std::size_t>(state_.problem().num_parts);
    std::vector<bool> active(num_parts, true);
    for (int round = 0; round < kMaxRounds; ++round) {
      std::vector<bool> changed(num_parts, false);
      bool any = false;
      for (const auto& [a, b] : pairs()) {
        const auto i = static_cast<std::size_t>(a);
        const auto j = static_cast<std::size_t>(b);
        if (!active[i] && !active[j]) continue;
        if (!refine(a, b)) continue;
        changed[i] = changed[j] = any = true;
      }
      if (!any) return;
      active = std::move(changed);
    }
  }

 private:
  [[nodiscard]] std::vector<std::int32_t>& members(std::int32_t part) {
    return members_[static_cast<std::size_t>(part)];
  }

  // Parts that share cut nets, every part with its heaviest partners; in random order.
  [[nodiscard]] std::vector<std::pair<std::int32_t, std::int32_t>> pairs() {
    const std::int32_t num_parts = state_.problem().num_parts;
    std::vector<std::vector<std::int32_t>> nets(static_cast<std::size_t>(num_parts));
    for (std::int32_t e = 0; e < level_.graph.num_nets(); ++e) {
      const std::int32_t lambda = state_.counts().lambda(e);
      if (lambda < 2 || lambda > kLargestLambda) continue;
      state_.counts().for_each_part(
          e, [&](std::int32_t p) { nets[static_cast<std::size_t>(p)].push_back(e); });
    }
    std::vector<std::pair<std::int32_t, std::int32_t>> found;
    std::vector<std::int64_t> shared(static_cast<std::size_t>(num_parts), 0);
    std::vector<std::int32_t> partners;
    for (std::int32_t p = 0; p < num_parts; ++p) {
      partners.clear();
      for (const std::int32_t e : nets[static_cast<std::size_t>(p)]) {
        state_.counts().for_each_part(e, [&](std::int32_t q) {
          if (q == p) return;
          if (shared[static_cast<std::size_t>(q)] == 0) partners.push_back(q);
          shared[static_cast<std::size_t>(q)] += level_.net_weight(e);
        });
      }
      std::sort(partners.begin(), partners.end(), [&](std::int32_t a, std::int32_t b) {
        return std::pair(-shared[static_cast<std::size_t>(a)], a) <
               std::pair(-shared[static_cast<std::size_t>(b)], b);
      });
      for (std::size_t i = 0; i < partners.size(); ++i) {
        if (i < kMostPartners) found.emplace_back(std::minmax(p, partners[i]));
        shared[static_cast<std::size_t>(partners[i])] = 0;
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    for (std::size_t i = found.size(); i > 1; --i) {
      const auto j = static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(i)));
      std::swap(found[i - 1], found[j]);
    }
    return found;
  }

  // The vertices of two parts, and of their nets what lies in them.
  [[nodiscard]] HyperLevel level_of(std::int32_t a, std::int32_t b,
                                    const std::vector<std::int32_t>& vertices) {
    HyperLevel pair;
    std::vector<std::int32_t> nets;
    pair.vertex_offsets.push_back(0);
    for (const std::int32_t v : vertices) {
      pair.graph.vertex_weights.push_back(level_.weight(v));
      pair.fixed.push_back(level_.fixed[static_cast<std::size_t>(v)]);
      for (const std::int32_t e : level_.nets_of(v)) {
        std::int32_t& number = net_number_[static_cast<std::size_t>(e)];
        if (number == -1) {
          const std::int32_t pins = state_.counts().count(e, a) + state_.counts().count(e, b);
          number = pins < 2 ? -2 : static_cast<std::int32_t>(nets.size());
          if (pins < 2) {
            lonely_.push_back(e);
            continue;
          }
          nets.push_back(e);
          pair.graph.net_offsets.push_back(pair.graph.net_offsets.back() + pins);
          pair.graph.net_weights.push_back(level_.net_weight(e));
        }
        if (number >= 0) pair.nets.push_back(number);
      }
      pair.vertex_offsets.push_back(static_cast<std::int64_t>(pair.nets.size()));
    }
    pair.graph.pins.resize(pair.nets.size());
    std::vector<std::int64_t> next(pair.graph.net_offsets.begin(),
                                   pair.graph.net_offsets.end() - 1);
    for (std::int32_t i = 0; i < pair.num_vertices(); ++i) {
      for (const std::int32_t e : pair.nets_of(i)) {
        pair.graph.pins[static_cast<std::size_t>(next[static_cast<std::size_t>(e)]++)] = i;
      }
    }
    for (const std::int32_t e : nets) net_number_[static_cast<std::size_t>(e)] = -1;
    for (const std::int32_t e : lonely_) net_number_[static_cast<std::size_t>(e)] = -1;
    lonely_.clear();
    return pair;
  }

  bool refine(std::int32_t a, std::int32_t b) {
    std::vector<std::int32_t> vertices = members(a);
    vertices.insert(vertices.end(), members(b).begin(), members(b).end());
    const HyperLevel pair = level_of(a, b, vertices);
    HyperProblem problem;
    problem.num_parts = 2;
    problem.capacity = {state_.problem().room_of(a), state_.problem().room_of(b)};
    problem.per_compute = state_.problem().per_compute;
    problem.per_data = state_.problem().per_data;
    std::vector<std::int32_t> sides(vertices.size(), 0);
    std::fill(sides.begin() + static_cast<std::ptrdiff_t>(members(a).size()), sides.end(), 1);
    if (!refine_pair(pair, problem, sides, random_)) return false;
    const double before = state_.score();
    const double overload = state_.overload();
    apply(a, b, vertices, sides);
    if (state_.problem().traffic_weight == 0 || state_.overload() < overload ||
        state_.score() < before) {
      return true;
    }
    // Less connectivity, but a busier busiest part.
    std::vector<std::int32_t> back(vertices.size());
    const auto first = static_cast<std::ptrdiff_t>(size_before_);
    std::fill(back.begin(), back.begin() + first, 0);
    std::fill(back.begin() + first, back.end(), 1);
    apply(a, b, vertices, back);
    return false;
  }

  void apply(std::int32_t a, std::int32_t b, const std::vector<std::int32_t>& vertices,
             const std::vector<std::int32_t>& sides) {
    size_before_ = members(a).size();
    members(a).clear();
    members(b).clear();
    for (std::size_t i = 0; i < vertices.size(); ++i) {
      const std::int32_t part = sides[i] == 0 ? a : b;
      state_.move(vertices[i], part);
      members(part).push_back(vertices[i]);
    }
  }

  HyperState& state_;
  const HyperLevel& level_;
  FastRandom random_;
  std::vector<std::vector<std::int32_t>> members_;  // vertices of every part
  std::vector<std::int32_t> net_number_;  // scratch: of a net in the pair at hand, -1; -2: one pin
  std::vector<std::int32_t> lonely_;      // scratch: nets with one pin in the pair
  std::size_t size_before_ = 0;
};

}  // namespace

void refine_pairs(HyperState& state, std::uint64_t seed) { PairwiseRefinement(state, seed).run(); }

}  // namespace contextile

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "partition/hypergraph/pair.h"

namespace contextile {
namespace {

constexpr int kMaxRounds = 3;
// Partners of a part in one round: those with which it shares the heaviest cut nets.
constexpr std::size_t kMostPartners = 12;
// Nets in more parts than this say little about which two of them belong together.
constexpr std::int32_t kLargestLambda = 64;

class PairwiseRefinement {
 public:
  PairwiseRefinement(HyperState& state, std::uint64_t seed)
      : state_(state),
        level_(state.level()),
        random_(seed),
        members_(state.problem().parts()),
        net_number_(level_.graph.nets()) {
    for (const VertexId v : level_.vertices()) members_[state.part(v)].push_back(v);
  }

  void run() {
    const IdRange<PartId> parts = state_.problem().parts();
    IdVector<PartId, bool> active(parts, true);
    for (int round = 0; round < kMaxRounds; ++round) {
      IdVector<PartId, bool> changed(parts, false);
      bool any = false;
      for (const auto& [a, b] : pairs()) {
        if (!active[a] && !active[b]) continue;
        if (!refine(a, b)) continue;
        changed[a] = changed[b] = any = true;
      }
      if (!any) return;
      active = std::move(changed);
    }
  }

 private:
  // Vertices of the level, indexed by their id inside a pair.
  using Members = IdVector<VertexId, VertexId>;

  // Returns pairs of parts that share cut nets, every part with its heaviest partners, in random
  // order.
  [[nodiscard]] std::vector<std::pair<PartId, PartId>> pairs() {
    const IdRange<PartId> parts = state_.problem().parts();
    IdVector<PartId, std::vector<NetId>> nets(parts);
    for (const NetId e : level_.graph.nets()) {
      const std::int32_t lambda = state_.counts().lambda(e);
      if (lambda < 2 || lambda > kLargestLambda) continue;
      state_.counts().for_each_part(e, [&](PartId p) { nets[p].push_back(e); });
    }
    std::vector<std::pair<PartId, PartId>> found;
    IdVector<PartId, std::int64_t> shared(parts, 0);
    std::vector<PartId> partners;
    for (const PartId p : parts) {
      partners.clear();
      for (const NetId e : nets[p]) {
        state_.counts().for_each_part(e, [&](PartId q) {
          if (q == p) return;
          if (shared[q] == 0) partners.push_back(q);
          shared[q] += level_.net_weight(e);
        });
      }
      std::sort(partners.begin(), partners.end(), [&](PartId a, PartId b) {
        return std::pair(-shared[a], a) < std::pair(-shared[b], b);
      });
      for (std::size_t i = 0; i < partners.size(); ++i) {
        if (i < kMostPartners) found.emplace_back(std::minmax(p, partners[i]));
        shared[partners[i]] = 0;
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    random_.shuffle(found);
    return found;
  }

  // Returns the level of two parts: their vertices, and the pins that nets have in them.
  [[nodiscard]] HyperLevel level_of(PartId a, PartId b, const Members& vertices) {
    HyperLevel pair;
    IdVector<NetId, NetId> nets;
    pair.vertex_offsets.push_back(0);
    for (const VertexId v : vertices) {
      pair.graph.vertex_weights.push_back(level_.weight(v));
      pair.fixed.push_back(level_.fixed[v]);
      for (const NetId e : level_.nets_of(v)) {
        NetId& number = net_number_[e];
        if (number == kUnseen) {
          const std::int32_t pins = state_.counts().count(e, a) + state_.counts().count(e, b);
          if (pins < 2) {
            number = kLonely;
            lonely_.push_back(e);
            continue;
          }
          number = nets.push_back(e);
          pair.graph.net_offsets.push_back(pair.graph.net_offsets.back() + pins);
          pair.graph.net_weights.push_back(level_.net_weight(e));
        }
        if (number.valid()) pair.nets.push_back(number);
      }
      pair.vertex_offsets.push_back(static_cast<std::int64_t>(pair.nets.size()));
    }
    pair.graph.pins.resize(pair.nets.size());
    IdVector<NetId, std::int64_t> next(
        std::vector(pair.graph.net_offsets.begin(), pair.graph.net_offsets.end() - 1));
    for (const VertexId i : pair.vertices()) {
      for (const NetId e : pair.nets_of(i)) {
        pair.graph.pins[static_cast<std::size_t>(next[e]++)] = i;
      }
    }
    for (const NetId e : nets) net_number_[e] = kUnseen;
    for (const NetId e : lonely_) net_number_[e] = kUnseen;
    lonely_.clear();
    return pair;
  }

  bool refine(PartId a, PartId b) {
    check_interrupt();
    std::vector<VertexId> both = members_[a];
    both.insert(both.end(), members_[b].begin(), members_[b].end());
    const Members vertices(std::move(both));
    const HyperLevel pair = level_of(a, b, vertices);
    HyperProblem problem;
    problem.num_parts = 2;
    problem.capacity = {state_.problem().room_of(a), state_.problem().room_of(b)};
    problem.per_compute = state_.problem().per_compute;
    problem.per_data = state_.problem().per_data;
    const IdVector<VertexId, PartId> given = sides_now(a, vertices);
    IdVector<VertexId, PartId> sides = given;
    if (!refine_pair(pair, problem, sides, random_)) return false;
    const double before = state_.score();
    const double overload = state_.overload();
    apply(a, b, vertices, sides);
    if (state_.problem().traffic_weight == 0 || state_.overload() < overload ||
        state_.score() < before) {
      return true;
    }
    // Connectivity is lower, but the busiest part is busier.
    apply(a, b, vertices, given);
    return false;
  }

  // Returns the sides of the vertices: part a is side 0, part b is side 1.
  [[nodiscard]] IdVector<VertexId, PartId> sides_now(PartId a, const Members& vertices) const {
    IdVector<VertexId, PartId> sides;
    for (const VertexId v : vertices) sides.push_back(PartId{state_.part(v) == a ? 0 : 1});
    return sides;
  }

  void apply(PartId a, PartId b, const Members& vertices, const IdVector<VertexId, PartId>& sides) {
    members_[a].clear();
    members_[b].clear();
    for (const VertexId i : vertices.ids()) {
      const PartId part = sides[i] == PartId{0} ? a : b;
      state_.move(vertices[i], part);
      members_[part].push_back(vertices[i]);
    }
  }

  HyperState& state_;
  const HyperLevel& level_;
  FastRandom random_;
  IdVector<PartId, std::vector<VertexId>> members_;
  // Scratch: for every net its id in the current pair, or one of these.
  static constexpr NetId kUnseen{-1};
  static constexpr NetId kLonely{-2};  // one pin in the pair
  IdVector<NetId, NetId> net_number_;
  std::vector<NetId> lonely_;  // scratch: nets with one pin in the pair
};

}  // namespace

void refine_pairs(HyperState& state, std::uint64_t seed) { PairwiseRefinement(state, seed).run(); }

}  // namespace contextile

#include "partition/hypergraph/graph_anneal.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/fast_random.h"
#include "base/interrupt.h"
#include "base/portable_math.h"

namespace contextile {
namespace {

constexpr std::int64_t kEpochs = 64;
constexpr int kSamples = 512;              // moves that the temperature is measured on
constexpr std::uint32_t kStrayOneIn = 32;  // moves that go to any part
constexpr std::uint32_t kGatherOneIn = 8;  // moves that gather a net's pins
constexpr std::size_t kLargestGather = 8;
constexpr int kSwapTries = 4;

// The cost in temperatures that a step may have, by a uniform draw: -ln of the middles of equal
// slices of (0, 1).
class Allowances {
 public:
  Allowances() {
    for (std::size_t i = 0; i < table_.size(); ++i) {
      table_[i] =
          -portable_log((static_cast<double>(i) + 0.5) / static_cast<double>(table_.size()));
    }
  }
  [[nodiscard]] double draw(FastRandom& random) const {
    return table_[random.next() & (table_.size() - 1)];
  }

 private:
  std::array<double, 1024> table_;
};

// The free vertices of every part, for random draws.
class Members {
 public:
  explicit Members(const HyperState& state)
      : members_(state.problem().parts()), place_(state.level().vertices(), 0) {
    for (const VertexId v : state.level().vertices()) {
      if (state.level().movable(v)) insert(v, state.part(v));
    }
  }
  [[nodiscard]] const std::vector<VertexId>& of(PartId part) const { return members_[part]; }
  void move(VertexId vertex, PartId from, PartId to) {
    std::vector<VertexId>& old = members_[from];
    const std::size_t place = place_[vertex];
    old[place] = old.back();
    place_[old[place]] = place;
    old.pop_back();
    insert(vertex, to);
  }

 private:
  void insert(VertexId vertex, PartId part) {
    std::vector<VertexId>& list = members_[part];
    place_[vertex] = list.size();
    list.push_back(vertex);
  }
  IdVector<PartId, std::vector<VertexId>> members_;
  IdVector<VertexId, std::size_t> place_;
};

class Annealer {
 public:
  Annealer(HyperState& state, std::uint64_t seed)
      : state_(state), level_(state.level()), random_(seed), members_(state) {
    for (const VertexId v : level_.vertices()) {
      if (level_.movable(v)) free_.push_back(v);
    }
  }

  void run(const HyperAnnealing& annealing) {
    if (free_.empty() || state_.problem().num_parts == 1) return;
    const double unit = mean_cost();
    const double cooling =
        portable_exp(portable_log(annealing.last_temperature / annealing.first_temperature) /
                     static_cast<double>(kEpochs - 1));
    temperature_ = unit * annealing.first_temperature;
    keep();
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const std::int64_t steps = annealing.steps / kEpochs + 1;
      for (std::int64_t i = 0; i < steps; ++i) {
        if (i % kStepsPerLook == 0) check_interrupt();
        step();
      }
      keep_if_better();
      temperature_ *= cooling;
    }
    restore_best();
  }

 private:
  static constexpr std::int64_t kStepsPerLook = 256;

  struct Proposal {
    VertexId vertex;
    NetId net;  // invalid: none
    PartId to;  // invalid: nothing to do
  };

  // Returns a pin of the net other than the vertex. Nets have two at least.
  [[nodiscard]] VertexId another_pin(NetId net, VertexId vertex) {
    const auto pins = level_.graph.pins_of(net);
    const auto i = static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(pins.size())));
    return pins[i] != vertex ? pins[i] : pins[i + 1 == pins.size() ? 0 : i + 1];
  }

  Proposal propose() {
    Proposal proposal = {random_.pick(free_), NetId{}, PartId{}};
    const auto nets = level_.nets_of(proposal.vertex);
    if (nets.empty() || random_.next() % kStrayOneIn == 0) {
      proposal.to = PartId{random_.below(state_.problem().num_parts)};
    } else {
      proposal.net = random_.pick(nets);
      proposal.to = state_.part(another_pin(proposal.net, proposal.vertex));
    }
    if (proposal.to == state_.part(proposal.vertex)) proposal.to = PartId{};
    return proposal;
  }

  // Returns the mean absolute cost of moves that cost or gain something.
  double mean_cost() {
    double sum = 0;
    int counted = 0;
    for (int i = 0; i < kSamples; ++i) {
      const Proposal proposal = propose();
      if (!proposal.to.valid()) continue;
      const double cost = std::abs(state_.delta(proposal.vertex, proposal.to).total());
      if (cost == 0) continue;
      sum += cost;
      ++counted;
    }
    return counted == 0 ? 1 : sum / counted;
  }

  [[nodiscard]] bool accepts(double cost) {
    return cost <= 0 || cost <= temperature_ * allowances_.draw(random_);
  }

  void move(VertexId vertex, PartId to) {
    members_.move(vertex, state_.part(vertex), to);
    state_.move(vertex, to);
  }

  void step() {
    const Proposal proposal = propose();
    if (!proposal.to.valid()) return;
    if (proposal.net.valid() && random_.next() % kGatherOneIn == 0) {
      gather(proposal);
    } else if (state_.has_room(proposal.vertex, proposal.to)) {
      const PartId from = state_.part(proposal.vertex);
      const bool relieves = !fits(state_.part_weight(from), state_.problem().room_of(from)) &&
                            state_.overload_delta(proposal.vertex, proposal.to) < 0;
      if (relieves || accepts(state_.delta(proposal.vertex, proposal.to).total())) {
        move(proposal.vertex, proposal.to);
      }
    } else {
      swap(proposal);
    }
  }

  // Returns true if each of the two parts would fit, or at least not hold more than now in either
  // dimension.
  [[nodiscard]] bool swap_fits(VertexId v, VertexId u) const {
    const HyperWeight difference = level_.weight(u) - level_.weight(v);
    const auto allowed = [this](PartId part, HyperWeight change) {
      const HyperWeight now = state_.part_weight(part);
      const HyperWeight then = now + change;
      const HyperWeight room = state_.problem().room_of(part);
      return then.compute <= std::max(now.compute, room.compute) &&
             then.data <= std::max(now.data, room.data);
    };
    return allowed(state_.part(v), difference) &&
           allowed(state_.part(u), HyperWeight{} - difference);
  }

  void swap(const Proposal& proposal) {
    const std::vector<VertexId>& others = members_.of(proposal.to);
    if (others.empty()) return;
    for (int attempt = 0; attempt < kSwapTries; ++attempt) {
      const VertexId u = random_.pick(others);
      if (!swap_fits(proposal.vertex, u)) continue;
      const PartId from = state_.part(proposal.vertex);
      // The second cost is measured after the first move, because the two may share nets.
      const double first = state_.delta(proposal.vertex, proposal.to).total();
      state_.move(proposal.vertex, proposal.to);
      const double cost = first + state_.delta(u, from).total();
      state_.move(proposal.vertex, from);
      if (!accepts(cost)) return;
      move(proposal.vertex, proposal.to);
      move(u, from);
      return;
    }
  }

  // Moves the net's pins in the vertex's part together, as far as they fit.
  void gather(const Proposal& proposal) {
    const PartId from = state_.part(proposal.vertex);
    double cost = 0;
    gathered_.clear();
    for (const VertexId u : level_.graph.pins_of(proposal.net)) {
      if (state_.part(u) != from || !level_.movable(u)) continue;
      if (!state_.has_room(u, proposal.to)) continue;
      cost += state_.delta(u, proposal.to).total();
      state_.move(u, proposal.to);
      gathered_.push_back(u);
      if (gathered_.size() == kLargestGather) break;
    }
    const bool accepted = !gathered_.empty() && accepts(cost);
    for (const VertexId u : gathered_) {
      if (accepted) {
        members_.move(u, from, proposal.to);
      } else {
        state_.move(u, from);
      }
    }
  }

  void keep() {
    best_ = state_.parts();
    best_rank_ = {state_.overload(), state_.score()};
  }
  void keep_if_better() {
    if (std::pair(state_.overload(), state_.score()) < best_rank_) keep();
  }
  void restore_best() {
    for (const VertexId v : free_) state_.move(v, best_[v]);
  }

  HyperState& state_;
  const HyperLevel& level_;
  FastRandom random_;
  Members members_;
  Allowances allowances_;
  std::vector<VertexId> free_;
  std::vector<VertexId> gathered_;
  double temperature_ = 0;
  IdVector<VertexId, PartId> best_;
  std::pair<double, double> best_rank_;  // overload, score
};

}  // namespace

void anneal(HyperState& state, const HyperAnnealing& annealing) {
  Annealer(state, annealing.seed).run(annealing);
}

}  // namespace contextile

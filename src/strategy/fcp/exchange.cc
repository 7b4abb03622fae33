#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "strategy/fcp/fcp_traffic.h"

namespace contextile {
namespace {

// Shards at their positions, improved by single moves and swaps.
class ShardExchange {
 public:
  ShardExchange(std::span<const Shard> shards, const PlacementLimit& limit, std::int64_t load_limit,
                std::int32_t num_positions, ShardTraffic& traffic)
      : shards_(shards),
        by_tokens_(limit.tokens.has_value()),
        load_limit_(load_limit),
        traffic_(traffic),
        at_(static_cast<std::size_t>(num_positions)),
        load_(at_.size()),
        room_(at_.size(), limit.tokens.value_or(limit.slots(shards.size(), num_positions))),
        updates_left_(kUpdatesPerRead * static_cast<std::int64_t>(traffic.num_reads())) {
    for (std::size_t s = 0; s < shards.size(); ++s) {
      if (traffic.position(s) != ShardTraffic::kNowhere) enter(s, traffic.position(s));
    }
  }

  // Places all shards, none of which may be placed yet. Shards go home as long as the load limit
  // allows, the cheapest first, because these have the most tokens for their work. The others,
  // heaviest first, go where they cause the least traffic within the limit. Returns false if one
  // fits nowhere.
  [[nodiscard]] bool keep_at_home() {
    std::vector<std::size_t> order(shards_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return shards_[a].cost < shards_[b].cost;
    });
    std::vector<std::size_t> away;
    for (const std::size_t s : order) {
      if (!fits(shards_[s].home, s, nullptr)) {
        away.push_back(s);
        continue;
      }
      place(s, shards_[s].home);
      enter(s, shards_[s].home);
    }
    for (auto s = away.rbegin(); s != away.rend(); ++s) {
      const std::optional<std::int32_t> position = least_traffic(*s);
      if (!position) return false;
      place(*s, *position);
      enter(*s, *position);
    }
    return true;
  }

  // Moves and swaps single shards until no position is above the load limit or none of them helps.
  // Returns true if no position is above the limit.
  [[nodiscard]] bool level() {
    while (level_once()) {
    }
    return *std::max_element(load_.begin(), load_.end()) <= load_limit_;
  }

  // Relieves the busiest position until it finds no other to exchange a shard with, or until the
  // search has cost enough.
  void even() {
    for (;;) {
      std::int32_t busiest = 0;
      for (std::int32_t p = 1; p < num_positions(); ++p) {
        if (traffic_.bytes(p) > traffic_.bytes(busiest)) busiest = p;
      }
      if (!relieve(busiest)) return;
    }
  }

 private:
  struct Leveling {  // a shard to another position, and perhaps one back
    std::size_t shard = 0;
    std::optional<std::size_t> back;
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::int64_t load = 0;  // the larger load of the two afterwards, at least the limit
    double unevenness = 0;

    [[nodiscard]] std::pair<std::int64_t, double> key() const { return {load, unevenness}; }
  };

  static constexpr std::int64_t kUpdatesPerRead = 300;  // traffic updates that a search may cost
  static constexpr std::size_t kLightest = 8;           // positions that may relieve a heavy one
  static constexpr double kLeastGain = 1e-3;  // of the fourth power of the busiest position's bytes

  static std::size_t index(std::int32_t position) { return static_cast<std::size_t>(position); }
  [[nodiscard]] std::int32_t num_positions() const { return static_cast<std::int32_t>(at_.size()); }

  [[nodiscard]] std::int64_t needed(std::size_t s, std::int32_t position) const {
    if (by_tokens_) return shards_[s].tokens;
    return shards_[s].home == position ? 0 : 1;
  }

  void enter(std::size_t s, std::int32_t position) {
    at_[index(position)].insert({shards_[s].cost, s});
    load_[index(position)] += shards_[s].cost;
    room_[index(position)] -= needed(s, position);
  }
  void leave(std::size_t s, std::int32_t position) {
    at_[index(position)].erase({shards_[s].cost, s});
    load_[index(position)] -= shards_[s].cost;
    room_[index(position)] += needed(s, position);
  }
  void place(std::size_t s, std::int32_t position) {
    updates_left_ -= static_cast<std::int64_t>(traffic_.num_reads(s));
    traffic_.place(s, position);
  }

  // Returns the position where a shard that is not placed causes the least traffic within the
  // limits. If it fits nowhere, that is the least loaded position with room.
  [[nodiscard]] std::optional<std::int32_t> least_traffic(std::size_t s) {
    std::optional<std::int32_t> best;
    double least = 0;
    for (std::int32_t p = 0; p < num_positions(); ++p) {
      if (!fits(p, s, nullptr)) continue;
      place(s, p);
      if (!best || traffic_.unevenness() < least) {
        best = p;
        least = traffic_.unevenness();
      }
      traffic_.take(s);
    }
    if (best) return best;
    for (std::int32_t p = 0; p < num_positions(); ++p) {
      if (room_[index(p)] < needed(s, p)) continue;
      if (!best || load_[index(p)] < load_[index(*best)]) best = p;
    }
    return best;
  }

  // Applies the swap with one of the least loaded positions, or the move there, that takes most off
  // the most loaded one, down to the limit; of equals, the one with the least traffic. Returns
  // false if there is none.
  bool level_once() {
    const auto heaviest =
        static_cast<std::int32_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
    if (load_[index(heaviest)] <= load_limit_) return false;
    std::optional<Leveling> best;
    for (const std::int32_t to : least_loaded()) {
      if (to == heaviest) continue;
      for (const auto& [cost, s] : at_[index(heaviest)]) {
        consider({.shard = s, .back = std::nullopt, .from = heaviest, .to = to}, best);
        for (const auto& [back_cost, back] : at_[index(to)]) {
          if (back_cost >= cost) break;
          consider({.shard = s, .back = back, .from = heaviest, .to = to}, best);
        }
      }
    }
    if (!best) return false;
    swap(*best);
    leave(best->shard, heaviest);
    enter(best->shard, best->to);
    if (best->back) {
      leave(*best->back, best->to);
      enter(*best->back, heaviest);
    }
    return true;
  }

  [[nodiscard]] std::vector<std::int32_t> least_loaded() const {
    std::vector<std::int32_t> positions(at_.size());
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(), [&](std::int32_t a, std::int32_t b) {
      return load_[index(a)] < load_[index(b)];
    });
    positions.resize(std::min(positions.size(), kLightest));
    return positions;
  }

  void consider(Leveling leveling, std::optional<Leveling>& best) {
    const auto [s, back, from, to] =
        std::tuple(leveling.shard, leveling.back, leveling.from, leveling.to);
    const std::int64_t change = shards_[s].cost - (back ? shards_[*back].cost : 0);
    leveling.load = std::max({load_[index(from)] - change, load_[index(to)] + change, load_limit_});
    if (change <= 0 || leveling.load >= load_[index(from)]) return;
    if (best && leveling.load > best->load) return;
    if (room_[index(to)] + (back ? needed(*back, to) : 0) < needed(s, to)) return;
    if (back && room_[index(from)] + needed(s, from) < needed(*back, from)) return;
    if (updates_left_ > 0) {
      swap(leveling);
      leveling.unevenness = traffic_.unevenness();
      swap({.shard = s, .back = back, .from = to, .to = from});
    }
    if (!best || leveling.key() < best->key()) best = leveling;
  }

  void swap(const Leveling& leveling) {
    traffic_.take(leveling.shard);
    if (leveling.back) traffic_.take(*leveling.back);
    place(leveling.shard, leveling.to);
    if (leveling.back) place(*leveling.back, leveling.from);
  }

  // Returns true if a position has room for a shard that comes in while one (or none) leaves.
  [[nodiscard]] bool fits(std::int32_t position, std::size_t in, const std::size_t* out) const {
    const std::int64_t change = shards_[in].cost - (out != nullptr ? shards_[*out].cost : 0);
    const std::int64_t freed = out != nullptr ? needed(*out, position) : 0;
    return room_[index(position)] + freed >= needed(in, position) &&
           (change <= 0 || load_[index(position)] + change <= load_limit_);
  }

  // Returns the other positions, least busy first.
  [[nodiscard]] std::vector<std::int32_t> others(std::int32_t position) const {
    std::vector<std::int32_t> result;
    for (std::int32_t p = 0; p < num_positions(); ++p) {
      if (p != position) result.push_back(p);
    }
    std::stable_sort(result.begin(), result.end(), [&](std::int32_t a, std::int32_t b) {
      return traffic_.bytes(a) < traffic_.bytes(b);
    });
    return result;
  }

  // Makes the first exchange of a shard with another position that lowers the unevenness enough.
  bool relieve(std::int32_t position) {
    const std::int64_t bytes = traffic_.bytes(position);
    const double square = static_cast<double>(bytes) * static_cast<double>(bytes);
    const double goal = traffic_.unevenness() - kLeastGain * square * square;
    const std::vector<std::int32_t> by_bytes = others(position);
    const std::vector<std::pair<std::int64_t, std::size_t>> here(at_[index(position)].begin(),
                                                                 at_[index(position)].end());
    for (const auto& [cost, s] : here) {
      if (updates_left_ <= 0) return false;
      traffic_.take(s);
      if (traffic_.bytes(position) < bytes) {
        for (const std::int32_t other : by_bytes) {
          if (exchange(s, position, other, goal)) return true;
        }
      }
      place(s, position);
    }
    return false;
  }

  // Moves the shard, which is not placed, to another position; one of about its cost may come back.
  // If that does not reach the goal, all other shards stay in place.
  bool exchange(std::size_t s, std::int32_t from, std::int32_t to, double goal) {
    leave(s, from);
    bool is_better = false;
    const std::int64_t cost = shards_[s].cost;
    if (fits(to, s, nullptr)) {
      place(s, to);
      is_better = traffic_.unevenness() <= goal;
      if (!is_better) traffic_.take(s);
    }
    const auto& there = at_[index(to)];
    const std::int64_t least = cost - std::max<std::int64_t>(0, load_limit_ - load_[index(to)]);
    for (auto it = there.lower_bound({least, 0}); it != there.end() && !is_better; ++it) {
      const std::size_t back = it->second;
      if (it->first > cost && load_[index(from)] + it->first > load_limit_) break;
      if (!fits(to, s, &back) || !fits(from, back, nullptr)) continue;
      traffic_.take(back);
      place(s, to);
      place(back, from);
      is_better = traffic_.unevenness() <= goal;
      if (is_better) {
        leave(back, to);
        enter(back, from);
        break;
      }
      traffic_.take(back);
      traffic_.take(s);
      place(back, to);
    }
    enter(s, is_better ? to : from);
    return is_better;
  }

  std::span<const Shard> shards_;
  bool by_tokens_;
  std::int64_t load_limit_;
  ShardTraffic& traffic_;
  std::vector<std::set<std::pair<std::int64_t, std::size_t>>> at_;  // (cost, shard) of positions
  std::vector<std::int64_t> load_;
  std::vector<std::int64_t> room_;  // tokens or slots
  std::int64_t updates_left_;
};

}  // namespace

bool keep_at_home(std::span<const Shard> shards, const PlacementLimit& limit,
                  std::int64_t load_limit, std::int32_t num_positions, ShardTraffic& traffic) {
  ShardExchange exchange(shards, limit, load_limit, num_positions, traffic);
  return exchange.keep_at_home() && exchange.level();
}

void level_loads(std::span<const Shard> shards, const PlacementLimit& limit,
                 std::int64_t load_limit, std::int32_t num_positions, ShardTraffic& traffic) {
  static_cast<void>(ShardExchange(shards, limit, load_limit, num_positions, traffic).level());
}

void even_traffic(std::span<const Shard> shards, const PlacementLimit& limit,
                  std::int64_t load_limit, std::int32_t num_positions, ShardTraffic& traffic) {
  ShardExchange(shards, limit, load_limit, num_positions, traffic).even();
}

}  // namespace contextile

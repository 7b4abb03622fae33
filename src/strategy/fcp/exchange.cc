#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/interrupt.h"
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

  // Moves and swaps shards, one or two at a time, until no position is above the load limit or none
  // of that helps. Returns true if no position is above the limit.
  [[nodiscard]] bool level() {
    while (level_once()) {
    }
    return *std::max_element(load_.begin(), load_.end()) <= load_limit_;
  }

  // Relieves the busiest position, or else one of the next, until none of these finds shards to
  // exchange with another position, or until the search has cost enough.
  void even() {
    while (updates_left_ > 0) {
      const std::vector<std::int32_t> positions = busiest();
      if (std::none_of(positions.begin(), positions.end(), [&](std::int32_t position) {
            return relieve(position) || relieve_by_pairs(position);
          })) {
        return;
      }
    }
  }

 private:
  // One or two shards of a position.
  struct Group {
    std::size_t first = 0;
    std::optional<std::size_t> second;
    std::int64_t cost = 0;
  };

  struct Leveling {  // a group to another position, and perhaps one back
    Group group;
    std::optional<Group> back;
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::int64_t load = 0;  // the larger load of the two afterwards, at least the limit
    double unevenness = 0;

    [[nodiscard]] std::pair<std::int64_t, double> key() const { return {load, unevenness}; }
  };

  static constexpr std::int64_t kUpdatesPerRead = 300;  // traffic updates that a search may cost
  static constexpr std::size_t kLightest = 8;           // positions that may relieve a heavy one
  static constexpr std::size_t kMostPaired = 40;        // shards of a position that go in pairs
  static constexpr std::size_t kBusiest = 5;            // positions that are relieved
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
  void change_position(const Group& group, std::int32_t from, std::int32_t to) {
    leave(group.first, from);
    enter(group.first, to);
    if (group.second) {
      leave(*group.second, from);
      enter(*group.second, to);
    }
  }
  [[nodiscard]] std::int64_t needed(const Group& group, std::int32_t position) const {
    return needed(group.first, position) + (group.second ? needed(*group.second, position) : 0);
  }

  void place(std::size_t s, std::int32_t position) {
    updates_left_ -= static_cast<std::int64_t>(traffic_.num_reads(s));
    traffic_.place(s, position);
  }
  void place(const Group& group, std::int32_t position) {
    place(group.first, position);
    if (group.second) place(*group.second, position);
  }
  void take(const Group& group) {
    traffic_.take(group.first);
    if (group.second) traffic_.take(*group.second);
  }

  // Returns the position where a shard that is not placed causes the least traffic within the
  // limits. If it fits nowhere, that is the least loaded position with room.
  [[nodiscard]] std::optional<std::int32_t> least_traffic(std::size_t s) {
    std::optional<std::int32_t> best;
    double least = 0;
    for (std::int32_t p = 0; p < num_positions(); ++p) {
      if (!fits(p, s, nullptr)) continue;
      check_interrupt();
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

  // Applies the swap with one of the least loaded positions, or the move there, that takes most
  // off the most loaded one, down to the limit; of equals, the one with the least traffic. Two
  // shards go together only if that is the only way. Returns false if there is none.
  bool level_once() {
    const auto heaviest =
        static_cast<std::int32_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
    if (load_[index(heaviest)] <= load_limit_) return false;
    std::optional<Leveling> best = best_leveling(heaviest, 1);
    if (!best) best = best_leveling(heaviest, 2);
    if (!best) return false;
    swap(*best);
    change_position(best->group, heaviest, best->to);
    if (best->back) change_position(*best->back, best->to, heaviest);
    return true;
  }

  [[nodiscard]] std::optional<Leveling> best_leveling(std::int32_t heaviest, std::size_t size) {
    std::optional<Leveling> best;
    const std::vector<Group> here = groups_at(heaviest, size);
    for (const std::int32_t to : least_loaded()) {
      check_interrupt();
      if (to == heaviest) continue;
      const std::vector<Group> there = groups_at(to, size);
      for (const Group& group : here) {
        consider({.group = group, .back = std::nullopt, .from = heaviest, .to = to}, best);
        for (const Group& back : there) {
          if (back.cost >= group.cost) break;
          consider({.group = group, .back = back, .from = heaviest, .to = to}, best);
        }
      }
    }
    return best;
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
    const std::optional<Group>& back = leveling.back;
    const std::size_t from = index(leveling.from);
    const std::size_t to = index(leveling.to);
    const std::int64_t change = leveling.group.cost - (back ? back->cost : 0);
    leveling.load = std::max({load_[from] - change, load_[to] + change, load_limit_});
    if (change <= 0 || leveling.load >= load_[from]) return;
    if (best && leveling.load > best->load) return;
    if (!has_room(leveling.group, back, leveling.from, leveling.to)) return;
    if (updates_left_ > 0) {
      swap(leveling);
      leveling.unevenness = traffic_.unevenness();
      swap({.group = leveling.group, .back = back, .from = leveling.to, .to = leveling.from});
    }
    if (!best || leveling.key() < best->key()) best = leveling;
  }

  // Returns true if both positions have room after a group has gone and perhaps another come back.
  [[nodiscard]] bool has_room(const Group& group, const std::optional<Group>& back,
                              std::int32_t from, std::int32_t to) const {
    if (room_[index(to)] + (back ? needed(*back, to) : 0) < needed(group, to)) return false;
    return !back || room_[index(from)] + needed(group, from) >= needed(*back, from);
  }

  void swap(const Leveling& leveling) {
    take(leveling.group);
    if (leveling.back) take(*leveling.back);
    place(leveling.group, leveling.to);
    if (leveling.back) place(*leveling.back, leveling.from);
  }

  // Returns true if a position has room for a shard that comes in while one (or none) leaves.
  [[nodiscard]] bool fits(std::int32_t position, std::size_t in, const std::size_t* out) const {
    const std::int64_t change = shards_[in].cost - (out != nullptr ? shards_[*out].cost : 0);
    const std::int64_t freed = out != nullptr ? needed(*out, position) : 0;
    return room_[index(position)] + freed >= needed(in, position) &&
           (change <= 0 || load_[index(position)] + change <= load_limit_);
  }

  [[nodiscard]] std::vector<std::int32_t> busiest() const {
    std::vector<std::int32_t> positions(at_.size());
    std::iota(positions.begin(), positions.end(), 0);
    std::stable_sort(positions.begin(), positions.end(), [&](std::int32_t a, std::int32_t b) {
      return traffic_.bytes(a) > traffic_.bytes(b);
    });
    positions.resize(std::min(positions.size(), kBusiest));
    return positions;
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

  // The unevenness that is worth an exchange with a position.
  [[nodiscard]] double goal_of(std::int32_t position) const {
    const auto bytes = static_cast<double>(traffic_.bytes(position));
    return traffic_.unevenness() - kLeastGain * bytes * bytes * bytes * bytes;
  }

  // Makes the first exchange of a shard with another position that lowers the unevenness enough.
  bool relieve(std::int32_t position) {
    const std::int64_t bytes = traffic_.bytes(position);
    const double goal = goal_of(position);
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

  // Returns all groups of at most `size` shards, by cost. A position with many shards has no pairs,
  // because single ones are fine enough.
  [[nodiscard]] std::vector<Group> groups_at(std::int32_t position, std::size_t size) const {
    std::vector<Group> groups;
    const auto& here = at_[index(position)];
    const bool with_pairs = size > 1 && here.size() <= kMostPaired;
    for (auto first = here.begin(); first != here.end(); ++first) {
      groups.push_back({first->second, std::nullopt, first->first});
      for (auto second = here.begin(); with_pairs && second != first; ++second) {
        groups.push_back({first->second, second->second, first->first + second->first});
      }
    }
    std::ranges::stable_sort(groups, {}, &Group::cost);
    return groups;
  }

  // Like relieve(), where two shards go, or come back, or both.
  bool relieve_by_pairs(std::int32_t position) {
    const std::int64_t bytes = traffic_.bytes(position);
    const double goal = goal_of(position);
    const std::vector<Group> here = groups_at(position, 2);
    for (const std::int32_t other : others(position)) {
      check_interrupt();
      const std::vector<Group> there = groups_at(other, 2);
      for (const Group& group : here) {
        if (updates_left_ <= 0) return false;
        take(group);
        if (traffic_.bytes(position) < bytes && exchange(group, there, position, other, goal)) {
          return true;
        }
        place(group, position);
      }
    }
    return false;
  }

  // Exchanges a group, which is not placed, for the cheapest of another position with which that
  // reaches the goal. If there is none, all other shards stay in place.
  bool exchange(const Group& group, std::span<const Group> there, std::int32_t from,
                std::int32_t to, double goal) {
    const auto slack = [this](std::int32_t position) {
      return std::max<std::int64_t>(0, load_limit_ - load_[index(position)]);
    };
    const std::int64_t least = group.cost - slack(to);
    const std::int64_t most = group.cost + slack(from);
    for (auto back = std::ranges::lower_bound(there, least, {}, &Group::cost);
         back != there.end() && back->cost <= most; ++back) {
      if (!group.second && !back->second) continue;  // relieve() has tried it
      if (!has_room(group, *back, from, to)) continue;
      take(*back);
      place(group, to);
      place(*back, from);
      if (traffic_.unevenness() <= goal) {
        change_position(group, from, to);
        change_position(*back, to, from);
        return true;
      }
      take(group);
      take(*back);
      place(*back, to);
    }
    return false;
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

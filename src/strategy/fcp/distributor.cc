#include "strategy/fcp/distributor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "contextile/mask.h"
#include "strategy/fcp/fcp_traffic.h"

namespace contextile {
namespace {

// Bins of equal capacity that appear when first needed. Finds the first bin with room in
// O(log bins).
class FirstFit {
 public:
  FirstFit(std::size_t max_bins, std::int64_t capacity) {
    while (leaves_ < max_bins) leaves_ *= 2;
    room_.assign(2 * leaves_, capacity);
  }

  std::size_t place(std::int64_t size) {
    std::size_t node = 1;
    while (node < leaves_) node = room_[2 * node] >= size ? 2 * node : 2 * node + 1;
    const std::size_t bin = node - leaves_;
    room_[node] -= size;
    for (node /= 2; node > 0; node /= 2) {
      room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    }
    return bin;
  }

 private:
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> room_;  // a tree of maxima; leaf of bin b: leaves_ + b
};

// The homes of tokens, as positions of several devices.
class Homes {
 public:
  Homes(const Workload& workload, std::int32_t members)
      : ranges_(workload.home), members_(members) {}

  [[nodiscard]] bool any() const { return !ranges_.empty(); }

  // Returns the number of tokens at every position where some of the ranges live.
  [[nodiscard]] std::map<std::int32_t, std::int64_t> tokens(std::span<const Range> ranges) const {
    std::map<std::int32_t, std::int64_t> at;
    for (const Range& range : ranges) {
      for (auto home = first_after(range.begin);
           home != ranges_.end() && home->tokens.begin < range.end; ++home) {
        at[home->owner.value / members_] +=
            std::min(home->tokens.end, range.end) - std::max(home->tokens.begin, range.begin);
      }
    }
    return at;
  }

  // Returns the last end of a home in [first, last], or `last` if there is none.
  [[nodiscard]] std::int64_t last_end(std::int64_t first, std::int64_t last) const {
    if (!any()) return last;
    const std::int64_t begin = first_after(last - 1)->tokens.begin;
    return begin >= first && first_after(last - 1)->tokens.end != last ? begin : last;
  }

 private:
  [[nodiscard]] std::span<const HomeRange>::iterator first_after(std::int64_t token) const {
    return std::partition_point(ranges_.begin(), ranges_.end(),
                                [&](const HomeRange& h) { return h.tokens.end <= token; });
  }

  std::span<const HomeRange> ranges_;
  std::int32_t members_;
};

// Returns the home of most tokens (ties: the first) and the number of these tokens.
std::pair<std::int32_t, std::int64_t> home_of(const Homes& homes, std::span<const Range> ranges) {
  std::pair<std::int32_t, std::int64_t> most{-1, 0};
  for (const auto& [position, tokens] : homes.tokens(ranges)) {
    if (tokens > most.second) most = {position, tokens};
  }
  return most;
}

void pack_short_documents(std::span<const Range> documents, std::int64_t block,
                          std::vector<Shard>& out) {
  std::vector<Range> by_length(documents.begin(), documents.end());
  std::stable_sort(by_length.begin(), by_length.end(),
                   [](const Range& a, const Range& b) { return a.size() > b.size(); });
  FirstFit bins(by_length.size(), block);
  const std::size_t first = out.size();
  for (const Range& document : by_length) {
    const std::size_t bin = first + bins.place(document.size());
    if (bin == out.size()) out.emplace_back();
    out[bin].ranges.push_back(document);
    out[bin].tokens += document.size();
  }
  for (std::size_t s = first; s < out.size(); ++s) {
    std::sort(out[s].ranges.begin(), out[s].ranges.end());
  }
}

// Cuts off the first `tokens` tokens of a shard; the shard keeps the rest. Cost is divided by
// tokens.
Shard cut_front(Shard& shard, std::int64_t tokens) {
  Shard front;
  front.document = shard.document;
  front.home = shard.home;
  front.tokens_at_home = std::min(tokens, shard.tokens_at_home);
  shard.tokens_at_home -= front.tokens_at_home;
  front.tokens = tokens;
  front.cost =
      static_cast<std::int64_t>(static_cast<double>(shard.cost) * static_cast<double>(tokens) /
                                static_cast<double>(shard.tokens));
  std::vector<Range> rest;
  for (const Range& range : shard.ranges) {
    const std::int64_t taken = std::min(tokens, range.size());
    tokens -= taken;
    if (taken > 0) front.ranges.push_back({range.begin, range.begin + taken});
    if (taken < range.size()) rest.push_back({range.begin + taken, range.end});
  }
  shard.ranges = std::move(rest);
  shard.tokens -= front.tokens;
  shard.cost -= front.cost;
  return front;
}

void sort_by_token(std::vector<PlacedShard>& placed) {
  std::sort(placed.begin(), placed.end(), [](const PlacedShard& a, const PlacedShard& b) {
    return a.shard.ranges.front().begin < b.shard.ranges.front().begin;
  });
}

// Positions ordered by load, with the room that each has left: in shards or in tokens.
class Placer {
 public:
  Placer(std::span<const Shard> shards, std::int32_t num_positions, const PlacementLimit& limit)
      : by_tokens_(limit.tokens.has_value()) {
    room_.assign(static_cast<std::size_t>(num_positions),
                 limit.tokens.value_or(limit.slots(shards.size(), num_positions)));
    for (std::int32_t p = 0; p < num_positions; ++p) open_.emplace(0, p);
    double total = 0;
    for (const Shard& shard : shards) total += static_cast<double>(shard.cost);
    load_limit_ = kPairOverload * total / num_positions;
  }

  // Places the shards together on the least loaded position that has room for them. Returns false
  // if there is none, or if several shards would overload it.
  [[nodiscard]] bool place(std::span<const Shard* const> shards) {
    std::int64_t needed = 0;
    std::int64_t cost = 0;
    for (const Shard* shard : shards) {
      needed += by_tokens_ ? shard->tokens : 1;
      cost += shard->cost;
    }
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      const auto [load, position] = *it;
      std::int64_t& room = room_[static_cast<std::size_t>(position)];
      if (room < needed) continue;
      if (shards.size() > 1 && static_cast<double>(load + cost) > load_limit_) return false;
      room -= needed;
      open_.erase(it);
      if (room > 0) open_.emplace(load + cost, position);
      for (const Shard* shard : shards) placed_.push_back({*shard, position});
      return true;
    }
    return false;
  }

  void place_in_pieces(Shard shard) {
    for (;;) {
      const Shard* const whole = &shard;
      if (place({&whole, 1})) return;
      const std::int64_t most = *std::max_element(room_.begin(), room_.end());
      CONTEXTILE_CHECK(by_tokens_ && most > 0,
                       "placement: expected room for all shards, found none for {} tokens",
                       shard.tokens);
      const Shard front = cut_front(shard, most);
      const Shard* const piece = &front;
      CONTEXTILE_CHECK(place({&piece, 1}), "placement: expected room for {} tokens", most);
    }
  }

  [[nodiscard]] std::vector<PlacedShard> take() {
    sort_by_token(placed_);
    return std::move(placed_);
  }

 private:
  static constexpr double kPairOverload = 1.02;  // of the mean load

  bool by_tokens_;
  double load_limit_ = 0;                                 // for shards placed together
  std::vector<std::int64_t> room_;                        // of every position
  std::set<std::pair<std::int64_t, std::int32_t>> open_;  // (load, position) of those with room
  std::vector<PlacedShard> placed_;
};

// Decides which member of a position owns which of its shards, by tokens.
std::vector<PlacedShard> place_on_members(const std::vector<Shard>& shards,
                                          const FcpDistribution& distribution,
                                          const PlacementLimit& limit) {
  std::vector<Shard> by_tokens = shards;
  std::vector<ShardUnit> singles;
  for (std::size_t s = 0; s < by_tokens.size(); ++s) {
    by_tokens[s].cost = by_tokens[s].tokens;
    singles.push_back({{s}, by_tokens[s].cost});
  }
  return place_shards(by_tokens, singles, distribution.head_parallel, limit);
}

// The cost of every shard's queries under one mask.
std::vector<double> shard_costs(const TileIndex& index, const AttentionProfile* profile,
                                std::size_t num_shards) {
  std::vector<double> costs(num_shards);
  if (profile == nullptr) {
    for (const Tile& tile : index.tiles()) {
      costs[tile.q_block.index()] += static_cast<double>(tile.pairs);
    }
    return costs;
  }
  // A kernel goes through all keys of the same queries at once.
  std::map<std::tuple<std::size_t, std::int64_t, std::int64_t>, double> computed_of;
  auto last = computed_of.end();  // mostly that of the next piece, too
  std::vector<TilePiece> pieces;
  for (const Tile& tile : index.tiles()) {
    pieces.clear();
    index.append_pieces(tile.q_block, tile.kv_block, pieces);
    for (const TilePiece& piece : pieces) {
      const std::tuple run(tile.q_block.index(), piece.q.begin, piece.q.end);
      if (last == computed_of.end() || last->first != run) {
        last = computed_of.try_emplace(run).first;
      }
      last->second += profile->computed_pairs(piece.q.size(), piece.keys, piece.pairs);
    }
  }
  const AttentionShares shares(*profile);
  for (const auto& [run, computed] : computed_of) {
    const auto [shard, begin, end] = run;
    const auto rows = static_cast<double>(end - begin);
    costs[shard] += computed / shares.forward(rows, computed / rows);
  }
  return costs;
}

// The largest share of the mean load that a pair of blocks may cost before its document is cut.
constexpr double kHeaviestPair = 1.0 / 3;
constexpr std::int64_t kLeastHeavyTokens = 1024;  // of a block of such a document

// Pairs of a document that costs so many times the heaviest pair. If a third of the positions get
// one, all get equally many, so that their traffic is even.
std::int64_t num_equal_pairs(double heaviest_pairs, std::int32_t num_positions) {
  const auto pairs = static_cast<std::int64_t>(std::ceil(heaviest_pairs));
  if (3 * pairs < num_positions) return pairs;
  return (pairs + num_positions - 1) / num_positions * num_positions;
}

}  // namespace

void cost_shards(const Workload& workload, const AttentionProfile* profile,
                 std::vector<Shard>& shards) {
  Blocking rows;
  for (Shard& shard : shards) {
    rows.add(shard.ranges);
    shard.cost = 0;
  }
  for (const NamedMask& mask : workload.masks) {
    const std::vector<double> costs =
        shard_costs(TileIndex(mask.mask, rows), profile, shards.size());
    for (std::size_t s = 0; s < shards.size(); ++s) {
      shards[s].cost += std::llround(costs[s]) * mask.layers;
    }
  }
}

std::vector<Shard> cut_heavy_documents(const Workload& workload, std::vector<Shard> shards,
                                       std::int32_t num_positions,
                                       const AttentionProfile* profile) {
  double total = 0;
  for (const Shard& shard : shards) total += static_cast<double>(shard.cost);
  if (num_positions == 1 || total == 0) return shards;
  const double heaviest_pair = kHeaviestPair * total / num_positions;
  std::vector<Shard> parts;
  bool is_cut = false;
  for (std::size_t begin = 0; begin < shards.size();) {
    std::size_t end = begin;
    double cost = 0;
    for (; end < shards.size() && shards[end].document == shards[begin].document; ++end) {
      cost += static_cast<double>(shards[end].cost);
    }
    const std::int64_t document = shards[begin].document;
    const auto num_shards = static_cast<std::int64_t>(end - begin);
    const std::int64_t size =
        document < 0 ? 0 : workload.sequences[static_cast<std::size_t>(document)].size();
    const std::int64_t wanted = std::min(2 * num_equal_pairs(cost / heaviest_pair, num_positions),
                                         size / kLeastHeavyTokens);
    if (wanted > num_shards) {
      const Range tokens = workload.sequences[static_cast<std::size_t>(document)];
      const std::int64_t block = (size + wanted - 1) / wanted;
      for (std::int64_t at = tokens.begin; at < tokens.end; at += block) {
        const Range piece{at, std::min(at + block, tokens.end)};
        parts.push_back({{piece}, piece.size(), 0, document});
      }
      is_cut = true;
    } else {
      std::move(shards.begin() + static_cast<std::ptrdiff_t>(begin),
                shards.begin() + static_cast<std::ptrdiff_t>(end), std::back_inserter(parts));
    }
    begin = end;
  }
  if (is_cut) cost_shards(workload, profile, parts);
  return parts;
}

std::vector<Shard> shard_documents(const Workload& workload, std::int64_t block,
                                   std::int32_t members, const AttentionProfile* profile) {
  CONTEXTILE_CHECK(block > 0, "block size: expected a positive number of tokens, found {}", block);
  const Homes homes(workload, members);
  std::vector<Shard> shards;
  std::map<std::int32_t, std::vector<Range>> short_documents;  // by home
  for (std::size_t d = 0; d < workload.sequences.size(); ++d) {
    const Range document = workload.sequences[d];
    if (document.size() < block) {
      short_documents[home_of(homes, {&document, 1}).first].push_back(document);
      continue;
    }
    for (std::int64_t begin = document.begin; begin < document.end;) {
      const std::int64_t end = std::min(begin + block, document.end);
      const Range piece{begin, homes.last_end(begin + (block + 1) / 2, end)};
      shards.push_back({{piece}, piece.size(), 0, static_cast<std::int64_t>(d)});
      begin = piece.end;
    }
  }
  for (const auto& [home, documents] : short_documents) {
    pack_short_documents(documents, block, shards);
  }
  for (Shard& shard : shards) {
    std::tie(shard.home, shard.tokens_at_home) = home_of(homes, shard.ranges);
  }
  cost_shards(workload, profile, shards);
  return shards;
}

std::vector<ShardUnit> pair_shards(std::span<const Shard> shards, std::int32_t num_positions) {
  std::int64_t total = 0;
  for (const Shard& shard : shards) total += shard.cost;
  const auto heavier_than_mean = [&](std::int64_t cost) {
    return static_cast<double>(cost) * num_positions > static_cast<double>(total);
  };
  std::vector<ShardUnit> units;
  for (std::size_t begin = 0; begin < shards.size();) {
    std::size_t end = begin + 1;
    while (shards[begin].document >= 0 && end < shards.size() &&
           shards[end].document == shards[begin].document) {
      ++end;
    }
    for (std::size_t front = begin, back = end - 1; front <= back; ++front, --back) {
      const std::int64_t cost = shards[front].cost + shards[back].cost;
      if (front < back && !heavier_than_mean(cost)) {
        units.push_back({{front, back}, cost});
      } else {
        units.push_back({{front}, shards[front].cost});
        if (front < back) units.push_back({{back}, shards[back].cost});
      }
      if (back == 0) break;
    }
    begin = end;
  }
  return units;
}

std::vector<PlacedShard> place_shards(std::span<const Shard> shards,
                                      std::span<const ShardUnit> units, std::int32_t num_positions,
                                      const PlacementLimit& limit) {
  Placer placer(shards, num_positions, limit);
  // The heaviest unit comes first; of equals the one with the first shard.
  std::map<std::pair<std::int64_t, std::size_t>, std::vector<std::size_t>> waiting;
  for (const ShardUnit& unit : units) waiting[{-unit.cost, unit.shards.front()}] = unit.shards;
  while (!waiting.empty()) {
    const std::vector<std::size_t> unit = std::move(waiting.begin()->second);
    waiting.erase(waiting.begin());
    std::vector<const Shard*> members;
    members.reserve(unit.size());
    for (const std::size_t s : unit) members.push_back(&shards[s]);
    if (unit.size() == 1) {
      placer.place_in_pieces(*members.front());
    } else if (!placer.place(members)) {
      for (const std::size_t s : unit) waiting[{-shards[s].cost, s}] = {s};
    }
  }
  return placer.take();
}

namespace {

// The work of the busiest position may grow by one part in so many, so that more stays at home.
constexpr std::int64_t kHomeSlack = 100;

// Loads are levelled to this multiple of the mean, and may grow to it so that traffic gets even.
constexpr double kTrafficOverload = 1.02;

// Most counts (shards x masks x positions) of traffic; with more, placement is by load alone.
constexpr double kMaxCounts = 1 << 28;

std::int64_t largest_load(std::span<const Shard> shards, std::int32_t num_positions,
                          const ShardTraffic& traffic) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(num_positions));
  for (std::size_t s = 0; s < shards.size(); ++s) {
    loads[static_cast<std::size_t>(traffic.position(s))] += shards[s].cost;
  }
  return *std::max_element(loads.begin(), loads.end());
}

// Moves shards at about the same loads, so that positions send and receive evenly and, with a home
// layout, little.
void lower_traffic(const Workload& workload, const PlacementLimit& limit,
                   std::int32_t num_positions, std::vector<PlacedShard>& placed) {
  if (static_cast<double>(placed.size() * workload.masks.size()) * num_positions > kMaxCounts)
    return;
  std::vector<Shard> shards;
  double total = 0;
  for (const PlacedShard& p : placed) {
    shards.push_back(p.shard);
    total += static_cast<double>(p.shard.cost);
  }
  ShardTraffic traffic(workload, shards, num_positions);
  ShardTraffic at_home = traffic;
  for (std::size_t s = 0; s < shards.size(); ++s) traffic.place(s, placed[s].position);
  std::int64_t load_limit = static_cast<std::int64_t>(kTrafficOverload * total / num_positions);
  level_loads(shards, limit, load_limit, num_positions, traffic);
  load_limit = std::max(load_limit, largest_load(shards, num_positions, traffic));
  if (!workload.home.empty()) {
    load_limit += load_limit / kHomeSlack;
    if (keep_at_home(shards, limit, load_limit, num_positions, at_home) &&
        at_home.unevenness() < traffic.unevenness()) {
      traffic = std::move(at_home);
    }
  }
  even_traffic(shards, limit, load_limit, num_positions, traffic);
  for (std::size_t s = 0; s < shards.size(); ++s) placed[s].position = traffic.position(s);
}

}  // namespace

WorkBlocks distribute(const Workload& workload, const FcpDistribution& distribution) {
  const std::int32_t members = distribution.head_parallel;
  const std::int32_t num_positions = distribution.num_devices / members;
  PlacementLimit of_position;
  PlacementLimit of_member;
  const std::int64_t mean =
      (workload.num_tokens() + distribution.num_devices - 1) / distribution.num_devices;
  std::int64_t token_cap = distribution.token_cap;
  if (token_cap == 0 && workload.home.empty()) token_cap = mean + distribution.block;
  if (token_cap > 0) {
    of_member.tokens = token_cap;
    of_position.tokens = token_cap * members;
  }
  const AttentionProfile* profile = distribution.profile;
  std::vector<Shard> shards = shard_documents(workload, distribution.block, members, profile);
  if (distribution.cut_heavy && workload.home.empty()) {
    shards = cut_heavy_documents(workload, std::move(shards), num_positions, profile);
  }
  const std::vector<ShardUnit> units = pair_shards(shards, num_positions);
  std::vector<std::vector<Shard>> at_position(static_cast<std::size_t>(num_positions));
  std::vector<PlacedShard> placed_shards = place_shards(shards, units, num_positions, of_position);
  lower_traffic(workload, of_position, num_positions, placed_shards);
  for (PlacedShard& placed : placed_shards) {
    at_position[static_cast<std::size_t>(placed.position)].push_back(std::move(placed.shard));
  }
  std::vector<PlacedShard> on_device;
  for (std::int32_t p = 0; p < num_positions; ++p) {
    for (PlacedShard& placed :
         place_on_members(at_position[static_cast<std::size_t>(p)], distribution, of_member)) {
      placed.position += p * members;
      on_device.push_back(std::move(placed));
    }
  }
  sort_by_token(on_device);
  WorkBlocks work;
  for (const PlacedShard& placed : on_device) {
    append_blocks(workload, placed.shard.ranges, Rank{placed.position}, std::nullopt, work);
  }
  return work;
}

}  // namespace contextile

#include "partition/grid/rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/portable_math.h"
#include "base/rng.h"

namespace contextile {
namespace {

// Penalty for a device's work above its fill: this times the square of the excess in means, times
// the mean.
constexpr double kOverloadFine = 20;
constexpr double kFirstTemperature = 0.01;  // of the mean device's work, at one row per device
constexpr double kLastTemperature = 0.002;  // of the first temperature
constexpr double kHopeless = 30;  // temperatures; a move with a higher penalty is given up early
// Transfers that take no longer than this share of the mean device's work are hidden by it.
constexpr double kHidden = 0.4;

class RowAnnealer {
 public:
  RowAnnealer(std::span<const WholeRow> rows, const RowSpec& spec)
      : rows_(rows),
        spec_(spec),
        rng_(spec.seed),
        num_devices_(spec.nodes * spec.devices_per_node),
        num_places_(num_devices_ + (spec.spread_heads ? spec.nodes : 0)),
        num_rows_(static_cast<std::int32_t>(rows.size())),
        devices_(static_cast<std::size_t>(num_devices_)),
        users_(rows.size() * static_cast<std::size_t>(num_places_)),
        users_of_node_(rows.size() * static_cast<std::size_t>(spec.nodes)),
        nodes_(static_cast<std::size_t>(spec.nodes)),
        nics_(static_cast<std::size_t>(spec.nodes * spec.nics_per_node)) {
    for (const WholeRow& row : rows) mean_us_ += row.us;
    mean_us_ /= num_devices_;
    for (std::size_t d = 0; d < spec.handicap_us.size(); ++d) devices_[d].us = spec.handicap_us[d];
  }

  std::vector<RowPlace> run(std::span<const RowPlace> start) {
    place_.assign(rows_.size(), 0);
    if (start.empty()) {
      start_with_sequences();
    } else {
      for (std::int32_t i = 0; i < num_rows_; ++i) put(i, start[index(i)]);
    }
    // Counts the users of every row's keys after all rows have a place, because sending depends on
    // the owner's place.
    for (std::int32_t i = 0; i < num_rows_; ++i) {
      for_each_key(i, [&](std::size_t j) { use(j, place_[index(i)], 1); });
    }
    traffic_ = traffic();
    const double rows_of_device = static_cast<double>(num_rows_) / num_devices_;
    const double first =
        spec_.heat * kFirstTemperature * mean_us_ / std::sqrt(std::max(1.0, rows_of_device));
    const double cooling = portable_log(kLastTemperature / spec_.heat);
    constexpr std::int64_t kStepsPerTemperature = 64;
    for (std::int64_t s = 0; s < spec_.steps; ++s) {
      if (s % kStepsPerTemperature == 0) {
        temperature_ = first * portable_exp(cooling * static_cast<double>(s) /
                                            static_cast<double>(spec_.steps));
      }
      one_move();
    }
    return std::move(place_);
  }

 private:
  struct Device {
    double us = 0;
    double tokens = 0;  // of its rows
    double keys = 0;    // tokens whose keys it has
    double sent = 0;    // to other devices of its node, for rows that it owns
  };
  struct Node {
    double received = 0;
    double passed_on = 0;  // inside the node
  };

  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::size_t at(std::int32_t place, std::size_t row) const {
    return index(place) * rows_.size() + row;
  }
  [[nodiscard]] bool is_node(RowPlace place) const { return place >= num_devices_; }
  [[nodiscard]] std::int32_t node_of(RowPlace place) const {
    return is_node(place) ? place - num_devices_ : place / spec_.devices_per_node;
  }
  [[nodiscard]] std::int32_t any(std::int32_t count) {
    return static_cast<std::int32_t>(rng_.next() % static_cast<std::uint64_t>(count));
  }
  // Visits the rows whose keys row i attends, including row i.
  template <typename Visit>
  void for_each_key(std::int32_t i, const Visit& visit) const {
    visit(index(i));
    for (const std::int32_t j : rows_[index(i)].keys) visit(index(j));
  }

  // ---------------------------------------------------------------------------- loads

  void change(RowPlace place, double us, double tokens) {
    const double part = part_of(place);
    for_each_device(place, [&](std::size_t d) {
      devices_[d].us += us * part;
      devices_[d].tokens += tokens * part;
    });
  }
  void put(std::int32_t i, RowPlace place) {
    place_[index(i)] = place;
    change(place, rows_[index(i)].us, static_cast<double>(rows_[index(i)].tokens));
  }
  // Returns the penalty for a load of `us` whose first `hidden` means are free.
  [[nodiscard]] double over(double us, double hidden) const {
    const double part = std::max(0.0, us / mean_us_ - hidden);
    return kOverloadFine * part * part * mean_us_;
  }
  [[nodiscard]] double fine(std::int32_t d) const {
    const Device& device = devices_[index(d)];
    const double overfull = std::max(0.0, device.tokens - static_cast<double>(spec_.token_cap));
    return over(device.us, spec_.fill) + spec_.overfull_us * overfull;
  }
  [[nodiscard]] double fine_of(RowPlace place) const {
    if (!is_node(place)) return fine(place);
    double sum = 0;
    for_each_device(place, [&](std::size_t d) { sum += fine(static_cast<std::int32_t>(d)); });
    return sum;
  }
  // Returns the penalties of all devices that change when work goes from one place to the other.
  [[nodiscard]] double fine_of(RowPlace a, RowPlace b) const {
    const bool overlap = node_of(a) == node_of(b) && (is_node(a) || is_node(b));
    return overlap ? fine_of(num_devices_ + node_of(a)) : fine_of(a) + fine_of(b);
  }

  // ---------------------------------------------------------------------------- bytes

  template <typename Visit>
  void for_each_device(RowPlace place, const Visit& visit) const {
    if (!is_node(place)) return visit(index(place));
    const std::int32_t width = spec_.devices_per_node;
    for (std::int32_t d = node_of(place) * width; d < (node_of(place) + 1) * width; ++d) {
      visit(index(d));
    }
  }
  [[nodiscard]] double part_of(RowPlace place) const {
    return is_node(place) ? 1.0 / spec_.devices_per_node : 1;
  }

  // Adds the load that moving a row's keys puts on ports and NICs, or takes it off (`sign`). The
  // owner sends the keys to every user in its node and once to every other node, where a device
  // passes them on.
  void count_sends(std::size_t j, double sign) {
    const RowPlace owner = place_[j];
    const double tokens = sign * static_cast<double>(rows_[j].tokens);
    double sends = -1;  // the owner itself does not count
    double crossing = 0;
    for (std::int32_t n = 0; n < spec_.nodes; ++n) {
      const std::uint16_t users = users_of_node_[at(n, j)];
      if (users == 0) continue;
      if (n == node_of(owner)) {
        sends += users;
      } else {
        ++crossing;
        nodes_[index(n)].passed_on += tokens * (users - 1);
        nodes_[index(n)].received += tokens;
      }
    }
    for_each_device(owner, [&](std::size_t d) {
      devices_[d].sent += tokens * sends * part_of(owner);
      nics_[nic_of(static_cast<std::int32_t>(d))] += tokens * crossing * part_of(owner);
    });
  }
  [[nodiscard]] std::size_t nic_of(std::int32_t d) const {
    const std::int32_t width = spec_.devices_per_node;
    return index(d / width * spec_.nics_per_node + d % width * spec_.nics_per_node / width);
  }

  // Returns the penalty for all transfers: of every NIC for the devices it serves, of every device
  // for its port and its part of the NIC together, and of every device that receives any.
  [[nodiscard]] double traffic() const {
    const std::int32_t width = spec_.devices_per_node;
    const double nics = spec_.nics_per_node;
    double sum = 0;
    for (std::int32_t n = 0; n < spec_.nodes; ++n) {
      const Node& node = nodes_[index(n)];
      const auto nic_us = [&](std::size_t nic) {
        return spec_.nic_us * nics * std::max(nics_[nic], node.received / nics);
      };
      for (std::int32_t nic = n * spec_.nics_per_node; nic < (n + 1) * spec_.nics_per_node; ++nic) {
        sum += width / nics * over(nic_us(index(nic)), kHidden);
      }
      for (std::int32_t d = n * width; d < (n + 1) * width; ++d) {
        const Device& device = devices_[index(d)];
        const double tokens =
            std::max(device.keys - device.tokens, device.sent + node.passed_on / width);
        sum += over(spec_.port_us * tokens + nics / width * nic_us(nic_of(d)), kHidden);
        constexpr double kRounding = 0.5;  // of sums of parts of tokens
        if (device.keys - device.tokens > kRounding) sum += spec_.receiver_us;
      }
    }
    return sum;
  }

  // Adds or removes a user of row j's keys at a place. Loads change only with the first and the
  // last user there.
  void use(std::size_t j, RowPlace place, std::int32_t by) {
    std::uint16_t& users = users_[at(place, j)];
    const bool was_used = users > 0;
    users = static_cast<std::uint16_t>(users + by);
    if (was_used == (users > 0)) return;
    std::uint16_t& users_of_node = users_of_node_[at(node_of(place), j)];
    const bool was_used_by_node = users_of_node > 0;
    count_sends(j, -1);
    users_of_node = static_cast<std::uint16_t>(users_of_node + by);
    count_sends(j, 1);
    const auto tokens = static_cast<double>(by * rows_[j].tokens);
    for_each_device(place, [&](std::size_t d) { devices_[d].keys += tokens * part_of(place); });
    device_tokens_ += tokens;
    if (was_used_by_node != (users_of_node > 0)) node_tokens_ += tokens;
  }

  // Moves a row. Returns the change in cost of its keys and queries on average.
  double move_row(std::int32_t i, RowPlace from, RowPlace to) {
    const double devices = device_tokens_;
    const double nodes = node_tokens_;
    for_each_key(i, [&](std::size_t j) { use(j, to, 1); });
    count_sends(index(i), -1);
    place_[index(i)] = to;
    count_sends(index(i), 1);
    for_each_key(i, [&](std::size_t j) { use(j, from, -1); });
    const int spread = static_cast<int>(is_node(to)) - static_cast<int>(is_node(from));
    return spec_.device_us * (device_tokens_ - devices) + spec_.node_us * (node_tokens_ - nodes) +
           spec_.spread_us * spread * static_cast<double>(rows_[index(i)].tokens);
  }

  // ---------------------------------------------------------------------------- moves

  void one_move() {
    const std::int32_t i = any(num_rows_);
    const RowPlace from = place_[index(i)];
    const RowPlace to = another_place(i);
    if (to == from) return;
    threshold_ = -temperature_ * portable_log(rng_.uniform() + 0x1p-54);
    constexpr double kMoves = 0.6;
    if (rng_.uniform() < kMoves) {
      try_move(i, from, to);
    } else {
      try_swap(i, from, to);
    }
  }

  // Returns the place of a nearby row, of a row whose keys it attends, of a device in its node, or
  // any.
  [[nodiscard]] RowPlace another_place(std::int32_t i) {
    const double kind = rng_.uniform();
    const std::vector<std::int32_t>& keys = rows_[index(i)].keys;
    if (kind < 0.35) {
      constexpr std::int32_t kNear = 3;
      const std::int32_t distance = 1 + any(kNear);
      const std::int32_t j = i + ((rng_.next() & 1U) != 0 ? distance : -distance);
      return j < 0 || j >= num_rows_ ? place_[index(i)] : place_[index(j)];
    }
    if (kind < 0.5 && !keys.empty()) {
      return place_[index(keys[index(any(static_cast<std::int32_t>(keys.size())))])];
    }
    if (kind < 0.75) {
      return node_of(place_[index(i)]) * spec_.devices_per_node + any(spec_.devices_per_node);
    }
    return any(num_places_);
  }

  // Penalties for loads are cheap, so they are compared first; bytes are moved only if these are
  // not hopeless.
  void try_move(std::int32_t i, RowPlace from, RowPlace to) {
    const double us = rows_[index(i)].us;
    const auto tokens = static_cast<double>(rows_[index(i)].tokens);
    const double before = fine_of(from, to);
    change(from, -us, -tokens);
    change(to, us, tokens);
    const double fines = fine_of(from, to) - before;
    if (fines <= kHopeless * temperature_) {
      const double bytes = move_row(i, from, to);
      if (accepts(fines + bytes)) return;
      move_row(i, to, from);
    }
    change(to, -us, -tokens);
    change(from, us, tokens);
  }

  void try_swap(std::int32_t i, RowPlace from, RowPlace to) {
    constexpr int kTries = 8;
    std::int32_t j = any(num_rows_);
    for (int t = 0; t < kTries && place_[index(j)] != to; ++t) j = any(num_rows_);
    if (place_[index(j)] != to) return;
    const double us = rows_[index(j)].us - rows_[index(i)].us;
    const auto tokens = static_cast<double>(rows_[index(j)].tokens - rows_[index(i)].tokens);
    const double before = fine_of(from, to);
    change(from, us, tokens);
    change(to, -us, -tokens);
    const double fines = fine_of(from, to) - before;
    if (fines <= kHopeless * temperature_) {
      const double bytes = move_row(i, from, to) + move_row(j, to, from);
      if (accepts(fines + bytes)) return;
      move_row(j, from, to);
      move_row(i, to, from);
    }
    change(from, -us, -tokens);
    change(to, us, tokens);
  }

  [[nodiscard]] bool accepts(double delta) {
    const double now = traffic();
    if (delta + now - traffic_ > threshold_) return false;
    traffic_ = now;
    return true;
  }

  // ---------------------------------------------------------------------------- a start

  // Starts with whole sequences on the node with the least work, the longest first, and their rows
  // on the node's devices. If one device does not hold all rows, they are taken alternately from
  // both ends.
  void start_with_sequences() {
    struct Sequence {
      std::int32_t first = 0;
      std::int32_t end = 0;
      double us = 0;
    };
    std::vector<Sequence> sequences;
    for (std::int32_t i = 0; i < num_rows_; ++i) {
      if (i == 0 || rows_[index(i)].sequence != rows_[index(i - 1)].sequence) {
        sequences.push_back({i, i, 0});
      }
      sequences.back().end = i + 1;
      sequences.back().us += rows_[index(i)].us;
    }
    std::ranges::stable_sort(sequences, std::ranges::greater{}, &Sequence::us);
    std::vector<double> node_us(index(spec_.nodes), 0);
    for (const Sequence& sequence : sequences) {
      std::vector<std::int32_t> order;
      for (std::int32_t low = sequence.first, high = sequence.end; low < high;) {
        order.push_back(sequence.us > mean_us_ ? --high : low++);
        if (low < high && sequence.us > mean_us_) order.push_back(low++);
      }
      start_with(order, sequence.us, node_us);
    }
  }

  void start_with(std::span<const std::int32_t> order, double us, std::vector<double>& node_us) {
    constexpr double kSpread = 0.7;  // of a device's work; rows of larger sequences run on a node
    const std::int32_t width = spec_.devices_per_node;
    const bool spread = spec_.spread_heads && us > kSpread * mean_us_;
    const bool fits_a_device = us <= mean_us_;
    std::size_t next = 0;
    while (next < order.size()) {
      // A node takes rows until it reaches the mean, a device (or the node as one place) likewise.
      const auto node =
          static_cast<std::int32_t>(std::ranges::min_element(node_us) - node_us.begin());
      double room = std::max(mean_us_ * width - node_us[index(node)], 0.2 * mean_us_);
      if (us <= 1.02 * room || spec_.nodes == 1) room = us + 1;
      double used = 0;
      while (next < order.size() && used < room) {
        const RowPlace place = spread ? num_devices_ + node : least_loaded(node);
        double of_place =
            std::max(mean_us_ - (spread ? 0 : devices_[index(place)].us), 0.1 * mean_us_);
        if (fits_a_device) of_place = us + 1;
        for (double taken = 0; next < order.size() && used < room && taken < of_place; ++next) {
          const double row_us = rows_[index(order[next])].us;
          put(order[next], place);
          taken += row_us;
          used += row_us;
          us -= row_us;
        }
      }
      node_us[index(node)] += used;
    }
  }
  [[nodiscard]] std::int32_t least_loaded(std::int32_t node) const {
    std::int32_t best = node * spec_.devices_per_node;
    for (std::int32_t d = best; d < (node + 1) * spec_.devices_per_node; ++d) {
      if (devices_[index(d)].us < devices_[index(best)].us) best = d;
    }
    return best;
  }

  std::span<const WholeRow> rows_;
  const RowSpec& spec_;
  Rng rng_;
  std::int32_t num_devices_;
  std::int32_t num_places_;
  std::int32_t num_rows_;
  double mean_us_ = 0;
  double temperature_ = 0;
  double threshold_ = 0;  // for the current move
  std::vector<RowPlace> place_;
  std::vector<Device> devices_;
  std::vector<std::uint16_t> users_;          // [place][row]: rows there that attend its keys
  std::vector<std::uint16_t> users_of_node_;  // [node][row]: places of the node
  std::vector<Node> nodes_;
  std::vector<double> nics_;  // tokens sent to other nodes
  double device_tokens_ = 0;  // keys on all places
  double node_tokens_ = 0;    // keys on all nodes
  double traffic_ = 0;        // the penalty for traffic
};

// Chooses owners. Blocks leave a device that owns too many tokens for one with room, if possible of
// the same node.
class Owners {
 public:
  Owners(std::span<const WholeRow> rows, const RowSpec& spec, std::span<const RowPlace> places)
      : rows_(rows),
        spec_(spec),
        places_(places),
        num_devices_(spec.nodes * spec.devices_per_node),
        owners_(rows.size(), Rank{0}),
        tokens_(static_cast<std::size_t>(num_devices_), 0) {}

  std::vector<Rank> run() {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (places_[i] < num_devices_) own(i, Rank{places_[i]});
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (places_[i] >= num_devices_) own(i, emptiest_of(places_[i] - num_devices_));
    }
    for (std::int32_t d = 0; d < num_devices_; ++d) unload(Rank{d});
    return std::move(owners_);
  }

 private:
  void own(std::size_t i, Rank rank) {
    owners_[i] = rank;
    tokens_[rank.index()] += rows_[i].tokens;
  }
  [[nodiscard]] Rank emptiest_of(std::int32_t node) const {
    const auto first = tokens_.begin() + node * spec_.devices_per_node;
    const auto least = std::min_element(first, first + spec_.devices_per_node);
    return Rank{static_cast<std::int32_t>(least - tokens_.begin())};
  }
  // Rows that run on a node leave first, then those with the most work for their tokens.
  void unload(Rank rank) {
    if (tokens_[rank.index()] <= spec_.token_cap) return;
    std::vector<std::size_t> mine;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (owners_[i] == rank) mine.push_back(i);
    }
    std::ranges::stable_sort(mine, [&](std::size_t a, std::size_t b) {
      const bool a_spread = places_[a] >= num_devices_;
      const bool b_spread = places_[b] >= num_devices_;
      if (a_spread != b_spread) return a_spread;
      return rows_[a].us * static_cast<double>(rows_[b].tokens) >
             rows_[b].us * static_cast<double>(rows_[a].tokens);
    });
    for (const std::size_t i : mine) {
      if (tokens_[rank.index()] <= spec_.token_cap) return;
      const Rank to = with_room(rank, rows_[i].tokens);
      if (to == rank) continue;
      tokens_[rank.index()] -= rows_[i].tokens;
      own(i, to);
    }
  }
  [[nodiscard]] Rank with_room(Rank from, std::int64_t tokens) const {
    Rank best = from;
    std::pair<bool, std::int64_t> least;
    for (std::int32_t d = 0; d < num_devices_; ++d) {
      const std::int64_t owned = tokens_[static_cast<std::size_t>(d)];
      if (d == from.value || owned + tokens > spec_.token_cap) continue;
      const bool is_far = d / spec_.devices_per_node != from.value / spec_.devices_per_node;
      const std::pair key{is_far, owned};
      if (best != from && key >= least) continue;
      best = Rank{d};
      least = key;
    }
    return best;
  }

  std::span<const WholeRow> rows_;
  const RowSpec& spec_;
  std::span<const RowPlace> places_;
  std::int32_t num_devices_;
  std::vector<Rank> owners_;
  std::vector<std::int64_t> tokens_;
};

}  // namespace

std::vector<RowPlace> place_rows(std::span<const WholeRow> rows, const RowSpec& spec,
                                 std::span<const RowPlace> start) {
  CONTEXTILE_CHECK(!rows.empty() && rows.size() < 65536,
                   "rows: expected 1 to 65535 of them, found {}", rows.size());
  return RowAnnealer(rows, spec).run(start);
}

std::vector<Rank> own_rows(std::span<const WholeRow> rows, const RowSpec& spec,
                           std::span<const RowPlace> places) {
  return Owners(rows, spec, places).run();
}

}  // namespace contextile

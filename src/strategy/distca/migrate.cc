#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/ranges.h"
#include "strategy/distca/distca_tasks.h"

namespace contextile {
namespace {

enum class Part : std::uint8_t { kAll, kRows, kKeys };

// An item, or a part of one, that could move to another server.
struct Move {
  std::size_t item = 0;
  Part part = Part::kAll;
  std::int64_t tokens = 0;  // rows of head and of tail each, or keys
  double load = 0;          // work that moves
  double bytes = 0;         // sent by the move, as accounted
  double dear_bytes = 0;    // the same, with hot senders' bytes counted higher
  double priority = 0;      // the smallest moves first
};

struct Owned {
  Range rows;
  Rank owner;
};

// A taker, and the work it should get: about (or at least) `least` and at most `most`.
struct Wanted {
  double least = 0;
  double most = 0;
  std::size_t taker = 0;
};

// Returns the rows nearest the middle: the end of the head and the start of the tail, or of a tail
// alone.
CaItem inner_rows(const CaItem& item, std::int64_t rows) {
  CaItem inner = item;
  if (!item.head.empty()) inner.head.queries.begin = item.head.queries.end - rows;
  inner.tail.queries.end = item.tail.queries.begin + rows;
  inner.tail.keys.end = std::min(item.tail.keys.end, inner.tail.queries.end);
  return inner;
}

// Returns the tail's rows against its first keys.
CaItem first_keys(const CaItem& item, std::int64_t keys) {
  CaItem first = item;
  first.head = {};
  first.tail.keys.end = item.tail.keys.begin + keys;
  return first;
}

Range key_span(const CaItem& item) {
  if (item.head.empty()) return item.tail.keys;
  if (item.tail.empty()) return item.head.keys;
  return {std::min(item.head.keys.begin, item.tail.keys.begin),
          std::max(item.head.keys.end, item.tail.keys.end)};
}

constexpr double kRounding = 1e-9;  // of sums of loads, as a share of the mean
// The share of the tolerance that moves aim at, so that whole rows fit.
constexpr double kWithoutRounding = 0.9;

class Migration {
 public:
  Migration(std::vector<CaItem>& items, std::int32_t num_devices, const MigrationOptions& options,
            std::span<const CaCachedRows> cached)
      : items_(items),
        num_devices_(static_cast<std::size_t>(num_devices)),
        options_(options),
        surplus_(server_loads(items, num_devices, options)),
        sent_bytes_(num_devices_) {
    double total = 0;
    for (const CaItem& item : items) {
      loads_.push_back(item_cost(item, options));
      total += loads_.back();
      std::int64_t& length = length_of(item.document);
      for (const CaShard& shard : {item.head, item.tail}) {
        length = std::max(length, shard.queries.end);
        if (shard.empty()) continue;
        own(item.document, shard.queries, item.source);
      }
    }
    for (const CaCachedRows& rows : cached) {
      length_of(rows.document);  // makes room for the document
      own(rows.document, rows.rows, rows.owner);
    }
    for (auto& owned : owned_) {
      std::sort(owned.begin(), owned.end(),
                [](const Owned& a, const Owned& b) { return a.rows.begin < b.rows.begin; });
    }
    for (const CaItem& item : items) send(item, item.server);
    mean_ = total / static_cast<double>(num_devices);
    for (double& surplus : surplus_) surplus -= mean_;
    threshold_ = options.tolerance * mean_;
  }

  void run() {
    if (options_.balance == TaskBalance::kTwoSided) drain();
    fill();
  }

 private:
  [[nodiscard]] bool upstream() const { return options_.fidelity == Fidelity::kUpstream; }
  std::int64_t& length_of(std::int32_t document) {
    const auto at = static_cast<std::size_t>(document);
    if (lengths_.size() <= at) {
      lengths_.resize(at + 1);
      owned_.resize(at + 1);
    }
    return lengths_[at];
  }

  void own(std::int32_t document, Range rows, Rank owner) {
    owned_[static_cast<std::size_t>(document)].push_back({rows, owner});
    hold(document, owner, rows);
  }

  // Devices below the mean, emptiest first, each take work until they lack no more than the
  // threshold.
  void fill() {
    std::vector<std::size_t> takers;
    for (std::size_t d = 0; d < num_devices_; ++d) {
      if (surplus_[d] < 0) takers.push_back(d);
    }
    std::stable_sort(takers.begin(), takers.end(),
                     [&](std::size_t a, std::size_t b) { return surplus_[a] < surplus_[b]; });
    for (const std::size_t d : takers) {
      while (-surplus_[d] > threshold_) {
        std::optional<Move> best;
        for (std::size_t i = 0; i < items_.size(); ++i) {
          const double available = surplus_[items_[i].server.index()];
          if (available <= 0) continue;
          const double most = std::min(available, -surplus_[d]);
          consider(i, most, most, d, best);
        }
        if (!best || best->load <= 0) break;
        apply(*best, d);
      }
    }
  }

  // Work that devices have above a surplus, or lack below one.
  [[nodiscard]] double above(double surplus) const {
    double sum = 0;
    for (const double of_device : surplus_) sum += std::max(0.0, of_device - surplus);
    return sum;
  }
  [[nodiscard]] double below(double surplus) const {
    double sum = 0;
    for (const double of_device : surplus_) sum += std::max(0.0, surplus - of_device);
    return sum;
  }

  // Returns the surplus that givers keep: `edge`, or as much less as takers need to reach -edge.
  [[nodiscard]] double kept_surplus(double edge) const {
    const double needed = below(-edge);
    double low = 0;
    double high = edge;
    if (above(high) >= needed) return high;
    constexpr int kHalvings = 40;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      (above(middle) < needed ? high : low) = middle;
    }
    return low;
  }

  // Loads that devices keep and take while the fullest ones are drained, relative to the mean.
  struct Levels {
    double giver = 0;  // a device above gives
    double kept = 0;   // what it gives down to
    double most = 0;   // what a device may take up to
  };
  [[nodiscard]] Levels levels() const {
    if (!options_.relays) return {threshold_, threshold_ / 2, threshold_};
    const double kept = kept_surplus(edge());
    return {kept + kRounding * mean_, kept, kept};
  }
  [[nodiscard]] double edge() const { return kWithoutRounding * threshold_; }

  // Returns how much work a device may take while others need some to come into the tolerance. If
  // it took more, they would get scraps of many documents, and all keys of these. If owners send
  // every copy of a key, few takers matter more.
  [[nodiscard]] double fair_share(std::size_t taker, const Levels& levels) const {
    const double room = levels.most - surplus_[taker];
    if (!options_.relays) return room;
    const double spare = std::max(0.0, above(levels.kept) - below(-edge()));
    return std::min(room, std::max(0.0, -edge() - surplus_[taker]) + spare);
  }

  // The fullest device gives to the emptiest, as much at once as that one may take, until none is
  // above its level: few large parts send less than many small ones. A device that has nothing that
  // fits stays as it is.
  void drain() {
    const Levels levels = this->levels();
    std::vector<bool> stuck(num_devices_);
    for (;;) {
      std::optional<std::size_t> giver;
      for (std::size_t d = 0; d < num_devices_; ++d) {
        if (stuck[d] || surplus_[d] <= levels.giver) continue;
        if (!giver || surplus_[d] > surplus_[*giver]) giver = d;
      }
      if (!giver) return;
      const auto taker = static_cast<std::size_t>(
          std::min_element(surplus_.begin(), surplus_.end()) - surplus_.begin());
      std::optional<Move> best;
      const double wanted = std::min(surplus_[*giver] - levels.kept, fair_share(taker, levels));
      const double room = levels.most - surplus_[taker];
      for (std::size_t i = 0; i < items_.size(); ++i) {
        if (items_[i].server.index() == *giver) consider(i, wanted, room, taker, best);
      }
      if (best && best->load > 0) {
        apply(*best, taker);
      } else {
        stuck[*giver] = true;
      }
    }
  }

  // Compares `best` with the best way to take about `least`, at most `most`, from an item.
  void consider(std::size_t i, double least, double most, std::size_t taker,
                std::optional<Move>& best) const {
    const auto offer = [&](std::optional<Move> move) {
      if (!move) return;
      if (options_.balance == TaskBalance::kTwoSided)
        move->priority = two_sided_priority(*move, taker);
      if (!best || move->priority < best->priority) best = move;
    };
    if (loads_[i] <= most) {
      offer(priced({i, Part::kAll, 0, loads_[i]}, items_[i], taker));
      return;
    }
    const Wanted wanted{least, most, taker};
    offer(upstream() ? upstream_rows(i, most) : rows(i, wanted));
    if (options_.kv_subrange) offer(keys(i, wanted));
  }

  // The form of the original's code: the document's length decides the amount, which is rounded
  // later.
  [[nodiscard]] std::optional<Move> upstream_rows(std::size_t i, double most) const {
    const auto per_row = static_cast<double>(length(i) + 1);
    const auto rows = static_cast<std::int64_t>(most / per_row);
    Move move{i, Part::kRows, rows, static_cast<double>(rows) * per_row};
    move.bytes = document_bytes(i, most);
    move.priority = move.bytes / most;
    return move;
  }

  [[nodiscard]] std::optional<Move> rows(std::size_t i, const Wanted& wanted) const {
    const CaItem& item = items_[i];
    const std::int64_t limit = item.head.empty()
                                   ? item.tail.queries.size()
                                   : std::min(item.head.queries.size(), item.tail.queries.size());
    return sized(i, Part::kRows, limit, wanted,
                 [&](std::int64_t tokens) { return inner_rows(item, tokens); });
  }

  // Offers keys before the tail's first row, so that every row attends all of them.
  [[nodiscard]] std::optional<Move> keys(std::size_t i, const Wanted& wanted) const {
    const CaItem& item = items_[i];
    const std::int64_t limit =
        std::min(item.tail.keys.end, item.tail.queries.begin) - item.tail.keys.begin;
    return sized(i, Part::kKeys, limit, wanted,
                 [&](std::int64_t tokens) { return first_keys(item, tokens); });
  }

  // Offers the largest multiple of the granularity, up to `limit`, whose load is at most `most`, or
  // the smallest that reaches `least` if that is less.
  template <typename PartOf>
  [[nodiscard]] std::optional<Move> sized(std::size_t i, Part part, std::int64_t limit,
                                          const Wanted& wanted, const PartOf& part_of) const {
    const auto load = [&](std::int64_t units) {
      return item_cost(part_of(units * options_.granularity_tokens), options_);
    };
    const auto last_within = [&](double bound) {
      std::int64_t low = 0;
      std::int64_t high = std::max<std::int64_t>(limit, 0) / options_.granularity_tokens;
      while (low < high) {
        const std::int64_t middle = low + (high - low + 1) / 2;
        if (load(middle) <= bound) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      return low;
    };
    std::int64_t units = last_within(wanted.most);
    if (wanted.least < wanted.most) units = std::min(units, last_within(wanted.least) + 1);
    if (units == 0) return std::nullopt;
    const CaItem moved = part_of(units * options_.granularity_tokens);
    return priced({i, part, units * options_.granularity_tokens, load(units)}, moved, wanted.taker);
  }

  [[nodiscard]] std::int64_t length(std::size_t i) const {
    return lengths_[static_cast<std::size_t>(items_[i].document)];
  }
  [[nodiscard]] double document_bytes(std::size_t i, double load) const {
    const auto per_row = static_cast<double>(length(i) + 1);
    return load / per_row * options_.q_bytes_per_token + per_row * options_.kv_bytes_per_token;
  }

  [[nodiscard]] std::optional<Move> priced(Move move, const CaItem& moved,
                                           std::size_t taker) const {
    if (options_.kv == KvAccounting::kDocument && move.part != Part::kKeys) {
      move.bytes = document_bytes(move.item, move.load);
      move.dear_bytes = move.bytes * (1 + heat(moved.source));
    } else {
      for_each_sender(moved, Rank{static_cast<std::int32_t>(taker)},
                      [&](Rank sender, double bytes) {
                        move.bytes += bytes;
                        move.dear_bytes += bytes * (1 + heat(sender));
                      });
    }
    move.priority = move.bytes / move.load;
    return move;
  }

  // Visits the devices that must send data before a device can compute an item, with the bytes: its
  // rows (and later their results) and the keys that are not there yet.
  template <typename Visit>
  void for_each_sender(const CaItem& item, Rank device, const Visit& visit) const {
    if (device != item.source) {
      visit(item.source, static_cast<double>(2 * num_rows(item)) * options_.q_bytes_per_token);
    }
    const auto held = held_.find({item.document, device});
    const Range keys = key_span(item);
    const std::vector<Owned>& owned = owned_[static_cast<std::size_t>(item.document)];
    auto owner = std::partition_point(owned.begin(), owned.end(),
                                      [&](const Owned& o) { return o.rows.end <= keys.begin; });
    const auto lacking = [&](Range needed) {
      std::int64_t tokens = needed.size();
      if (held == held_.end()) return tokens;
      for (const Range& range : held->second) tokens -= intersect(range, needed).size();
      return tokens;
    };
    std::int64_t left = lacking(keys);
    for (; left > 0 && owner != owned.end() && owner->rows.begin < keys.end; ++owner) {
      const std::int64_t tokens = lacking(intersect(owner->rows, keys));
      if (tokens == 0) continue;
      visit(owner->owner, static_cast<double>(tokens) * options_.kv_bytes_per_token);
      left -= tokens;
    }
    // The remaining keys belong to rows of another nano-batch.
    if (left > 0) visit(item.source, static_cast<double>(left) * options_.kv_bytes_per_token);
  }

  // Accounts for sending an item to the device that computes it.
  void send(const CaItem& item, Rank device) {
    for_each_sender(item, device, [&](Rank sender, double bytes) {
      sent_bytes_[sender.index()] += bytes;
      total_sent_bytes_ += bytes;
    });
    hold(item.document, device, key_span(item));
  }

  void hold(std::int32_t document, Rank device, Range keys) {
    if (keys.empty()) return;
    std::vector<Range>& held = held_[{document, device}];
    held.push_back(keys);
    held = merged(std::move(held));
  }

  // Returns the bytes per useful work moved, with hot senders' bytes counted higher. Work is useful
  // as far as it exceeds the tolerance on either side.
  [[nodiscard]] double two_sided_priority(const Move& move, std::size_t taker) const {
    const Rank giver = items_[move.item].server;
    const double excess = std::max(0.0, surplus_[giver.index()] - threshold_);
    const double lack = std::max(0.0, -surplus_[taker] - threshold_);
    const double useful = std::min(move.load, excess) + std::min(move.load, lack);
    return move.dear_bytes / useful;
  }

  // Returns the bytes that the moves so far make a source send, over the mean of all devices.
  [[nodiscard]] double heat(Rank source) const {
    if (total_sent_bytes_ <= 0) return 0;
    return sent_bytes_[source.index()] * static_cast<double>(num_devices_) / total_sent_bytes_;
  }

  void apply(const Move& move, std::size_t server) {
    CaItem& item = items_[move.item];
    const std::size_t from = item.server.index();
    const Rank to{static_cast<std::int32_t>(server)};
    surplus_[server] += move.load;
    if (move.part == Part::kAll) {
      surplus_[from] -= move.load;
      item.server = to;
      send(item, to);
      return;
    }
    CaItem moved =
        move.part == Part::kRows ? inner_rows(item, move.tokens) : first_keys(item, move.tokens);
    moved.server = to;
    send(moved, to);
    if (move.part == Part::kRows) {
      if (!item.head.empty()) {
        item.head.queries.end -= move.tokens;
        item.head.keys.end = std::min(item.head.keys.end, item.head.queries.end);
      }
      item.tail.queries.begin += move.tokens;
    } else {
      item.tail.keys.begin += move.tokens;
    }
    const double left = item_cost(item, options_);
    surplus_[from] -= loads_[move.item] - left;
    loads_[move.item] = left;
    items_.push_back(moved);
    loads_.push_back(move.load);
  }

  std::vector<CaItem>& items_;
  std::size_t num_devices_;
  const MigrationOptions& options_;
  std::vector<double> loads_;              // one for each item
  std::vector<std::int64_t> lengths_;      // one for each document: its last row's end
  std::vector<std::vector<Owned>> owned_;  // rows of each document, ascending
  // Keys of a document that a device owns or received for its tasks.
  std::map<std::pair<std::int32_t, Rank>, std::vector<Range>> held_;
  std::vector<double> surplus_;  // load above the mean, of every device
  double mean_ = 0;
  double threshold_ = 0;
  std::vector<double> sent_bytes_;  // by every source, for the moves so far
  double total_sent_bytes_ = 0;
};

}  // namespace

void migrate(std::vector<CaItem>& items, std::int32_t num_devices, const MigrationOptions& options,
             std::span<const CaCachedRows> cached) {
  CONTEXTILE_CHECK(num_devices > 0 && options.granularity_tokens > 0,
                   "distca: expected devices and a positive granularity, found {} and {}",
                   num_devices, options.granularity_tokens);
  Migration(items, num_devices, options, cached).run();
}

}  // namespace contextile

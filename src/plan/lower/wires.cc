#include "plan/lower/wires.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

namespace contextile {
namespace {

// The tiles that one sender gathers of one unit over time.
class Account {
 public:
  // `stage`: the first one that counts the tiles.
  void deposit(std::int32_t stage, std::int64_t tiles) {
    if (next_ == others_.size()) {
      if (first_.tiles == 0) first_.stage = stage;
      if (first_.stage == stage) {
        first_.tiles += tiles;
        return;
      }
    } else if (others_.back().stage == stage) {
      others_.back().tiles += tiles;
      return;
    } else if (others_.back().stage > stage) {
      are_sorted_ = false;
    }
    others_.push_back({stage, tiles});
  }
  // Returns and removes everything deposited for boundaries up to `stage`.
  std::int64_t withdraw(std::int32_t stage) {
    std::int64_t sum = 0;
    if (first_.stage <= stage) sum = std::exchange(first_.tiles, 0);
    if (!are_sorted_) {
      std::ranges::sort(others_.begin() + static_cast<std::ptrdiff_t>(next_), others_.end(), {},
                        &Deposit::stage);
      are_sorted_ = true;
    }
    for (; next_ < others_.size() && others_[next_].stage <= stage; ++next_) {
      sum += others_[next_].tiles;
    }
    return sum;
  }

 private:
  struct Deposit {
    std::int32_t stage = 0;
    std::int64_t tiles = 0;
  };

  Deposit first_;  // most accounts have no others at a time
  std::vector<Deposit> others_;
  std::size_t next_ = 0;    // of others_: earlier ones are withdrawn
  bool are_sorted_ = true;  // others_, from next_ on
};

// The accounts of all senders of results.
class Accounts {
 public:
  Accounts(const RoundLayout& layout, const std::vector<Transfer>& transfers)
      : layout_(layout), first_(static_cast<std::size_t>(layout.num_units()) * kNumKinds + 1, 0) {
    std::vector<std::pair<std::size_t, Rank>> senders;
    for (const Transfer& t : transfers) {
      if (is_result(t.kind))
        senders.emplace_back(key(t.kind, layout.unit(t.block, t.group)), t.src);
    }
    if (!std::ranges::is_sorted(senders)) std::ranges::sort(senders);
    senders.erase(std::unique(senders.begin(), senders.end()), senders.end());
    for (const auto& [k, device] : senders) {
      ++first_[k + 1];
      devices_.push_back(device);
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    accounts_.resize(devices_.size());
  }

  [[nodiscard]] bool empty() const { return accounts_.empty(); }
  // The account of a sender, or nullptr if it sends nothing of the unit.
  [[nodiscard]] Account* find(Kind kind, std::size_t unit, Rank device) {
    const std::size_t k = key(kind, unit);
    const auto first = devices_.begin() + static_cast<std::ptrdiff_t>(first_[k]);
    const auto end = devices_.begin() + static_cast<std::ptrdiff_t>(first_[k + 1]);
    const auto at = std::lower_bound(first, end, device);
    if (at == end || *at != device) return nullptr;
    return &accounts_[static_cast<std::size_t>(at - devices_.begin())];
  }

 private:
  [[nodiscard]] std::size_t key(Kind kind, std::size_t unit) const {
    return static_cast<std::size_t>(kind) * static_cast<std::size_t>(layout_.num_units()) + unit;
  }

  const RoundLayout& layout_;
  std::vector<std::size_t> first_;  // account of every kind and unit
  std::vector<Rank> devices_;       // of every account
  std::vector<Account> accounts_;
};

}  // namespace

std::vector<Dtype> transfer_wires(const RoundLayout& layout, const ArrangedDirection& arranged,
                                  Direction direction, Dtype dtype, Dtype partial_wire) {
  std::vector<Dtype> wires(arranged.transfers.size(), dtype);
  if (partial_wire == dtype) return wires;
  constexpr std::array kForwardResults = {Kind::kO};
  constexpr std::array kBackwardResults = {Kind::kDq, Kind::kDkv};
  const std::span<const Kind> results = direction == Direction::kForward
                                            ? std::span<const Kind>(kForwardResults)
                                            : std::span<const Kind>(kBackwardResults);
  Accounts accounts(layout, arranged.transfers);
  if (accounts.empty()) return wires;
  const auto units = static_cast<std::size_t>(layout.num_units());
  std::vector<std::int64_t> q_tiles(units);   // tiles of every unit as a query block's
  std::vector<std::int64_t> kv_tiles(units);  // as a key block's
  for (const PlacedTile& tile : arranged.tiles) {
    const std::size_t q_unit = layout.unit(tile.q_block, tile.group);
    const std::size_t kv_unit = layout.unit(tile.kv_block, tile.group);
    ++q_tiles[q_unit];
    ++kv_tiles[kv_unit];
    for (const Kind kind : results) {
      Account* of_device = accounts.find(kind, is_of_kv(kind) ? kv_unit : q_unit, tile.device);
      if (of_device != nullptr) of_device->deposit(tile.stage + 1, 1);
    }
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < arranged.transfers.size(); ++i) {
    if (is_result(arranged.transfers[i].kind)) order.push_back(i);
  }
  // Sorted by launch stage, because a sender's received data was launched earlier.
  std::ranges::stable_sort(order, {},
                           [&](std::size_t i) { return arranged.transfers[i].launch_stage; });
  for (const std::size_t i : order) {
    const Transfer& t = arranged.transfers[i];
    const std::size_t unit = layout.unit(t.block, t.group);
    const std::int64_t tiles = accounts.find(t.kind, unit, t.src)->withdraw(t.launch_stage);
    if (tiles != (is_of_kv(t.kind) ? kv_tiles : q_tiles)[unit]) wires[i] = partial_wire;
    Account* next = accounts.find(t.kind, unit, t.dst);
    if (next != nullptr) next->deposit(t.need_stage, tiles);
  }
  return wires;
}

}  // namespace contextile

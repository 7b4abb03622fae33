#include "plan/build/wires.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace contextile {
namespace {

struct Key {
  Kind kind;
  std::size_t unit;
  Rank device;
  friend bool operator==(const Key&, const Key&) = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const noexcept {
    std::size_t h = key.unit * 0x9e3779b97f4a7c15ULL;
    h ^= (static_cast<std::size_t>(key.device.value) << 3) + static_cast<std::size_t>(key.kind);
    return h * 0xff51afd7ed558ccdULL;
  }
};

// What one sender gathers of one unit over time: (stage from which it counts, tiles).
struct Account {
  std::vector<std::pair<std::int32_t, std::int64_t>> deposits;
  std::size_t next = 0;

  // Everything deposited for boundaries up to `stage` and not withdrawn yet.
  std::int64_t withdraw(std::int32_t stage) {
    std::stable_sort(deposits.begin() + static_cast<std::ptrdiff_t>(next), deposits.end());
    std::int64_t sum = 0;
    for (; next < deposits.size() && deposits[next].first <= stage; ++next) {
      sum += deposits[next].second;
    }
    return sum;
  }
};

}  // namespace

std::vector<Dtype> transfer_wires(const RoundLayout& layout, const ArrangedDirection& arranged,
                                  Dtype dtype, Dtype partial_wire) {
  std::vector<Dtype> wires(arranged.transfers.size(), dtype);
  if (partial_wire == dtype) return wires;
  std::unordered_map<Key, Account, KeyHash> accounts;  // of every sender of a result
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < arranged.transfers.size(); ++i) {
    const Transfer& t = arranged.transfers[i];
    if (!is_result(t.kind)) continue;
    accounts.try_emplace(Key{t.kind, layout.unit(t.block, t.group), t.src});
    order.push_back(i);
  }
  if (order.empty()) return wires;
  const auto units = static_cast<std::size_t>(layout.num_units());
  std::vector<std::int64_t> q_tiles(units);   // tiles of every unit as a query block's
  std::vector<std::int64_t> kv_tiles(units);  // as a key block's
  for (const PlacedTile& tile : arranged.tiles) {
    for (const Kind kind : {Kind::kO, Kind::kDq, Kind::kDkv}) {
      const std::size_t unit =
          layout.unit(is_of_kv(kind) ? tile.kv_block : tile.q_block, tile.group);
      if (kind != Kind::kDq) ++(is_of_kv(kind) ? kv_tiles : q_tiles)[unit];
      const auto it = accounts.find(Key{kind, unit, tile.device});
      if (it != accounts.end()) it->second.deposits.emplace_back(tile.stage + 1, 1);
    }
  }
  // By launch stage: what a sender has received was launched earlier.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return arranged.transfers[a].launch_stage < arranged.transfers[b].launch_stage;
  });
  for (const std::size_t i : order) {
    const Transfer& t = arranged.transfers[i];
    const std::size_t unit = layout.unit(t.block, t.group);
    const std::int64_t tiles = accounts.at(Key{t.kind, unit, t.src}).withdraw(t.launch_stage);
    if (tiles != (is_of_kv(t.kind) ? kv_tiles : q_tiles)[unit]) wires[i] = partial_wire;
    const auto next = accounts.find(Key{t.kind, unit, t.dst});
    if (next != accounts.end()) next->second.deposits.emplace_back(t.need_stage, tiles);
  }
  return wires;
}

}  // namespace contextile

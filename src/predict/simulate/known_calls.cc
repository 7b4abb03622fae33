#include "predict/simulate/known_calls.h"

#include <algorithm>
#include <bit>

namespace contextile {
namespace {

constexpr std::size_t kMostSlots = std::size_t{1} << 20;  // 64 MB

bool alike(const std::vector<TileOp>& a, const std::vector<TileOp>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].q_block != b[i].q_block || a[i].kv_block != b[i].kv_block ||
        a[i].group.value - a.front().group.value != b[i].group.value - b.front().group.value) {
      return false;
    }
  }
  return true;
}

}  // namespace

KnownCalls::KnownCalls(std::size_t num_calls)
    : known_(std::bit_ceil(std::clamp<std::size_t>(num_calls, 1, kMostSlots))) {}

std::size_t KnownCalls::slot_of(const std::vector<TileOp>& tiles) const {
  std::uint64_t hash = tiles.size();
  for (const TileOp& tile : tiles) {
    const std::uint64_t blocks =
        static_cast<std::uint64_t>(tile.q_block.value) << 32U |
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(tile.kv_block.value));
    const auto group = static_cast<std::uint64_t>(tile.group.value - tiles.front().group.value);
    hash = (std::rotl(hash, 29) ^ blocks ^ group << 48U) * 0x9E3779B97F4A7C15U;
  }
  return static_cast<std::size_t>(hash >> 32U) & (known_.size() - 1);
}

const CallTimes* KnownCalls::find(const std::vector<TileOp>& tiles) const {
  for (const Known& known : known_[slot_of(tiles)]) {
    if (known.tiles != nullptr && alike(*known.tiles, tiles)) return &known.times;
  }
  return nullptr;
}

void KnownCalls::keep(const std::vector<TileOp>& tiles, const CallTimes& times) {
  std::array<Known, 2>& slot = known_[slot_of(tiles)];
  slot = {Known{&tiles, times}, slot.front()};
}

}  // namespace contextile

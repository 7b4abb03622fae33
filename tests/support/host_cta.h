// The work of a block of threads on the device, in loops: the lanes of a warp one after another,
// warps one after another, the instructions of a warp as the PTX manual defines them. Every other
// block goes backwards, so that code that depends on the order of warps or lanes between two syncs
// shows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "kernel/cuda/layout.h"
#include "kernel/cuda/paired_sums.h"
#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

class HostCta {
 public:
  template <typename T>
  using PerLane = std::array<T, kLanes>;
  template <typename T>
  using PerWarp = std::array<T, kWarps>;

  HostCta() = default;
  // The block of that number.
  explicit HostCta(std::int64_t block) : goes_backwards_(block % 2 != 0) {}

  template <typename Work>
  void each_thread(const Work& work) {
    each(kThreads, work);
  }
  template <typename Work>
  void each_lane(const Work& work) {
    each(kLanes, work);
  }
  template <typename Work>
  void each_warp(const Work& work) {
    each(kWarps, work);
  }

  void sync() {}
  void sync_warp() {}
  // Copies arrive as late as they may: when they are waited for. Until then their place holds NaN,
  // so that early reads, or overwriting values that are still needed, show.
  void copy16(std::uint16_t* to, const std::uint16_t* from, bool present) {
    std::fill_n(to, 8, std::uint16_t{0xffff});
    copies_.push_back({to, present ? from : nullptr});
  }
  void wait_for_copies() {
    for (const Copy& copy : copies_) {
      if (copy.from == nullptr) {
        std::fill_n(copy.to, 8, std::uint16_t{0});
      } else {
        std::copy_n(copy.from, 8, copy.to);
      }
    }
    copies_.clear();
  }

  // ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16
  template <bool kTransposed>
  void load_matrices(const PerLane<const std::uint16_t*>& rows, PerLane<Registers>& out) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const auto element = [&](int row, int col) {
          return static_cast<std::uint32_t>(rows[static_cast<std::size_t>(matrix * 8 + row)][col]);
        };
        const int major = lane / 4;
        const int minor = lane % 4 * 2;
        const std::uint32_t low = kTransposed ? element(minor, major) : element(major, minor);
        const std::uint32_t high =
            kTransposed ? element(minor + 1, major) : element(major, minor + 1);
        out[static_cast<std::size_t>(lane)].x[matrix] = low | (high << 16);
      }
    }
  }

  // mma.sync.aligned.m16n8k16.row.col.f32: sums of tile `tile` += left · right, with pair `pair` of
  // the registers of `right`.
  template <Number kNumber, int kTiles>
  void multiply(PerLane<Sums<kTiles>>& sums, int tile, const PerLane<Registers>& left,
                const PerLane<Registers>& right, int pair) {
    float a[16][16];
    float b[16][8];
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto l = static_cast<std::size_t>(lane);
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r) {
          const Place place = place_in_left(lane, r, half);
          a[place.row][place.col] = number<kNumber>(left[l].x[r], half);
        }
        for (int r = 0; r < 2; ++r) {
          const Place place = place_in_right(lane, r, half);
          b[place.row][place.col] = number<kNumber>(right[l].x[pair * 2 + r], half);
        }
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const Place place = place_in_sum(lane, i);
        double sum = 0;
        for (int depth = 0; depth < 16; ++depth) {
          sum +=
              static_cast<double>(a[place.row][depth]) * static_cast<double>(b[depth][place.col]);
        }
        float& held = sums[static_cast<std::size_t>(lane)].x[tile][i];
        held = static_cast<float>(static_cast<double>(held) + sum);
      }
    }
  }

  // 16 bytes of shared memory, and a pair of 16 bits into it.
  static Registers read16(const std::uint16_t* from) {
    Registers words;
    std::memcpy(words.x, from, sizeof(words.x));
    return words;
  }
  static void write16(std::uint16_t* to, const Registers& words) {
    std::memcpy(to, words.x, sizeof(words.x));
  }
  static void write_pair(std::uint16_t* to, std::uint32_t pair) {
    std::memcpy(to, &pair, sizeof(pair));
  }

  template <Number kNumber>
  static std::uint32_t pack(float low, float high) {
    const auto bits = [](float value) -> std::uint32_t {
      return kNumber == Number::kBf16 ? float_to_bf16(value) : float_to_f16(value);
    };
    return bits(low) | (bits(high) << 16);
  }
  static float exp2(float x) { return std::exp2(x); }
  static float log2(float x) { return std::log2(x); }
  static float reciprocal(float x) { return 1 / x; }

  // The upper half of the lanes' sums added to the lower one until lane 0 has all.
  void halve_sums(PerLane<double>& sums) {
    for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
  }
  void halve_sums(PerLane<PairedSum>& sums) {
    for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) sums[i].add(sums[i + half]);
    }
  }
  template <typename T>
  [[nodiscard]] static T broadcast(const std::array<T, kLanes>& numbers, int lane) {
    return numbers.at(static_cast<std::size_t>(lane));
  }
  [[nodiscard]] static bool any_lane(const PerLane<bool>& values) {
    return std::ranges::any_of(values, [](bool value) { return value; });
  }
  // Over the four lanes that hold parts of one row.
  void quad_max(PerLane<float>& values) {
    reduce(values, [](float a, float b) { return std::fmax(a, b); });
  }
  void quad_sum(PerLane<float>& values) {
    reduce(values, [](float a, float b) { return a + b; });
  }

 private:
  struct Copy {
    std::uint16_t* to;
    const std::uint16_t* from;  // null: zeros
  };

  template <typename Work>
  void each(int count, const Work& work) const {
    for (int i = 0; i < count; ++i) work(goes_backwards_ ? count - 1 - i : i);
  }
  template <Number kNumber>
  static float number(std::uint32_t pair, int half) {
    const auto bits = static_cast<std::uint16_t>(pair >> (16 * half));
    return kNumber == Number::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  // shfl.sync.bfly by 1, then by 2.
  template <typename Join>
  static void reduce(PerLane<float>& values, const Join& join) {
    for (const std::size_t distance : {1, 2}) {
      const PerLane<float> before = values;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        values[lane] = join(before[lane], before[lane ^ distance]);
      }
    }
  }

  bool goes_backwards_ = false;
  std::vector<Copy> copies_;
};

// Returns true if a pair of flat rows attends. kKeysOwn: a CTA owns keys and streams query rows,
// otherwise the other way round.
template <bool kKeysOwn>
[[nodiscard]] inline bool attends(const Launch& launch, const StreamedBlock& block,
                                  std::int32_t owned, std::int32_t streamed) {
  if (streamed >= block.end) return false;
  const std::int32_t owned_token = kKeysOwn ? owned : owned / launch.heads;
  const std::int32_t streamed_token = kKeysOwn ? streamed / launch.heads : streamed;
  for (std::int32_t b = 0; b < block.num_bands; ++b) {
    if (launch.bands[block.first_band + b].holds(owned_token, streamed_token)) return true;
  }
  return false;
}

}  // namespace contextile::cuda

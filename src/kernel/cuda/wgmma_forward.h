// Forward by wgmma: a CTA owns 128 flat query rows of one slot, 64 for each of two consumers, and
// meets the keys of all its tiles in one pass. While weights of a block are computed, the scores of
// the next block, or the values of the previous one, are being multiplied.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cuda/mma_forward.h"
#include "kernel/cuda/wgmma_steps.h"

namespace contextile::cuda {

inline constexpr int kWgmmaKeys = 128;  // keys of a block

// Places in shared memory, in elements of 16 bits.
template <int kDim, int kValueDim>
struct WgmmaForwardPlaces {
  static constexpr int kQuery = kGroupRows * kDim;  // of one consumer
  static constexpr int kKeys = kWgmmaKeys * kDim;   // of one block
  static constexpr int kValues = kWgmmaKeys * kValueDim;
  static constexpr int kKeysAt = kConsumers * kQuery;
  static constexpr int kValuesAt = kKeysAt + kStages * kKeys;
  static constexpr int kRingsAt = kValuesAt + kStages * kValues;
};
template <int kDim, int kValueDim>
inline constexpr std::size_t kWgmmaForwardShared = WgmmaForwardPlaces<kDim, kValueDim>::kRingsAt *
                                                       sizeof(std::uint16_t) +
                                                   2 * sizeof(Ring);

// Copies keys and values into the rings.
template <int kDim, int kValueDim, typename Group>
CONTEXTILE_HD void bring_keys(Group& group, const Launch& launch, const OwnedBlock& owned,
                              int kv_head, std::uint16_t* shared) {
  using Places = WgmmaForwardPlaces<kDim, kValueDim>;
  auto* const rings = reinterpret_cast<Ring*>(shared + Places::kRingsAt);
  StreamedBlocks blocks(launch.runs + owned.first_run, owned.num_blocks, kWgmmaKeys);
  std::int32_t seen = -1;
  for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
    if (b > 0) blocks.advance();
    const StreamedBlock block = blocks.block();
    const TileMaps& maps = launch.maps[block.tile];
    const Turn turn = turn_of(b);
    if (block.tile != seen) group.one_lane([&] { group.read_maps(maps.k, maps.v); });
    seen = block.tile;
    group.wait(rings[0].empty[turn.stage], turn.parity ^ 1U);
    group.one_lane([&] {
      Barrier& full = rings[0].full[turn.stage];
      group.expect(full, Places::kKeys * sizeof(std::uint16_t));
      copy_rows<kWgmmaKeys, kDim>(group, shared + Places::kKeysAt + turn.stage * Places::kKeys,
                                  maps.k, kv_head, block.begin, full);
      group.arrive(full);
    });
    group.wait(rings[1].empty[turn.stage], turn.parity ^ 1U);
    group.one_lane([&] {
      Barrier& full = rings[1].full[turn.stage];
      group.expect(full, Places::kValues * sizeof(std::uint16_t));
      copy_rows<kWgmmaKeys, kValueDim>(group,
                                       shared + Places::kValuesAt + turn.stage * Places::kValues,
                                       maps.v, kv_head, block.begin, full);
      group.arrive(full);
    });
  }
}

// A lane's part of two rows, 8 apart.
struct TopAndSum {
  float top[2] = {-INFINITY, -INFINITY};  // the largest score
  float sum[2] = {0, 0};                  // over the lane's own columns
};

// The online softmax of a consumer's 64 rows.
template <int kValueDim, typename Group>
struct WgmmaForwardRows {
  static constexpr int kTiles = kWgmmaKeys / 8;
  struct Keep {
    float x[2] = {1, 1};
  };
  GroupSums<Group, kTiles> scores;
  GroupWeights<Group, kTiles> weights;
  GroupSums<Group, kValueDim / 8> out;  // not yet divided by the sum
  typename Group::template PerWarp<typename Group::template PerLane<TopAndSum>> rows;
  typename Group::template PerWarp<typename Group::template PerLane<Keep>> keep;
};

// Turns the scores of a warp into weights. `keep` is the factor of its sums so far from here on.
template <int kTiles, typename Group, typename Keep>
CONTEXTILE_HD void weigh_rows(Group& group, float factor,
                              typename Group::template PerLane<Sums<kTiles>>& scores,
                              typename Group::template PerLane<TopAndSum>& rows, Keep& keep) {
  CONTEXTILE_UNROLL
  for (int half = 0; half < 2; ++half) {
    typename Group::template PerLane<float> top;
    group.each_lane([&](int lane) {
      top[lane] = rows[lane].top[half];
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const float* pair = &scores[lane].x[tile][half * 2];
        top[lane] = std::fmax(top[lane], std::fmax(pair[0], pair[1]));
      }
    });
    group.quad_max(top);
    group.each_lane([&](int lane) {
      TopAndSum& row = rows[lane];
      const float base = top[lane] == -INFINITY ? 0 : top[lane];  // an empty row weighs nothing
      const float offset = base * factor;
      keep[lane].x[half] = Group::exp2(std::fma(row.top[half], factor, -offset));
      row.top[half] = top[lane];
      float sum = 0;
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        float* pair = &scores[lane].x[tile][half * 2];
        pair[0] = Group::exp2(std::fma(pair[0], factor, -offset));
        pair[1] = Group::exp2(std::fma(pair[1], factor, -offset));
        sum += pair[0] + pair[1];
      }
      row.sum[half] = row.sum[half] * keep[lane].x[half] + sum;
    });
  }
}

// Turns the products of a block into weights, in place.
template <int kValueDim, typename Group>
CONTEXTILE_HD void weigh_block(Group& group, const Launch& launch, const StreamedBlock& block,
                               std::int32_t first_row, WgmmaForwardRows<kValueDim, Group>& state) {
  constexpr int kTiles = kWgmmaKeys / 8;
  group.each_warp([&](int warp) {
    auto& scores = state.scores[warp];
    const std::int32_t row = first_row + warp * 16;
    finish_scores<false, kTiles>(group, launch, block, row, scores);
    weigh_rows<kTiles>(group, exponent_factor(launch), scores, state.rows[warp], state.keep[warp]);
  });
}

// Rescales the sums so far. Once the largest scores of a warp's rows are found, no factor is left.
template <int kValueDim, typename Group>
CONTEXTILE_HD void rescale_out(Group& group, WgmmaForwardRows<kValueDim, Group>& state) {
  group.each_warp([&](int warp) {
    typename Group::template PerLane<bool> rises;
    group.each_lane([&](int lane) {
      const auto& keep = state.keep[warp][lane];
      rises[lane] = keep.x[0] != 1 || keep.x[1] != 1;
    });
    if (!group.any_lane(rises)) return;
    group.each_lane([&](int lane) {
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kValueDim / 8; ++tile) {
        CONTEXTILE_UNROLL
        for (int i = 0; i < 4; ++i) {
          state.out[warp][lane].x[tile][i] *= state.keep[warp][lane].x[i / 2];
        }
      }
    });
  });
}

// Merges the results of the rows into their slot.
template <int kValueDim, typename Group>
CONTEXTILE_HD void write_group_rows(Group& group, const Launch& launch, const OwnedBlock& owned,
                                    int kv_head, int group_row,
                                    WgmmaForwardRows<kValueDim, Group>& state) {
  group.each_warp([&](int warp) {
    auto& rows = state.rows[warp];
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      typename Group::template PerLane<float> sum;
      group.each_lane([&](int lane) { sum[lane] = rows[lane].sum[half]; });
      group.quad_sum(sum);
      group.each_lane([&](int lane) { rows[lane].sum[half] = sum[lane]; });
    }
    write_rows<kValueDim>(group, launch, owned, kv_head, group_row + warp * 16, rows,
                          state.out[warp]);
  });
}

// Start the scores of a block when its keys have arrived, and the products of its weights and
// values when its values have arrived.
template <Number kNumber, int kDim, int kValueDim, typename Group>
CONTEXTILE_HD void start_keys(Group& group, std::uint16_t* shared, Turn turn,
                              WgmmaForwardRows<kValueDim, Group>& state) {
  using Places = WgmmaForwardPlaces<kDim, kValueDim>;
  const auto [stage, parity] = turn;
  group.wait(reinterpret_cast<Ring*>(shared + Places::kRingsAt)[0].full[stage], parity);
  group.pin(state.scores);
  group.begin_products();
  start_scores<kNumber, kDim, kWgmmaKeys>(group, shared + (group.index() - 1) * Places::kQuery,
                                          shared + Places::kKeysAt + stage * Places::kKeys,
                                          state.scores);
  group.commit_products();
}
template <Number kNumber, int kDim, int kValueDim, typename Group>
CONTEXTILE_HD void start_values(Group& group, std::uint16_t* shared, Turn turn,
                                WgmmaForwardRows<kValueDim, Group>& state) {
  using Places = WgmmaForwardPlaces<kDim, kValueDim>;
  const auto [stage, parity] = turn;
  group.wait(reinterpret_cast<Ring*>(shared + Places::kRingsAt)[1].full[stage], parity);
  group.pin(state.weights);
  group.pin(state.out);
  group.begin_products();
  start_weighted<kNumber, kValueDim, kWgmmaKeys>(
      group, state.weights, shared + Places::kValuesAt + stage * Places::kValues, state.out);
  group.commit_products();
}

// Does the work of one consumer: the attention of its 64 rows to all blocks.
template <Number kNumber, int kDim, int kValueDim, typename Group>
CONTEXTILE_HD void attend_keys(Group& group, const Launch& launch, const OwnedBlock& owned,
                               int kv_head, std::uint16_t* shared) {
  using Places = WgmmaForwardPlaces<kDim, kValueDim>;
  constexpr int kTiles = kWgmmaKeys / 8;
  const bool is_second = group.index() == kConsumers;
  const int group_row = (group.index() - 1) * kGroupRows;
  const std::int32_t first_row = owned.begin + group_row;
  auto* const rings = reinterpret_cast<Ring*>(shared + Places::kRingsAt);
  StreamedBlocks blocks(launch.runs + owned.first_run, owned.num_blocks, kWgmmaKeys);
  WgmmaForwardRows<kValueDim, Group> state;
  load_group_rows<kDim>(group, shared + (group.index() - 1) * Places::kQuery,
                        launch.tiles[owned.tile].q, launch.heads, kv_head, first_row, owned.end,
                        launch.head_dim);
  group.wait_for_copies();
  // The weights of the first block are computed before the loop, which always starts the scores of
  // one block together with the values of the block before.
  if (owned.num_blocks > 0) {
    Turn turn;
    start_keys<kNumber, kDim, kValueDim>(group, shared, turn, state);
    group.template wait_products<0>();
    group.pin(state.scores);
    group.arrive_warps(rings[0].empty[0]);
    weigh_block<kValueDim>(group, launch, blocks.block(), first_row, state);
    round_weights<kNumber, kTiles>(group, state.scores, state.weights);
    // The first consumer begins. It awaits one more at the end, so that all that are passed are
    // taken.
    if (is_second) group.pass_turn();
    for (std::int32_t b = 1; b < owned.num_blocks; ++b) {
      const Turn before = turn;
      turn = next_turn(turn);
      blocks.advance();  // reads a run before the products, not between them
      group.await_turn();
      start_keys<kNumber, kDim, kValueDim>(group, shared, turn, state);
      start_values<kNumber, kDim, kValueDim>(group, shared, before, state);
      group.pass_turn();
      group.template wait_products<1>();
      group.pin(state.scores);
      group.arrive_warps(rings[0].empty[turn.stage]);
      weigh_block<kValueDim>(group, launch, blocks.block(), first_row, state);
      group.settle(state.rows, shared);
      group.template wait_products<0>();
      group.pin(state.out);
      group.arrive_warps(rings[1].empty[before.stage]);
      rescale_out<kValueDim>(group, state);
      round_weights<kNumber, kTiles>(group, state.scores, state.weights);
    }
    start_values<kNumber, kDim, kValueDim>(group, shared, turn, state);
    group.template wait_products<0>();
    group.pin(state.out);
    if (!is_second) group.await_turn();
  }
  write_group_rows<kValueDim>(group, launch, owned, kv_head, group_row, state);
}

// Does everything one group of a CTA does.
template <Number kNumber, int kDim, int kValueDim, typename Group>
CONTEXTILE_HD void wgmma_forward(Group& group, const Launch& launch, const OwnedBlock& owned,
                                 int kv_head, std::uint16_t* shared) {
  open_rings(group, reinterpret_cast<Ring*>(shared + WgmmaForwardPlaces<kDim, kValueDim>::kRingsAt),
             1);
  if (group.index() == kProducer) {
    group.template give_registers<RegisterShares<24>::kProducer>();
    if (group.producer_warp() == 0)
      bring_keys<kDim, kValueDim>(group, launch, owned, kv_head, shared);
  } else {
    group.template take_registers<RegisterShares<24>::kConsumer>();
    attend_keys<kNumber, kDim, kValueDim>(group, launch, owned, kv_head, shared);
  }
}

}  // namespace contextile::cuda

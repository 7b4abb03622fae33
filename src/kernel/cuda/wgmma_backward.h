// Backward by wgmma, in the two passes of mma_backward.h: 128 query rows own dQ and stream keys,
// 128 keys own dK and dV and stream query rows. Each of two consumers has 64 of the owned rows.
// While slopes are computed, dP or the other consumer's products are being multiplied.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/cuda/mma_backward.h"
#include "kernel/cuda/wgmma_steps.h"

namespace contextile::cuda {

// Number of streamed rows of a block. Gradients of two tensors leave registers for half as many
// scores.
template <bool kKeysOwn>
inline constexpr int kWgmmaStreamed = kKeysOwn ? 64 : 128;

// Returns the number of query rows of a block if a token has `heads` of them: whole tokens.
CONTEXTILE_HD constexpr std::int32_t whole_rows(std::int32_t heads) {
  return kWgmmaStreamed<true> / heads * heads;
}

// Places in shared memory, in elements of 16 bits.
template <int kDim, bool kKeysOwn>
struct WgmmaBackwardPlaces {
  static constexpr int kOwned = kGroupRows * kDim;  // of one tensor and one consumer
  static constexpr int kBlock = kWgmmaStreamed<kKeysOwn> * kDim;
  static constexpr int kStats = 2 * 2 * kGroupRows;  // LSE and delta of 64 query rows
  static constexpr int kFirstAt = 2 * kConsumers * kOwned;
  static constexpr int kSecondAt = kFirstAt + kStages * kBlock;
  // There is one for each consumer's rows, or for each stage's.
  static constexpr int kStatsAt = kSecondAt + kStages * kBlock;
  static constexpr int kRingsAt = kStatsAt + kStats * (kKeysOwn ? kStages : kConsumers);

  static_assert(kGroupRows == kOwnedRows && kWgmmaStreamed<true> == kOwnedRows,
                "load_row_stats and slopes keep as many rows");
};
template <int kDim, bool kKeysOwn>
inline constexpr std::size_t kWgmmaBackwardShared = WgmmaBackwardPlaces<kDim, kKeysOwn>::kRingsAt *
                                                        sizeof(std::uint16_t) +
                                                    2 * sizeof(Ring);

// Copies the streamed tensors into the rings: K and V, or Q and dO.
template <int kDim, bool kKeysOwn, typename Group>
CONTEXTILE_HD void bring_rows(Group& group, const Launch& launch, const OwnedBlock& owned,
                              int kv_head, std::uint16_t* shared) {
  using Places = WgmmaBackwardPlaces<kDim, kKeysOwn>;
  constexpr int kRows = kWgmmaStreamed<kKeysOwn>;
  auto* const rings = reinterpret_cast<Ring*>(shared + Places::kRingsAt);
  const std::int32_t heads = kKeysOwn ? launch.heads : 1;
  const int num_rows = kKeysOwn ? whole_rows(heads) : kRows;
  StreamedBlocks blocks(launch.runs + owned.first_run, owned.num_blocks, num_rows);
  std::int32_t seen = -1;
  for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
    if (b > 0) blocks.advance();
    const StreamedBlock block = blocks.block();
    const TileMaps& maps = launch.maps[block.tile];
    const BoxMap& first = kKeysOwn ? maps.q : maps.k;
    const BoxMap& second = kKeysOwn ? maps.dout : maps.v;
    const Turn turn = turn_of(b);
    if (block.tile != seen) group.one_lane([&] { group.read_maps(first, second); });
    seen = block.tile;
    for (int r = 0; r < 2; ++r) {
      Barrier& full = rings[r].full[turn.stage];
      group.wait(rings[r].empty[turn.stage], turn.parity ^ 1U);
      group.one_lane([&] {
        group.expect(full, static_cast<std::uint32_t>(num_rows * kDim) * sizeof(std::uint16_t));
        const int place =
            (r == 0 ? Places::kFirstAt : Places::kSecondAt) + turn.stage * Places::kBlock;
        copy_rows<kRows, kDim>(group, shared + place, r == 0 ? first : second, kv_head * heads,
                               block.begin / heads, full);
        group.arrive(full);
      });
    }
  }
}

// Copies LSE and delta of streamed query rows, which fill a place together with Q.
template <int kDim, typename Group>
CONTEXTILE_HD void bring_stats(Group& group, const Launch& launch, const OwnedBlock& owned,
                               int kv_head, std::uint16_t* shared) {
  using Places = WgmmaBackwardPlaces<kDim, true>;
  Ring& ring = *reinterpret_cast<Ring*>(shared + Places::kRingsAt);
  StreamedBlocks blocks(launch.runs + owned.first_run, owned.num_blocks, whole_rows(launch.heads));
  for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
    if (b > 0) blocks.advance();
    const StreamedBlock block = blocks.block();
    const Turn turn = turn_of(b);
    auto* const stats =
        reinterpret_cast<float*>(shared + Places::kStatsAt + turn.stage * Places::kStats);
    group.wait(ring.empty[turn.stage], turn.parity ^ 1U);
    group.each_lane([&](int lane) {
      for (int row = lane; row < kGroupRows; row += kLanes) {
        load_row_stats(launch, launch.tiles[block.tile], kv_head, block.begin, block.end, row,
                       stats);
      }
    });
    group.sync_warp();
    group.one_lane([&] { group.arrive(ring.full[turn.stage]); });
  }
}

// The scores, weights and gradients of a consumer's 64 rows.
template <int kDim, bool kKeysOwn, typename Group>
struct WgmmaBackwardRows {
  static constexpr int kTiles = kWgmmaStreamed<kKeysOwn> / 8;
  GroupSums<Group, kTiles> scores;
  GroupSums<Group, kTiles> dp;
  GroupWeights<Group, kTiles> weights;
  GroupWeights<Group, kTiles> slopes;
  GroupSums<Group, kDim / 8> first;   // dQ or dK
  GroupSums<Group, kDim / 8> second;  // dV
};

// Copies a consumer's own rows, and returns when they have arrived.
template <int kDim, bool kKeysOwn, typename Group>
CONTEXTILE_HD void load_owned(Group& group, const Launch& launch, const OwnedBlock& owned,
                              int kv_head, std::int32_t first_row, std::uint16_t* place,
                              float* stats) {
  constexpr int kTensor = WgmmaBackwardPlaces<kDim, kKeysOwn>::kOwned;
  const DeviceTile& slot = launch.tiles[owned.tile];
  const std::int32_t heads = kKeysOwn ? 1 : launch.heads;
  load_group_rows<kDim>(group, place, kKeysOwn ? slot.k : slot.q, heads, kv_head, first_row,
                        owned.end, launch.head_dim);
  load_group_rows<kDim>(group, place + kTensor, kKeysOwn ? slot.v : slot.dout, heads, kv_head,
                        first_row, owned.end, launch.value_dim);
  if (!kKeysOwn) load_stats(group, launch, slot, kv_head, first_row, owned.end, stats);
  group.wait_for_copies();
}

// Starts the products of a consumer's own rows and a streamed block when it has arrived: S of the
// first tensors, dP of the second ones.
template <Number kNumber, int kDim, int kRows, typename Group>
CONTEXTILE_HD void start_block(Group& group, const std::uint16_t* own, const std::uint16_t* block,
                               Ring& ring, Turn turn, GroupSums<Group, kRows / 8>& sums) {
  group.wait(ring.full[turn.stage], turn.parity);
  group.pin(sums);
  group.begin_products();
  start_scores<kNumber, kDim, kRows>(group, own, block + turn.stage * kRows * kDim, sums);
  group.commit_products();
}

// Starts sums += weights · rows of a streamed block of kRows rows, or of those in [kBegin, kEnd).
template <Number kNumber, int kDim, int kRows, int kBegin = 0, int kEnd = kRows, typename Group>
CONTEXTILE_HD void start_gradient(Group& group, GroupWeights<Group, kRows / 8>& weights,
                                  const std::uint16_t* rows, GroupSums<Group, kDim / 8>& sums) {
  group.template pin<kRows / 8, kBegin / 8, kEnd / 8>(weights);
  group.begin_products();
  start_weighted<kNumber, kDim, kRows, kBegin, kEnd>(group, weights, rows, sums);
  group.commit_products();
}

// Turns scores of a block into weights.
template <int kDim, bool kKeysOwn, typename Group>
CONTEXTILE_HD void make_weights(Group& group, const Launch& launch, const StreamedBlock& block,
                                std::int32_t first_row, const float* stats,
                                WgmmaBackwardRows<kDim, kKeysOwn, Group>& state) {
  constexpr int kTiles = kWgmmaStreamed<kKeysOwn> / 8;
  group.each_warp([&](int warp) {
    auto& scores = state.scores[warp];
    finish_scores<kKeysOwn, kTiles>(group, launch, block, first_row + warp * 16, scores);
    weights_of<kKeysOwn, kTiles>(group, launch, stats, warp * 16, scores);
  });
}

// Turns weights and dP of a block, or of its rows [kBegin, kEnd), into slopes, and starts their
// products with the first tensor.
template <Number kNumber, int kDim, bool kKeysOwn, int kBegin, int kEnd, typename Group>
CONTEXTILE_HD void add_slopes(Group& group, const Launch& launch, const float* stats,
                              const std::uint16_t* rows,
                              WgmmaBackwardRows<kDim, kKeysOwn, Group>& state) {
  constexpr int kRows = kWgmmaStreamed<kKeysOwn>;
  group.each_warp([&](int warp) {
    slopes_of<kKeysOwn, kRows / 8, kBegin / 8, kEnd / 8>(group, launch, stats, warp * 16,
                                                         state.scores[warp], state.dp[warp]);
  });
  round_weights<kNumber, kRows / 8, kBegin / 8, kEnd / 8>(group, state.dp, state.slopes);
  start_gradient<kNumber, kDim, kRows, kBegin, kEnd>(group, state.slopes, rows, state.first);
}

template <int kDim, bool kKeysOwn, typename Group>
CONTEXTILE_HD void write_gradients(Group& group, const Launch& launch, const OwnedBlock& owned,
                                   int kv_head, WgmmaBackwardRows<kDim, kKeysOwn, Group>& state) {
  const DeviceTile& slot = launch.tiles[owned.tile];
  const std::int32_t heads = kKeysOwn ? 1 : launch.heads;
  group.each_warp([&](int warp) {
    const int row = (group.index() - 1) * kGroupRows + warp * 16;
    write_gradient<kDim>(group, owned, row, kKeysOwn ? slot.dk : slot.dq, heads, kv_head,
                         launch.head_dim, launch.scale, state.first[warp]);
    if constexpr (kKeysOwn) {
      write_gradient<kDim>(group, owned, row, slot.dv, heads, kv_head, launch.value_dim, 1,
                           state.second[warp]);
    }
  });
}

// Starts S of the next block, if there is one, and waits for all products. The places of this block
// may be filled again when its gradients are added. Returns the turn of the next block.
template <Number kNumber, int kDim, bool kKeysOwn, typename Group>
CONTEXTILE_HD Turn end_block(Group& group, const std::uint16_t* own, const std::uint16_t* first,
                             Ring* rings, Turn turn, bool has_next,
                             WgmmaBackwardRows<kDim, kKeysOwn, Group>& state) {
  constexpr int kRows = kWgmmaStreamed<kKeysOwn>;
  const Turn next = next_turn(turn);
  if (has_next) {
    start_block<kNumber, kDim, kRows>(group, own, first, rings[0], next, state.scores);
    group.template wait_products<1>();
  } else {
    group.template wait_products<0>();
  }
  group.arrive_warps(rings[0].empty[turn.stage]);
  if constexpr (kKeysOwn) group.arrive_warps(rings[1].empty[turn.stage]);
  group.template wait_products<0>();
  group.pin(state.scores);
  group.pin(state.first);
  if constexpr (kKeysOwn) group.pin(state.second);
  return next;
}

// Does the work of one consumer: scores, slopes and gradients of every block that its rows meet.
// Weights are computed while dP is multiplied, slopes of keys while dV is, and S of the next block
// begins behind the gradients of this one.
template <Number kNumber, int kDim, bool kKeysOwn, typename Group>
CONTEXTILE_HD void add_gradients(Group& group, const Launch& launch, const OwnedBlock& owned,
                                 int kv_head, std::uint16_t* shared) {
  using Places = WgmmaBackwardPlaces<kDim, kKeysOwn>;
  constexpr int kRows = kWgmmaStreamed<kKeysOwn>;
  const int consumer = group.index() - 1;
  const std::int32_t first_row = owned.begin + consumer * kGroupRows;
  std::uint16_t* const own = shared + consumer * 2 * Places::kOwned;
  const std::uint16_t* const first = shared + Places::kFirstAt;
  const std::uint16_t* const second = shared + Places::kSecondAt;
  auto* const rings = reinterpret_cast<Ring*>(shared + Places::kRingsAt);
  const auto stats_at = [&](int index) {
    return reinterpret_cast<float*>(shared + Places::kStatsAt + index * Places::kStats);
  };
  WgmmaBackwardRows<kDim, kKeysOwn, Group> state;
  load_owned<kDim, kKeysOwn>(group, launch, owned, kv_head, first_row, own, stats_at(consumer));
  StreamedBlocks blocks(launch.runs + owned.first_run, owned.num_blocks,
                        kKeysOwn ? whole_rows(launch.heads) : kRows);
  Turn turn;
  if (owned.num_blocks > 0) {
    start_block<kNumber, kDim, kRows>(group, own, first, rings[0], turn, state.scores);
    group.template wait_products<0>();
    group.pin(state.scores);
  }
  for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
    if (b > 0) blocks.advance();
    const float* const stats = stats_at(kKeysOwn ? turn.stage : consumer);
    start_block<kNumber, kDim, kRows>(group, own + Places::kOwned, second, rings[1], turn,
                                      state.dp);
    make_weights<kDim, kKeysOwn>(group, launch, blocks.block(), first_row, stats, state);
    if constexpr (kKeysOwn) {
      round_weights<kNumber, kRows / 8>(group, state.scores, state.weights);
      group.pin(state.second);
      start_gradient<kNumber, kDim, kRows>(group, state.weights,
                                           second + turn.stage * Places::kBlock, state.second);
      group.template wait_products<1>();
    } else {
      group.settle_weights(state.scores, rings[1].full[turn.stage], turn.parity, own);
      group.template wait_products<0>();
    }
    group.pin(state.dp);
    // The second tensor is no longer needed if queries own: its place may be filled again.
    if constexpr (!kKeysOwn) group.arrive_warps(rings[1].empty[turn.stage]);
    const std::uint16_t* const rows = first + turn.stage * Places::kBlock;
    group.pin(state.first);
    if constexpr (kKeysOwn) {
      add_slopes<kNumber, kDim, kKeysOwn, 0, kRows>(group, launch, stats, rows, state);
    } else {
      add_slopes<kNumber, kDim, kKeysOwn, 0, kRows / 2>(group, launch, stats, rows, state);
      add_slopes<kNumber, kDim, kKeysOwn, kRows / 2, kRows>(group, launch, stats, rows, state);
    }
    turn = end_block<kNumber>(group, own, first, rings, turn, b + 1 < owned.num_blocks, state);
  }
  write_gradients<kDim, kKeysOwn>(group, launch, owned, kv_head, state);
}

// Sets rows to zero that no copy fills, because blocks hold whole tokens.
template <int kDim, typename Group>
CONTEXTILE_HD void clear_rest(Group& group, std::int32_t heads, std::uint16_t* shared) {
  using Places = WgmmaBackwardPlaces<kDim, true>;
  constexpr int kRows = kWgmmaStreamed<true>;
  const int begin = whole_rows(heads);
  if (begin == kRows || group.index() == kProducer) return;
  std::uint16_t* const blocks =
      shared + (group.index() == 1 ? Places::kFirstAt : Places::kSecondAt);
  group.each_thread([&](int thread) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int at = begin * kDim + thread; at < kRows * kDim; at += kGroupThreads) {
        blocks[stage * Places::kBlock + swizzled_at<kRows>(at / kDim, at % kDim)] = 0;
      }
    }
  });
  group.publish_writes();
}

// Does everything one group of a CTA does.
template <Number kNumber, int kDim, bool kKeysOwn, typename Group>
CONTEXTILE_HD void wgmma_backward(Group& group, const Launch& launch, const OwnedBlock& owned,
                                  int kv_head, std::uint16_t* shared) {
  using Places = WgmmaBackwardPlaces<kDim, kKeysOwn>;
  using Shares = RegisterShares<24>;
  if constexpr (kKeysOwn) clear_rest<kDim>(group, launch.heads, shared);
  open_rings(group, reinterpret_cast<Ring*>(shared + Places::kRingsAt), kKeysOwn ? 2 : 1);
  if (group.index() == kProducer) {
    group.template give_registers<Shares::kProducer>();
    if (group.producer_warp() == 0) {
      bring_rows<kDim, kKeysOwn>(group, launch, owned, kv_head, shared);
    } else if (kKeysOwn && group.producer_warp() == 1) {
      bring_stats<kDim>(group, launch, owned, kv_head, shared);
    }
  } else {
    group.template take_registers<Shares::kConsumer>();
    add_gradients<kNumber, kDim, kKeysOwn>(group, launch, owned, kv_head, shared);
  }
}

}  // namespace contextile::cuda

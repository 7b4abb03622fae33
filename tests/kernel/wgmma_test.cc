// The parts of the kernels for wgmma: descriptors, masks of whole rows, and the emulated block of
// warpgroups, which must notice data that is used too early or changed too soon. The program itself
// runs in the conformance tests, as "cuda:host_wgmma".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "contextile/base.h"
#include "gpu/emulated/box_map_format.h"
#include "kernel/cuda/passes.h"
#include "kernel/cuda/tile_lists.h"
#include "kernel/cuda/wgmma_backward.h"
#include "kernel/cuda/wgmma_forward.h"
#include "support/host_group.h"
#include "support/message_of.h"

namespace contextile::cuda {
namespace {

using ::testing::HasSubstr;

// The example of the PTX manual's canonical layouts: 128-byte swizzle, rows of 128 bytes.
TEST(WgmmaDescriptor, HoldsSixteenthsOfBytesInTheFieldsOfThePtxManual) {
  const std::uint64_t rows = rows_operand<64>(0x2400, 0);
  EXPECT_EQ(rows & 0x3fff, 0x2400U >> 4);
  EXPECT_EQ(rows >> 32 & 0x3fff, 1024U >> 4);  // to the next eight rows
  EXPECT_EQ(rows >> 49 & 7, 0U);
  EXPECT_EQ(rows >> 62, 1U);  // 128 bytes
  const std::uint64_t depth = depth_operand<128>(0x2400, 32);
  EXPECT_EQ(depth & 0x3fff, (0x2400U + 32 * 128) >> 4);
  EXPECT_EQ(depth >> 16 & 0x3fff, 128U * 128 >> 4);  // to the next 64 columns
  EXPECT_EQ(depth >> 32 & 0x3fff, 1024U >> 4);       // to the next eight rows of the depth
  EXPECT_EQ(depth >> 62, 1U);
}

TEST(WgmmaDescriptor, IsDecodedToWhatWasEncoded) {
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    const auto field = [&] { return static_cast<std::uint32_t>(rng.next() % 0x4000) * 16; };
    const Operand operand{field(), field(), field(), static_cast<std::uint32_t>(rng.next() % 4)};
    const Operand found = decode(encode(operand));
    EXPECT_EQ(found.start, operand.start);
    EXPECT_EQ(found.leading, operand.leading);
    EXPECT_EQ(found.stride, operand.stride);
    EXPECT_EQ(found.swizzle, operand.swizzle);
  }
}

template <int kRows>
void expect_no_two_in_one_place() {
  std::set<int> places;
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < 128; ++col) {
      places.insert(swizzled_at<kRows>(row, col));
      EXPECT_EQ(swizzled_at<kRows>(row, col), swizzled_at<kRows>(row, col / 8 * 8) + col % 8);
    }
  }
  EXPECT_EQ(places.size(), std::size_t{kRows} * 128);
  EXPECT_EQ(*places.rbegin(), kRows * 128 - 1);
}

TEST(WgmmaLayout, NoTwoElementsAreInOnePlace) {
  expect_no_two_in_one_place<64>();
  expect_no_two_in_one_place<128>();
}

// The sizes of shared memory must be those of docs/results/gpu.md, and no more than a
// multiprocessor of sm_90 has for a CTA.
TEST(WgmmaLayout, SharedMemoryIsAsMuchAsDocumented) {
  EXPECT_EQ((kWgmmaForwardShared<64, 64>), 81984U);
  EXPECT_EQ((kWgmmaForwardShared<128, 128>), 163904U);
  EXPECT_EQ((kWgmmaForwardShared<192, 128>), 213056U);
  EXPECT_EQ((kWgmmaBackwardShared<64, false>), 99392U);
  EXPECT_EQ((kWgmmaBackwardShared<128, false>), 197696U);
  EXPECT_EQ((kWgmmaBackwardShared<64, true>), 66624U);
  EXPECT_EQ((kWgmmaBackwardShared<128, true>), 132160U);
  EXPECT_LE((kWgmmaBackwardShared<128, false>), 227U * 1024);
  EXPECT_LE((kWgmmaForwardShared<192, 128>), 227U * 1024);
}

TEST(WgmmaLayout, RegistersThatAreTakenWereGiven) {
  using Shares = RegisterShares<24>;
  EXPECT_EQ(Shares::kConsumer, 240);
  EXPECT_LE(Shares::kProducer + kConsumers * Shares::kConsumer,
            (1 + kConsumers) * Shares::kAtStart);
  EXPECT_LE(Shares::kAtStart * kWgmmaThreads, 65536);
}

// Compares masks of random bands, computed for whole rows at once and pair by pair.
template <bool kKeysOwn>
void expect_masks_agree(Rng& rng) {
  constexpr int kTiles = 16;
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(rng.next() % static_cast<unsigned>(high - low + 1));
  };
  std::vector<TokenBand> bands(static_cast<std::size_t>(between(0, 3)));
  for (TokenBand& band : bands) {
    band.owned_begin = between(0, 40);
    band.owned_end = band.owned_begin + between(0, 40);
    band.streamed_begin = between(0, 200);
    band.streamed_end = band.streamed_begin + between(0, 200);
    band.lo = between(0, 3) == 0 ? -(1 << 29) : between(-50, 100);
    band.hi = between(0, 3) == 0 ? 1 << 29 : band.lo + between(0, 100);
  }
  Launch launch;
  launch.bands = bands.data();
  launch.heads = between(1, 5);
  const int begin = between(0, 300);
  const StreamedBlock block{.begin = begin,
                            .end = begin + between(1, kTiles * 8),
                            .num_bands = static_cast<std::int32_t>(bands.size())};
  const int first_row = between(0, 100);
  HostCta cta;
  HostCta::PerLane<Sums<kTiles>> scores;
  mask_scores<kKeysOwn, kTiles>(cta, launch, block, first_row, scores);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int i = 0; i < 4; ++i) {
        const Place place = place_in_sum(lane, i);
        const bool expected = attends<kKeysOwn>(launch, block, first_row + place.row,
                                                block.begin + tile * 8 + place.col);
        EXPECT_EQ(scores[static_cast<std::size_t>(lane)].x[tile][i], expected ? 0 : -INFINITY);
      }
    }
  }
}

TEST(WgmmaMask, OfWholeRowsIsThatOfPairs) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    expect_masks_agree<false>(rng);
    expect_masks_agree<true>(rng);
  }
}

TEST(WgmmaPasses, GroupsOfMoreHeadsThanABlockHasRowsAreMma) {
  KernelParams params{64, 1, 64, 64, 1, 0};
  EXPECT_EQ(forward_program(params, Program::kWgmma), Program::kWgmma);
  EXPECT_EQ(gradient_program(params, Program::kWgmma), Program::kWgmma);
  EXPECT_EQ(gradient_pass(Program::kWgmma, params, Dtype::kBf16, Gradient::kKAndV).rows.streamed,
            64);
  params.q_heads = 5;
  EXPECT_EQ(gradient_pass(Program::kWgmma, params, Dtype::kBf16, Gradient::kKAndV).rows.streamed,
            60);
  params.q_heads = 65;
  EXPECT_EQ(forward_program(params, Program::kWgmma), Program::kMma);
  EXPECT_EQ(gradient_program(params, Program::kWgmma), Program::kMma);
}

TEST(WgmmaPasses, HeadDim192HasAForwardOfItsOwn) {
  KernelParams params{1, 1, 192, 128, 1, 0};
  EXPECT_EQ(forward_program(params, Program::kWgmma), Program::kWgmma);
  EXPECT_EQ(forward_pass(Program::kWgmma, params, Dtype::kF16).entry.name,
            "wgmma_forward_f16_192_128");
  EXPECT_EQ(gradient_program(params, Program::kWgmma), Program::kMma);
  EXPECT_EQ(forward_program(params, Program::kMma), Program::kMma);
  params.value_dim = 136;
  EXPECT_EQ(forward_program(params, Program::kWgmma), Program::kMma);
}

// Forward by wgmma owns 128 rows, dQ by mma 64.
TEST(WgmmaPasses, PreparedBandsServePassesOfBothPrograms) {
  const std::vector<LocalBand> causal = {{{0, 512}, {0, 512}, -kUnbounded, 0}};
  const KernelParams params{1, 1, 192, 128, 1, 0};
  const DeviceBands bands(params, causal, 512, 512, {.forward = 128, .gradients = 64});
  EXPECT_EQ(bands.forward_queries().lanes(), 128);
  EXPECT_EQ(bands.queries().lanes(), 64);
  EXPECT_EQ(bands.keys().lanes(), 64);
  const DeviceBands same(params, causal, 512, 512, {.forward = 64, .gradients = 64});
  EXPECT_EQ(&same.forward_queries(), &same.queries());
  EXPECT_LT(same.size_bytes(), bands.size_bytes());
}

// One consumer multiplies 64 rows with as many, which a producer has copied. Tests leave out steps
// or do them in the wrong order.
class WgmmaGroups : public ::testing::Test {
 protected:
  static constexpr int kRows = 64;
  static constexpr int kBlock = kRows * kSwizzleCols;
  using Scores = GroupSums<HostGroup, kRows / 8>;

  WgmmaGroups() {
    Rng rng(7);
    for (std::vector<std::uint16_t>* rows : {&left_, &right_}) {
      rows->resize(kBlock);
      for (std::uint16_t& x : *rows) x = float_to_bf16(static_cast<float>(rng.normal()));
    }
    map_ = packed_map({.data = right_.data(),
                       .cols = kSwizzleCols,
                       .heads = 1,
                       .tokens = kRows,
                       .head_stride_bytes = 2 * kSwizzleCols,
                       .token_stride_bytes = 2 * kSwizzleCols,
                       .box_cols = kSwizzleCols,
                       .box_heads = 1,
                       .box_tokens = kRows});
  }

  [[nodiscard]] std::uint16_t* left() const { return cta_.shared(); }
  [[nodiscard]] std::uint16_t* right() const { return cta_.shared() + kBlock; }
  [[nodiscard]] Barrier& full() const {
    return *reinterpret_cast<Barrier*>(cta_.shared() + 2 * kBlock);
  }

  // Runs one program as the producer's first warp and another as the first consumer.
  void run(const std::function<void(HostGroup&)>& produce,
           const std::function<void(HostGroup&)>& consume) {
    cta_.turns().run([&](int part) {
      HostGroup group(cta_, part);
      if (part == 0) group.open(full(), 1);
      group.sync_cta();
      if (part == 0) produce(group);
      if (part == kProducerWarps) consume(group);
      group.expect_over();
    });
  }
  std::function<void(HostGroup&)> bringing(std::uint32_t bytes) {
    return [this, bytes](HostGroup& group) {
      group.read_maps(map_, map_);
      group.expect(full(), bytes);
      group.copy_box(right(), map_, 0, 0, 0, full());
      group.arrive(full());
    };
  }
  void load_left(HostGroup& group) {
    load_group_rows<kSwizzleCols>(group, left(), {left_.data(), kSwizzleCols, kSwizzleCols}, 1, 0,
                                  0, kRows, kSwizzleCols);
    group.wait_for_copies();
  }
  void start(HostGroup& group, Scores& scores) {
    start_scores<Number::kBf16, kSwizzleCols, kRows>(group, left(), right(), scores);
    group.commit_products();
  }
  [[nodiscard]] float expected(int row, int col) const {
    double sum = 0;
    for (int k = 0; k < kSwizzleCols; ++k) {
      const auto at = [&](const std::vector<std::uint16_t>& rows, int r) {
        return double{bf16_to_float(rows[static_cast<std::size_t>(r * kSwizzleCols + k)])};
      };
      sum += at(left_, row) * at(right_, col);
    }
    return static_cast<float>(sum);
  }

  static constexpr std::uint32_t kBytes = kBlock * 2;
  std::vector<std::uint16_t> left_, right_;
  BoxMap map_;
  HostGroups cta_{2 * kBlock * 2 + sizeof(Barrier), 1};
};

TEST_F(WgmmaGroups, AProductIsThereWhenItWasWaitedFor) {
  run(bringing(kBytes), [&](HostGroup& group) {
    auto scores = std::make_unique<Scores>();
    load_left(group);
    group.wait(full(), 0);
    group.begin_products();
    start(group, *scores);
    EXPECT_TRUE(std::isnan((*scores)[2][5].x[3][1]));  // not yet
    EXPECT_THAT(message_of<InvalidArgument>([&] { group.pin(*scores); }), HasSubstr("in flight"));
    group.wait_products<0>();
    for (std::size_t warp = 0; warp < kGroupWarps; ++warp) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const Place place = place_in_sum(static_cast<int>(lane), 1);
        EXPECT_NEAR((*scores)[warp][lane].x[3][1],
                    expected(static_cast<int>(warp) * 16 + place.row, 24 + place.col), 1e-5);
      }
    }
  });
}

TEST_F(WgmmaGroups, RowsThatAreOnTheirWayAreSeenToBeMissing) {
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                run(bringing(kBytes), [&](HostGroup& group) {
                  auto scores = std::make_unique<Scores>();
                  load_left(group);
                  group.begin_products();
                  start(group, *scores);
                  group.wait(full(), 0);  // too late
                  group.wait_products<0>();
                });
              }),
              HasSubstr("found the right ones changed"));
}

TEST_F(WgmmaGroups, RowsThatAreOverwrittenTooSoonAreSeen) {
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                run(bringing(kBytes), [&](HostGroup& group) {
                  auto scores = std::make_unique<Scores>();
                  load_left(group);
                  group.wait(full(), 0);
                  group.begin_products();
                  start(group, *scores);
                  left()[0] ^= 1;
                  group.wait_products<0>();
                });
              }),
              HasSubstr("found the left ones changed"));
}

TEST_F(WgmmaGroups, BytesThatNeverComeAreAnErrorInsteadOfAHang) {
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                run(bringing(kBytes + 16), [&](HostGroup& group) { group.wait(full(), 0); });
              }),
              HasSubstr("found all waiting for each other"));
}

TEST_F(WgmmaGroups, ProductsBehindNoFenceAreRefused) {
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                run(bringing(kBytes), [&](HostGroup& group) {
                  auto scores = std::make_unique<Scores>();
                  load_left(group);
                  group.wait(full(), 0);
                  start(group, *scores);
                });
              }),
              HasSubstr("expected a fence"));
}

TEST_F(WgmmaGroups, MapsThatWereNotReadAreRefused) {
  const auto bring_unread = [this](HostGroup& group) {
    group.copy_box(right(), map_, 0, 0, 0, full());
  };
  EXPECT_THAT(message_of<InvalidArgument>([&] { run(bring_unread, [](HostGroup&) {}); }),
              HasSubstr("expected a map that was read"));
}

TEST_F(WgmmaGroups, ArrivalsTooManyAreRefused) {
  const auto arrive_as_a_group = [this](HostGroup& group) { group.arrive_warps(full()); };
  EXPECT_THAT(message_of<InvalidArgument>([&] { run(arrive_as_a_group, [](HostGroup&) {}); }),
              HasSubstr("expected at most 1 arrivals, found 4"));
}

TEST_F(WgmmaGroups, TurnsThatNobodyTakesAreRefused) {
  run([](HostGroup&) {}, [](HostGroup& group) { group.pass_turn(); });
  EXPECT_THAT(message_of<InvalidArgument>([&] { cta_.expect_no_turn(); }),
              HasSubstr("expected all to be taken, found 1 left"));
}

TEST_F(WgmmaGroups, ProductsThatNobodyWaitedForAreRefused) {
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                run(bringing(kBytes), [&](HostGroup& group) {
                  auto scores = std::make_unique<Scores>();
                  load_left(group);
                  group.wait(full(), 0);
                  group.begin_products();
                  start(group, *scores);
                  group.expect_over();
                });
              }),
              HasSubstr("expected none at the end"));
}

}  // namespace
}  // namespace contextile::cuda

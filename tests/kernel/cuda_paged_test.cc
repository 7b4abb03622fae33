// The parts of the CUDA kernels for keys in pages: widened bytes, lists, the order of work. The
// program itself runs in paged_attention_test.
//
// Suffixes: N query rows, H heads, D head dim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "contextile/extend/paged_attention.h"
#include "kernel/cuda/paged_attend.h"
#include "kernel/cuda/paged_cache.h"
#include "kernel/cuda/paged_entry_points.h"
#include "kernel/cuda/paged_kernel.h"
#include "kernel/cuda/paged_tables.h"
#include "kernel/tensor.h"
#include "support/host_cta.h"
#include "support/host_driver.h"
#include "support/mask_support.h"
#include "support/message_of.h"

namespace contextile::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(CudaPagedCache, EveryByteIsItsValueInBothNumbers) {
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const float fp8 = fp8_value(byte);
    const float expected = fp8_to_float(static_cast<std::uint8_t>(byte));
    EXPECT_EQ(int8_value(byte), static_cast<float>(static_cast<std::int8_t>(byte)));
    EXPECT_EQ(bf16_to_float(float_to_bf16(int8_value(byte))), int8_value(byte));
    EXPECT_EQ(f16_to_float(float_to_f16(int8_value(byte))), int8_value(byte));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(fp8)) << byte;
      continue;
    }
    EXPECT_EQ(fp8, expected) << byte;
    EXPECT_EQ(bf16_to_float(float_to_bf16(fp8)), fp8) << byte;
    EXPECT_EQ(f16_to_float(float_to_f16(fp8)), fp8) << byte;
  }
}

TEST(CudaPagedCache, BytesStandWhereTheirElementsAreRead) {
  constexpr int kDim = 64;
  alignas(16) std::uint16_t bytes[kPagedStepKeys * kDim / 2];
  alignas(16) std::uint16_t wide[kPagedStepKeys * kDim];
  auto* const elements = reinterpret_cast<std::uint8_t*>(bytes);
  for (int i = 0; i < kPagedStepKeys * kDim; ++i) {
    elements[i] = static_cast<std::uint8_t>(i * 7 + i / kDim);
  }
  HostCta cta;
  widen_rows<Number::kF16, kDim>(cta, bytes, true, wide);
  for (int row = 0; row < kPagedStepKeys; ++row) {
    for (int col = 0; col < kDim; ++col) {
      const auto expected =
          static_cast<float>(static_cast<std::int8_t>(elements[row * kDim + col]));
      ASSERT_EQ(f16_to_float(wide[shared_at<kDim>(row, col)]), expected) << row << " " << col;
    }
  }
}

// Rows with up to three ranges each, and tables that are long enough.
struct Asked {
  std::vector<PageId> table = std::vector<PageId>(300, PageId(0));
  std::vector<Range> keys;
  std::vector<std::int32_t> splits = {0};

  Asked(Rng& rng, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int64_t at = 0;
      for (std::int64_t i = random_between(rng, 0, 3); i > 0; --i) {
        const std::int64_t begin = at + random_between(rng, 0, 40);
        const bool is_long = random_chance(rng, 0.2);
        at = begin + random_between(rng, 0, is_long ? 1400 : 90);
        keys.push_back({begin, at});
      }
      splits.push_back(static_cast<std::int32_t>(keys.size()));
    }
  }
  [[nodiscard]] PagedRequest request(std::int64_t first_row) const {
    return {first_row, std::ssize(splits) - 1, table, keys, splits};
  }
};

TEST(CudaPagedTables, MeetEveryKeyThatARowSeesOnce) {
  std::int64_t full = 0;
  std::int64_t runs = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto heads = static_cast<std::int32_t>(random_between(rng, 1, 9));
    const Asked asked(rng, random_between(rng, 1, 12));
    const PagedRequest request = asked.request(5);
    const PagedTable table = paged_table({&request, 1}, heads);
    PagedLaunch launch;
    launch.splits = table.splits.data();
    launch.ranges = table.ranges.data();
    launch.pieces = table.pieces.data();
    launch.heads = heads;
    std::set<std::pair<std::int32_t, std::int32_t>> met;
    for (const PagedWork& work : table.works) {
      EXPECT_EQ(work.first_row, 5);
      runs += work.part >= 0 ? 1 : 0;
      for (PagedSteps steps(launch, work); !steps.is_over(); steps.advance()) {
        const PagedPiece step = steps.step();
        ASSERT_LT(step.begin, step.end);
        ASSERT_LE(step.end - step.begin, kPagedStepKeys);
        full += step.is_masked ? 0 : 1;
        for (std::int32_t row = work.begin; row < work.end; ++row) {
          for (std::int32_t key = step.begin; key < step.end; ++key) {
            const bool is_seen = sees(launch, work, row, key);
            ASSERT_TRUE(is_seen || step.is_masked);
            if (is_seen) {
              ASSERT_TRUE(met.emplace(row, key).second);
            }
          }
        }
      }
    }
    std::size_t expected = 0;
    for (std::int64_t row = 0; row < request.num_rows; ++row) {
      for (auto r = asked.splits[static_cast<std::size_t>(row)];
           r < asked.splits[static_cast<std::size_t>(row) + 1]; ++r) {
        expected += static_cast<std::size_t>(asked.keys[static_cast<std::size_t>(r)].size());
      }
    }
    ASSERT_EQ(met.size(), expected * static_cast<std::size_t>(heads));
  }
  EXPECT_GT(full, 20);
  EXPECT_GT(runs, 20);
}

TEST(CudaPagedTables, ARequestIsCutTheSameBesideOthers) {
  Rng rng(3);
  const Asked first(rng, 3);
  const Asked second(rng, 4);
  const std::vector<PagedRequest> both = {first.request(0), second.request(3)};
  const PagedTable alone = paged_table({&both[1], 1}, 4);
  const PagedTable together = paged_table(both, 4);
  const std::size_t before = together.works.size() - alone.works.size();
  for (std::size_t i = 0; i < alone.works.size(); ++i) {
    const PagedWork& mine = alone.works[i];
    const PagedWork& other = together.works[before + i];
    ASSERT_EQ(mine.begin, other.begin);
    ASSERT_EQ(mine.num_pieces, other.num_pieces);
    for (std::int32_t p = 0; p < mine.num_pieces; ++p) {
      const PagedPiece& a = alone.pieces[static_cast<std::size_t>(mine.first_piece + p)];
      const PagedPiece& b = together.pieces[static_cast<std::size_t>(other.first_piece + p)];
      EXPECT_EQ(a.begin, b.begin);
      EXPECT_EQ(a.end, b.end);
    }
  }
}

// Decoding and appending on a recorded device.
class PagedOnADevice : public ::testing::Test {
 protected:
  static constexpr std::int64_t kPageBytes = 16 * 2 * 64 * 2;  // 16 tokens, 2 heads, bf16
  static constexpr std::int64_t kPages = 96;

  PagedOnADevice()
      : k_(driver_.allocate(kPages * kPageBytes)),
        v_(driver_.allocate(kPages * kPageBytes)),
        q_(driver_.allocate(4 * 64 * 2)),
        o_(driver_.allocate(4 * 64 * 4)),
        lse_(driver_.allocate(4 * 4)) {}
  ~PagedOnADevice() override {
    driver_.synchronize(streams_.compute);
    driver_.synchronize(streams_.moves);
    for (std::byte* memory : {k_, v_, q_, o_, lse_}) driver_.free(memory);
  }

  [[nodiscard]] PagedKv kv() const {
    PagedKv kv;
    kv.k = {k_, kPageBytes / 2, 2 * 64, 64, 64, {}};
    kv.v = {v_, kPageBytes / 2, 2 * 64, 64, 64, {}};
    kv.dtype = KvDtype::kBf16;
    kv.kv_heads = 2;
    return kv;
  }
  // Attends with one query that sees all keys except those of the last token, in runs that are
  // merged.
  void attend() {
    for (std::int32_t i = 0; i < kPages; ++i) table_.push_back(PageId(kPages - 1 - i));
    keys_ = {{0, kPages * 16 - 1}};
    const PagedRequest request{0, 1, table_, keys_};
    kernel_.run(
        {}, kv(), contiguous(q_, Dtype::kBf16, 1, 4, 64), {&request, 1},
        {contiguous(o_, Dtype::kF32, 1, 4, 64), as_stats(contiguous(lse_, Dtype::kF32, 1, 4, 1))});
  }

  HostDriver driver_{HostDriver::Mode::kRecorded, 1};
  RankStreams streams_{driver_};
  DevicePagedKernel kernel_{streams_};
  std::byte* k_;
  std::byte* v_;
  std::byte* q_;
  std::byte* o_;
  std::byte* lse_;
  std::vector<PageId> table_;
  std::vector<Range> keys_;
};

TEST_F(PagedOnADevice, ReadsOnlyTheKeysThatAreSeen) {
  attend();
  // Meanwhile a token is appended on another stream, as the last one of the first page in memory.
  driver_.fill(streams_.moves, k_ + 15 * 256, 0, 256);
  driver_.fill(streams_.moves, v_ + 15 * 256, 0, 256);
  driver_.synchronize(streams_.moves);
  driver_.synchronize(streams_.compute);
  EXPECT_THAT(driver_.races(), IsEmpty());
}

TEST_F(PagedOnADevice, WritingAKeyThatIsSeenMeanwhileIsARace) {
  attend();
  driver_.fill(streams_.moves, v_ + 14 * 256, 0, 256);
  driver_.synchronize(streams_.moves);
  driver_.synchronize(streams_.compute);
  EXPECT_THAT(driver_.races(), Not(IsEmpty()));
}

TEST_F(PagedOnADevice, TakingResultsMeanwhileIsARace) {
  attend();
  driver_.copy(streams_.moves, q_, o_, 64);
  driver_.synchronize(streams_.moves);
  driver_.synchronize(streams_.compute);
  EXPECT_THAT(driver_.races(), Not(IsEmpty()));
}

TEST_F(PagedOnADevice, NoThreadWaits) {
  attend();
  EXPECT_EQ(driver_.num_synchronizations(), 0);
}

TEST(CudaPagedEntryPoints, ACallTakesTheSmallestKernelThatHoldsItsDims) {
  const auto name = [](std::int32_t dim, std::int32_t value_dim, bool is_latent) {
    return paged_entry({Dtype::kF16, true, is_latent, dim, value_dim}).name;
  };
  EXPECT_EQ(name(64, 64, false), "paged_bytes_f16_64");
  EXPECT_EQ(name(96, 32, false), "paged_bytes_f16_128");
  EXPECT_EQ(name(192, 128, false), "paged_bytes_f16_256");
  EXPECT_EQ(name(576, 512, true), "paged_bytes_f16_576_512");
  EXPECT_EQ(name(576, 512, false), "");
  EXPECT_EQ(name(576, 528, true), "");
}

// The sizes of shared memory must be those of docs/results/gpu.md.
TEST(CudaPagedEntryPoints, SharedMemoryIsAsMuchAsDocumented) {
  EXPECT_EQ((PagedShape<false, 64, 64>::kShared), 22016U);
  EXPECT_EQ((PagedShape<false, 128, 128>::kShared), 40448U);
  EXPECT_EQ((PagedShape<false, 256, 256>::kShared), 77312U);
  EXPECT_EQ((PagedShape<false, 576, 512>::kShared), 95744U);
  EXPECT_EQ((PagedShape<true, 64, 64>::kShared), 26112U);
  EXPECT_EQ((PagedShape<true, 128, 128>::kShared), 48640U);
  EXPECT_EQ((PagedShape<true, 256, 256>::kShared), 93696U);
  EXPECT_EQ((PagedShape<true, 576, 512>::kShared), 132608U);
}

}  // namespace
}  // namespace contextile::cuda

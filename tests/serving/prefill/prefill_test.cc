#include "contextile/serving/prefill.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "serving/cache/error_of.h"
#include "serving/prefill/prefill_batch.h"

namespace contextile {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr PrefillMode kExchanges[] = {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                      PrefillMode::kAllGather, PrefillMode::kUlysses};
constexpr double kBound = 2e-6;

AttentionShape shape_of(std::int32_t kv_heads, Dtype dtype = Dtype::kF32) {
  return {.q_heads = 24, .kv_heads = kv_heads, .head_dim = 16, .value_dim = 12, .dtype = dtype};
}

bool ulysses_fits(std::int32_t kv_heads, std::int32_t ranks) {
  return kv_heads % ranks == 0 || ranks % kv_heads == 0;
}

// Compares every mode with fp64, and its bytes with the formulas.
void check_modes(const TestBatch& test, double bound, Dtype wire = Dtype::kF32,
                 std::optional<Dtype> kv_wire = {}) {
  const TestBatch::Result expected = test.expected();
  const PrefillWork work = prefill_work(test.batch());
  const std::int32_t ranks = work.num_ranks;
  std::optional<TestBatch::Result> first;
  for (const PrefillMode mode : kExchanges) {
    if (mode == PrefillMode::kUlysses && !ulysses_fits(test.shape().kv_heads, ranks)) continue;
    SCOPED_TRACE(fmt::format("{} ranks, interleave {}, {} KV heads, {}, {}", ranks,
                             test.batch().layout.interleave, test.shape().kv_heads,
                             to_string(test.batch().mask), to_string(mode)));
    const PrefillFound found = prefill(test, {mode, wire, kv_wire});
    EXPECT_LT(difference(found.result, expected), bound);
    const bool rounds = kv_wire && *kv_wire != test.shape().dtype && mode != PrefillMode::kPassQ;
    if (rounds && ranks > 1) {
      EXPECT_GT(difference(found.result, expected), 0x1p-14);
    }
    if (!first) first = found.result;
    EXPECT_LT(difference(found.result, *first), 2 * bound);
    for (std::int32_t r = 0; r < ranks; ++r) {
      EXPECT_EQ(found.sent_bytes[static_cast<std::size_t>(r)],
                prefill_bytes(mode, work, Rank(r), test.shape(), wire, kv_wire));
    }
  }
}

TEST(Prefill, EveryModeIsAttentionOnOneDevice) {
  for (const std::int32_t ranks : {1, 2, 3, 4, 8}) {
    for (const std::int32_t interleave : {1, 2, 4}) {
      for (const std::int32_t kv_heads : {1, 2, 24}) {
        if (kv_heads != 2 && interleave == 2) continue;
        check_modes(TestBatch({ranks, interleave, 4}, shape_of(kv_heads), kUnevenLengths), kBound);
      }
    }
  }
}

TEST(Prefill, EveryMask) {
  for (const char* mask : {"full", "sliding_window:1", "sliding_window:9", "lambda:2,11",
                           "lambda:40,30", "chunked:16", "prefix_lm:20"}) {
    for (const std::int32_t ranks : {1, 3, 4}) {
      check_modes(TestBatch({ranks, 2, 4}, shape_of(2), kUnevenLengths, mask), kBound);
    }
    check_modes(TestBatch({4, 1, 4}, shape_of(2), kUnevenLengths, mask), kBound);
  }
}

TEST(Prefill, ChunksWithEmptyOnes) {
  for (const std::int32_t ranks : {2, 3, 8}) {
    check_modes(
        TestBatch({ranks, 1, 4}, shape_of(1), kUnevenLengths, "causal", PrefillChunks::kCeil),
        kBound);
  }
}

TEST(Prefill, SinksAndSoftcap) {
  AttentionShape shape = shape_of(2);
  shape.sink = true;
  shape.softcap = 2;
  check_modes(TestBatch({4, 1, 4}, shape, kUnevenLengths, "sliding_window:9"), kBound);
}

TEST(Prefill, HalfPrecision) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    const double bound = 2e-6 + 2 * weight_rounding(preferred_kernel(dtype).weight_dtype(dtype));
    check_modes(TestBatch({4, 1, 4}, shape_of(2, dtype), kUnevenLengths), bound);
  }
}

TEST(Prefill, KeysThatTravelInHalfPrecision) {
  for (const std::int32_t kv_heads : {2, 24}) {
    check_modes(TestBatch({4, 1, 4}, shape_of(kv_heads), kUnevenLengths), 0x1p-6, Dtype::kF32,
                Dtype::kBf16);
  }
}

TEST(Prefill, OutputsThatTravelInHalfPrecision) {
  check_modes(TestBatch({4, 1, 4}, shape_of(2), kUnevenLengths), 0x1p-7, Dtype::kBf16);
}

TEST(Prefill, GivesTheSameBitsWhateverTheTiming) {
  const TestBatch test({3, 2, 4}, shape_of(24), kUnevenLengths);
  for (const PrefillMode mode : kExchanges) {
    const PrefillFound first = prefill(test, {mode});
    const PrefillFound again = prefill(test, {mode}, {.max_delay_us = 300, .delay_seed = 5});
    EXPECT_EQ(first.result.o, again.result.o) << to_string(mode);
    EXPECT_EQ(first.result.lse, again.result.lse) << to_string(mode);
  }
}

TEST(Prefill, OfNothing) {
  const TestBatch none({4, 1, 4}, shape_of(4), {});
  const TestBatch only_cached({4, 1, 4}, shape_of(4), {{40, 0}, {3, 0}});
  for (const PrefillMode mode : kExchanges) {
    EXPECT_THAT(prefill(none, {mode}).sent_bytes, Each(0));
    EXPECT_THAT(prefill(only_cached, {mode}).sent_bytes, Each(0));
  }
}

// Only the part of a long cache that a window sees moves.
TEST(Prefill, KeysThatNobodySeesStay) {
  const TestBatch test({4, 1, 4}, shape_of(4), {{4000, 16}}, "lambda:4,32");
  const PrefillWork work = prefill_work(test.batch());
  for (const std::int64_t rows : work.kv_rows) EXPECT_LE(rows, 4 / 4 + 32 / 4 + 16 / 4);
  check_modes(test, kBound);
}

// A prompt in chunks, each of which sees what the ones before left in the cache.
TEST(Prefill, ChunkByChunkIsTheWhole) {
  const std::vector<CachedAndNew> whole = {{0, 61}, {13, 40}, {0, 5}};
  const std::vector<std::vector<std::int64_t>> ends = {{20, 13, 1}, {21, 33, 5}, {61, 53, 5}};
  for (const std::int32_t ranks : {1, 2, 4}) {
    for (const PrefillMode mode : kExchanges) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, to_string(mode)));
      const TestBatch test({ranks, 2, 4}, shape_of(4), whole);
      const TestBatch::Result expected = prefill(test, {mode}).result;
      TestBatch::Result found = empty_result(test);
      run_inproc(ranks, [&](Transport& transport) {
        RankPages pages = test.inputs(transport.rank()).pages;
        PrefillGroup group(transport, preferred_kernel(Dtype::kF32));
        std::vector<std::int64_t> cached = {0, 13, 0};
        for (const std::vector<std::int64_t>& end : ends) {
          std::vector<CachedAndNew> lengths;
          for (std::size_t i = 0; i < 3; ++i) lengths.push_back({cached[i], end[i] - cached[i]});
          const TestBatch chunk = test.with_lengths(lengths);
          const RankInputs in = chunk.inputs(transport.rank());
          HostTensor out(Dtype::kF32, in.q.tokens(), 24, 12);
          HostTensor lse(Dtype::kF32, in.q.tokens(), 24, 1);
          group.prepare(chunk.batch(), test.shape(), {mode});
          group.attend(in.q.view(), in.k.view(), in.v.view(), pages.kv(),
                       {out.view(), lse.stats()});
          pages.write(group.to_cache(in.k.view(), in.v.view()));
          TestBatch::Result part = empty_result(chunk);
          put_result(chunk, transport.rank(), out, lse, part);
          // From tokens of the chunk to tokens of the whole.
          std::size_t from = 0;
          std::size_t first = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            const auto begin = first + static_cast<std::size_t>(cached[i] - whole[i].cached);
            for (std::int64_t t = 0; t < lengths[i].fresh; ++t, ++from) {
              const std::size_t to = begin + static_cast<std::size_t>(t);
              if (std::isnan(part.lse[from * 24])) continue;
              std::copy_n(&part.lse[from * 24], 24, &found.lse[to * 24]);
              std::copy_n(&part.o[from * 24 * 12], 24 * 12, &found.o[to * 24 * 12]);
            }
            first += static_cast<std::size_t>(whole[i].fresh);
          }
          cached = end;
        }
        // The pages equal those of a cache that always had all tokens.
        const RankPages full =
            test.with_lengths({{61, 0}, {53, 0}, {5, 0}}).inputs(transport.rank()).pages;
        EXPECT_TRUE(std::ranges::equal(pages.k.bytes(), full.k.bytes()));
        EXPECT_TRUE(std::ranges::equal(pages.v.bytes(), full.v.bytes()));
      });
      EXPECT_LT(difference(found, expected), kBound);
      EXPECT_LT(difference(found, test.expected()), kBound);
    }
  }
}

// The text of what every rank throws: one for all.
std::string error_on_all(std::int32_t ranks, const auto& call) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_inproc(ranks, [&](Transport& transport) {
    errors[transport.rank().index()] = error_of([&] { call(transport); });
  });
  for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
  return errors[0];
}

TEST(Prefill, SaysOnAllRanksWhatDoesNotFit) {
  const TestBatch test({3, 1, 4}, shape_of(2), {{9, 20}});
  const auto error_with = [&](PrefillBatch batch, AttentionShape shape, PrefillOptions options) {
    return error_on_all(3, [&](Transport& transport) {
      PrefillGroup group(transport, preferred_kernel(Dtype::kF32));
      group.prepare(batch, shape, options);
    });
  };
  const PrefillBatch good = test.batch();
  EXPECT_EQ(error_with(good, test.shape(), {}), "none");
  EXPECT_EQ(error_with(good, test.shape(), {.mode = PrefillMode::kUlysses}),
            "prefill: ulysses: expected query heads that 3 ranks divide and KV heads that they "
            "divide or that divide them, found 24 and 2");
  PrefillBatch other = good;
  other.layout.num_ranks = 2;
  EXPECT_EQ(error_with(other, test.shape(), {}),
            "prefill: layout: expected 3 ranks, as the group has, found 2");
  PrefillSequence sequence = good.sequences[0];
  other = good;
  other.sequences = {&sequence, 1};
  sequence.table = {};
  EXPECT_EQ(error_with(other, test.shape(), {}),
            "prefill: table of sequence 0: expected at least 1 pages, found 0");
  sequence = {.cached_tokens = 0, .new_tokens = -1};
  EXPECT_THAT(error_with(other, test.shape(), {}),
              HasSubstr("sequence 0: expected 0 to 2147483647 cached and new tokens, found 0 and "
                        "-1"));
  AttentionShape shape = test.shape();
  shape.kv_heads = 5;
  EXPECT_NE(error_with(good, shape, {}), "none");
  other = good;
  other.mask.rule = MaskSpec::Rule::kSlidingWindow;
  other.mask.window = 0;
  EXPECT_NE(error_with(other, test.shape(), {}), "none");
}

TEST(Prefill, SaysOnAllRanksWhatRanksHaveOtherwise) {
  const TestBatch test({3, 1, 4}, shape_of(2), {{9, 20}});
  const std::string error = error_on_all(3, [&](Transport& transport) {
    PrefillGroup group(transport, preferred_kernel(Dtype::kF32));
    const bool is_last = transport.rank() == Rank(2);
    group.prepare(test.batch(), test.shape(),
                  {.mode = is_last ? PrefillMode::kPassQ : PrefillMode::kPassKv});
  });
  EXPECT_EQ(error,
            "prefill: expected the same mode on all ranks, found pass_kv on rank 0 and pass_q on "
            "rank 2");
}

TEST(Prefill, SaysWhichTensorDoesNotFit) {
  const TestBatch test({1, 1, 4}, shape_of(2), {{9, 20}});
  run_inproc(1, [&](Transport& transport) {
    PrefillGroup group(transport, preferred_kernel(Dtype::kF32));
    const RankInputs in = test.inputs(Rank(0));
    HostTensor out(Dtype::kF32, 20, 24, 12);
    HostTensor lse(Dtype::kF32, 20, 24, 1);
    const PartialOutput result = {out.view(), lse.stats()};
    const auto attend = [&](const HostTensor& q, const HostTensor& k, const PagedKv& kv) {
      return error_of([&] { group.attend(q.view(), k.view(), in.v.view(), kv, result); });
    };
    EXPECT_EQ(attend(in.q, in.k, in.pages.kv()), "prefill: expected a batch (prepare), found none");
    group.prepare(test.batch(), test.shape());
    EXPECT_EQ(attend(in.q, in.k, in.pages.kv()), "none");
    EXPECT_EQ(attend(in.k, in.k, in.pages.kv()),
              "prefill: q: expected f32 [20, 24, 16], found f32 [20, 2, 16]");
    EXPECT_EQ(attend(in.q, in.v, in.pages.kv()),
              "prefill: k: expected f32 [20, 2, 16], found f32 [20, 2, 12]");
    PagedKv kv = in.pages.kv();
    kv.dtype = KvDtype::kFp8;
    EXPECT_EQ(attend(in.q, in.k, kv),
              "prefill: kv: expected f32, 2 heads of 16 and 12, pages of 4, found fp8, 2 heads of "
              "16 and 12, pages of 4");
    PrefillSequence sequence = test.batch().sequences[0];
    sequence.table = sequence.table.first(3);
    PrefillBatch batch = test.batch();
    batch.sequences = {&sequence, 1};
    group.prepare(batch, test.shape());
    EXPECT_EQ(error_of([&] { static_cast<void>(group.to_cache(in.k.view(), in.v.view())); }),
              "prefill: table of sequence 0: expected at least 8 pages, found 3");
  });
}

TEST(Prefill, ReadsNamesOfModes) {
  for (const PrefillMode mode : kExchanges) EXPECT_EQ(parse_prefill_mode(to_string(mode)), mode);
  EXPECT_EQ(error_of([] { static_cast<void>(parse_prefill_mode("ring")); }),
            "prefill mode: expected one of pass_kv, pass_q, all_gather, ulysses; found 'ring'");
}

// N = 2, rows (3, 1) and keys (5, 4): the formulas of serving/prefill.h by hand.
TEST(Prefill, SendsWhatTheFormulasSay) {
  const PrefillWork work = {.num_ranks = 2, .q_rows = {3, 1}, .kv_rows = {5, 4}, .pairs = {}};
  const AttentionShape shape = {
      .q_heads = 8, .kv_heads = 2, .head_dim = 16, .value_dim = 12, .dtype = Dtype::kBf16};
  const auto bytes = [&](PrefillMode mode) { return prefill_bytes(mode, work, Rank(0), shape); };
  EXPECT_EQ(bytes(PrefillMode::kPassKv), 5 * 2 * 28 * 2);
  EXPECT_EQ(bytes(PrefillMode::kPassQ), 3 * 8 * 16 * 2 + 1 * 8 * (12 * 4 + 4));
  EXPECT_EQ(bytes(PrefillMode::kAllGather), 5 * 2 * 28 * 2);
  EXPECT_EQ(bytes(PrefillMode::kUlysses), 3 * 4 * 16 * 2 + 5 * 1 * 28 * 2 + 1 * 4 * (12 * 4 + 4));
}

}  // namespace
}  // namespace contextile

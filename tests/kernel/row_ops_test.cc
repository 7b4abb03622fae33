// Row operations of every kernel, against loops written from the definition.
#include "kernel/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "contextile/extend/kernel.h"
#include "kernel/cpu/logaddexp.h"
#include "kernel/cpu/reference_rows.h"
#include "kernel/tensor.h"
#include "runtime/executor/unit_view.h"
#include "support/cuda_host_kernel.h"
#include "support/device_under_test.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const RowOps*> all_row_ops() {
  std::vector<const RowOps*> all;
  for (const AttentionKernel* kernel : kernels()) {
    const RowOps& rows = kernel->row_ops();
    const auto has_its_name = [&](const RowOps* other) { return other->name() == rows.name(); };
    if (std::ranges::none_of(all, has_its_name)) all.push_back(&rows);
  }
  all.push_back(&staged_kernels().front()->row_ops());
  return all;
}

// Rows with gaps between heads and tokens, NaN until filled.
struct Rows {
  Rows(Dtype dtype, std::int64_t tokens, std::int32_t heads, std::int32_t dim, std::int64_t gap)
      : bytes(static_cast<std::size_t>(tokens * (heads * (dim + gap) + gap) *
                                       bytes_per_element(dtype)),
              std::byte{0xff}),
        view{nullptr, dtype, tokens, heads, dim, heads * (dim + gap) + gap, dim + gap} {}
  TensorView tensor() {
    TensorView all = view;
    all.data = bytes.data();
    return all;
  }
  RowStats stats() { return as_stats(tensor()); }
  void fill(Rng& rng) {
    std::vector<float> row(static_cast<std::size_t>(view.dim));
    for (std::int64_t n = 0; n < view.tokens; ++n) {
      for (std::int32_t h = 0; h < view.heads; ++h) {
        for (float& value : row) value = static_cast<float>(rng.normal());
        write_row(tensor(), n, h, row);
      }
    }
  }
  // Returns true if the bytes between the rows are as at first.
  bool gaps_are_untouched() const {
    const std::int64_t size = bytes_per_element(view.dtype);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) / size % view.token_stride;
      const bool is_row = at < view.heads * view.head_stride && at % view.head_stride < view.dim;
      if (!is_row && bytes[i] != std::byte{0xff}) return false;
    }
    return true;
  }
  std::vector<double> row(std::int64_t n, std::int32_t h) {
    std::vector<double> values(static_cast<std::size_t>(view.dim));
    read_row(tensor(), n, h, std::span<double>(values));
    return values;
  }

  std::vector<std::byte> bytes;
  TensorView view;
};

struct Shape {
  std::int64_t tokens;
  std::int32_t heads;
  std::int32_t dim;
  std::int64_t gap;
};

Shape random_shape(Rng& rng) {
  constexpr std::int32_t kDims[] = {1, 5, 16, 37, 64, 128, 129, 200};
  return {random_between(rng, 1, 40), static_cast<std::int32_t>(random_between(rng, 1, 5)),
          kDims[random_between(rng, 0, 7)], random_between(rng, 0, 1) * 3};
}

Rows rows_of(const Shape& shape, Dtype dtype = Dtype::kF32) {
  return {dtype, shape.tokens, shape.heads, shape.dim, shape.gap};
}
Rows stats_of(const Shape& shape) { return {Dtype::kF32, shape.tokens, shape.heads, 1, shape.gap}; }

// Partial results; some rows are empty and their O stays NaN.
struct Partials {
  Partials(Rng& rng, const Shape& shape, std::size_t count) {
    for (std::size_t s = 0; s < count; ++s) {
      o.push_back(rows_of(shape));
      lse.push_back(stats_of(shape));
      o.back().fill(rng);
      lse.back().fill(rng);
      for (std::int64_t n = 0; n < shape.tokens; ++n) {
        for (std::int32_t h = 0; h < shape.heads; ++h) {
          if (random_chance(rng, 0.5)) {
            stat_at(lse.back().stats(), n, h) *= 30;
            continue;
          }
          if (random_chance(rng, 0.5)) continue;
          stat_at(lse.back().stats(), n, h) = kEmpty;
          write_row(o.back().tensor(), n, h,
                    std::vector<float>(static_cast<std::size_t>(shape.dim), kNan));
        }
      }
    }
  }
  std::vector<PartialOutput> views() {
    std::vector<PartialOutput> all;
    for (std::size_t s = 0; s < o.size(); ++s) all.push_back({o[s].tensor(), lse[s].stats()});
    return all;
  }
  std::vector<Rows> o;
  std::vector<Rows> lse;
};

class EveryRowOps : public ::testing::TestWithParam<const RowOps*> {};

TEST_P(EveryRowOps, MergesByTheDefinition) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Shape shape = random_shape(rng);
    const auto count = static_cast<std::size_t>(random_between(rng, 1, seed % 4 == 0 ? 20 : 5));
    Partials before(rng, shape, count);
    Partials after = before;
    Partials elsewhere(rng, shape, 1);
    const bool is_in_place = random_chance(rng, 0.5);
    Rows& o = is_in_place ? after.o[count / 2] : elsewhere.o[0];
    Rows& lse = is_in_place ? after.lse[count / 2] : elsewhere.lse[0];
    GetParam()->merge({o.tensor(), lse.stats()}, after.views());
    for (std::int64_t n = 0; n < shape.tokens; ++n) {
      for (std::int32_t h = 0; h < shape.heads; ++h) {
        double expected_lse = kEmpty;
        for (Rows& some : before.lse) {
          expected_lse = logaddexp(expected_lse, stat_at(some.stats(), n, h));
        }
        std::vector<double> expected(static_cast<std::size_t>(shape.dim));
        for (std::size_t s = 0; s < count; ++s) {
          const double own = stat_at(before.lse[s].stats(), n, h);
          if (own == kEmpty) continue;
          const std::vector<double> row = before.o[s].row(n, h);
          for (std::size_t d = 0; d < row.size(); ++d) {
            expected[d] += std::exp(own - expected_lse) * row[d];
          }
        }
        const float found_lse = stat_at(lse.stats(), n, h);
        if (expected_lse == kEmpty) {
          EXPECT_EQ(found_lse, kEmpty);
        } else {
          EXPECT_NEAR(found_lse, expected_lse, 1e-7 * std::max(1.0, std::abs(expected_lse)));
        }
        const std::vector<double> found = o.row(n, h);
        for (std::size_t d = 0; d < found.size(); ++d) {
          ASSERT_NEAR(found[d], expected[d], 1e-7 * std::max(1.0, std::abs(expected[d])));
        }
      }
    }
  }
}

TEST_P(EveryRowOps, ANanLogSumExpIsNotLost) {
  const Shape shape{1, 2, 20, 0};
  Rng rng(1);
  for (const std::size_t at : {0U, 1U}) {
    Partials partials(rng, shape, 2);
    for (Rows& lse : partials.lse) lse.fill(rng);
    stat_at(partials.lse[at].stats(), 0, 1) = kNan;
    Rows o = rows_of(shape);
    Rows lse = stats_of(shape);
    GetParam()->merge({o.tensor(), lse.stats()}, partials.views());
    EXPECT_FALSE(std::isnan(stat_at(lse.stats(), 0, 0)));
    EXPECT_TRUE(std::isnan(stat_at(lse.stats(), 0, 1)));
    EXPECT_TRUE(std::isnan(o.row(0, 1)[3]));
  }
}

TEST_P(EveryRowOps, SumsAndDeltasAreRoundedOnce) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Shape shape = random_shape(rng);
    const auto count = static_cast<std::size_t>(random_between(rng, 1, 6));
    std::vector<Rows> before(count, rows_of(shape));
    for (Rows& rows : before) rows.fill(rng);
    std::vector<Rows> after = before;
    std::vector<TensorView> srcs;
    for (Rows& rows : after) srcs.push_back(rows.tensor());
    GetParam()->sum(srcs[0], srcs);
    constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};
    Rows dout = rows_of(shape, kDtypes[seed % 3]);
    Rows out = rows_of(shape, kDtypes[seed % 3]);
    Rows delta = stats_of(shape);
    dout.fill(rng);
    out.fill(rng);
    GetParam()->delta(dout.tensor(), out.tensor(), delta.stats());
    for (std::int64_t n = 0; n < shape.tokens; ++n) {
      for (std::int32_t h = 0; h < shape.heads; ++h) {
        const std::vector<double> found = after[0].row(n, h);
        const std::vector<double> a = dout.row(n, h);
        const std::vector<double> b = out.row(n, h);
        double dot = 0;
        for (std::size_t d = 0; d < found.size(); ++d) {
          double sum = 0;
          for (Rows& rows : before) sum += rows.row(n, h)[d];
          ASSERT_EQ(found[d], static_cast<float>(sum));
          dot += a[d] * b[d];
        }
        ASSERT_NEAR(stat_at(delta.stats(), n, h), dot, 6e-8 * std::abs(dot) + 1e-12);
      }
    }
  }
}

// Widens every pattern of 16 bits; narrows numbers at, next to and between them.
TEST_P(EveryRowOps, CastsEqualTheScalarOnes) {
  std::vector<std::uint16_t> bits;
  for (std::uint32_t i = 0; i < 65536; ++i) bits.push_back(static_cast<std::uint16_t>(i));
  std::vector<float> wide(bits.size(), kNan);
  const auto view = [](auto& data, Dtype dtype) {
    return contiguous(data.data(), dtype, 1, 1, static_cast<std::int32_t>(data.size()));
  };
  Rng rng(9);
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    const auto widened = [&](std::uint16_t pattern) {
      return dtype == Dtype::kBf16 ? bf16_to_float(pattern) : f16_to_float(pattern);
    };
    GetParam()->convert(view(wide, Dtype::kF32), view(bits, dtype));
    std::vector<float> numbers;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const float expected = widened(bits[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i]));
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected));
      }
      const auto pattern = std::bit_cast<std::uint32_t>(expected);
      for (const std::uint32_t step : {0x0U, 0xfffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U}) {
        numbers.push_back(std::bit_cast<float>(pattern + step));
      }
      numbers.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(rng.next())));
    }
    std::vector<std::uint16_t> narrow(numbers.size());
    GetParam()->convert(view(narrow, dtype), view(numbers, Dtype::kF32));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::uint16_t expected =
          dtype == Dtype::kBf16 ? float_to_bf16(numbers[i]) : float_to_f16(numbers[i]);
      if (std::isnan(numbers[i])) {
        ASSERT_TRUE(std::isnan(widened(narrow[i])));
      } else {
        ASSERT_EQ(narrow[i], expected) << numbers[i];
      }
    }
  }
}

TEST_P(EveryRowOps, FinishesRowsWithAndWithoutASink) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Shape shape = random_shape(rng);
    constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};
    const Dtype dtype = kDtypes[seed % 3];
    Partials partial(rng, shape, 1);
    std::vector<float> sink;
    for (std::int32_t h = 0; h < shape.heads && seed % 2 == 0; ++h) {
      sink.push_back(static_cast<float>(3 * rng.normal()));
    }
    Rows out = rows_of(shape, dtype);
    Rows lse = stats_of(shape);
    GetParam()->finish(partial.views()[0], sink, out.tensor(), lse.stats());
    for (std::int64_t n = 0; n < shape.tokens; ++n) {
      for (std::int32_t h = 0; h < shape.heads; ++h) {
        const double own = stat_at(partial.lse[0].stats(), n, h);
        const double with_sink =
            sink.empty() ? own : logaddexp(own, sink[static_cast<std::size_t>(h)]);
        const float found_lse = stat_at(lse.stats(), n, h);
        if (std::isinf(with_sink)) {
          EXPECT_EQ(found_lse, kEmpty);
        } else {
          EXPECT_NEAR(found_lse, with_sink, 1e-7 * std::max(1.0, std::abs(with_sink)));
        }
        const std::vector<double> found = out.row(n, h);
        const std::vector<double> row = partial.o[0].row(n, h);
        const double tolerance = dtype == Dtype::kF32 ? 1e-7 : dtype == Dtype::kBf16 ? 4e-3 : 5e-4;
        for (std::size_t d = 0; d < found.size(); ++d) {
          const double expected = own == kEmpty ? 0 : std::exp(own - with_sink) * row[d];
          ASSERT_NEAR(found[d], expected, tolerance * std::abs(expected) + 6e-8);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryRowOps, ::testing::ValuesIn(all_row_ops()),
                         [](const auto& tested) { return std::string(tested.param->name()); });

// Returns the results of every operation with all bytes between the rows.
std::vector<std::byte> all_results(const RowOps& ops, std::uint64_t seed) {
  Rng rng(seed);
  const Shape shape = random_shape(rng);
  const auto count = static_cast<std::size_t>(random_between(rng, 1, 7));
  Partials partials(rng, shape, count);
  std::vector<Rows> results(4, rows_of(shape));
  std::vector<Rows> stats(3, stats_of(shape));
  Rows narrow = rows_of(shape, seed % 2 == 0 ? Dtype::kBf16 : Dtype::kF16);
  Rows finished = rows_of(shape, seed % 3 == 0 ? Dtype::kF32 : Dtype::kBf16);
  const std::vector<float> sink(static_cast<std::size_t>(shape.heads), 0.5F);
  ops.merge({results[0].tensor(), stats[0].stats()}, partials.views());
  results[1].fill(rng);
  results[2].fill(rng);
  const std::vector<TensorView> summed = {results[1].tensor(), results[2].tensor(),
                                          results[0].tensor()};
  ops.sum(results[3].tensor(), summed);
  ops.delta(results[1].tensor(), results[2].tensor(), stats[1].stats());
  ops.convert(narrow.tensor(), results[1].tensor());
  ops.finish({results[0].tensor(), stats[0].stats()}, sink, finished.tensor(), stats[2].stats());
  std::vector<std::byte> all;
  const auto append = [&all](const Rows& rows) {
    EXPECT_TRUE(rows.gaps_are_untouched());
    all.insert(all.end(), rows.bytes.begin(), rows.bytes.end());
  };
  for (const Rows& rows : results) append(rows);
  for (const Rows& rows : stats) append(rows);
  append(narrow);
  append(finished);
  return all;
}

TEST(RowOps, EveryInstructionSetGivesTheSameBitsAndLeavesTheGaps) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<std::byte> expected = all_results(reference_rows(), seed);
    for (const RowOps* ops : all_row_ops()) {
      EXPECT_TRUE(all_results(*ops, seed) == expected) << ops->name();
    }
  }
}

TEST_P(EveryRowOps, FillsRowsAndSumsTheGradientOfSinks) {
  Rng rng(5);
  for (int turn = 0; turn < 20; ++turn) {
    const Shape shape = random_shape(rng);
    Rows filled = rows_of(shape, turn % 2 == 0 ? Dtype::kF32 : Dtype::kBf16);
    GetParam()->fill(filled.tensor(), 3);
    EXPECT_EQ(filled.row(shape.tokens - 1, shape.heads - 1),
              std::vector<double>(static_cast<std::size_t>(shape.dim), 3));
    EXPECT_TRUE(filled.gaps_are_untouched());
    Rows lse = stats_of(shape);
    Rows delta = stats_of(shape);
    lse.fill(rng);
    delta.fill(rng);
    std::vector<float> sink(static_cast<std::size_t>(shape.heads));
    for (float& value : sink) value = static_cast<float>(rng.normal()) - 2;
    std::vector<double> sums(sink.size(), 0.5);
    std::vector<double> expected = sums;
    GetParam()->sink_gradient(sink, lse.stats(), delta.stats(), shape.tokens, sums);
    reference_rows().sink_gradient(sink, lse.stats(), delta.stats(), shape.tokens, expected);
    EXPECT_EQ(sums, expected);
    for (std::size_t h = 0; h < sink.size(); ++h) {
      double share = 0.5;
      for (std::int64_t n = 0; n < shape.tokens; ++n) {
        const auto head = static_cast<std::int32_t>(h);
        share -= std::exp(static_cast<double>(sink[h]) - stat_at(lse.stats(), n, head)) *
                 stat_at(delta.stats(), n, head);
      }
      EXPECT_NEAR(sums[h], share, 1e-9 * std::abs(share) + 1e-9);
    }
    std::vector<float> rounded(sink.size());
    GetParam()->round_sums(sums, rounded);
    EXPECT_EQ(rounded, std::vector<float>(sums.begin(), sums.end()));
  }
}

// The data that lists of random calls of every kind need, and their results.
struct Lists {
  explicit Lists(std::uint64_t seed) {
    Rng rng(seed);
    const std::int64_t count = random_between(rng, 1, 70);
    for (std::int64_t i = 0; i < count; ++i) {
      Shape shape = random_shape(rng);
      shape.heads = 3;
      const std::int64_t num_sources = i % 16 == 7 ? 50 : random_between(rng, 1, 4);
      partials.emplace_back(rng, shape, static_cast<std::size_t>(num_sources));
      for (const Dtype dtype : {Dtype::kF32, Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
        rows.push_back(rows_of(shape, dtype));
        rows.back().fill(rng);
        stats.push_back(stats_of(shape));
        stats.back().fill(rng);
      }
    }
  }

  // Runs the lists; lists that need the results of others come after them.
  std::vector<std::byte> run(const RowOps& lists) {
    std::vector<RowOps::Merge> merges;
    std::vector<RowOps::Sum> sums;
    std::vector<RowOps::Delta> deltas;
    std::vector<RowOps::Convert> conversions;
    std::vector<RowOps::Finish> finishes;
    std::vector<RowOps::Fill> fills;
    std::vector<RowOps::SinkRows> sinks;
    for (std::size_t i = 0; i < partials.size(); ++i) {
      const std::vector<PartialOutput> parts = partials[i].views();
      Rows* const mine = &rows[4 * i];
      Rows* const mine_stats = &stats[4 * i];
      merges.push_back({parts[0], parts});
      finishes.push_back({parts[0], mine[2].tensor(), mine_stats[0].stats()});
      sums.push_back({mine[0].tensor(), {mine[0].tensor(), mine[1].tensor()}});
      deltas.push_back({mine[0].tensor(), mine[1].tensor(), mine_stats[1].stats()});
      conversions.push_back({mine[3].tensor(), mine[0].tensor()});
      fills.push_back({mine[1].tensor(), static_cast<float>(i)});
      sinks.push_back({mine_stats[2].stats(), mine_stats[3].stats(), mine[0].view.tokens});
    }
    const std::vector<float> sink = {0.5F, -1, 2};
    std::vector<double> sink_sums(3);
    lists.merge_all(merges);
    lists.finish_all(finishes, sink);
    lists.sum_all(sums);
    lists.delta_all(deltas);
    lists.convert_all(conversions);
    lists.fill_all(fills);
    lists.sink_gradient_all(sink, sinks, sink_sums);
    std::vector<std::byte> all;
    const auto append = [&](std::span<const std::byte> bytes) {
      all.insert(all.end(), bytes.begin(), bytes.end());
    };
    for (Partials& partial : partials) {
      append(partial.o[0].bytes);
      append(partial.lse[0].bytes);
    }
    for (const Rows& some : rows) append(some.bytes);
    for (const Rows& some : stats) append(some.bytes);
    append(std::as_bytes(std::span(sink_sums)));
    return all;
  }

  std::vector<Partials> partials;
  std::vector<Rows> rows, stats;  // four of each call
};

// There are more calls than a launch takes, and more sources than go with one.
TEST(RowOps, ListsGiveTheBitsOfCallsOneAfterAnother) {
  std::vector<const RowOps*> all = all_row_ops();
  all.push_back(&cuda_host_kernel().row_ops());
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::vector<std::byte> expected = Lists(seed).run(reference_rows());
    for (const RowOps* ops : all) {
      EXPECT_TRUE(Lists(seed).run(*ops) == expected) << ops->name() << ", seed " << seed;
    }
  }
}

TEST_P(EveryRowOps, AUnitReturnsFromTheWireAtAnOddMultipleOfTwoBytes) {
  if (GetParam()->name() == "cuda") GTEST_SKIP() << "devices read fp32 at multiples of four bytes";
  Rng rng(4);
  const Shape shape{7, 3, 20, 2};
  Partials unit(rng, shape, 1);
  Partials back(rng, shape, 1);
  unit.lse[0].fill(rng);
  unit.o[0].fill(rng);
  const UnitView from{Kind::kO, 2, {unit.o[0].tensor(), unit.lse[0].tensor()}};
  const UnitView to{Kind::kO, 2, {back.o[0].tensor(), back.lse[0].tensor()}};
  std::vector<std::byte> wire(2 + 7 * 3 * (20 * 2 + 4) + 2, std::byte{0x5a});
  pack_unit(*GetParam(), from, Dtype::kBf16, wire.data() + 2);
  unpack_unit(*GetParam(), to, Dtype::kBf16, wire.data() + 2);
  EXPECT_EQ(wire[0], std::byte{0x5a});
  EXPECT_EQ(wire.back(), std::byte{0x5a});
  for (std::int64_t n = 0; n < shape.tokens; ++n) {
    for (std::int32_t h = 0; h < shape.heads; ++h) {
      EXPECT_EQ(stat_at(back.lse[0].stats(), n, h), stat_at(unit.lse[0].stats(), n, h));
      const std::vector<double> sent = unit.o[0].row(n, h);
      const std::vector<double> found = back.o[0].row(n, h);
      for (std::size_t d = 0; d < sent.size(); ++d) {
        EXPECT_EQ(found[d], round_to(Dtype::kBf16, sent[d]));
      }
    }
  }
}

}  // namespace
}  // namespace contextile

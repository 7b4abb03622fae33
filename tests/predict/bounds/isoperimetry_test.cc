// Least bytes of a part, compared with every choice of owned tokens, queries and keys, on small
// masks.
#include "predict/bounds/isoperimetry.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "contextile/mask.h"
#include "predict/bounds/components.h"
#include "predict/bounds/work_curve.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

// The first component of one sequence's mask, if it has any pair.
struct Document {
  MaskComponents components;
  DocumentKind kind;
};

Document document_of(const Mask& mask) {
  Document document{components_of(mask), {}};
  if (document.components.components.empty()) return document;
  const MaskComponent& component = document.components.components.front();
  DocumentKind& kind = document.kind;
  kind.tokens = static_cast<double>(component.tokens.size());
  kind.pairs = static_cast<double>(component.pairs);
  kind.future_pairs = static_cast<double>(component.future_pairs);
  kind.max_degree = static_cast<double>(component.max_degree);
  const auto begin = static_cast<std::ptrdiff_t>(component.first_row_run);
  std::vector<DegreeRun> rows(document.components.row_runs.begin() + begin,
                              document.components.row_runs.end());
  std::vector<DegreeRun> columns = document.components.column_runs;
  const auto within = [&](const DegreeRun& run) { return run.begin < component.tokens.end; };
  std::erase_if(rows, [&](const DegreeRun& run) { return !within(run); });
  std::erase_if(columns, [&](const DegreeRun& run) { return !within(run); });
  kind.degrees_matter = true;
  kind.rows = DegreeSteps(rows);
  kind.columns = DegreeSteps(columns);
  return document;
}

bool attends(const Mask& mask, std::int64_t q, std::int64_t k) {
  return std::ranges::any_of(mask.bands, [&](const Band& band) {
    return band.q.begin <= q && q < band.q.end && band.k.begin <= k && k < band.k.end &&
           band.lo <= k - q && k - q <= band.hi;
  });
}

// Least bytes by pairs, of parts that own `owned` tokens: a part that computes w pairs moves
// bytes[w].
std::vector<double> least_by_trying(const Mask& mask, Range tokens, std::int64_t owned,
                                    double row_bytes, double key_bytes) {
  const auto size = static_cast<std::uint32_t>(tokens.size());
  std::vector<std::uint32_t> keys_of(size);
  for (std::uint32_t q = 0; q < size; ++q) {
    for (std::uint32_t k = 0; k < size; ++k) {
      if (attends(mask, tokens.begin + q, tokens.begin + k)) keys_of[q] |= 1U << k;
    }
  }
  std::vector<double> least(size * size + 1, std::numeric_limits<double>::infinity());
  for (std::uint32_t s = 0; s < 1U << size; ++s) {
    if (std::popcount(s) != owned) continue;
    for (std::uint32_t a = 0; a < 1U << size; ++a) {
      for (std::uint32_t b = 0; b < 1U << size; ++b) {
        std::size_t pairs = 0;
        for (std::uint32_t q = 0; q < size; ++q) {
          if ((a >> q & 1U) != 0) pairs += static_cast<std::size_t>(std::popcount(keys_of[q] & b));
        }
        const double bytes = row_bytes * std::popcount(a & ~s) + key_bytes * std::popcount(b & ~s);
        least[pairs] = std::min(least[pairs], bytes);
      }
    }
  }
  for (std::size_t w = least.size() - 1; w > 0; --w)
    least[w - 1] = std::min(least[w - 1], least[w]);
  return least;
}

Mask random_mask(Rng& rng, std::int64_t length) {
  const MaskUse use{.name = "mask", .spec = random_mask_spec(rng, length)};
  return make_workload(std::vector<std::int64_t>{length}, grouped_heads(), {&use, 1}).masks[0].mask;
}

TEST(Isoperimetry, IsNeverAboveAnyChoiceOfTokensQueriesAndKeys) {
  int moved = 0;
  int close = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const Mask mask = random_mask(rng, random_between(rng, 2, 6));
    const Document document = document_of(mask);
    if (document.components.components.empty()) continue;
    const MaskComponent& component = document.components.components.front();
    const double row_bytes = 1 + 9 * rng.uniform();
    const double key_bytes = 1 + 9 * rng.uniform();
    const Isoperimetry isoperimetry(document.kind, row_bytes, key_bytes);
    for (std::int64_t owned = 0; owned <= component.tokens.size(); ++owned) {
      const std::vector<double> least =
          least_by_trying(mask, component.tokens, owned, row_bytes, key_bytes);
      const auto n = static_cast<double>(owned);
      for (std::int64_t w = 0; w <= component.pairs; ++w) {
        SCOPED_TRACE(fmt::format("seed {}, {} tokens, {} owned, {} pairs", seed,
                                 component.tokens.size(), owned, w));
        const auto pairs = static_cast<double>(w);
        const double tried = least[static_cast<std::size_t>(w)] * (1 + 1e-9);
        double near = 0;
        const double searched = isoperimetry.least_bytes(pairs, n, near);
        ASSERT_LE(searched, tried);
        ASSERT_LE(isoperimetry.area_bytes(pairs, n), tried);
        if (isoperimetry.overlap_is_forced(pairs, n)) {
          ASSERT_LE(isoperimetry.forced_bytes(pairs, n).bytes, tried);
        }
        if (pairs <= isoperimetry.free_pairs(n)) continue;
        ++moved;
        close += searched > 0.6 * tried ? 1 : 0;
      }
    }
  }
  EXPECT_GT(moved, 300);
  EXPECT_GT(close, moved / 2);  // else a bound of nothing would do
}

TEST(Isoperimetry, OfABicliqueIsTheLeastOverAllRectangles) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const auto rows = static_cast<double>(random_between(rng, 1, 40));
    const auto keys = static_cast<double>(random_between(rng, 1, 40));
    const DocumentKind kind = {.tokens = rows + keys,
                               .pairs = rows * keys,
                               .late_tokens = rows,
                               .early_tokens = keys,
                               .keys_are_early = true};
    const double row_bytes = 1 + 9 * rng.uniform();
    const double key_bytes = 1 + 9 * rng.uniform();
    const Isoperimetry isoperimetry(kind, row_bytes, key_bytes);
    const auto owned = static_cast<double>(random_between(rng, 0, static_cast<int>(rows)));
    EXPECT_EQ(isoperimetry.free_pairs(owned), 0);
    const double pairs = kind.pairs * rng.uniform();
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= 4000; ++i) {
      const double used = owned + (rows - owned) * i / 4000;
      if (used * keys < pairs) continue;
      const double moved_keys = used > 0 ? pairs / used : 0;
      least = std::min(least, row_bytes * (used - owned) + key_bytes * moved_keys);
    }
    const double bytes = isoperimetry.area_bytes(pairs, owned);
    EXPECT_LE(bytes, least * (1 + 1e-9));
    EXPECT_GE(bytes, least - 0.01 * (least + row_bytes));
    const SampledBytes sampled = sampled_least_bytes(isoperimetry, owned, 0, kind.pairs / 16, 16);
    const auto k = static_cast<std::size_t>(16 * pairs / kind.pairs);
    const double part = 16 * pairs / kind.pairs - static_cast<double>(k);
    const double interpolated =
        sampled.values[k] +
        part * (sampled.values[std::min<std::size_t>(k + 1, 16)] - sampled.values[k]);
    EXPECT_LE(interpolated, bytes * (1 + 1e-9) + 1e-9);
  }
}

// Kinds of documents as masks of all rules make them.
DocumentKind random_kind(Rng& rng) {
  while (true) {
    const std::int64_t length = random_between(rng, 2, random_chance(rng, 0.3) ? 40 : 5000);
    Document document = document_of(random_mask(rng, length));
    if (document.components.components.empty()) continue;
    const double tokens = document.kind.tokens;
    const double pairs = document.kind.pairs;
    const bool is_causal = document.kind.future_pairs == 0 && pairs >= 0.5 * tokens * (tokens + 1);
    document.kind.degrees_matter = !is_causal && pairs < tokens * tokens;
    return document.kind;
  }
}

TEST(Isoperimetry, ClosedFormsAreNotAboveTheSearchAndMeetItForCausalMasks) {
  int met = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const DocumentKind kind = random_kind(rng);
    const Isoperimetry isoperimetry(kind, 1 + 9 * rng.uniform(), 1 + 9 * rng.uniform());
    const double owned = kind.tokens * rng.uniform();
    const double pairs = kind.pairs * rng.uniform();
    double near = 0;
    const double searched = isoperimetry.least_bytes(pairs, owned, near);
    double closed = isoperimetry.area_bytes(pairs, owned);
    if (isoperimetry.overlap_is_forced(pairs, owned)) {
      closed = std::max(closed, isoperimetry.forced_bytes(pairs, owned).bytes);
    }
    ASSERT_LE(closed, searched / 0.98 + 1e-6);
    // A search that begins near another one's end finds the same.
    double again = near;
    const double repeated = isoperimetry.least_bytes(pairs, owned, again);
    EXPECT_NEAR(repeated, searched, 0.03 * searched + 1e-9);
    if (kind.degrees_matter || searched == 0) continue;
    ++met;
    EXPECT_GE(closed, 0.95 * searched);
  }
  EXPECT_GT(met, 20);
}

TEST(SampledLeastBytes, InterpolatedAreNotAboveTheSearchAndFollowIt) {
  double log_ratio = 0;
  int ratios = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const DocumentKind kind = random_kind(rng);
    const Isoperimetry isoperimetry(kind, 1 + 9 * rng.uniform(), 1 + 9 * rng.uniform());
    const double owned = kind.tokens * rng.uniform();
    const double from = std::min(isoperimetry.free_pairs(owned), kind.pairs);
    const std::int64_t num_steps = random_between(rng, 1, 64);
    const double step =
        (kind.pairs - from) * (0.2 + 0.8 * rng.uniform()) / static_cast<double>(num_steps);
    if (step <= 0) continue;
    const SampledBytes sampled = sampled_least_bytes(isoperimetry, owned, from, step, num_steps);
    ASSERT_EQ(sampled.values.size(), static_cast<std::size_t>(num_steps) + 1);
    EXPECT_EQ(sampled.values.front(), 0);
    EXPECT_GE(std::ranges::min(sampled.values), 0);
    for (int i = 0; i < 50; ++i) {
      const double at =
          static_cast<double>(num_steps) * (i < 10 ? 0.02 * rng.uniform() : rng.uniform());
      const auto k = static_cast<std::size_t>(at);
      const double part = at - static_cast<double>(k);
      const double interpolated =
          sampled.values[k] + part * (sampled.values[k + 1] - sampled.values[k]);
      double near = 0;
      const double searched = isoperimetry.least_bytes(from + at * step, owned, near);
      SCOPED_TRACE(fmt::format("seed {}, {} of {} steps", seed, at, num_steps));
      ASSERT_LE(interpolated, searched / 0.98 + sampled.excess_bytes + 1e-6);
      if (i < 10 || searched <= 0 || num_steps < 32) continue;
      log_ratio += std::log(std::max(0.01, interpolated / searched));
      ++ratios;
    }
  }
  ASSERT_GT(ratios, 1000);
  EXPECT_GT(std::exp(log_ratio / ratios), 0.9);
}

}  // namespace
}  // namespace contextile

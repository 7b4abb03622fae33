#include "contextile/serving/decode.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernel/tensor.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kDim = 16;
constexpr std::int32_t kValueDim = 12;

struct Shape {
  KvLayout layout;
  std::int32_t all_heads = 2;  // of the group
  std::int32_t kv_heads = 1;   // of every rank

  // The first of a rank's heads, which are a run of all.
  [[nodiscard]] std::int32_t first_head(std::int32_t rank) const {
    return all_heads * rank / layout.num_ranks;
  }
  [[nodiscard]] std::int32_t heads(std::int32_t rank) const {
    return first_head(rank + 1) - first_head(rank);
  }
};

// Requests of some tokens, with the queries of the last few of them.
struct RequestOf {
  std::int64_t length = 0;
  std::int64_t num_rows = 1;
  std::int64_t window = 0;  // tokens; 0: all
};

// A batch as a single rank without shards would have it.
class Batch {
 public:
  Batch(const Shape& shape, std::vector<RequestOf> requests, std::uint64_t seed)
      : shape_(shape), requests_(std::move(requests)), random_(seed) {
    std::int64_t rows = 0;
    std::int32_t page = 0;
    for (const RequestOf& request : requests_) {
      k_.push_back(tokens(request.length, shape.kv_heads, kDim));
      v_.push_back(tokens(request.length, shape.kv_heads, kValueDim));
      std::vector<PageId> table;
      for (std::int64_t b = 0; b < shape.layout.num_blocks(request.length); ++b) {
        table.emplace_back(page++);
      }
      std::shuffle(table.begin(), table.end(), random_);
      tables_.push_back(table);
      rows += request.num_rows;
    }
    num_pages_ = page;
    q_ = tokens(rows, shape.all_heads, kDim);
  }

  [[nodiscard]] const HostTensor& q() const { return q_; }
  [[nodiscard]] std::int64_t num_rows() const { return q_.tokens(); }

  // Tokens that a row of a request sees.
  [[nodiscard]] std::vector<Range> seen(const RequestOf& request, std::int64_t row) const {
    const std::int64_t end = request.length - request.num_rows + row + 1;
    if (request.window == 0 || end <= request.window + 2)
      return {{0, std::max<std::int64_t>(end, 0)}};
    return {{0, 2}, {end - request.window, end}};
  }

  // The fp64 result of all tokens on one device.
  [[nodiscard]] std::vector<double> expected(std::int64_t row_of_all, std::int32_t head,
                                             double& lse) const {
    std::int64_t row = row_of_all;
    std::size_t i = 0;
    while (row >= requests_[i].num_rows) row -= requests_[i++].num_rows;
    const std::int32_t kv_head = head / (shape_.all_heads / shape_.kv_heads);
    std::vector<double> o(kValueDim, 0);
    double total = 0;
    for (const Range& range : seen(requests_[i], row)) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        double score = 0;
        for (std::int32_t d = 0; d < kDim; ++d) {
          score += static_cast<double>(row_at<float>(q_.view(), row_of_all, head)[d]) *
                   row_at<float>(k_[i].view(), t, kv_head)[d];
        }
        const double weight = std::exp(score * 0.3);
        total += weight;
        for (std::int32_t d = 0; d < kValueDim; ++d) {
          o[static_cast<std::size_t>(d)] += weight * row_at<float>(v_[i].view(), t, kv_head)[d];
        }
      }
    }
    for (double& x : o) x = total > 0 ? x / total : 0;
    lse = total > 0 ? std::log(total) : -std::numeric_limits<double>::infinity();
    return o;
  }

  // A rank's pages: its part of the tokens, NaN elsewhere.
  struct Cache {
    HostTensor k;
    HostTensor v;
    std::vector<std::vector<Range>> keys;
    std::vector<std::vector<std::int32_t>> splits;
    std::vector<PagedRequest> requests;
  };
  [[nodiscard]] Cache cache_of(Rank rank) const {
    const KvLayout& layout = shape_.layout;
    const std::int64_t slots = std::int64_t{num_pages_} * layout.page_size;
    Cache cache = {HostTensor(Dtype::kF32, slots, shape_.kv_heads, kDim),
                   HostTensor(Dtype::kF32, slots, shape_.kv_heads, kValueDim),
                   {},
                   {},
                   {}};
    cache.keys.resize(requests_.size());
    cache.splits.resize(requests_.size());
    std::int64_t row_of_all = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      for (std::int64_t t = 0; t < requests_[i].length; ++t) {
        const std::int64_t slot = layout.slot(tables_[i], rank, t);
        if (slot < 0) continue;
        for (std::int32_t h = 0; h < shape_.kv_heads; ++h) {
          std::copy_n(row_at<float>(k_[i].view(), t, h), kDim,
                      row_at<float>(cache.k.view(), slot, h));
          std::copy_n(row_at<float>(v_[i].view(), t, h), kValueDim,
                      row_at<float>(cache.v.view(), slot, h));
        }
      }
      cache.splits[i] = {0};
      for (std::int64_t row = 0; row < requests_[i].num_rows; ++row) {
        for (const Range& keys : local_keys(layout, rank, seen(requests_[i], row))) {
          cache.keys[i].push_back(keys);
        }
        cache.splits[i].push_back(static_cast<std::int32_t>(cache.keys[i].size()));
      }
      PagedRequest asked;
      asked.first_row = row_of_all;
      asked.num_rows = requests_[i].num_rows;
      asked.table = tables_[i];
      asked.keys = cache.keys[i];
      asked.row_splits = cache.splits[i];
      cache.requests.push_back(asked);
      row_of_all += requests_[i].num_rows;
    }
    return cache;
  }

 private:
  HostTensor tokens(std::int64_t count, std::int32_t heads, std::int32_t dim) {
    HostTensor made(Dtype::kF32, count, heads, dim);
    for (float& x : made.values<float>()) x = std::uniform_real_distribution<float>(-2, 2)(random_);
    return made;
  }

  Shape shape_;
  std::vector<RequestOf> requests_;
  std::mt19937_64 random_;
  std::vector<HostTensor> k_;
  std::vector<HostTensor> v_;
  std::vector<std::vector<PageId>> tables_;
  std::int32_t num_pages_ = 0;
  HostTensor q_;
};

PagedKv kv_of(const Batch::Cache& cache, const Shape& shape) {
  const auto tensor = [&](const HostTensor& t) {
    PagedTensor view;
    view.data = t.bytes().data();
    view.dim = t.dim();
    view.head_stride = t.dim();
    view.token_stride = std::int64_t{t.heads()} * t.dim();
    view.page_stride = view.token_stride * shape.layout.page_size;
    return view;
  };
  PagedKv kv;
  kv.k = tensor(cache.k);
  kv.v = tensor(cache.v);
  kv.kv_heads = shape.kv_heads;
  kv.page_size = shape.layout.page_size;
  return kv;
}

struct Found {
  double error = 0;
  std::int64_t sent_bytes = 0;
  HostTensor out;
};

// Every rank's result of a mode.
std::vector<Found> attend(const Shape& shape, const Batch& batch, DecodeMode mode,
                          Dtype wire = Dtype::kF32, std::int32_t hop_b_groups = 1) {
  const std::int32_t ranks = shape.layout.num_ranks;
  std::vector<Found> found(static_cast<std::size_t>(ranks));
  run_inproc(ranks, [&](Transport& transport) {
    const std::int32_t rank = transport.rank().value;
    const Batch::Cache cache = batch.cache_of(transport.rank());
    const std::int32_t heads = shape.heads(rank);
    const TensorView own_q =
        slice(batch.q().view(), 0, batch.num_rows(), shape.first_head(rank), heads);
    Found& mine = found[static_cast<std::size_t>(rank)];
    mine.out = HostTensor(Dtype::kF32, batch.num_rows(), heads, kValueDim);
    HostTensor lse(Dtype::kF32, batch.num_rows(), heads, 1);
    DecodeGroup group(transport, find_paged_kernel());
    DecodeOptions options;
    options.mode = mode;
    options.params.scale = 0.3F;
    options.wire = wire;
    options.hop_b_groups = hop_b_groups;
    const std::int64_t before = transport.sent_bytes();
    group.attend(options, kv_of(cache, shape),
                 mode == DecodeMode::kQReplicated ? batch.q().view() : own_q, cache.requests,
                 {mine.out.view(), lse.stats()});
    mine.sent_bytes = transport.sent_bytes() - before;
    for (std::int64_t n = 0; n < batch.num_rows(); ++n) {
      for (std::int32_t h = 0; h < heads; ++h) {
        double expected_lse = 0;
        const std::vector<double> o = batch.expected(n, shape.first_head(rank) + h, expected_lse);
        const double difference = *row_at<float>(lse.view(), n, h) - expected_lse;
        if (std::isfinite(expected_lse))
          mine.error = std::max(mine.error, std::abs(difference) / 4);
        else
          EXPECT_EQ(*row_at<float>(lse.view(), n, h), expected_lse);
        for (std::size_t d = 0; d < o.size(); ++d) {
          const double error = std::abs(row_at<float>(mine.out.view(), n, h)[d] - o[d]) / 2;
          mine.error = error <= mine.error ? mine.error : error;
        }
      }
    }
  });
  return found;
}

constexpr DecodeMode kModes[] = {DecodeMode::kAgRs, DecodeMode::kA2a, DecodeMode::kQReplicated};

// Requests with fewer tokens than there are ranks, drafts, windows, and one that only fills.
const std::vector<RequestOf> kRequests = {{1, 1},  {2, 1},      {37, 1},
                                          {70, 4}, {90, 2, 11}, {130, 1, 40}};

TEST(Decode, EveryModeIsAttentionOnOneDevice) {
  for (const std::int32_t ranks : {1, 2, 3, 4, 8}) {
    for (const std::int32_t interleave : {1, 2, 4}) {
      for (const std::int32_t kv_heads : {1, 2}) {
        const Shape shape = {{ranks, interleave, 4}, 2 * ranks, kv_heads};
        const Batch batch(shape, kRequests, static_cast<std::uint64_t>(ranks));
        for (const DecodeMode mode : kModes) {
          SCOPED_TRACE(fmt::format("{} ranks, interleave {}, {} KV heads, {}", ranks, interleave,
                                   kv_heads, to_string(mode)));
          for (const Found& found : attend(shape, batch, mode)) {
            EXPECT_LT(found.error, 2e-6);
            EXPECT_EQ(found.sent_bytes,
                      decode_bytes(mode, ranks, batch.num_rows(), 2, kDim, kValueDim, Dtype::kF32));
          }
        }
      }
    }
  }
}

// 14 heads of 2 KV heads: ranks' runs of heads end inside those of a KV head, and differ in length.
TEST(Decode, RanksNeedNotDivideTheHeadsWhereAllHaveTheQueries) {
  for (const std::int32_t ranks : {3, 4, 8}) {
    const Shape shape = {{ranks, 1, 4}, 14, 2};
    const Batch batch(shape, kRequests, static_cast<std::uint64_t>(ranks));
    const std::vector<Found> found = attend(shape, batch, DecodeMode::kQReplicated);
    for (std::int32_t r = 0; r < ranks; ++r) {
      const Found& its = found[static_cast<std::size_t>(r)];
      EXPECT_LT(its.error, 2e-6);
      EXPECT_EQ(its.sent_bytes, batch.num_rows() * (14 - shape.heads(r)) * (kValueDim * 4 + 4));
    }
  }
}

TEST(Decode, GroupsThatOverlapGiveTheSameBits) {
  const Shape shape = {{4, 1, 4}, 8, 2};
  const Batch batch(shape, kRequests, 3);
  for (const DecodeMode mode : kModes) {
    const auto whole = attend(shape, batch, mode);
    for (const std::int32_t groups : {2, 3, 100}) {
      const auto found = attend(shape, batch, mode, Dtype::kF32, groups);
      for (std::size_t r = 0; r < found.size(); ++r) {
        EXPECT_TRUE(std::ranges::equal(found[r].out.bytes(), whole[r].out.bytes()));
        EXPECT_EQ(found[r].sent_bytes, whole[r].sent_bytes);
        EXPECT_LT(found[r].error, 2e-6);
      }
    }
  }
}

TEST(Decode, HalfPrecisionOnTheWay) {
  const Shape shape = {{4, 1, 4}, 8, 1};
  const Batch batch(shape, kRequests, 5);
  for (const DecodeMode mode : kModes) {
    for (const Found& found : attend(shape, batch, mode, Dtype::kBf16)) {
      EXPECT_LT(found.error, 0.05);
      EXPECT_EQ(found.sent_bytes,
                decode_bytes(mode, 4, batch.num_rows(), 2, kDim, kValueDim, Dtype::kBf16));
    }
  }
}

TEST(Decode, GivesTheSameBitsAgain) {
  const Shape shape = {{3, 2, 4}, 6, 1};
  const Batch batch(shape, kRequests, 9);
  for (const DecodeMode mode : kModes) {
    const auto first = attend(shape, batch, mode);
    const auto again = attend(shape, batch, mode);
    for (std::size_t r = 0; r < first.size(); ++r) {
      EXPECT_TRUE(std::ranges::equal(first[r].out.bytes(), again[r].out.bytes()));
    }
  }
}

// b requests, h heads per rank, N ranks: the formulas of docs/serving.md.
TEST(Decode, SendsWhatTheFormulasSay) {
  const std::int64_t b = 5;
  const std::int64_t h = 4;
  const std::int64_t n = 8;
  EXPECT_EQ(decode_bytes(DecodeMode::kAgRs, 8, b, 4, 128, 128, Dtype::kBf16),
            (n - 1) * b * h * 128 * 2 + (n - 1) * b * n * h * 4 + (n - 1) * b * h * 128 * 2);
  EXPECT_EQ(decode_bytes(DecodeMode::kA2a, 8, b, 4, 576, 512, Dtype::kBf16),
            (n - 1) * b * h * 576 * 2 + (n - 1) * b * h * (512 * 2 + 4));
  EXPECT_EQ(decode_bytes(DecodeMode::kQReplicated, 8, b, 4, 576, 512, Dtype::kF32),
            (n - 1) * b * h * (512 * 4 + 4));
  EXPECT_EQ(decode_bytes(DecodeMode::kA2a, 1, b, 4, 64, 64, Dtype::kF32), 0);
}

TEST(Decode, LocalKeysAreThoseTheRankHolds) {
  const KvLayout layout = {3, 2, 4};
  for (std::int32_t r = 0; r < 3; ++r) {
    const std::vector<Range> tokens = {{0, 3}, {5, 6}, {9, 31}};
    std::vector<std::int64_t> expected;
    for (const Range& range : tokens) {
      for (std::int64_t t = range.begin; t < range.end; ++t) {
        if (layout.owner(t) == Rank(r)) expected.push_back(layout.local(t));
      }
    }
    std::vector<std::int64_t> found;
    for (const Range& range : local_keys(layout, Rank(r), tokens)) {
      for (std::int64_t key = range.begin; key < range.end; ++key) found.push_back(key);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(Decode, SaysWhatDoesNotFit) {
  EXPECT_EQ(parse_decode_mode("a2a"), DecodeMode::kA2a);
  EXPECT_THROW(static_cast<void>(parse_decode_mode("ring")), InvalidArgument);
  const Shape shape = {{1, 1, 4}, 2, 1};
  const Batch batch(shape, {{5, 1}}, 1);
  run_inproc(1, [&](Transport& transport) {
    const Batch::Cache cache = batch.cache_of(Rank(0));
    HostTensor out(Dtype::kF32, 1, 3, kValueDim);
    HostTensor lse(Dtype::kF32, 1, 3, 1);
    DecodeGroup group(transport, find_paged_kernel());
    try {
      group.attend({}, kv_of(cache, shape), batch.q().view(), cache.requests,
                   {out.view(), lse.stats()});
      ADD_FAILURE() << "expected an error";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("out: expected f32 [1, 2, 12], found f32 [1, 3, 12]"));
    }
  });
}

}  // namespace
}  // namespace contextile

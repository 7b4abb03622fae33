#include "contextile/extend/paged_attention.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernel/paged_case.h"
#include "support/staged_paged_kernel.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

struct Result {
  HostTensor out;
  HostTensor lse;
};

Result run(const PagedKernel& kernel, const Case& one, const Shape& shape) {
  Result result = {HostTensor(Dtype::kF32, one.q().tokens(), shape.q_heads, shape.value_dim),
                   HostTensor(Dtype::kF32, one.q().tokens(), shape.q_heads, 1)};
  kernel.run(one.params(), one.kv(), one.q().view(), one.requests(),
             {result.out.view(), result.lse.stats()});
  return result;
}

RequestOf causal(std::int64_t length, std::int64_t rows) {
  RequestOf request;
  for (std::int64_t row = 0; row < rows; ++row) request.rows.push_back({{0, length + row}});
  return request;
}

// Returns the program of a GPU on the CPU, and a device with memory of its own.
std::vector<const PagedKernel*> device_kernels() {
  return {&host_paged_kernel(), &staged_paged_kernel()};
}

// Returns the nearest shape that a GPU takes.
Shape on_device(Shape shape) {
  if (shape.dtype == KvDtype::kF32) shape.dtype = KvDtype::kBf16;
  const bool is_f16 = shape.dtype == KvDtype::kF16 || shape.dtype == KvDtype::kFp8;
  shape.q_dtype = is_f16 ? Dtype::kF16 : Dtype::kBf16;
  const auto elements = static_cast<std::int32_t>(16 / bytes_per_element(shape.dtype));
  for (std::int32_t* dim : {&shape.head_dim, &shape.value_dim}) {
    *dim = (*dim + elements - 1) / elements * elements;
  }
  return shape;
}

void expect_right(const Shape& shape, const std::vector<RequestOf>& requests, double bound = 2e-6) {
  const auto expect_of = [&](const PagedKernel& kernel, const Case& one, const Shape& taken) {
    SCOPED_TRACE(kernel.name());
    const Result result = run(kernel, one, taken);
    const Errors errors = one.errors_of(result.out, result.lse);
    EXPECT_LT(errors.out, bound + weight_rounding(kernel.weight_dtype(taken.q_dtype)));
    EXPECT_LT(errors.lse, bound);
  };
  const Case one(shape, requests, 7);
  for (const PagedKernel* kernel : paged_kernels()) expect_of(*kernel, one, shape);
  const Shape taken = on_device(shape);
  const Case of_device(taken, requests, 7);
  for (const PagedKernel* kernel : device_kernels()) expect_of(*kernel, of_device, taken);
}

// Returns the kinds of requests that decoding makes: one query, drafts, windows with sinks, trees
// of drafts, rows that see nothing, a request that has only its first token.
std::vector<RequestOf> mixed_batch() {
  return {causal(1, 1),
          causal(131, 1),
          causal(70, 4),
          {{{{0, 4}, {90, 131}}, {{0, 4}, {91, 132}}}},
          {{{{0, 60}, {60, 61}},
            {{0, 60}, {61, 62}},
            {{0, 61}, {62, 63}},
            {{0, 60}, {61, 62}, {63, 64}}}},
          {{{}}},
          {{{}, {{5, 6}}}},
          causal(64, 20)};
}

TEST(PagedAttention, IsThatOfFp64) {
  for (const KvDtype dtype :
       {KvDtype::kF32, KvDtype::kBf16, KvDtype::kF16, KvDtype::kFp8, KvDtype::kInt8}) {
    for (const bool heads_first : {false, true}) {
      SCOPED_TRACE(fmt::format("{} heads first {}", to_string(dtype), heads_first));
      Shape shape;
      shape.dtype = dtype;
      shape.heads_first = heads_first;
      shape.scaled = dtype == KvDtype::kFp8;
      expect_right(shape, mixed_batch(), dtype == KvDtype::kInt8 ? 2e-5 : 2e-6);
    }
  }
}

TEST(PagedAttention, TakesHeadsAndDimsOfAnyNumber) {
  for (const auto& [q_heads, kv_heads, head_dim, value_dim, page_size] :
       std::vector<std::tuple<int, int, int, int, int>>{{1, 1, 1, 1, 1},
                                                        {3, 3, 20, 12, 5},
                                                        {6, 2, 33, 65, 16},
                                                        {40, 8, 128, 128, 16},
                                                        {7, 1, 8, 8, 64}}) {
    SCOPED_TRACE(fmt::format("{}/{} heads of {} and {}", q_heads, kv_heads, head_dim, value_dim));
    Shape shape;
    shape.q_heads = q_heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.value_dim = value_dim;
    shape.page_size = page_size;
    for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kFp8}) {
      shape.dtype = dtype;
      expect_right(shape, mixed_batch(), 4e-6);
    }
  }
}

TEST(PagedAttention, OfLatentKeys) {
  Shape shape;
  shape.q_heads = 16;
  shape.kv_heads = 1;
  shape.head_dim = 576;
  shape.value_dim = 512;
  shape.shared = true;
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16}) {
    shape.dtype = dtype;
    expect_right(shape, {causal(150, 2), causal(3, 1)}, 4e-6);
  }
}

TEST(PagedAttention, WithASoftcap) {
  Shape shape;
  shape.softcap = 1.5F;
  expect_right(shape, mixed_batch());
}

TEST(PagedAttention, ManyKeysAreCutInRunsAndMerged) {
  Shape shape;
  shape.head_dim = shape.value_dim = 16;
  shape.page_size = 16;
  RequestOf window = {{{{0, 64}, {9000, 14001}}, {{0, 64}, {9001, 14002}}}};
  expect_right(shape, {causal(9000, 1), window, causal(5000, 3)}, 4e-6);
}

// Returns chunks of prompts, on a rank that holds every third token, so the edges of rows move
// every third row. There are windows that leave keys behind, also entirely; rows that see nothing;
// and keys between those of two rows that no row sees.
std::vector<RequestOf> chunks() {
  RequestOf shared;
  RequestOf window;
  RequestOf narrow;
  RequestOf odd;
  for (std::int64_t row = 0; row < 70; ++row) {
    shared.rows.push_back({{0, (600 + row) / 3}});
    window.rows.push_back({{(400 + row) / 3, (600 + row) / 3}});
    narrow.rows.push_back({{300 + row, 310 + row}});
    odd.rows.push_back({row % 7 == 0 ? Range{} : row < 35 ? Range{0, 5} : Range{1500, 1501 + row}});
  }
  return {shared, causal(3, 1), window, narrow, odd, causal(1, 32), causal(700, 33)};
}

TEST(PagedAttention, OfChunksOfPrompts) {
  for (const KvDtype dtype :
       {KvDtype::kF32, KvDtype::kBf16, KvDtype::kF16, KvDtype::kFp8, KvDtype::kInt8}) {
    SCOPED_TRACE(to_string(dtype));
    Shape shape;
    shape.dtype = dtype;
    shape.scaled = dtype == KvDtype::kFp8 || dtype == KvDtype::kInt8;
    expect_right(shape, chunks(), dtype == KvDtype::kInt8 ? 2e-5 : 4e-6);
  }
  Shape shape;
  shape.softcap = 1.5F;
  shape.heads_first = true;
  expect_right(shape, chunks(), 4e-6);
}

TEST(PagedAttention, GivesTheSameBitsAgain) {
  const Shape shape;
  const Case one(shape, {causal(9000, 1), causal(70, 4)}, 3);
  for (const PagedKernel* kernel : paged_kernels()) {
    const Result first = run(*kernel, one, shape);
    for (int i = 0; i < 5; ++i) {
      const Result again = run(*kernel, one, shape);
      EXPECT_TRUE(std::ranges::equal(first.out.bytes(), again.out.bytes()));
      EXPECT_TRUE(std::ranges::equal(first.lse.bytes(), again.lse.bytes()));
    }
  }
}

// Some keys are in runs that are merged, each computed by whichever block of threads comes first.
TEST(PagedAttention, OnADeviceGivesTheSameBitsAgain) {
  const Shape shape = on_device({});
  const Case one(shape, {causal(1100, 1), causal(70, 4)}, 3);
  for (const PagedKernel* kernel : device_kernels()) {
    const Result first = run(*kernel, one, shape);
    for (int i = 0; i < 3; ++i) {
      const Result again = run(*kernel, one, shape);
      EXPECT_TRUE(std::ranges::equal(first.out.bytes(), again.out.bytes()));
      EXPECT_TRUE(std::ranges::equal(first.lse.bytes(), again.lse.bytes()));
    }
  }
}

// The results of a request do not depend on the rest of the batch.
TEST(PagedAttention, OnADeviceARequestHasTheSameBitsBesideOthers) {
  const Shape shape = on_device({});
  const Case both(shape, {causal(1100, 1), causal(1100, 2), causal(3, 1)}, 3);
  for (const PagedKernel* kernel : device_kernels()) {
    const Result together = run(*kernel, both, shape);
    HostTensor out(Dtype::kF32, 2, shape.q_heads, shape.value_dim);
    HostTensor lse(Dtype::kF32, 2, shape.q_heads, 1);
    PagedRequest alone = both.requests()[1];
    alone.first_row = 0;
    kernel->run(both.params(), both.kv(), slice(both.q().view(), 1, 2, 0, shape.q_heads),
                {&alone, 1}, {out.view(), lse.stats()});
    const auto expected = together.out.values<float>().subspan(
        static_cast<std::size_t>(shape.q_heads * shape.value_dim), out.values<float>().size());
    EXPECT_TRUE(std::ranges::equal(out.values<float>(), expected));
  }
}

TEST(PagedAttention, ANanThatIsSeenIsThere) {
  Shape shape;
  shape.kv_heads = shape.q_heads = 1;
  Case one(shape, {causal(10, 2)}, 5);
  // This is the key that only the second row sees.
  const PagedKv kv = one.kv();
  const PageId page = one.requests()[0].table[2];
  auto* value = static_cast<float*>(const_cast<void*>(kv.v.data)) + page.value * kv.v.page_stride +
                10 % 4 * kv.v.token_stride;
  *value = std::numeric_limits<float>::quiet_NaN();
  for (const PagedKernel* kernel : paged_kernels()) {
    const Result result = run(*kernel, one, shape);
    EXPECT_FALSE(std::isnan(result.out.values<float>()[0]));
    EXPECT_TRUE(std::isnan(result.out.values<float>()[32]));
  }
}

// Elements of fp8 are widened in groups, and by other instructions after the last group.
TEST(PagedAttention, ANanOfFp8IsThere) {
  for (const int place : {0, 1, 31, 32, 63, 64, 70}) {
    SCOPED_TRACE(place);
    Shape shape;
    shape.kv_heads = shape.q_heads = 1;
    shape.head_dim = shape.value_dim = 72;
    shape.dtype = KvDtype::kFp8;
    Case one(shape, {causal(10, 1)}, 5);
    const PagedKv kv = one.kv();
    const PageId page = one.requests()[0].table[0];
    auto* value = static_cast<std::uint8_t*>(const_cast<void*>(kv.v.data)) +
                  page.value * kv.v.page_stride + place;
    *value = 0xff;
    for (const PagedKernel* kernel : paged_kernels()) {
      const Result result = run(*kernel, one, shape);
      for (int d = 0; d < shape.value_dim; ++d) {
        EXPECT_EQ(std::isnan(result.out.values<float>()[static_cast<std::size_t>(d)]), d == place);
      }
    }
  }
}

TEST(PagedAttention, SaysWhatDoesNotFit) {
  const Shape shape;
  const Case one(shape, {causal(10, 2), causal(5, 1)}, 1);
  HostTensor out(Dtype::kF32, 3, 4, 32);
  HostTensor lse(Dtype::kF32, 3, 4, 1);
  const auto error = [&](auto change) {
    PagedKv kv = one.kv();
    TensorView q = one.q().view();
    std::vector<PagedRequest> requests = one.requests();
    PartialOutput result = {out.view(), lse.stats()};
    change(kv, q, requests, result);
    try {
      find_paged_kernel().run({}, kv, q, requests, result);
    } catch (const InvalidArgument& invalid) {
      return std::string(invalid.what());
    }
    return std::string("none");
  };
  using Requests = std::vector<PagedRequest>;
  EXPECT_EQ(error([](auto&, auto&, auto&, auto&) {}), "none");
  EXPECT_THAT(error([](PagedKv& kv, auto&, auto&, auto&) { kv.kv_heads = 3; }),
              HasSubstr("a multiple of 3 heads"));
  EXPECT_THAT(error([](PagedKv& kv, auto&, auto&, auto&) { kv.k.dim = 31; }),
              HasSubstr("of dim 31, found 4 of 32"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) { r[0].table = r[0].table.first(2); }),
              HasSubstr("request 0 row 0: expected ascending keys of a table of 8 tokens"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) { r[1].first_row = 1; }),
              HasSubstr("found row 1 taken"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) { r.pop_back(); }),
              HasSubstr("a request for row 2, found none"));
  EXPECT_THAT(error([](auto&, auto&, Requests& r, auto&) {
                r[0].row_splits = {};
                r[0].num_rows = 3;
              }),
              HasSubstr("keys for 3 rows"));
  std::vector<PageId> holes(3);
  EXPECT_THAT(error([&](auto&, auto&, Requests& r, auto&) { r[0].table = holes; }),
              HasSubstr("expected a page for keys [0, 10), found none at 0 of the table"));
  EXPECT_THAT(error([](auto&, auto&, auto&, PartialOutput& o) { o.o_NHD.dim = 16; }),
              HasSubstr("out: expected f32 [3, 4, 32]"));
}

TEST(PagedAttention, NamesItsKernelsAndDtypes) {
  EXPECT_EQ(parse_kv_dtype("fp8"), KvDtype::kFp8);
  EXPECT_THROW(static_cast<void>(parse_kv_dtype("f8")), InvalidArgument);
  EXPECT_EQ(&find_paged_kernel(paged_kernels().back()->name()), paged_kernels().back());
  EXPECT_THROW(static_cast<void>(find_paged_kernel("cuda")), InvalidArgument);
}

}  // namespace
}  // namespace contextile

#include "kernel_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/verify.h"
#include "kernel/cpu/logaddexp.h"
#include "kernel/host_tensor.h"
#include "kernel/tensor.h"
#include "kernel_peaks.h"
#include "kernel_streams.h"
#include "runtime/executor/unit_view.h"
#include "transport/strided_copy.h"

namespace contextile {
namespace {

constexpr std::int32_t kHeads = 8;
constexpr std::int32_t kDim = 128;
constexpr std::int64_t kBlockTokens = 256;
constexpr double kSliceBytes = 64e6;  // shorter calls are repeated inside one measurement

// The tensors all operations work on.
struct Arrays {
  Arrays(const RowOps& row_ops, std::int64_t num_tokens) : ops(row_ops), tokens(num_tokens) {
    const auto rows = [&](Dtype dtype) { return HostTensor(dtype, tokens, kHeads, kDim); };
    for (HostTensor* tensor : {&a, &b, &c}) *tensor = rows(Dtype::kF32);
    for (HostTensor* tensor : {&narrow, &other_narrow}) *tensor = rows(Dtype::kBf16);
    for (HostTensor* tensor : {&a_lse, &b_lse, &c_lse}) {
      *tensor = HostTensor(Dtype::kF32, tokens, kHeads, 1);
    }
    restore();
  }

  // Random numbers, the same every time; one block of them repeated.
  void restore() {
    Rng rng(5);
    for (HostTensor* tensor : {&a, &b, &c, &a_lse, &b_lse, &c_lse, &narrow, &other_narrow}) {
      const TensorView all = tensor->view();
      const std::int64_t some = std::min<std::int64_t>(all.tokens, 64);
      HostTensor block = normal_tensor(rng, all.dtype, some, all.heads, all.dim);
      for (std::int64_t n = 0; n < all.tokens; n += some) {
        const std::int64_t count = std::min(some, all.tokens - n);
        ops.convert(slice(all, n, count, 0, all.heads),
                    slice(block.view(), 0, count, 0, all.heads));
      }
    }
  }
  [[nodiscard]] std::int64_t elements() const { return tokens * kHeads * kDim; }
  [[nodiscard]] PartialOutput partial(HostTensor& o, HostTensor& lse) const {
    return {o.view(), lse.stats()};
  }
  [[nodiscard]] UnitView unit(HostTensor& rows) const { return {Kind::kDq, 1, {rows.view()}}; }

  const RowOps& ops;
  std::int64_t tokens;
  HostTensor a, b, c, narrow, other_narrow, a_lse, b_lse, c_lse;
};

float* floats(HostTensor& tensor) { return static_cast<float*>(tensor.view().data); }

// Copies blocks of `from` to their places in `to`, in an order far from both.
void gather_blocks(const RowOps& ops, const TensorView& to, const TensorView& from) {
  const std::int64_t blocks = std::max<std::int64_t>(1, from.tokens / kBlockTokens);
  const std::int64_t tokens = std::min(from.tokens, kBlockTokens);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t source = (i * 37 + 11) % blocks;
    ops.convert(slice(to, i * tokens, tokens, 0, to.heads),
                slice(from, source * tokens, tokens, 0, from.heads));
  }
}

// Copies one head group of a tensor to contiguous rows, like a transport.
void copy_group(HostTensor& to, HostTensor& from, std::int32_t heads) {
  std::vector<Segment> source;
  for (std::int32_t first = 0; first < kHeads; first += heads) {
    const TensorView group = slice(from.view(), 0, from.view().tokens, first, heads);
    append_segments({Kind::kDq, 1, {group}}, source);
  }
  const TensorView all = to.view();
  const std::int64_t bytes = all.tokens * all.heads * all.dim * bytes_per_element(all.dtype);
  const Segment target{static_cast<std::byte*>(all.data), bytes, 1, bytes};
  copy_segments(source, {&target, 1});
}

struct Operation {
  std::string name;
  double bytes_per_element = 0;  // read and written, of the elements of one tensor
  std::function<void(Arrays&)> call;
  std::function<void(Arrays&)> stream;
};

// The machine's time for the same bytes without the arithmetic.
void copy(Arrays& x) { stream_copy(floats(x.c), floats(x.a), x.elements()); }
void add(Arrays& x) { stream_add(floats(x.a), floats(x.b), x.elements()); }
void narrow_copy(Arrays& x) { stream_halve(floats(x.narrow), floats(x.a), x.elements()); }
void read_two(Arrays& x) {
  floats(x.c_lse)[0] = stream_dot(floats(x.a), floats(x.b), x.elements());
}

std::vector<Operation> combining_operations() {
  return {{"merge of two partial results", 12,
           [](Arrays& x) {
             const std::array srcs = {x.partial(x.a, x.a_lse), x.partial(x.b, x.b_lse)};
             x.ops.merge(srcs[0], srcs);
           },
           add},
          {"merge of three partial results", 16,
           [](Arrays& x) {
             const std::array srcs = {x.partial(x.a, x.a_lse), x.partial(x.b, x.b_lse),
                                      x.partial(x.c, x.c_lse)};
             x.ops.merge(srcs[0], srcs);
           },
           [](Arrays& x) { stream_add_two(floats(x.a), floats(x.b), floats(x.c), x.elements()); }},
          {"sum of two gradients", 12,
           [](Arrays& x) {
             x.ops.sum(x.a.view(), std::array{x.a.view(), x.b.view()});
           },
           add},
          {"gather of blocks of 256", 8,
           [](Arrays& x) { gather_blocks(x.ops, x.c.view(), x.a.view()); }, copy},
          {"groups of 4 heads to a message", 8, [](Arrays& x) { copy_group(x.c, x.a, 4); },
           [](Arrays& x) {
             constexpr std::int64_t kGroup = 4 * kDim;
             for (std::int64_t n = 0; n < 2 * x.tokens; ++n) {
               const std::int64_t row = (n % x.tokens * 2 + n / x.tokens) * kGroup;
               stream_copy(floats(x.c) + n * kGroup, floats(x.a) + row, kGroup);
             }
           }},
          {"delta, f32", 8, [](Arrays& x) { x.ops.delta(x.a.view(), x.b.view(), x.c_lse.stats()); },
           read_two},
          {"delta, bf16", 4,
           [](Arrays& x) { x.ops.delta(x.narrow.view(), x.other_narrow.view(), x.c_lse.stats()); },
           [](Arrays& x) {
             floats(x.c_lse)[0] =
                 stream_dot(floats(x.narrow), floats(x.other_narrow), x.elements() / 2);
           }}};
}

std::vector<Operation> converting_operations() {
  return {
      {"outputs rounded, f32", 8,
       [](Arrays& x) { x.ops.finish(x.partial(x.a, x.a_lse), {}, x.c.view(), x.c_lse.stats()); },
       copy},
      {"outputs rounded, bf16", 6,
       [](Arrays& x) {
         x.ops.finish(x.partial(x.a, x.a_lse), {}, x.narrow.view(), x.c_lse.stats());
       },
       narrow_copy},
      {"f32 to bf16 for the wire", 6,
       [](Arrays& x) {
         pack_unit(x.ops, x.unit(x.a), Dtype::kBf16, static_cast<std::byte*>(x.narrow.view().data));
       },
       narrow_copy},
      {"f32 to f16 for the wire", 6,
       [](Arrays& x) {
         pack_unit(x.ops, x.unit(x.a), Dtype::kF16, static_cast<std::byte*>(x.narrow.view().data));
       },
       narrow_copy},
      {"bf16 from the wire to f32", 6,
       [](Arrays& x) {
         unpack_unit(x.ops, x.unit(x.c), Dtype::kBf16,
                     static_cast<std::byte*>(x.narrow.view().data));
       },
       [](Arrays& x) { stream_double(floats(x.c), floats(x.narrow), x.elements()); }}};
}

std::vector<Operation> operations() {
  std::vector<Operation> all = combining_operations();
  for (Operation& operation : converting_operations()) all.push_back(std::move(operation));
  return all;
}

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "kernel_bench: memory: {}\n", what);
  std::exit(1);
}

void expect_near(const std::string& what, double found, double expected) {
  if (std::abs(found - expected) <= 1e-6 * (1 + std::abs(expected))) return;
  fail(fmt::format("{}: expected {}, found {}", what, expected, found));
}

// Checks merge, sum, delta and casts of a few rows, element by element.
void verify(const RowOps& ops) {
  Arrays was(ops, 5);
  Arrays now(ops, 5);
  const std::array srcs = {now.partial(now.a, now.a_lse), now.partial(now.b, now.b_lse)};
  now.c.poison();
  now.c_lse.poison();
  ops.merge(now.partial(now.c, now.c_lse), srcs);
  HostTensor delta(Dtype::kF32, now.tokens, kHeads, 1);
  ops.delta(now.a.view(), now.b.view(), delta.stats());
  now.narrow.poison();
  pack_unit(ops, now.unit(now.a), Dtype::kBf16, static_cast<std::byte*>(now.narrow.view().data));
  ops.sum(now.b.view(), std::array{now.a.view(), now.b.view()});
  for (std::int64_t n = 0; n < now.tokens; ++n) {
    for (std::int32_t h = 0; h < kHeads; ++h) {
      const double la = stat_at(was.a_lse.stats(), n, h);
      const double lb = stat_at(was.b_lse.stats(), n, h);
      const double lse = logaddexp(la, lb);
      expect_near("merged LSE", stat_at(now.c_lse.stats(), n, h), lse);
      double dot = 0;
      for (std::int32_t d = 0; d < kDim; ++d) {
        const double a = row_at<float>(was.a.view(), n, h)[d];
        const double b = row_at<float>(was.b.view(), n, h)[d];
        dot += a * b;
        expect_near("merged O", row_at<float>(now.c.view(), n, h)[d],
                    std::exp(la - lse) * a + std::exp(lb - lse) * b);
        expect_near("sum", row_at<float>(now.b.view(), n, h)[d], a + b);
        std::vector<float> row(kDim);
        read_row(now.narrow.view(), n, h, std::span<float>(row));
        expect_near("bf16", row[static_cast<std::size_t>(d)], round_to(Dtype::kBf16, a));
      }
      expect_near("delta", stat_at(delta.stats(), n, h), dot);
    }
  }
}

double seconds(int times, const std::function<void()>& call) {
  const double start = thread_cpu_s();
  for (int i = 0; i < times; ++i) call();
  return (thread_cpu_s() - start) / times;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print_table(const RowOps& ops, const std::string& where, std::int64_t tokens, int repeats) {
  Arrays arrays(ops, tokens);
  fmt::print("\n{}: row operations {}, tensors of {:.1f} MiB, GB/s\n{:34} {:>8} {:>8} {:>8}\n",
             where, ops.name(), static_cast<double>(arrays.elements()) * 4 / 1048576, "", "stream",
             "found", "share");
  for (const Operation& operation : operations()) {
    const double bytes = operation.bytes_per_element * static_cast<double>(arrays.elements());
    const int times = std::max(1, static_cast<int>(kSliceBytes / bytes));
    arrays.restore();
    operation.call(arrays);
    operation.stream(arrays);
    std::vector<double> found;
    std::vector<double> stream;
    std::vector<double> shares;
    for (int i = 0; i < repeats; ++i) {
      const double before = seconds(times, [&] { operation.stream(arrays); });
      const double mine = seconds(times, [&] { operation.call(arrays); });
      const double after = seconds(times, [&] { operation.stream(arrays); });
      found.push_back(bytes / mine);
      stream.push_back(2 * bytes / (before + after));
      shares.push_back((before + after) / 2 / mine);
    }
    fmt::print("{:34} {:>8.1f} {:>8.1f} {:>7.1f}%\n", operation.name, median(stream) / 1e9,
               median(found) / 1e9, median(shares) * 100);
    std::fflush(stdout);
  }
}

}  // namespace

void print_memory_rates(const RowOps& ops, int repeats) {
  verify(ops);
  print_table(ops, "memory", 48 * 1024, repeats);
  print_table(ops, "second-level cache", 96, repeats);
}

}  // namespace contextile

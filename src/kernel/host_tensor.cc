#include "kernel/host_tensor.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "base/check.h"

namespace contextile {
namespace {

// Calls visit(row n, head, offset of row tokens[n] in an array [T, heads, dim]) for every row.
template <typename Visit>
void for_each_row(const TensorView& tensor, std::span<const std::int64_t> tokens,
                  const Visit& visit) {
  for (std::size_t n = 0; n < tokens.size(); ++n) {
    for (std::int32_t h = 0; h < tensor.heads; ++h) {
      visit(static_cast<std::int64_t>(n), h,
            static_cast<std::size_t>((tokens[n] * tensor.heads + h) * tensor.dim));
    }
  }
}

std::vector<std::int64_t> all_tokens(std::int64_t count) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<std::int64_t>(t);
  return tokens;
}

std::size_t checked_bytes(Dtype dtype, std::int64_t tokens, std::int32_t heads, std::int32_t dim) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t row = std::max<std::int64_t>(std::int64_t{heads} * dim, 1);
  CONTEXTILE_CHECK(
      tokens >= 0 && heads >= 0 && dim >= 0 && tokens <= kMost / bytes_per_element(dtype) / row,
      "tensor: expected [tokens, heads, dim] of at least [0, 0, 0] that fit memory, "
      "found [{}, {}, {}]",
      tokens, heads, dim);
  return static_cast<std::size_t>(tokens * heads * dim * bytes_per_element(dtype));
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::align_val_t alignment_of(std::size_t bytes) {
  return std::align_val_t{bytes < 2 * kHugePage ? 64 : kHugePage};
}

}  // namespace

void* allocate_lines(std::size_t bytes) {
  void* const memory = ::operator new(bytes, alignment_of(bytes));
#if defined(__linux__)
  // A system without huge pages refuses, which only costs speed.
  if (bytes >= 2 * kHugePage) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return memory;
}

void free_lines(void* memory, std::size_t bytes) { ::operator delete(memory, alignment_of(bytes)); }

HostTensor::HostTensor(Dtype dtype, std::int64_t tokens, std::int32_t heads, std::int32_t dim)
    : bytes_(checked_bytes(dtype, tokens, heads, dim)),
      dtype_(dtype),
      tokens_(tokens),
      heads_(heads),
      dim_(dim) {
  poison();
}

void HostTensor::poison() {
  if (!bytes_.empty()) std::memset(bytes_.data(), 0xff, bytes_.size());
}

TensorView HostTensor::view() { return contiguous(bytes_.data(), dtype_, tokens_, heads_, dim_); }

TensorView HostTensor::view() const {
  return contiguous(const_cast<std::byte*>(bytes_.data()), dtype_, tokens_, heads_, dim_);
}

RowStats HostTensor::stats() { return as_stats(view()); }

void HostTensor::check_dtype(Dtype asked) const {
  CONTEXTILE_CHECK(asked == dtype_, "tensor: expected to be asked for values of {}, found {}",
                   to_string(dtype_), to_string(asked));
}

void take_rows(const TensorView& to, std::span<const double> array_THD,
               std::span<const std::int64_t> tokens) {
  std::vector<float> values(static_cast<std::size_t>(to.dim));
  for_each_row(to, tokens, [&](std::int64_t n, std::int32_t h, std::size_t from) {
    for (std::size_t d = 0; d < values.size(); ++d) {
      values[d] = static_cast<float>(array_THD[from + d]);
    }
    write_row(to, n, h, values);
  });
}

void put_rows(const TensorView& from, std::span<double> array_THD,
              std::span<const std::int64_t> tokens) {
  for_each_row(from, tokens, [&](std::int64_t n, std::int32_t h, std::size_t to) {
    read_row(from, n, h, array_THD.subspan(to, static_cast<std::size_t>(from.dim)));
  });
}

HostTensor tensor_of(std::span<const double> array_THD, Dtype dtype, std::int64_t tokens,
                     std::int32_t heads, std::int32_t dim) {
  HostTensor tensor(dtype, tokens, heads, dim);
  take_rows(tensor.view(), array_THD, all_tokens(tokens));
  return tensor;
}

std::vector<double> doubles_of(const HostTensor& tensor) {
  std::vector<double> array(
      static_cast<std::size_t>(tensor.tokens() * tensor.heads() * tensor.dim()));
  put_rows(tensor.view(), array, all_tokens(tensor.tokens()));
  return array;
}

HostTensor normal_tensor(Rng& rng, Dtype dtype, std::int64_t tokens, std::int32_t heads,
                         std::int32_t dim) {
  HostTensor tensor(dtype, tokens, heads, dim);
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int32_t h = 0; h < heads; ++h) {
      for (float& value : row) value = static_cast<float>(rng.normal());
      write_row(tensor.view(), n, h, row);
    }
  }
  return tensor;
}

}  // namespace contextile

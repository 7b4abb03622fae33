#include "kernel/cuda/paged_kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "kernel/cuda/access.h"
#include "kernel/cuda/paged_entry_points.h"
#include "kernel/cuda/paged_merge.h"
#include "kernel/cuda/paged_tables.h"

namespace contextile::cuda {
namespace {

constexpr std::int64_t kAlignment = 16;

bool is_latent(const PagedKv& kv) {
  return kv.k.data == kv.v.data && kv.k.page_stride == kv.v.page_stride &&
         kv.k.token_stride == kv.v.token_stride && kv.k.head_stride == kv.v.head_stride &&
         kv.v.dim <= kv.k.dim;
}

void check_paged_rows(const char* what, const void* data, std::int32_t dim,
                      std::int64_t element_bytes, std::span<const std::int64_t> strides) {
  const std::int64_t elements = kAlignment / element_bytes;
  CONTEXTILE_CHECK(dim % elements == 0, "{}: expected a dim that is a multiple of {}, found {}",
                   what, elements, dim);
  CONTEXTILE_CHECK(reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0,
                   "{}: expected rows at multiples of 16 bytes, found {}", what, data);
  for (const std::int64_t stride : strides) {
    CONTEXTILE_CHECK(stride % elements == 0,
                     "{}: expected rows at multiples of 16 bytes, found a stride of {}", what,
                     stride);
  }
}

void check_device(const PagedKv& kv, const TensorView& q_NHD) {
  CONTEXTILE_CHECK(q_NHD.dtype != Dtype::kF32, "cuda:paged: expected q of bf16 or f16, found f32");
  const bool is_same = kv.dtype == (q_NHD.dtype == Dtype::kBf16 ? KvDtype::kBf16 : KvDtype::kF16);
  const std::int64_t element = bytes_per_element(kv.dtype);
  CONTEXTILE_CHECK(is_same || element == 1,
                   "cuda:paged: expected a cache of q's {}, fp8 or int8, found {}",
                   to_string(q_NHD.dtype), to_string(kv.dtype));
  check_paged_rows("q", q_NHD.data, q_NHD.dim, bytes_per_element(q_NHD.dtype),
                   std::vector{q_NHD.token_stride, q_NHD.head_stride});
  const auto check_cache = [&](const char* what, const PagedTensor& tensor) {
    check_paged_rows(what, tensor.data, tensor.dim, element,
                     std::vector{tensor.page_stride, tensor.token_stride, tensor.head_stride});
  };
  check_cache("keys", kv.k);
  check_cache("values", kv.v);
}

EntryPoint entry_of(const PagedKv& kv, const TensorView& q_NHD) {
  const EntryPoint entry = paged_entry({.dtype = q_NHD.dtype,
                                        .is_bytes = bytes_per_element(kv.dtype) == 1,
                                        .is_latent = is_latent(kv),
                                        .head_dim = kv.k.dim,
                                        .value_dim = kv.v.dim});
  CONTEXTILE_CHECK(
      !entry.name.empty(),
      "cuda:paged: expected head dims up to 256, or 576 with values of 512 that are the "
      "beginnings of keys, found {} and {}",
      kv.k.dim, kv.v.dim);
  return entry;
}

// Arrays one after another in device memory.
class UploadedArrays {
 public:
  UploadedArrays(const RankStreams& streams, std::int64_t bytes)
      : memory_(streams.driver, streams.compute, bytes), bytes_(static_cast<std::size_t>(bytes)) {}

  template <typename T>
  static std::int64_t size_of(std::span<const T> array) {
    const auto bytes = static_cast<std::int64_t>(array.size_bytes());
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // Adds an array. Returns its place in device memory, null if it is empty.
  template <typename T>
  const T* put(std::span<const T> array) {
    if (array.empty()) return nullptr;
    std::memcpy(bytes_.data() + end_, array.data(), array.size_bytes());
    const auto* at = reinterpret_cast<const T*>(memory_.data() + end_);
    end_ += size_of(array);
    return at;
  }
  void upload(const RankStreams& streams) const {
    streams.driver.write(streams.compute, memory_.data(), bytes_);
  }
  [[nodiscard]] Rows rows() const { return {memory_.data(), end_, 1, 0}; }

 private:
  StreamMemory memory_;
  std::vector<std::byte> bytes_;
  std::int64_t end_ = 0;
};

PagedCache cache_of(const PagedTensor& tensor, std::int64_t element, const float* scale_H) {
  return {static_cast<const std::byte*>(tensor.data), tensor.page_stride * element,
          tensor.token_stride * element, tensor.head_stride * element, scale_H};
}

template <typename Of>
std::int64_t bytes_of(const PagedTable& table, const PagedKv& kv, const Of& size_of) {
  return size_of(std::span(table.works)) + size_of(std::span(table.merges)) +
         size_of(std::span(table.pieces)) + size_of(std::span(table.pages)) +
         size_of(std::span(table.splits)) + size_of(std::span(table.ranges)) +
         size_of(kv.k.scale_H) + size_of(kv.v.scale_H);
}

// One call: its arrays in device memory, and the argument of its launches.
class Call {
 public:
  Call(const RankStreams& streams, const PagedParams& params, const PagedKv& kv,
       const TensorView& q_NHD, const PartialOutput& out, const PagedTable& table)
      : kv_(kv),
        q_(q_NHD),
        out_(out),
        table_(table),
        arrays_(streams, bytes_of(table, kv,
                                  [](auto array) {
                                    using T = typename decltype(array)::value_type;
                                    return UploadedArrays::size_of(std::span<const T>(array));
                                  })),
        parts_(streams.driver, streams.compute,
               std::int64_t{table.num_parts} * kv.kv_heads * (kv.v.dim + 1) *
                   static_cast<std::int64_t>(sizeof(float))) {
    const std::int64_t element = bytes_per_element(kv.dtype);
    launch_.q = {static_cast<const std::uint16_t*>(q_NHD.data), q_NHD.token_stride,
                 q_NHD.head_stride};
    launch_.o = {static_cast<float*>(out.o_NHD.data), out.o_NHD.token_stride,
                 out.o_NHD.head_stride};
    launch_.lse = {out.lse_NH.data, out.lse_NH.token_stride, out.lse_NH.head_stride};
    launch_.works = arrays_.put(std::span(table.works));
    launch_.merges = arrays_.put(std::span(table.merges));
    launch_.pieces = arrays_.put(std::span(table.pieces));
    launch_.pages = arrays_.put(std::span(table.pages));
    launch_.splits = arrays_.put(std::span(table.splits));
    launch_.ranges = arrays_.put(std::span(table.ranges));
    launch_.k = cache_of(kv.k, element, arrays_.put(kv.k.scale_H));
    launch_.v = cache_of(kv.v, element, arrays_.put(kv.v.scale_H));
    launch_.part_o = reinterpret_cast<float*>(parts_.data());
    launch_.part_lse = launch_.part_o + std::int64_t{table.num_parts} * kv.kv_heads * kv.v.dim;
    launch_.heads = q_NHD.heads / kv.kv_heads;
    launch_.kv_heads = kv.kv_heads;
    launch_.head_dim = kv.k.dim;
    launch_.value_dim = kv.v.dim;
    launch_.page_size = kv.page_size;
    launch_.is_int8 = kv.dtype == KvDtype::kInt8;
    launch_.scale = params.scale;
    launch_.softcap = params.softcap;
    arrays_.upload(streams);
  }

  [[nodiscard]] const PagedLaunch& launch() const { return launch_; }

  // Returns the memory that the works read and write. From the cache, they read only the keys of
  // their pieces.
  [[nodiscard]] Access access_of_works() const {
    Access access;
    append_rows(access.reads, q_);
    access.reads.push_back(arrays_.rows());
    for (const PagedWork& work : table_.works) {
      for (std::int32_t p = 0; p < work.num_pieces; ++p) {
        append_keys(access.reads, work,
                    table_.pieces[static_cast<std::size_t>(work.first_piece + p)]);
      }
    }
    append_results(access.writes);
    if (table_.num_parts > 0) access.writes.push_back(part_rows());
    return access;
  }
  [[nodiscard]] Access access_of_merges() const {
    Access access{.reads = {arrays_.rows(), part_rows()}, .writes = {}};
    append_results(access.writes);
    return access;
  }

 private:
  void append_results(std::vector<Rows>& rows) const {
    append_rows(rows, out_.o_NHD);
    append_stats(rows, out_.lse_NH, out_.o_NHD);
  }
  [[nodiscard]] Rows part_rows() const {
    return {parts_.data(),
            std::int64_t{table_.num_parts} * kv_.kv_heads * (kv_.v.dim + 1) *
                static_cast<std::int64_t>(sizeof(float)),
            1, 0};
  }
  void append_keys(std::vector<Rows>& rows, const PagedWork& work, const PagedPiece& piece) const {
    for (std::int32_t begin = piece.begin; begin < piece.end;) {
      const std::int32_t page = begin / kv_.page_size;
      const std::int32_t end = std::min(piece.end, (page + 1) * kv_.page_size);
      const std::int32_t id = table_.pages[static_cast<std::size_t>(work.first_page + page)];
      const auto append = [&](const PagedCache& cache, std::int32_t dim) {
        for (std::int32_t head = 0; head < kv_.kv_heads; ++head) {
          const std::byte* const first = cache.data + id * cache.page_bytes +
                                         begin % kv_.page_size * cache.token_bytes +
                                         head * cache.head_bytes;
          rows.push_back({const_cast<std::byte*>(first), dim * bytes_per_element(kv_.dtype),
                          end - begin, cache.token_bytes});
        }
      };
      append(launch_.k, kv_.k.dim);
      append(launch_.v, kv_.v.dim);
      begin = end;
    }
  }

  const PagedKv& kv_;
  const TensorView& q_;
  const PartialOutput& out_;
  const PagedTable& table_;
  UploadedArrays arrays_;
  StreamMemory parts_;
  PagedLaunch launch_;
};

}  // namespace

void DevicePagedKernel::attend(const PagedParams& params, const PagedKv& kv,
                               const TensorView& q_NHD, std::span<const PagedRequest> requests,
                               const PartialOutput& out) const {
  if (requests.empty()) return;
  check_device(kv, q_NHD);
  const EntryPoint entry = entry_of(kv, q_NHD);
  const PagedTable table = paged_table(requests, q_NHD.heads / kv.kv_heads);
  const Call call(streams_, params, kv, q_NHD, out, table);
  const std::span<const std::byte> argument = std::as_bytes(std::span(&call.launch(), 1));
  streams_.driver.launch(streams_.compute,
                         {.module = "paged",
                          .kernel = entry.name,
                          .blocks_x = static_cast<std::int32_t>(table.works.size()),
                          .blocks_y = kv.kv_heads,
                          .threads = kThreads,
                          .shared_bytes = entry.shared_bytes},
                         argument, [&] { return call.access_of_works(); });
  if (table.merges.empty()) return;
  streams_.driver.launch(streams_.compute,
                         {.module = "paged",
                          .kernel = "paged_merge",
                          .blocks_x = static_cast<std::int32_t>(table.merges.size()),
                          .blocks_y = kv.kv_heads * kPagedMergeBlocks,
                          .threads = kThreads,
                          .shared_bytes = 0},
                         argument, [&] { return call.access_of_merges(); });
}

}  // namespace contextile::cuda

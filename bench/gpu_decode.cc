#include "gpu_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "contextile/extend/paged_attention.h"
#include "kernel/cuda/paged_kernel.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int32_t kDim = 128;
constexpr std::int32_t kPageSize = 16;
constexpr KvDtype kCaches[] = {KvDtype::kBf16, KvDtype::kFp8, KvDtype::kInt8};

// Memory of the device for work on the rank's stream.
class Buffer {
 public:
  Buffer(const DecodeBench& bench, std::int64_t bytes)
      : memory_(bench.driver, bench.streams.compute, bytes) {}
  Buffer(const DecodeBench& bench, std::span<const std::byte> from)
      : Buffer(bench, std::ssize(from)) {
    bench.driver.write(bench.streams.compute, memory_.data(), from);
  }
  [[nodiscard]] std::byte* data() const { return memory_.data(); }

 private:
  cuda::StreamMemory memory_;
};

// Requests of some lengths, with one query each and pages in random order.
struct Batch {
  explicit Batch(const std::vector<std::int64_t>& lengths) {
    for (const std::int64_t length : lengths) {
      first_page.push_back(num_pages);
      num_pages += (length + kPageSize - 1) / kPageSize;
      keys.push_back({0, length});
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(num_pages));
    std::iota(ids.begin(), ids.end(), 0);
    Rng rng(1);
    for (std::size_t i = ids.size(); i > 1; --i) {
      std::swap(ids[i - 1], ids[rng.next() % i]);
    }
    for (const std::int32_t id : ids) pages.emplace_back(id);
  }
  [[nodiscard]] std::vector<PagedRequest> requests() const {
    std::vector<PagedRequest> list;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto count = static_cast<std::size_t>((keys[i].end + kPageSize - 1) / kPageSize);
      list.push_back({static_cast<std::int64_t>(i), 1,
                      std::span(pages).subspan(static_cast<std::size_t>(first_page[i]), count),
                      std::span(keys).subspan(i, 1)});
    }
    return list;
  }

  std::int64_t num_pages = 0;
  std::vector<std::int64_t> first_page;
  std::vector<Range> keys;
  std::vector<PageId> pages;
};

PagedKv kv_of(const DecodeBench& bench, KvDtype dtype, const void* k, const void* v) {
  PagedKv kv;
  const std::int64_t token = std::int64_t{bench.kv_heads} * kDim;
  kv.k = {k, kPageSize * token, token, kDim, kDim, {}};
  kv.v = {v, kPageSize * token, token, kDim, kDim, {}};
  kv.dtype = dtype;
  kv.kv_heads = bench.kv_heads;
  kv.page_size = kPageSize;
  return kv;
}

std::int64_t cache_bytes(const DecodeBench& bench, const Batch& batch, KvDtype dtype) {
  return batch.num_pages * kPageSize * bench.kv_heads * kDim * bytes_per_element(dtype);
}

std::vector<std::byte> random_cache(std::int64_t bytes, KvDtype dtype, std::uint64_t seed) {
  std::vector<std::byte> cache(static_cast<std::size_t>(bytes));
  Rng rng(seed);
  if (dtype == KvDtype::kBf16) {
    for (std::size_t i = 0; i < cache.size(); i += 2) {
      const std::uint16_t bits = float_to_bf16(static_cast<float>(rng.normal()));
      cache[i] = static_cast<std::byte>(bits & 0xff);
      cache[i + 1] = static_cast<std::byte>(bits >> 8);
    }
    return cache;
  }
  for (std::byte& byte : cache) {
    const auto value = static_cast<float>(rng.normal());
    byte = static_cast<std::byte>(dtype == KvDtype::kFp8
                                      ? float_to_fp8(value)
                                      : static_cast<std::uint8_t>(std::lround(value)));
  }
  return cache;
}

PartialOutput output_of(const DecodeBench& bench, std::byte* o, std::byte* lse, std::int64_t rows) {
  return {contiguous(o, Dtype::kF32, rows, bench.q_heads, kDim),
          as_stats(contiguous(lse, Dtype::kF32, rows, bench.q_heads, 1))};
}

PagedParams params_of() { return {.scale = 1 / std::sqrt(static_cast<float>(kDim))}; }

}  // namespace

bool verify_decode(const DecodeBench& bench) {
  const Batch batch({1, 333, 1500});
  const auto rows = static_cast<std::int64_t>(batch.keys.size());
  const cuda::DevicePagedKernel kernel(bench.streams);
  HostTensor q(Dtype::kBf16, rows, bench.q_heads, kDim);
  Rng rng(2);
  std::vector<float> row(kDim);
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int32_t h = 0; h < bench.q_heads; ++h) {
      for (float& x : row) x = static_cast<float>(rng.normal());
      write_row(q.view(), n, h, row);
    }
  }
  bool ok = true;
  for (const KvDtype dtype : kCaches) {
    const std::int64_t bytes = cache_bytes(bench, batch, dtype);
    const std::vector<std::byte> k = random_cache(bytes, dtype, 3);
    const std::vector<std::byte> v = random_cache(bytes, dtype, 4);
    HostTensor expected(Dtype::kF32, rows, bench.q_heads, kDim);
    HostTensor lse(Dtype::kF32, rows, bench.q_heads, 1);
    find_paged_kernel().run(params_of(), kv_of(bench, dtype, k.data(), v.data()), q.view(),
                            batch.requests(), {expected.view(), lse.stats()});
    const Buffer k_there(bench, k);
    const Buffer v_there(bench, v);
    const Buffer q_there(bench, q.bytes());
    HostTensor found(Dtype::kF32, rows, bench.q_heads, kDim);
    const Buffer o_there(bench, found.bytes());
    const Buffer lse_there(bench, lse.bytes());
    kernel.run(params_of(), kv_of(bench, dtype, k_there.data(), v_there.data()),
               contiguous(q_there.data(), Dtype::kBf16, rows, bench.q_heads, kDim),
               batch.requests(), output_of(bench, o_there.data(), lse_there.data(), rows));
    const std::span<float> values = found.values<float>();
    bench.driver.read(bench.streams.compute, std::as_writable_bytes(values), o_there.data());
    double largest = 0;
    double error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double is = values[i];
      const double should = expected.values<float>()[i];
      largest = std::max(largest, std::abs(should));
      error = std::isnan(is) ? HUGE_VAL : std::max(error, std::abs(is - should));
    }
    const double bound = weight_rounding(Dtype::kBf16);
    if (error <= bound * largest) continue;
    fmt::print("WRONG pages of {}: error {:.2e}, bound {:.2e}\n", to_string(dtype), error / largest,
               bound);
    ok = false;
  }
  return ok;
}

Json measure_decode(const DecodeBench& bench) {
  Json table = Json::array();
  fmt::print("\ndecoding, {} heads over {} of dim {}{:>18}{:>10}\n", bench.q_heads, bench.kv_heads,
             kDim, "us", "GB/s");
  const cuda::DevicePagedKernel kernel(bench.streams);
  for (const KvDtype dtype : kCaches) {
    for (const std::int64_t num_requests : {1, 8, 64}) {
      for (std::int64_t length = std::min<std::int64_t>(1024, bench.longest);
           length <= bench.longest; length *= 4) {
        const Batch batch(
            std::vector<std::int64_t>(static_cast<std::size_t>(num_requests), length));
        const std::int64_t bytes = cache_bytes(bench, batch, dtype);
        const Buffer k(bench, bytes);
        const Buffer v(bench, bytes);
        const Buffer q(bench, num_requests * bench.q_heads * kDim * 2);
        const Buffer o(bench, num_requests * bench.q_heads * kDim * 4);
        const Buffer lse(bench, num_requests * bench.q_heads * 4);
        for (const Buffer* buffer : {&k, &v}) {  // small numbers in every dtype
          bench.driver.fill(bench.streams.compute, buffer->data(), 0x3c, bytes);
        }
        bench.driver.fill(bench.streams.compute, q.data(), 0x3c,
                          num_requests * bench.q_heads * kDim * 2);
        const std::vector<PagedRequest> requests = batch.requests();
        const double seconds = bench.seconds_of([&] {
          kernel.run(params_of(), kv_of(bench, dtype, k.data(), v.data()),
                     contiguous(q.data(), Dtype::kBf16, num_requests, bench.q_heads, kDim),
                     requests, output_of(bench, o.data(), lse.data(), num_requests));
        });
        const double gbytes_per_s = 2e-9 * static_cast<double>(bytes) / seconds;
        table.push_back({{"cache", std::string(to_string(dtype))},
                         {"requests", num_requests},
                         {"tokens", length},
                         {"us", 1e6 * seconds},
                         {"gbytes_per_s", gbytes_per_s}});
        fmt::print("{:4} {:3} requests of {:6} tokens {:>22.1f}{:>10.1f}\n", to_string(dtype),
                   num_requests, length, 1e6 * seconds, gbytes_per_s);
      }
    }
  }
  return table;
}

}  // namespace contextile

// Attention of a decoding step compared with what one core can do.
//
//   paged_bench [--keys 131072] [--repeats 9] [--kernel NAME] [--only TEXT] [--cores all]
//
// One request's queries attend keys in pages of 16 tokens in random order. There are 32 or 64 query
// heads on 8 KV heads of 128 dims (GQA), with up to eight queries; 16 heads on 4 KV heads of 64
// dims; and 16 or 128 heads on latent keys of 576 (MLA). Each setting is checked against fp64 first
// (exit 1 if it differs). Then four things run in turn: the kernel, the dot product of the same
// bytes (the fastest plain loop that reads them once: the stream), the same page by page in the
// order of the table (the pages), and independent multiply-adds in registers (the peak). The
// roofline is the larger one of the stream's time and of the FLOPs over the peak; a number is the
// median of roofline / kernel. The goal is 0.85. The next column has the time of the pages instead
// of the stream's. Times are CPU times of one thread; with --cores all, wall times of all cores,
// without a peak.
#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "contextile/extend/paged_attention.h"
#include "kernel/cached_element.h"
#include "kernel_peaks.h"
#include "kernel_streams.h"
#include "read_options.h"

namespace contextile {
namespace {

struct Setting {
  std::string name;
  std::int32_t q_heads;
  std::int32_t kv_heads;
  std::int32_t head_dim;
  std::int32_t value_dim;
  bool is_latent;
  KvDtype dtype;
  std::int64_t num_rows;
};

using Bytes = std::vector<std::uint8_t, LineAllocator<std::uint8_t>>;

// Bytes of finite elements, whatever the dtype.
Bytes random_elements(KvDtype dtype, std::size_t count, std::mt19937_64& random) {
  Bytes bytes(count * static_cast<std::size_t>(bytes_per_element(dtype)));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random() % 2048) / 512.0F - 2.0F;
    put_element(dtype, bytes.data(), static_cast<std::int64_t>(i),
                dtype == KvDtype::kInt8 ? value * 20 : value);
  }
  return bytes;
}

class Step {
 public:
  Step(const Setting& setting, std::int64_t num_keys) : setting_(setting), num_keys_(num_keys) {
    std::mt19937_64 random(1);
    const auto tokens =
        static_cast<std::size_t>(num_keys) * static_cast<std::size_t>(setting.kv_heads);
    k_ =
        random_elements(setting.dtype, tokens * static_cast<std::size_t>(setting.head_dim), random);
    if (!setting.is_latent) {
      v_ = random_elements(setting.dtype, tokens * static_cast<std::size_t>(setting.value_dim),
                           random);
    }
    std::vector<std::int32_t> pages(static_cast<std::size_t>(num_keys / kPage));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
    for (const std::int32_t page : pages) table_.emplace_back(page);
    q_ = HostTensor(Dtype::kF32, setting.num_rows, setting.q_heads, setting.head_dim);
    for (float& x : q_.values<float>()) x = static_cast<float>(random() % 2048) / 1024.0F - 1.0F;
    out_ = HostTensor(Dtype::kF32, setting.num_rows, setting.q_heads, setting.value_dim);
    lse_ = HostTensor(Dtype::kF32, setting.num_rows, setting.q_heads, 1);
    for (std::int64_t row = 0; row < setting.num_rows; ++row) {
      keys_.push_back({0, num_keys - setting.num_rows + row + 1});
    }
  }

  [[nodiscard]] PagedKv kv() const {
    PagedKv kv;
    const auto describe = [&](const Bytes& bytes, std::int32_t dim) {
      PagedTensor t;
      t.data = bytes.data();
      t.dim = dim;
      t.head_stride = dim;
      t.token_stride = std::int64_t{setting_.kv_heads} * dim;
      t.page_stride = t.token_stride * kPage;
      return t;
    };
    kv.k = describe(k_, setting_.head_dim);
    kv.v = setting_.is_latent ? kv.k : describe(v_, setting_.value_dim);
    kv.v.dim = setting_.value_dim;
    if (setting_.dtype == KvDtype::kInt8)
      kv.k.scale_H = kv.v.scale_H =
          std::span(scale_).first(static_cast<std::size_t>(setting_.kv_heads));
    kv.dtype = setting_.dtype;
    kv.kv_heads = setting_.kv_heads;
    kv.page_size = kPage;
    return kv;
  }

  void run(const PagedKernel& kernel) {
    PagedRequest request;
    request.num_rows = setting_.num_rows;
    request.table = table_;
    request.keys = keys_;
    kernel.run({scale(), 0}, kv(), q_.view(), {&request, 1}, {out_.view(), lse_.stats()});
  }

  // The largest difference from fp64 over the first and the last head of the first row.
  double error() {
    double worst = 0;
    for (const std::int32_t h : {0, setting_.q_heads - 1}) worst = std::max(worst, error_of(h));
    return worst;
  }

  [[nodiscard]] double bytes() const { return static_cast<double>(k_.size() + v_.size()); }
  // Multiplications and additions of scores and outputs; no key is left out for a draft.
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(num_keys_) *
           static_cast<double>(setting_.num_rows * setting_.q_heads) *
           static_cast<double>(setting_.head_dim + setting_.value_dim);
  }
  // Reads bytes [begin, end) of keys and of values once.
  [[nodiscard]] float stream(std::size_t begin, std::size_t end) const {
    if (setting_.is_latent) {
      const std::size_t half = (end - begin) / 2;
      return dot(k_.data() + begin, k_.data() + begin + half, half);
    }
    return dot(k_.data() + begin, v_.data() + begin, end - begin);
  }
  // Reads the pages of parts [begin, end) of `parts` of the table, in its order: two pages of
  // latent keys at a time, or one of keys and one of values.
  [[nodiscard]] float pages(std::size_t begin, std::size_t end, std::size_t parts) const {
    const std::size_t bytes = k_.size() / table_.size();
    const auto page = [&](const Bytes& all, std::size_t i) {
      return all.data() + static_cast<std::size_t>(table_[i].value) * bytes;
    };
    const std::size_t step = setting_.is_latent ? 2 : 1;
    const std::size_t last = table_.size() * end / parts / step * step;
    float sum = 0;
    for (std::size_t i = table_.size() * begin / parts / step * step; i < last; i += step) {
      sum += setting_.is_latent ? dot(page(k_, i), page(k_, i + 1), bytes)
                                : dot(page(k_, i), page(v_, i), bytes);
    }
    return sum;
  }
  [[nodiscard]] std::size_t stream_end() const { return k_.size(); }

 private:
  static constexpr std::int32_t kPage = 16;

  [[nodiscard]] static float dot(const std::uint8_t* a, const std::uint8_t* b, std::size_t bytes) {
    return stream_dot(reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b),
                      static_cast<std::int64_t>(bytes / 4));
  }

  [[nodiscard]] float scale() const {
    return 1.0F / std::sqrt(static_cast<float>(setting_.head_dim));
  }

  double error_of(std::int32_t h) {
    const PagedKv cache = kv();
    const std::int32_t head = h / (setting_.q_heads / setting_.kv_heads);
    std::vector<double> o(static_cast<std::size_t>(setting_.value_dim), 0);
    double total = 0;
    const std::span<const float> q = q_.values<float>();
    for (std::int64_t key = keys_[0].begin; key < keys_[0].end; ++key) {
      const std::int64_t token =
          std::int64_t{table_[static_cast<std::size_t>(key / kPage)].value} * kPage + key % kPage;
      const auto at = [&](const PagedTensor& t, std::int32_t d) {
        return element(setting_.dtype, static_cast<const std::uint8_t*>(t.data),
                       token * t.token_stride + head * t.head_stride + d);
      };
      double score = 0;
      for (std::int32_t d = 0; d < setting_.head_dim; ++d) {
        score += q[static_cast<std::size_t>(h * setting_.head_dim + d)] * at(cache.k, d);
      }
      const double int8 = setting_.dtype == KvDtype::kInt8 ? 0.05 : 1;
      const double weight = std::exp(score * int8 * scale());
      total += weight;
      for (std::size_t d = 0; d < o.size(); ++d) {
        o[d] += weight * int8 * at(cache.v, static_cast<std::int32_t>(d));
      }
    }
    double worst = std::abs(lse_.values<float>()[static_cast<std::size_t>(h)] - std::log(total));
    for (std::size_t d = 0; d < o.size(); ++d) {
      const double found = out_.values<float>()[static_cast<std::size_t>(h) * o.size() + d];
      worst = std::max(worst, std::abs(found - o[d] / total));
    }
    return worst;
  }

  Setting setting_;
  std::int64_t num_keys_;
  Bytes k_;
  Bytes v_;
  std::vector<PageId> table_;
  std::vector<Range> keys_;
  std::vector<float> scale_ = std::vector<float>(64, 0.05F);
  HostTensor q_, out_, lse_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double wall_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Rates {
  double of_roofline = 0;
  double of_pages = 0;
  double of_stream = 0;
  double kernel = 0;  // GB/s
  double pages = 0;
  double stream = 0;
  double flops = 0;  // GFLOP/s
  double peak = 0;
};

// Measures kernel, stream and peak in turn, by a clock; `peak` is in FLOP/s.
Rates measure(Step& step, const PagedKernel& kernel, int repeats, const auto& clock,
              const auto& read, const auto& read_pages, const auto& peak) {
  std::vector<double> of_roofline, of_pages, of_stream, mine, pages, streams, flops, peaks;
  for (int i = 0; i < repeats; ++i) {
    double start = clock();
    step.run(kernel);
    const double kernel_s = clock() - start;
    start = clock();
    read();
    const double stream_s = clock() - start;
    start = clock();
    read_pages();
    const double pages_s = clock() - start;
    peaks.push_back(peak());
    const double flops_s = step.flops() / peaks.back();
    of_roofline.push_back(std::max(stream_s, flops_s) / kernel_s);
    of_pages.push_back(std::max(pages_s, flops_s) / kernel_s);
    of_stream.push_back(stream_s / kernel_s);
    mine.push_back(step.bytes() / kernel_s / 1e9);
    pages.push_back(step.bytes() / pages_s / 1e9);
    streams.push_back(step.bytes() / stream_s / 1e9);
    flops.push_back(step.flops() / kernel_s / 1e9);
  }
  return {median(of_roofline), median(of_pages), median(of_stream), median(mine),
          median(pages),       median(streams),  median(flops),     median(peaks) / 1e9};
}

Rates on_one_core(Step& step, const PagedKernel& kernel, int repeats) {
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  volatile float sink = 0;
  const Peak unit = kernel.name() == "avx512" ? Peak::kFma512 : Peak::kFma256;
  return measure(
      step, kernel, repeats, thread_cpu_s, [&] { sink = step.stream(0, step.stream_end()); },
      [&] { sink = step.pages(0, 1, 1); },
      [&] {
        return has_peak(unit) ? measure_peak(unit) : std::numeric_limits<double>::infinity();
      });
}

Rates on_all_cores(Step& step, const PagedKernel& kernel, int repeats) {
  volatile float sink = 0;
  constexpr std::size_t kParts = 64;
  return measure(
      step, kernel, repeats, wall_s,
      [&] {
        tbb::parallel_for(std::size_t{0}, kParts, [&](std::size_t part) {
          const std::size_t size = step.stream_end() / kParts / 512 * 512;
          sink = step.stream(part * size, (part + 1) * size);
        });
      },
      [&] {
        tbb::parallel_for(std::size_t{0}, kParts,
                          [&](std::size_t part) { sink = step.pages(part, part + 1, kParts); });
      },
      [] { return std::numeric_limits<double>::infinity(); });
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const KvDtype dtype :
       {KvDtype::kF32, KvDtype::kBf16, KvDtype::kFp8, KvDtype::kInt8, KvDtype::kF16}) {
    const auto add = [&](const char* shape, std::int32_t q_heads, std::int32_t kv_heads,
                         std::int32_t dim, std::int32_t value_dim, std::int64_t num_rows) {
      settings.push_back({fmt::format("{} {}", shape, to_string(dtype)), q_heads, kv_heads, dim,
                          value_dim, dim != value_dim, dtype, num_rows});
    };
    add("GQA 32/8", 32, 8, 128, 128, 1);
    add("GQA 64/8", 64, 8, 128, 128, 1);
    add("GQA 32/8, 2 queries", 32, 8, 128, 128, 2);
    add("GQA 32/8, 4 queries", 32, 8, 128, 128, 4);
    add("GQA 32/8, 8 queries", 32, 8, 128, 128, 8);
    add("GQA 16/4 of 64, 4 queries", 16, 4, 64, 64, 4);
    add("MHA 8/8", 8, 8, 128, 128, 1);
    add("MLA 16/1", 16, 1, 576, 512, 1);
    add("MLA 128/1", 128, 1, 576, 512, 1);
  }
  return settings;
}

int main_of(int argc, char** argv) {
  std::int64_t num_keys = 131072;
  int repeats = 9;
  std::string name;
  std::string only;
  std::string cores = "one";
  bench::read_options(
      argc, argv,
      {{"--keys", [&](const char* value) { num_keys = std::atoll(value) / 16 * 16; }},
       {"--repeats", [&](const char* value) { repeats = std::atoi(value); }},
       {"--kernel", [&](const char* value) { name = value; }},
       {"--only", [&](const char* value) { only = value; }},
       {"--cores", [&](const char* value) { cores = value; }}});
  const PagedKernel& kernel = find_paged_kernel(name);
  fmt::print(
      "kernel {}, {} keys, {} core\n\n| setting | error | of the roofline | of the pages | of the "
      "stream | GB/s | GFLOP/s |\n|---|---|---|---|---|---|---|\n",
      kernel.name(), num_keys, cores);
  bool is_right = true;
  for (const Setting& setting : all_settings()) {
    if (setting.name.find(only) == std::string::npos) continue;
    Step step(setting, num_keys);
    step.run(kernel);
    const double error = step.error();
    is_right = is_right && error < 1e-4;
    const Rates its =
        cores == "all" ? on_all_cores(step, kernel, repeats) : on_one_core(step, kernel, repeats);
    fmt::print(
        "| {} | {:.1e} | {:.2f} | {:.2f} | {:.2f} | {:.1f} of {:.1f}, {:.1f} | {:.0f} of {:.0f} "
        "|\n",
        setting.name, error, its.of_roofline, its.of_pages, its.of_stream, its.kernel, its.pages,
        its.stream, its.flops, its.peak);
    std::fflush(stdout);
  }
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }

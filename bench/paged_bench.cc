// Attention of a decoding step compared with the rate at which memory can be read.
//
//   paged_bench [--keys 131072] [--repeats 9] [--kernel NAME] [--only TEXT]
//
// One query of 32 heads, 8 KV heads, dim 128 (GQA), or of 128 heads and latent keys of 576 (MLA),
// to keys in pages of 16 tokens in random order. It is checked against fp64 first (exit 1 if it
// differs). Then the kernel and the dot product of the same bytes (the fastest plain loop that
// reads them once) run in turn: on one core by CPU time of the thread, on all cores by wall time.
// Rate is bytes of keys and values over time; a number is the median of kernel / stream. The goal
// is 0.85.
#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "contextile/extend/paged_attention.h"
#include "kernel/cached_element.h"
#include "kernel_peaks.h"
#include "kernel_streams.h"

namespace contextile {
namespace {

struct Setting {
  const char* name;
  std::int32_t q_heads;
  std::int32_t kv_heads;
  std::int32_t head_dim;
  std::int32_t value_dim;
  bool is_latent;
  KvDtype dtype;
  std::int64_t num_rows;
};

// Bytes of finite elements, whatever the dtype.
std::vector<std::uint8_t> random_elements(KvDtype dtype, std::size_t count,
                                          std::mt19937_64& random) {
  std::vector<std::uint8_t> bytes(count * static_cast<std::size_t>(bytes_per_element(dtype)));
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
    const auto describe = [&](const std::vector<std::uint8_t>& bytes, std::int32_t dim) {
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
  // Reads the same bytes once.
  [[nodiscard]] float stream(std::size_t begin, std::size_t end) const {
    if (setting_.is_latent) {
      const auto* half = reinterpret_cast<const float*>(k_.data() + begin / 8 * 4);
      const auto count = static_cast<std::int64_t>((end - begin) / 8 / 64 * 64);
      return stream_dot(half, half + k_.size() / 8, count);
    }
    const auto count = static_cast<std::int64_t>((end - begin) / 4 / 64 * 64);
    return stream_dot(reinterpret_cast<const float*>(k_.data() + begin),
                      reinterpret_cast<const float*>(v_.data() + begin), count);
  }
  [[nodiscard]] std::size_t stream_end() const { return k_.size(); }

 private:
  static constexpr std::int32_t kPage = 16;

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
  std::vector<std::uint8_t> k_;
  std::vector<std::uint8_t> v_;
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
  double ratio = 0;
  double kernel = 0;  // GB/s
  double stream = 0;
};

// Measures kernel and stream in turn, by a clock.
Rates measure(Step& step, const PagedKernel& kernel, int repeats, const auto& clock,
              const auto& read) {
  std::vector<double> ratios, mine, streams;
  for (int i = 0; i < repeats; ++i) {
    double start = clock();
    step.run(kernel);
    const double kernel_s = clock() - start;
    start = clock();
    read();
    const double stream_s = clock() - start;
    ratios.push_back(stream_s / kernel_s);
    mine.push_back(step.bytes() / kernel_s / 1e9);
    streams.push_back(step.bytes() / stream_s / 1e9);
  }
  return {median(ratios), median(mine), median(streams)};
}

Rates on_one_core(Step& step, const PagedKernel& kernel, int repeats) {
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  volatile float sink = 0;
  return measure(step, kernel, repeats, thread_cpu_s,
                 [&] { sink = step.stream(0, step.stream_end()); });
}

Rates on_all_cores(Step& step, const PagedKernel& kernel, int repeats) {
  volatile float sink = 0;
  constexpr std::size_t kParts = 64;
  return measure(step, kernel, repeats, wall_s, [&] {
    tbb::parallel_for(std::size_t{0}, kParts, [&](std::size_t part) {
      const std::size_t size = step.stream_end() / kParts / 512 * 512;
      sink = step.stream(part * size, (part + 1) * size);
    });
  });
}

int main_of(int argc, char** argv) {
  std::int64_t num_keys = 131072;
  int repeats = 9;
  std::string name;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--keys") num_keys = std::atoll(argv[i + 1]) / 16 * 16;
    if (word == "--repeats") repeats = std::atoi(argv[i + 1]);
    if (word == "--kernel") name = argv[i + 1];
    if (word == "--only") only = argv[i + 1];
  }
  const PagedKernel& kernel = find_paged_kernel(name);
  const std::vector<Setting> settings = {
      {"GQA 32/8 f32", 32, 8, 128, 128, false, KvDtype::kF32, 1},
      {"GQA 32/8 bf16", 32, 8, 128, 128, false, KvDtype::kBf16, 1},
      {"GQA 32/8 f16", 32, 8, 128, 128, false, KvDtype::kF16, 1},
      {"GQA 32/8 fp8", 32, 8, 128, 128, false, KvDtype::kFp8, 1},
      {"GQA 32/8 int8", 32, 8, 128, 128, false, KvDtype::kInt8, 1},
      {"MHA 8/8 bf16", 8, 8, 128, 128, false, KvDtype::kBf16, 1},
      {"GQA 32/8 bf16, 4 drafts", 32, 8, 128, 128, false, KvDtype::kBf16, 4},
      {"MLA 16/1 bf16", 16, 1, 576, 512, true, KvDtype::kBf16, 1},
      {"MLA 128/1 bf16", 128, 1, 576, 512, true, KvDtype::kBf16, 1},
  };
  fmt::print("kernel {}, {} keys\n{:26}{:>10}{:>28}{:>28}\n", kernel.name(), num_keys, "", "error",
             "one core: of stream, GB/s", "all cores: of stream, GB/s");
  bool is_right = true;
  for (const Setting& setting : settings) {
    if (std::string_view(setting.name).find(only) == std::string_view::npos) continue;
    Step step(setting, num_keys);
    step.run(kernel);
    const double error = step.error();
    is_right = is_right && error < 1e-4;
    const Rates one = on_one_core(step, kernel, repeats);
    const Rates all = on_all_cores(step, kernel, repeats);
    fmt::print("{:26}{:>10.1e}{:>14.2f}{:>6.1f} of{:>5.1f}{:>14.2f}{:>6.1f} of{:>5.1f}\n",
               setting.name, error, one.ratio, one.kernel, one.stream, all.ratio, all.kernel,
               all.stream);
  }
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }

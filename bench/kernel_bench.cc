// The attention kernels against what the machine can do.
//
//   kernel_bench [--kernel NAME] [--dtype f32|bf16|f16] [--full] [--section NAME] [--repeats N]
//                [--python PATH]
//
// Sections:
// - dense (causal and full, 1K to 4K tokens, with --full to 16K; D 64 and 128),
// - masks (the masks of the DCP paper on 16K tokens),
// - tiles (one tile of 64 to 1024),
// - plans (strategies through the executor on 1 and 2 ranks),
// - executor (its time in addition to kernel and transport),
// - memory (merge, copies, delta and casts against the bandwidth of plain loops),
// - cores (two threads against one),
// - blas (the same attention composed of BLAS calls, if the build found a BLAS),
// - torch (PyTorch's attention, if --python, python3 by default, can import it).
// Without --section it runs all.
//
// Every setting is verified against the reference kernel before it is timed (exit 1 if it differs).
// Time is CPU time of the thread, with the kernel kept to one thread. The machine's peak is
// measured right before and after every timed call, and a number is the median of rate / peak. The
// peak is that of fp32 FMA of the kernel's vector width (of bf16 products, by vectors or tiles, for
// bf16 on a kernel of such). FLOPs are useful ones: exact pairs of the mask, backward 2.5 x
// forward. The last table lists the goals and which were met; docs/results/kernels.md has measured
// tables.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "blas_attention.h"
#include "contextile/advanced/executor.h"
#include "contextile/cluster.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "kernel/host_tensor.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "kernel_executor.h"
#include "kernel_memory.h"
#include "kernel_peaks.h"
#include "kernel_tile.h"
#include "kernel_torch.h"

namespace contextile {
namespace {

constexpr double kSliceFlops = 2e8;  // shorter calls are repeated inside one measurement

struct Options {
  std::string kernel = "simd";
  Dtype dtype = Dtype::kF32;
  std::string section;
  std::string python = "python3";
  bool full = false;
  int repeats = 7;
};

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "kernel_bench: {}\n", message);
  std::exit(1);
}

double wall_s() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Goal {
  std::string what;
  double must = 0;  // percent
  double aim = 0;
  double found = 0;
};

class Bench {
 public:
  explicit Bench(Options options)
      : options_(std::move(options)),
        kernel_(find_kernel(options_.kernel, options_.dtype)),
        peak_(peak_of()) {
    if (!has_peak(peak_)) fail("no peak of this processor can be measured");
  }

  void run() {
    print_head();
    {
      const tbb::global_control alone(tbb::global_control::max_allowed_parallelism, 1);
      if (wants("dense")) run_dense();
      if (wants("masks")) run_masks();
      if (wants("tiles")) run_tiles();
      if (wants("plans")) run_plans();
      if (wants("executor")) {
        print_executor_shares(kernel_, options_.dtype, options_.repeats);
      }
      if (wants("memory")) print_memory_rates(kernel_.row_ops(), options_.repeats);
      if (wants("blas")) run_blas();
      if (wants("torch")) print_beside_torch(options_.python, options_.repeats);
    }
    if (wants("cores")) run_cores();
    if (!goals_.empty()) print_goals();
  }

 private:
  [[nodiscard]] bool wants(const std::string& section) const {
    return options_.section.empty() || options_.section == section;
  }

  [[nodiscard]] Peak peak_of() const {
    if (kernel_.name() == "simd:amx_bf16" && options_.dtype == Dtype::kBf16) {
      return Peak::kTileBf16;
    }
    if (kernel_.name() == "simd:avx512_bf16" && options_.dtype == Dtype::kBf16) {
      return Peak::kDotBf16;
    }
    if (kernel_.name() == "simd:avx2" || !has_peak(Peak::kFma512)) return Peak::kFma256;
    return Peak::kFma512;
  }

  void print_head() const {
    fmt::print("kernel {}, {}, one thread\n", kernel_.name(), to_string(options_.dtype));
    for (const auto& [peak, name] : {std::pair(Peak::kFma512, "fp32 FMA, 16 lanes"),
                                     std::pair(Peak::kFma256, "fp32 FMA, 8 lanes"),
                                     std::pair(Peak::kDotBf16, "bf16 products, 32 lanes"),
                                     std::pair(Peak::kTileBf16, "bf16 products, tiles")}) {
      if (!has_peak(peak)) continue;
      std::vector<double> rates;
      for (int i = 0; i < 200; ++i) rates.push_back(measure_peak(peak));
      fmt::print("peak, {:24} median {:6.1f}, best {:6.1f} GFLOP/s{}\n", name, median(rates) / 1e9,
                 *std::max_element(rates.begin(), rates.end()) / 1e9,
                 peak == peak_ ? "  <- 100%" : "");
    }
  }

  // The median over repetitions, each between two measurements of the peak.
  [[nodiscard]] Rate measure(double flops, const std::function<void()>& call) const {
    const int inner = std::max(1, static_cast<int>(kSliceFlops / flops));
    call();
    std::vector<double> rates;
    std::vector<double> shares;
    for (int i = 0; i < options_.repeats; ++i) {
      const double before = measure_peak(peak_);
      const double start = thread_cpu_s();
      for (int j = 0; j < inner; ++j) call();
      const double rate = flops * inner / (thread_cpu_s() - start);
      const double after = measure_peak(peak_);
      rates.push_back(rate);
      shares.push_back(rate / ((before + after) / 2));
    }
    return {median(rates), median(shares)};
  }

  // The goals are shares of the vectors' peak; tiles have none.
  void note(const std::string& what, double must, double aim, double share) {
    if (peak_ == Peak::kTileBf16) return;
    goals_.push_back({what, must, aim, share * 100});
  }

  void run_dense();
  void run_masks();
  void run_tiles();
  void run_plans();
  void run_cores();
  void run_blas();
  void print_goals() const;

  const Options options_;
  const AttentionKernel& kernel_;
  const Peak peak_;
  std::vector<Goal> goals_;
};

// ------------------------------------------------------------------------------------ one tile

void verify(const AttentionKernel& kernel, const AttentionShape& shape, const std::string& mask,
            std::int64_t tokens) {
  const TileError error = verify_tile(kernel, shape, mask, tokens);
  if (error.found <= error.bound) return;
  fail(fmt::format("{} under {} on {} tokens: expected an error of at most {:.1e}, found {:.1e}",
                   kernel.name(), mask, tokens, error.bound, error.found));
}

std::string cell(const Rate& rate) {
  return fmt::format("{:6.1f} {:5.1f}%", rate.flops_per_s / 1e9, rate.share * 100);
}

void Bench::run_dense() {
  fmt::print("\ndense, GFLOP/s and share of peak\n{:>5} {:>7} {:7} {:>5} {:>14} {:>14}\n", "D",
             "tokens", "mask", "heads", "forward", "backward");
  for (const std::int32_t dim : {64, 128}) {
    verify(kernel_, bench_shape(8, 2, dim, options_.dtype), "causal", 600);
    verify(kernel_, bench_shape(8, 2, dim, options_.dtype), "full", 600);
    for (std::int64_t tokens = 1024; tokens <= (options_.full ? 16384 : 4096); tokens *= 2) {
      const std::int32_t kv_heads = tokens > 4096 ? 1 : 2;
      for (const char* mask : {"causal", "full"}) {
        const AttentionShape shape = bench_shape(4 * kv_heads, kv_heads, dim, options_.dtype);
        BenchTile tile(kernel_, shape, mask, tokens);
        const Rate forward = measure(tile.forward_flops(), [&] { tile.forward(); });
        const Rate backward = measure(tile.backward_flops(), [&] { tile.backward(); });
        fmt::print("{:>5} {:>7} {:7} {:>3}/{} {:>14} {:>14}\n", dim, tokens, mask, shape.q_heads,
                   kv_heads, cell(forward), cell(backward));
        std::fflush(stdout);
        if (tokens != 4096) continue;
        const bool is_bf16 = peak_ == Peak::kDotBf16;
        const std::string what = fmt::format("{} D={} 4K {}", is_bf16 ? "bf16" : "fp32", dim, mask);
        const double must = is_bf16 ? 86 : dim == 64 ? 87 : 90;
        const double aim = is_bf16 ? 91 : dim == 64 ? 90 : 94;
        note(what + " forward", must, aim, forward.share);
        note(what + " backward",
             is_bf16     ? 82
             : dim == 64 ? 86
                         : 88,
             is_bf16     ? 88
             : dim == 64 ? 90
                         : 93,
             backward.share);
      }
    }
  }
}

void Bench::run_masks() {
  const std::int64_t tokens = 16384;
  fmt::print("\nmasks of 4/1 heads of 128 on {} tokens\n{:24} {:>14} {:>14}\n", tokens, "mask",
             "forward", "backward");
  for (const char* mask : {"lambda:64,4096", "causal_blockwise:256,2,1", "shared_question:0.2,4"}) {
    const AttentionShape shape = bench_shape(4, 1, 128, options_.dtype);
    verify(kernel_, shape, mask, 1500);
    BenchTile tile(kernel_, shape, mask, tokens);
    const Rate forward = measure(tile.forward_flops(), [&] { tile.forward(); });
    const Rate backward = measure(tile.backward_flops(), [&] { tile.backward(); });
    fmt::print("{:24} {:>14} {:>14}\n", mask, cell(forward), cell(backward));
    std::fflush(stdout);
    note(std::string(mask) + " forward", 85, 90, forward.share);
  }
}

void Bench::run_tiles() {
  fmt::print("\none full tile of 8/2 heads of 128\n{:>6} {:>14} {:>14}\n", "rows", "forward",
             "backward");
  for (std::int64_t tokens = 64; tokens <= 1024; tokens *= 2) {
    const AttentionShape shape = bench_shape(8, 2, 128, options_.dtype);
    verify(kernel_, shape, "full", tokens);
    BenchTile tile(kernel_, shape, "full", tokens);
    const Rate forward = measure(tile.forward_flops(), [&] { tile.forward(); });
    const Rate backward = measure(tile.backward_flops(), [&] { tile.backward(); });
    fmt::print("{:>6} {:>14} {:>14}\n", tokens, cell(forward), cell(backward));
    if (tokens == 256) note("one tile of 256 forward", 85, 90, forward.share);
  }
}

// --------------------------------------------------------------------------------------- plans

void Bench::run_plans() {
  fmt::print(
      "\nplans of 8/2 heads of 128, documents of 2.5K, 1.5K, 1K, 3K tokens, causal, all of a "
      "rank's\n"
      "time but waiting\n{:10} {:>5} {:>7} {:>14} {:>14}\n",
      "strategy", "ranks", "block", "forward", "backward");
  const MaskUse use = parse_mask_use("causal");
  const std::vector<std::int64_t> lengths = {2500, 1500, 1000, 3000};
  const AttentionShape shape = bench_shape(8, 2, 128, options_.dtype);
  const Workload workload = make_workload(lengths, shape, {&use, 1});
  const std::int64_t pairs = workload.masks[0].mask.num_pairs();
  const double flops = forward_flops(pairs, shape.q_heads, shape);
  for (const std::int32_t ranks : {1, 2}) {
    Cluster cluster;
    cluster.devices_per_node = ranks;
    for (const auto& [name, block] : {std::pair("zigzag", 0), std::pair("dcp", 256),
                                      std::pair("dcp", 1024), std::pair("magi", 0)}) {
      StrategyRequest request;
      request.wire = Dtype::kF32;
      if (block != 0) request.block_size = block;
      const Strategy& strategy = find_strategy(name);
      if (strategy.unsupported(workload, cluster, request)) continue;
      const auto plan = std::make_shared<const Plan>(
          build_plan(workload, cluster, strategy.arrange(workload, cluster, request)));
      const PlanRate rate = measure_plan(plan, kernel_, peak_, options_.repeats, flops);
      fmt::print("{:10} {:>5} {:>7} {:>14} {:>14}\n", name, ranks,
                 block == 0 ? "" : std::to_string(block), cell(rate.forward), cell(rate.backward));
      std::fflush(stdout);
    }
  }
}

// ------------------------------------------------------------------------------- cores and BLAS

// Two threads against one: by wall time, which other programs on the machine spoil, and by the CPU
// time of the busier thread, which shows how well the work splits.
void Bench::run_cores() {
  BenchTile tile(kernel_, bench_shape(8, 2, 128, options_.dtype), "causal", 4096);
  struct Times {
    double wall_s = 1e30;
    double thread_s = 1e30;
  };
  const auto fastest = [&](std::size_t threads, const std::function<void()>& call) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    Times best;
    for (int i = 0; i < options_.repeats; ++i) {
      const double wall = wall_s();
      const double all = process_cpu_s();
      const double mine = thread_cpu_s();
      call();
      const double my_s = thread_cpu_s() - mine;
      const double others_s = process_cpu_s() - all - my_s;
      best.wall_s = std::min(best.wall_s, wall_s() - wall);
      best.thread_s = std::min(best.thread_s, std::max(my_s, others_s));
    }
    return best;
  };
  fmt::print("\ntwo threads against one\n{:>10} {:>10} {:>10}\n", "", "wall", "CPU");
  for (const bool is_backward : {false, true}) {
    const auto call = [&] { is_backward ? tile.backward() : tile.forward(); };
    call();
    const Times one = fastest(1, call);
    const Times two = fastest(2, call);
    const char* name = is_backward ? "backward" : "forward";
    const double by_cpu = one.thread_s / two.thread_s;
    fmt::print("{:>10} {:>9.2f}x {:>9.2f}x\n", name, one.wall_s / two.wall_s, by_cpu);
    note(fmt::format("two cores {}, of 2x, by CPU time", name), 95, 98, by_cpu / 2);
  }
}

void verify_blas(std::vector<std::vector<float>>& arrays, const BlasHead& head, bool is_causal) {
  const auto view = [&](float* data) {
    return contiguous(data, Dtype::kF32, head.tokens, 1, head.dim);
  };
  const KernelParams params{1, 1, head.dim, head.dim, head.scale, 0};
  const LocalBand band{{0, head.tokens}, {0, head.tokens}, -kUnbounded, is_causal ? 0 : kUnbounded};
  std::vector<float> o(arrays[4].size());
  std::vector<float> lse(static_cast<std::size_t>(head.tokens));
  const ForwardTile tile{view(arrays[0].data()),
                         view(arrays[1].data()),
                         view(arrays[2].data()),
                         view(o.data()),
                         {lse.data(), 1, 1},
                         {&band, 1},
                         true};
  find_kernel("simd").forward(params, {&tile, 1});
  blas_forward(head, is_causal);
  double error = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    error = std::max(error, std::abs(double{o[i]} - arrays[4][i]));
  }
  if (!(error <= 1e-4)) fail(fmt::format("attention of BLAS calls: error {:.1e}", error));
}

void Bench::run_blas() {
  if (!has_blas()) {
    fmt::print("\nblas: skipped, this build found no CBLAS\n");
    return;
  }
  fmt::print("\nattention of BLAS calls, fp32, 8/2 heads of 128\n{:>7} {:7} {:>14} {:>14}\n",
             "tokens", "mask", "forward", "backward");
  constexpr std::int32_t kDim = 128;
  Rng rng(3);
  for (const std::int64_t tokens : {1024, 4096}) {
    const auto elements = static_cast<std::size_t>(tokens * kDim);
    std::vector<std::vector<float>> arrays(8, std::vector<float>(elements));
    for (std::size_t a = 0; a < 4; ++a) {
      for (float& value : arrays[a]) value = static_cast<float>(rng.normal());
    }
    std::vector<float> lse(static_cast<std::size_t>(tokens));
    const BlasHead head{.q = arrays[0].data(),
                        .k = arrays[1].data(),
                        .v = arrays[2].data(),
                        .o = arrays[4].data(),
                        .lse = lse.data(),
                        .dout = arrays[3].data(),
                        .dq = arrays[5].data(),
                        .dk = arrays[6].data(),
                        .dv = arrays[7].data(),
                        .tokens = tokens,
                        .dim = kDim,
                        .scale = 0.088388F};
    for (const bool is_causal : {true, false}) {
      verify_blas(arrays, head, is_causal);
      const double pairs = is_causal ? 0.5 * static_cast<double>(tokens * (tokens + 1))
                                     : static_cast<double>(tokens * tokens);
      const double flops = 4 * pairs * kDim;
      const Rate forward = measure(flops, [&] { blas_forward(head, is_causal); });
      const Rate backward = measure(2.5 * flops, [&] { blas_backward(head, is_causal); });
      fmt::print("{:>7} {:7} {:>14} {:>14}\n", tokens, is_causal ? "causal" : "full", cell(forward),
                 cell(backward));
    }
  }
}

void Bench::print_goals() const {
  fmt::print("\ngoals, % of peak\n{:44} {:>6} {:>5} {:>5}\n", "", "found", "must", "aim");
  for (const Goal& goal : goals_) {
    const std::string verdict = goal.found >= goal.aim ? "aim met"
                                : goal.found >= goal.must
                                    ? "must met"
                                    : fmt::format("missed by {:.1f}", goal.must - goal.found);
    fmt::print("{:44} {:>6.1f} {:>5.0f} {:>5.0f}  {}\n", goal.what, goal.found, goal.must, goal.aim,
               verdict);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) fail(name + " expects a value");
      return argv[++i];
    };
    if (name == "--kernel") {
      options.kernel = value();
    } else if (name == "--dtype") {
      const std::string dtype = value();
      options.dtype = dtype == "bf16" ? Dtype::kBf16 : dtype == "f16" ? Dtype::kF16 : Dtype::kF32;
    } else if (name == "--section") {
      options.section = value();
    } else if (name == "--python") {
      options.python = value();
    } else if (name == "--repeats") {
      options.repeats = std::max(1, std::atoi(value().c_str()));
    } else if (name == "--full") {
      options.full = true;
    } else {
      fail(fmt::format(
          "expected --kernel, --dtype, --section, --python, --repeats or --full, found {}", name));
    }
  }
  return options;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  try {
    const contextile::Options options = contextile::parse(argc, argv);
    contextile::Bench bench(options);
    bench.run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}

// A GPU's results with the kernels and plans of the library. docs/gpu.md says how to read them.
//
//   gpu_bench [--gpu 0] [--gpu-kernel NAME] [--kernels FOLDER] [--library FILE] [--longest 16384]
//             [--heads 32] [--kv-heads 8] [--seconds 0.05] [--json FILE]
//
// First every kind of mask is compared with the reference (exit 1 beyond the bound of the dtype).
// Then, in bf16, calls as the executor issues them, tables and uploads included, by the kernel that
// is named or else the one that runs by default:
//   attention  TFLOP/s by mask, head dim and length; without a name by every kernel of the device
//   rows       TFLOP/s of one full tile by query rows and keys
//   decode     microseconds and GB/s of decoding steps by cache, requests and length
//   overheads  microseconds of a launch, GB/s of merging, summing, rounding and zeroing
//   plans      time of whole plans on 4 and 8 logical ranks over that of one call of the batch
// Every figure is the fastest of three runs of at least --seconds. --library is the driver's
// library; one that emulates a GPU on the CPU runs everything, slowly.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/gpu.h"
#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "gpu_decode.h"
#include "kernel/cuda/device_kernel.h"
#include "kernel/row_memory.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "runtime/cuda/device_ranks.h"
#include "runtime/cuda/gpu_driver.h"

namespace contextile {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  GpuOptions gpu;
  std::int64_t longest = 16384;
  double seconds = 0.05;
  std::int32_t q_heads = 32;
  std::int32_t kv_heads = 8;
  std::string json;
};

constexpr std::array kMasks = {"full", "causal", "lambda:64,4096", "causal_blockwise:256,2,1",
                               "varlen"};

struct Dims {
  std::int32_t head = 128;
  std::int32_t value = 128;
};
constexpr Dims kDims[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};

AttentionShape shape_of(const Options& options, Dims dims) {
  AttentionShape shape;
  shape.q_heads = options.q_heads;
  shape.kv_heads = options.kv_heads;
  shape.head_dim = dims.head;
  shape.value_dim = dims.value;
  return shape;
}

KernelParams params_of(const AttentionShape& shape) {
  return {shape.q_heads,
          shape.kv_heads,
          shape.head_dim,
          shape.value_dim,
          static_cast<float>(shape.effective_scale()),
          0};
}

std::vector<float> normal_numbers(std::size_t count) {
  std::vector<float> numbers(count);
  Rng rng(1);
  for (float& number : numbers) number = static_cast<float>(rng.normal());
  return numbers;
}

// A tensor in the kernel's memory, with random numbers of variance 1 or without values.
class DeviceTensor {
 public:
  DeviceTensor(const AttentionKernel& kernel, Dtype dtype, std::int64_t tokens, std::int32_t heads,
               std::int32_t dim, std::uint64_t seed = 0)
      : buffer_(kernel.memory(), tokens * heads * dim * bytes_per_element(dtype)),
        view_(contiguous(buffer_.data(), dtype, tokens, heads, dim)) {
    if (seed == 0) return;
    // Drawn once and repeated, because a GPU waits for the host meanwhile. No row begins where the
    // row before did.
    static const std::vector<float> numbers = normal_numbers(1'000'003);
    HostTensor random(dtype, tokens, heads, dim);
    const auto width = static_cast<std::size_t>(dim);
    std::size_t at = seed * 7919;
    for (std::int64_t n = 0; n < tokens; ++n) {
      for (std::int32_t h = 0; h < heads; ++h, at += width) {
        if (at + width > numbers.size()) at = (at + width) % 7919;
        write_row(random.view(), n, h, std::span(numbers).subspan(at, width));
      }
    }
    kernel.memory().write(buffer_.data(), random.bytes());
  }
  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] RowStats stats() const { return as_stats(view_); }

 private:
  RowBuffer buffer_;
  TensorView view_;
};

// All inputs and outputs of attention of some rows and keys.
struct Layer {
  Layer(const AttentionKernel& kernel, const AttentionShape& s, std::int64_t rows,
        std::int64_t keys)
      : shape(s),
        q(kernel, s.dtype, rows, s.q_heads, s.head_dim, 1),
        k(kernel, s.dtype, keys, s.kv_heads, s.head_dim, 2),
        v(kernel, s.dtype, keys, s.kv_heads, s.value_dim, 3),
        dout(kernel, s.dtype, rows, s.q_heads, s.value_dim, 4),
        o(kernel, Dtype::kF32, rows, s.q_heads, s.value_dim),
        lse(kernel, Dtype::kF32, rows, s.q_heads, 1),
        delta(kernel, Dtype::kF32, rows, s.q_heads, 1, 5),
        dq(kernel, Dtype::kF32, rows, s.q_heads, s.head_dim),
        dk(kernel, Dtype::kF32, keys, s.kv_heads, s.head_dim),
        dv(kernel, Dtype::kF32, keys, s.kv_heads, s.value_dim) {}

  void forward(const AttentionKernel& kernel, std::span<const LocalBand> bands) const {
    const ForwardTile tile{q.view(), k.view(), v.view(), o.view(), lse.stats(), bands, true};
    kernel.forward(params_of(shape), {&tile, 1});
  }
  void backward(const AttentionKernel& kernel, std::span<const LocalBand> bands) const {
    const BackwardTile tile{q.view(),    k.view(),      v.view(),  dout.view(),
                            lse.stats(), delta.stats(), dq.view(), dk.view(),
                            dv.view(),   bands,         true,      true};
    kernel.backward(params_of(shape), {&tile, 1});
  }

  AttentionShape shape;
  DeviceTensor q, k, v, dout, o, lse, delta, dq, dk, dv;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        driver_(cuda::open_gpu_driver(options.gpu)),
        streams_(*driver_),
        kernel_(streams_, cuda::program_of(options.gpu, *driver_)) {}

  int run() {
    fmt::print("device {}\n", driver_->device_name());
    Json all = {{"device", std::string(driver_->device_name())},
                {"kernel", std::string(kernel_.name())}};
    const DecodeBench decode{*driver_,          streams_,
                             options_.longest,  options_.q_heads,
                             options_.kv_heads, [&](const auto& work) { return seconds_of(work); }};
    const std::vector<cuda::Program> programs = this->programs();
    if (!std::ranges::all_of(programs, [&](cuda::Program program) { return verify(program); }) ||
        !verify_decode(decode)) {
      return 1;
    }
    all["attention"] = Json::array();
    for (const cuda::Program program : programs) attention(program, all["attention"]);
    fmt::print("\nfrom here on {}\n", kernel_.name());
    all["rows"] = rows();
    all["overheads"] = overheads();
    all["decode"] = measure_decode(decode);
    all["plans"] = plans();
    if (!options_.json.empty()) std::ofstream(options_.json) << all.dump(1) << '\n';
    return 0;
  }

 private:
  // The requested program, or all that the device has.
  [[nodiscard]] std::vector<cuda::Program> programs() const {
    const cuda::Program best = cuda::program_of(options_.gpu, *driver_);
    if (!options_.gpu.kernel.empty() || best == cuda::Program::kMma) return {best};
    return {best, cuda::Program::kMma};
  }

  // Seconds of one call: the fastest of three runs of as many calls as fill the time.
  double seconds_of(const std::function<void()>& work) {
    const auto timed = [&](int turns) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < turns; ++i) work();
      kernel_.memory().wait();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const double once = std::max(timed(1), 1e-6);
    const int turns = std::max(1, static_cast<int>(options_.seconds / once));
    double best = timed(turns);
    for (int i = 0; i < 2; ++i) best = std::min(best, timed(turns));
    return best / turns;
  }

  static Mask mask_of(const std::string& name, std::int64_t tokens) {
    const bool is_varlen = name == "varlen";
    std::vector<std::int64_t> lengths = {tokens};
    if (is_varlen) {  // a half, a quarter, … and the rest
      lengths.clear();
      for (std::int64_t left = tokens; left > 0;) {
        const std::int64_t length = left > 256 ? left / 2 : left;
        lengths.push_back(length);
        left -= length;
      }
    }
    const MaskUse use = parse_mask_use(is_varlen ? "causal" : name);
    return make_workload(lengths, {}, use).masks.front().mask;
  }

  // Checks plans over two ranks against fp64, with every mask, both dtypes, and all dims in turn.
  bool verify(cuda::Program program) {
    cuda::DeviceRanks ranks(*driver_, {}, program);
    bool ok = true;
    std::size_t turn = 0;
    for (const char* name : kMasks) {
      const std::string mask = std::string(name) == "varlen" ? "causal" : name;
      for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
        AttentionShape shape = shape_of(options_, kDims[turn++ % std::size(kDims)]);
        shape.q_heads = 4;
        shape.kv_heads = 2;
        shape.dtype = dtype;
        const MaskUse use = parse_mask_use(mask);
        Cluster cluster;
        cluster.nodes = 1;
        cluster.devices_per_node = 2;
        const Workload workload =
            make_workload(std::vector<std::int64_t>{700, 130, 33}, shape, use);
        RunOptions run;
        run.host = &ranks;
        const auto plan = plan_and_check(workload, cluster, {"zigzag", {}}, {}).plan;
        const RunReport report = run_plan(plan, run);
        for (const RunError& error : report.masks.at(0).errors) {
          if (error.error <= error.bound) continue;
          fmt::print("WRONG {} {} {}: error {:.2e}, bound {:.2e}\n", mask, to_string(dtype),
                     error.array, error.error, error.bound);
          ok = false;
        }
      }
    }
    fmt::print("{} {}\n", cuda::name_of(program),
               ok ? "verified against fp64" : "is wrong: nothing is timed");
    return ok;
  }

  void attention(cuda::Program program, Json& table) {
    const cuda::DeviceKernel kernel(streams_, program);
    fmt::print("\nattention by {:10}, TFLOP/s{:>24}{:>10}\n", kernel.name(), "forward", "backward");
    for (const Dims dims : kDims) {
      for (std::int64_t tokens = std::min<std::int64_t>(1024, options_.longest);
           tokens <= options_.longest; tokens *= 2) {
        const Layer layer(kernel, shape_of(options_, dims), tokens, tokens);
        for (const char* name : kMasks) {
          const Mask mask = mask_of(name, tokens);
          const double pairs = static_cast<double>(mask.num_pairs());
          const double forward = seconds_of([&] { layer.forward(kernel, mask.bands); });
          const double backward = seconds_of([&] { layer.backward(kernel, mask.bands); });
          // Two products forward, five backward, of which three are of the head dim.
          const double flops = 2 * pairs * layer.shape.q_heads;
          const double forward_tflops = 1e-12 * flops * (dims.head + dims.value) / forward;
          const double backward_tflops =
              1e-12 * flops * (3 * dims.head + 2 * dims.value) / backward;
          table.push_back({{"kernel", std::string(kernel.name())},
                           {"mask", name},
                           {"head_dim", dims.head},
                           {"value_dim", dims.value},
                           {"tokens", tokens},
                           {"forward_tflops", forward_tflops},
                           {"backward_tflops", backward_tflops}});
          fmt::print("D {:3}/{:3} {:6} tokens {:26}{:9.1f}{:10.1f}\n", dims.head, dims.value,
                     tokens, name, forward_tflops, backward_tflops);
        }
      }
    }
  }

  Json rows() {
    Json table = Json::array();
    fmt::print("\none full tile, D 128, forward TFLOP/s\n{:>8}", "rows");
    std::vector<std::int64_t> sizes;
    for (std::int64_t n = 64; n <= std::min<std::int64_t>(options_.longest, 8192); n *= 2) {
      sizes.push_back(n);
      fmt::print("{:>9}", n);
    }
    fmt::print("  keys\n");
    for (const std::int64_t q : sizes) {
      fmt::print("{:8}", q);
      for (const std::int64_t k : sizes) {
        const Layer layer(kernel_, shape_of(options_, {128, 128}), q, k);
        const Band all{{0, q}, {0, k}};
        const double forward = seconds_of([&] { layer.forward(kernel_, {&all, 1}); });
        const double backward = seconds_of([&] { layer.backward(kernel_, {&all, 1}); });
        const double flops = 4.0 * static_cast<double>(q * k) * layer.shape.q_heads * 128;
        table.push_back({{"rows", q},
                         {"keys", k},
                         {"forward_us", 1e6 * forward},
                         {"backward_us", 1e6 * backward},
                         {"forward_tflops", 1e-12 * flops / forward},
                         {"backward_tflops", 2.5e-12 * flops / backward}});
        fmt::print("{:9.1f}", 1e-12 * flops / forward);
      }
      fmt::print("\n");
    }
    return table;
  }

  Json overheads() {
    const std::int64_t tokens = std::min<std::int64_t>(options_.longest, 8192);
    const AttentionShape shape = shape_of(options_, {128, 128});
    const RowOps& ops = kernel_.row_ops();
    const auto partial = [&](std::uint64_t seed) {
      return std::pair(
          DeviceTensor(kernel_, Dtype::kF32, tokens, shape.q_heads, shape.value_dim, seed),
          DeviceTensor(kernel_, Dtype::kF32, tokens, shape.q_heads, 1, seed + 1));
    };
    const auto a = partial(1);
    const auto b = partial(3);
    const auto c = partial(0);
    const DeviceTensor narrow(kernel_, Dtype::kBf16, tokens, shape.q_heads, shape.value_dim);
    const double bytes = 4.0 * static_cast<double>(tokens) * shape.q_heads * shape.value_dim;
    const std::vector<PartialOutput> partials = {{a.first.view(), a.second.stats()},
                                                 {b.first.view(), b.second.stats()}};
    const std::vector<TensorView> sums = {a.first.view(), b.first.view()};
    const DeviceTensor one(kernel_, Dtype::kF32, 1, 1, 32);
    const auto rate = [&](double moved, const std::function<void()>& work) {
      return 1e-9 * moved / seconds_of(work);
    };
    Json found = {
        {"launch_us", 1e6 * seconds_of([&] { ops.fill(one.view(), 0); })},
        {"merge_gbytes_per_s", rate(3 * bytes,
                                    [&] {
                                      ops.merge({c.first.view(), c.second.stats()}, partials);
                                    })},
        {"sum_gbytes_per_s", rate(3 * bytes, [&] { ops.sum(c.first.view(), sums); })},
        {"round_gbytes_per_s",
         rate(1.5 * bytes, [&] { ops.convert(narrow.view(), a.first.view()); })},
        {"zero_gbytes_per_s", rate(bytes, [&] { ops.fill(c.first.view(), 0); })}};
    fmt::print("\noverheads\n");
    for (const auto& [name, value] : found.items()) {
      fmt::print("{:24}{:10.1f}\n", name, value.get<double>());
    }
    return found;
  }

  // Ranks share the device: a plan cannot be faster than one call of all its tiles.
  Json plans() {
    Json table = Json::array();
    cuda::DeviceRanks ranks(*driver_, {}, cuda::program_of(options_.gpu, *driver_));
    const std::int64_t tokens = options_.longest;
    fmt::print("\nwhole plans of {} tokens, time over one call{:>13}{:>10}\n", tokens, "forward",
               "backward");
    const AttentionShape shape = shape_of(options_, {128, 128});
    for (const char* name : {"causal", "lambda:64,4096"}) {
      const MaskUse use = parse_mask_use(name);
      const Workload workload = make_workload(std::vector<std::int64_t>{tokens}, shape, use);
      const std::vector<Band>& bands = workload.masks.front().mask.bands;
      double forward = 0;
      double backward = 0;
      {
        const Layer layer(kernel_, shape, tokens, tokens);
        forward = seconds_of([&] { layer.forward(kernel_, bands); });
        backward = seconds_of([&] { layer.backward(kernel_, bands); });
      }
      for (const std::int32_t devices : {4, 8}) {
        for (const char* strategy : {"zigzag", "dcp", "auto:steps=1000000"}) {
          Cluster cluster;
          cluster.nodes = 1;
          cluster.devices_per_node = devices;
          RunOptions run;
          run.host = &ranks;
          run.compare = false;
          run.repeats = 5;
          const auto plan =
              plan_and_check(workload, cluster, parse_strategies(strategy).at(0), {}).plan;
          const MaskRun measured = run_plan(plan, run).masks.at(0);
          table.push_back({{"mask", name},
                           {"strategy", strategy},
                           {"ranks", devices},
                           {"forward_over_call", measured.forward_s / forward},
                           {"backward_over_call", measured.backward_s / backward}});
          fmt::print("{:16}{:22}{:3} ranks {:9.3f}{:10.3f}\n", name, strategy, devices,
                     measured.forward_s / forward, measured.backward_s / backward);
        }
      }
    }
    return table;
  }

  const Options options_;
  const std::unique_ptr<cuda::Driver> driver_;
  const cuda::RankStreams streams_;
  const cuda::DeviceKernel kernel_;
};

int main_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--gpu") options.gpu.ordinal = std::atoi(argv[i + 1]);
    if (word == "--kernels") options.gpu.kernels = argv[i + 1];
    if (word == "--gpu-kernel") options.gpu.kernel = argv[i + 1];
    if (word == "--library") options.gpu.library = argv[i + 1];
    if (word == "--longest") options.longest = std::atoll(argv[i + 1]);
    if (word == "--heads") options.q_heads = std::atoi(argv[i + 1]);
    if (word == "--kv-heads") options.kv_heads = std::atoi(argv[i + 1]);
    if (word == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (word == "--json") options.json = argv[i + 1];
  }
  try {
    return Bench(options).run();
  } catch (const Error& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }

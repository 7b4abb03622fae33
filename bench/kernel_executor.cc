#include "kernel_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/cluster.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/extend/transport.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "kernel/host_tensor.h"
#include "kernel/row_ops.h"
#include "kernel_tile.h"
#include "runtime/check/layer_tensors.h"
#include "transport/forwarding_transport.h"

namespace contextile {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Adds the CPU time of this thread while it lives.
class CpuStopwatch {
 public:
  explicit CpuStopwatch(double& total_s) : total_s_(total_s), start_s_(thread_cpu_s()) {}
  ~CpuStopwatch() { total_s_ += thread_cpu_s() - start_s_; }
  CpuStopwatch(const CpuStopwatch&) = delete;
  CpuStopwatch& operator=(const CpuStopwatch&) = delete;

 private:
  double& total_s_;
  double start_s_;
};

class TimedKernel : public AttentionKernel {
 public:
  TimedKernel(const AttentionKernel& kernel, double& total_s)
      : kernel_(kernel), total_s_(total_s) {}
  [[nodiscard]] std::string_view name() const override { return kernel_.name(); }
  [[nodiscard]] std::unique_ptr<const PreparedBands> prepare_bands(
      const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
      std::span<const LocalBand> bands) const override {
    return kernel_.prepare_bands(params, num_rows, num_keys, bands);
  }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override {
    const CpuStopwatch stopwatch(total_s_);
    kernel_.forward(params, tiles);
  }
  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override {
    const CpuStopwatch stopwatch(total_s_);
    kernel_.backward(params, tiles);
  }
  [[nodiscard]] const RowOps& row_ops() const override { return kernel_.row_ops(); }

 private:
  const AttentionKernel& kernel_;
  double& total_s_;
};

class TimedTransport : public ForwardingTransport {
 public:
  TimedTransport(Transport& transport, double& total_s)
      : ForwardingTransport(transport), total_s_(total_s) {}
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    const CpuStopwatch stopwatch(total_s_);
    return ForwardingTransport::launch(sends, recvs);
  }
  void wait(std::int64_t ticket) override {
    const CpuStopwatch stopwatch(total_s_);
    ForwardingTransport::wait(ticket);
  }

 private:
  double& total_s_;
};

// CPU seconds of a call, of all ranks.
struct CallSeconds {
  double total_s = 0;
  double kernel_s = 0;
  double transport_s = 0;
};

struct Shares {
  std::vector<CallSeconds> forward;
  std::vector<CallSeconds> backward;
};

Shares measure_shares(const std::shared_ptr<const Plan>& plan, const AttentionKernel& kernel,
                      int repeats) {
  const auto calls = static_cast<std::size_t>(repeats);
  Shares shares{std::vector<CallSeconds>(calls), std::vector<CallSeconds>(calls)};
  Workload workload;
  workload.sequences = plan->sequences;
  workload.shape = plan->shape;
  const BatchTensors batch = random_batch(workload, 1);
  std::mutex mutex;
  run_inproc(plan->num_devices(), [&](Transport& transport) {
    CallSeconds now;
    const TimedKernel timed_kernel(kernel, now.kernel_s);
    TimedTransport timed_transport(transport, now.transport_s);
    Executor executor(timed_transport, timed_kernel);
    executor.prepare(plan);
    LayerTensors layer(batch, plan->shape, local_tokens(*plan, transport.rank()));
    Saved saved = executor.forward(0, layer.forward());
    executor.backward(0, layer.backward(), saved);
    const auto measured = [&](CallSeconds& sum, const auto& call) {
      now = {};
      {
        const CpuStopwatch stopwatch(now.total_s);
        call();
      }
      const std::scoped_lock lock(mutex);
      sum.total_s += now.total_s;
      sum.kernel_s += now.kernel_s;
      sum.transport_s += now.transport_s;
    };
    for (std::size_t i = 0; i < calls; ++i) {
      measured(shares.forward[i], [&] { saved = executor.forward(0, layer.forward()); });
      measured(shares.backward[i], [&] { executor.backward(0, layer.backward(), saved); });
    }
  });
  return shares;
}

void print_shares(const std::string& what, std::string_view direction,
                  const std::vector<CallSeconds>& calls) {
  std::vector<double> total;
  std::vector<double> kernel;
  std::vector<double> transport;
  std::vector<double> rest;
  for (const CallSeconds& call : calls) {
    total.push_back(call.total_s * 1e3);
    kernel.push_back(call.kernel_s / call.total_s * 100);
    transport.push_back(call.transport_s / call.total_s * 100);
    rest.push_back(100 - kernel.back() - transport.back());
  }
  fmt::print("{:40} {:9} {:>9.1f} {:>8.2f}% {:>9.2f}% {:>8.2f}%\n", what, direction, median(total),
             median(kernel), median(transport), median(rest));
  std::fflush(stdout);
}

void verify_run(const std::shared_ptr<const Plan>& plan, const AttentionKernel& kernel) {
  RunOptions options;
  options.kernel = kernel.name();
  options.seed = 1;
  const RunReport report = run_plan(plan, options);
  if (report.ok()) return;
  for (const MaskRun& mask : report.masks) {
    for (const RunError& error : mask.errors) {
      fmt::print(stderr, "kernel_bench: executor: {}: error {:.1e}, bound {:.1e}\n", error.array,
                 error.error, error.bound);
    }
  }
  std::exit(1);
}

std::shared_ptr<const Plan> plan_of(std::string_view name, std::int64_t block,
                                    const std::string& mask, std::int64_t tokens,
                                    std::int32_t ranks, Dtype dtype) {
  const MaskUse use = parse_mask_use(mask);
  const std::vector<std::int64_t> lengths = {tokens};
  const Workload workload = make_workload(lengths, bench_shape(8, 2, 128, dtype), {&use, 1});
  Cluster cluster;
  cluster.devices_per_node = ranks;
  StrategyRequest request;
  request.wire = Dtype::kF32;
  if (block != 0) request.block_size = block;
  const Strategy& strategy = find_strategy(name);
  return std::make_shared<const Plan>(
      build_plan(workload, cluster, strategy.arrange(workload, cluster, request)));
}

}  // namespace

PlanRate measure_plan(const std::shared_ptr<const Plan>& plan, const AttentionKernel& kernel,
                      Peak peak, int repeats, double flops) {
  std::vector<std::vector<double>> seconds(2,
                                           std::vector<double>(static_cast<std::size_t>(repeats)));
  std::vector<double> peaks(static_cast<std::size_t>(repeats));
  Workload workload;
  workload.sequences = plan->sequences;
  workload.shape = plan->shape;
  const BatchTensors batch = random_batch(workload, 1);
  std::mutex mutex;
  run_inproc(plan->num_devices(), [&](Transport& transport) {
    Executor executor(transport, kernel);
    executor.prepare(plan);
    LayerTensors layer(batch, plan->shape, local_tokens(*plan, transport.rank()));
    Saved saved = executor.forward(0, layer.forward());
    for (std::size_t i = 0; i < static_cast<std::size_t>(repeats); ++i) {
      const double before = measure_peak(peak);
      double start = thread_cpu_s();
      saved = executor.forward(0, layer.forward());
      const double forward = thread_cpu_s() - start;
      start = thread_cpu_s();
      executor.backward(0, layer.backward(), saved);
      const double backward = thread_cpu_s() - start;
      const double after = measure_peak(peak);
      const std::scoped_lock lock(mutex);
      seconds[0][i] += forward;
      seconds[1][i] += backward;
      peaks[i] += (before + after) / 2 / plan->num_devices();
    }
  });
  const auto rate_of = [&](const std::vector<double>& times, double work) {
    std::vector<double> rates;
    std::vector<double> shares;
    for (std::size_t i = 0; i < times.size(); ++i) {
      rates.push_back(work / times[i]);
      shares.push_back(work / times[i] / peaks[i]);
    }
    return Rate{median(rates), median(shares)};
  };
  return {rate_of(seconds[0], flops), rate_of(seconds[1], flops * 2.5)};
}

void print_executor_shares(const AttentionKernel& kernel, Dtype dtype, int repeats) {
  fmt::print(
      "\nexecutor: CPU time of all ranks, 8/2 heads of 128, 4K tokens a rank\n"
      "{:40} {:9} {:>9} {:>9} {:>10} {:>9}\n",
      "plan", "direction", "ms", "kernel", "transport", "rest");
  for (const std::int32_t ranks : {1, 2}) {
    for (const auto& [name, block, mask] :
         {std::tuple("zigzag", 0, "causal"), std::tuple("dcp", 512, "causal"),
          std::tuple("dcp", 512, "lambda:64,1024")}) {
      verify_run(plan_of(name, block, mask, 500L * ranks, ranks, dtype), kernel);
      const auto plan = plan_of(name, block, mask, 4096L * ranks, ranks, dtype);
      const std::string what =
          fmt::format("{}{}, {}, {} rank{}", name, block == 0 ? "" : fmt::format(" {}", block),
                      mask, ranks, ranks == 1 ? "" : "s");
      const Shares shares = measure_shares(plan, kernel, repeats);
      print_shares(what, "forward", shares.forward);
      print_shares(what, "backward", shares.backward);
    }
  }
}

}  // namespace contextile

#include "runtime/executor/plan_execution.h"

#include <fmt/format.h>

#include <cstring>

#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"
#include "kernel/host_tensor.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/executor/executor_testing.h"

namespace contextile {

BatchTensors inputs_of(const Plan& plan, std::uint64_t seed) {
  Workload workload;
  workload.sequences = plan.sequences;
  workload.shape = plan.shape;
  return random_batch(workload, seed);
}

Mask whole_mask(const Plan& plan, std::size_t mask) {
  Mask whole;
  for (const PlanRound& round : plan.rounds) {
    const std::vector<Band>& bands = round.masks[mask].mask.bands;
    whole.bands.insert(whole.bands.end(), bands.begin(), bands.end());
  }
  return whole;
}

OracleResult execute(const std::shared_ptr<const Plan>& plan, std::size_t mask,
                     const ExecutionOptions& options) {
  const BatchTensors batch = inputs_of(*plan, options.seed);
  const ProgramPair& pair = plan->rounds[0].devices[0].programs[mask];
  OracleResult truth;
  if (!pair.forward) truth = oracle(batch, plan->shape, whole_mask(*plan, mask), Passes::kForward);
  OracleResult result = empty_result(batch.tokens, plan->shape);
  std::vector<std::vector<float>> dsink(static_cast<std::size_t>(plan->num_devices()));
  run_inproc(
      plan->num_devices(),
      [&](Transport& transport) {
        Executor executor(transport, options.kernel == nullptr ? preferred_kernel(plan->shape.dtype)
                                                               : *options.kernel);
        if (options.poison) ExecutorTesting::poison_buffers(executor);
        executor.prepare(options.plan_of ? options.plan_of(transport.rank()) : plan);
        LayerTensors layer(batch, plan->shape, local_tokens(*plan, transport.rank()));
        layer.poison_outputs();
        Saved saved;
        if (pair.forward) {
          saved = executor.forward(mask, layer.forward());
        } else {
          take_rows(layer.out.view(), truth.out, layer.tokens);
          take_rows(layer.lse.view(), truth.lse, layer.tokens);
        }
        layer.put_forward(result);
        if (!pair.backward) return;
        executor.backward(mask, layer.backward(), saved);
        layer.put_backward(result);
        dsink[transport.rank().index()] = layer.dsink;
      },
      options.transport);
  for (const std::vector<float>& share : dsink) {
    for (std::size_t h = 0; h < share.size(); ++h) result.dsink[h] += share[h];
  }
  return result;
}

std::string first_difference(const OracleResult& a, const OracleResult& b) {
  const auto differ = [](const std::vector<double>& x, const std::vector<double>& y) {
    return x.size() != y.size() ||
           (!x.empty() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) != 0);
  };
  if (differ(a.out, b.out)) return "out";
  if (differ(a.lse, b.lse)) return "lse";
  if (differ(a.dq, b.dq)) return "dq";
  if (differ(a.dk, b.dk)) return "dk";
  if (differ(a.dv, b.dv)) return "dv";
  if (differ(a.dsink, b.dsink)) return "dsink";
  return "";
}

std::string report_text(const RunReport& report) {
  std::string text = fmt::format("memory {} + {} + {} bytes, predicted {}\n",
                                 report.memory.staging_bytes, report.memory.accumulator_bytes,
                                 report.memory.conversion_bytes, report.predicted_memory_bytes);
  for (const MaskRun& run : report.masks) {
    text += fmt::format("mask {}: sent {} (predicted {}) and {} ({}) bytes\n", run.mask,
                        run.sent_bytes_forward, run.predicted_bytes_forward,
                        run.sent_bytes_backward, run.predicted_bytes_backward);
    for (const RunError& error : run.errors) {
      text += fmt::format("  {}: {:.3g}, one device {:.3g}, bound {:.3g}{}\n", error.array,
                          error.error, error.single_device_error, error.bound,
                          error.error <= error.bound ? "" : "  <-- too large");
    }
  }
  return text;
}

}  // namespace contextile

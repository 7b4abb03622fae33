#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/inproc_attention.h"
#include "contextile/plan.h"
#include "kernel/host_tensor.h"
#include "runtime/check/run_error.h"
#include "runtime/check/single_device.h"
#include "runtime/executor/check_program.h"
#include "runtime/executor/machine_memory.h"
#include "runtime/executor/plan_ranks.h"
#include "transport/agreement.h"

namespace contextile {
namespace {

// The measurements of one rank in one repetition of one mask.
struct Measured {
  RankCall forward;
  RankCall backward;
};

struct MaskWork {
  bool has_forward = false;
  bool has_backward = false;
  const RunReference::OfMask* reference = nullptr;
  OracleResult found;
  std::uint64_t result_bits = 0;
  std::vector<std::vector<Measured>> measured;  // [repeat][rank]
};

// The batch in the activation dtype.
struct Inputs {
  HostTensor q, k, v, dout;
  std::vector<float> sink;

  [[nodiscard]] AttentionInputs of_attention() const {
    return {q.view(), k.view(), v.view(), sink};
  }
};

struct Work {
  const Plan& plan;
  const RunOptions& options;
  const AttentionKernel& kernel;
  const BatchTensors& batch;
  Inputs inputs;
  std::vector<MaskWork> masks;
};

std::vector<float> floats_of(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

Inputs inputs_of(const BatchTensors& batch, const AttentionShape& shape) {
  const auto make = [&](const std::vector<double>& array, std::int32_t heads, std::int32_t dim) {
    return tensor_of(array, shape.dtype, batch.tokens, heads, dim);
  };
  return {make(batch.q, shape.q_heads, shape.head_dim),
          make(batch.k, shape.kv_heads, shape.head_dim),
          make(batch.v, shape.kv_heads, shape.value_dim),
          make(batch.dout, shape.q_heads, shape.value_dim), floats_of(batch.sink)};
}

// Mask m of all rounds together.
Mask whole_mask(const Plan& plan, std::size_t m) {
  Mask mask;
  for (const PlanRound& round : plan.rounds) {
    const std::vector<Band>& bands = round.masks[m].mask.bands;
    mask.bands.insert(mask.bands.end(), bands.begin(), bands.end());
  }
  return mask;
}

MaskWork make_mask_work(const Plan& plan, std::size_t m, const RunOptions& options) {
  MaskWork work;
  const ProgramPair& pair = plan.rounds[0].devices.at(0).programs.at(m);
  work.has_forward = pair.forward.has_value();
  work.has_backward = pair.backward.has_value();
  work.measured.assign(static_cast<std::size_t>(options.repeats),
                       std::vector<Measured>(static_cast<std::size_t>(plan.num_devices())));
  return work;
}

// A backward without a forward (pipeline ticks) starts from the true output.
AttentionOutput true_output(const Plan& plan, std::size_t m, const OracleResult& truth) {
  const AttentionShape& shape = plan.shape;
  return {plan.rounds[0].masks[m].name,
          tensor_of(truth.out, shape.dtype, plan.num_tokens(), shape.q_heads, shape.value_dim),
          floats_of(truth.lse),
          {}};
}

// Returns true if the results of all ranks come together in this process.
bool is_whole(const RunOptions& options) {
  return options.rank == nullptr || options.rank->rank() == Rank{0};
}

std::uint64_t bits_of(const AttentionOutput& output, const AttentionGradients& gradients) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  const auto add = [&](std::span<const std::byte> bytes) {
    XXH3_64bits_update(state.get(), bytes.data(), bytes.size());
  };
  const auto add_floats = [&](const std::vector<float>& values) {
    add(std::as_bytes(std::span(values)));
  };
  add(output.out_THD.bytes());
  add_floats(output.lse_TH);
  for (const HostTensor* tensor : {&gradients.dq_THD, &gradients.dk_THD, &gradients.dv_THD}) {
    add(tensor->bytes());
  }
  add_floats(gradients.dsink_H);
  return XXH3_64bits_digest(state.get());
}

void run_mask(Work& work, std::size_t m, PlanRanks& ranks) {
  MaskWork& mask = work.masks[m];
  const AttentionInputs inputs = work.inputs.of_attention();
  AttentionOutput output;
  AttentionGradients gradients;
  for (std::vector<Measured>& by_rank : mask.measured) {
    if (mask.has_forward) {
      output = ranks.forward(m, inputs);
      for (std::size_t r = 0; r < by_rank.size(); ++r) by_rank[r].forward = ranks.last_calls()[r];
    } else {
      output = true_output(work.plan, m, mask.reference->truth);
    }
    if (mask.has_backward) {
      gradients = ranks.backward(m, inputs, output, work.inputs.dout.view());
      for (std::size_t r = 0; r < by_rank.size(); ++r) by_rank[r].backward = ranks.last_calls()[r];
    }
  }
  if (is_whole(work.options)) mask.result_bits = bits_of(output, gradients);
  if (!work.options.compare) return;
  mask.found.out = doubles_of(output.out_THD);
  mask.found.lse = {output.lse_TH.begin(), output.lse_TH.end()};
  if (!mask.has_backward) return;
  mask.found.dq = doubles_of(gradients.dq_THD);
  mask.found.dk = doubles_of(gradients.dk_THD);
  mask.found.dv = doubles_of(gradients.dv_THD);
  mask.found.dsink = {gradients.dsink_H.begin(), gradients.dsink_H.end()};
}

// Statistics of the plan with one mask's programs only, without the charge for padding that is
// never sent.
PlanStats statistics_of_mask(const Plan& plan, std::size_t m) {
  Plan single;
  single.shape = plan.shape;
  single.partial_wire = plan.partial_wire;
  single.nodes = plan.nodes;
  single.devices_per_node = plan.devices_per_node;
  single.sequences = plan.sequences;
  for (const PlanRound& round : plan.rounds) {
    PlanRound part;
    part.head_groups = round.head_groups;
    part.blocks = round.blocks;
    part.owners = round.owners;
    part.block_head_groups = round.block_head_groups;
    part.masks = {round.masks[m]};
    for (const DeviceProgram& device : round.devices) {
      part.devices.push_back({device.local_blocks, {device.programs[m]}});
    }
    single.rounds.push_back(std::move(part));
  }
  return statistics(single);
}

// Returns the time of the slowest rank in the fastest repetition.
template <typename Seconds>
double fastest(const std::vector<std::vector<Measured>>& measured, const Seconds& seconds) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::vector<Measured>& by_rank : measured) {
    double slowest = 0;
    for (const Measured& of_rank : by_rank) slowest = std::max(slowest, seconds(of_rank));
    best = std::min(best, slowest);
  }
  return best;
}

// Returns the dtype that weights are rounded to. If a host gives ranks their kernels, its kernels
// decide.
Dtype weight_dtype_of(const Work& work) {
  const RunOptions& options = work.options;
  const Rank rank = options.rank == nullptr ? Rank(0) : options.rank->rank();
  const AttentionKernel& ran = options.host == nullptr ? work.kernel : options.host->kernel(rank);
  return ran.weight_dtype(work.plan.shape.dtype);
}

MaskRun report_mask(Work& work, std::size_t m) {
  MaskWork& mask = work.masks[m];
  MaskRun run;
  run.mask = work.plan.rounds[0].masks[m].name;
  run.result_bits = mask.result_bits;
  run.forward_s = fastest(mask.measured, [](const Measured& x) { return x.forward.stats.total_s; });
  run.backward_s =
      fastest(mask.measured, [](const Measured& x) { return x.backward.stats.total_s; });
  run.exposed_s = fastest(mask.measured, [](const Measured& x) {
    return x.forward.stats.exposed_s + x.backward.stats.exposed_s;
  });
  for (const std::vector<Measured>& by_rank : mask.measured) {
    std::vector<RankRun>& ranks = run.repeats.emplace_back();
    for (const Measured& x : by_rank) ranks.push_back({x.forward.stats, x.backward.stats});
  }
  for (const Measured& of_rank : mask.measured[0]) {
    run.sent_bytes_forward += of_rank.forward.sent_bytes;
    run.sent_bytes_backward += of_rank.backward.sent_bytes;
  }
  const PlanStats stats = statistics_of_mask(work.plan, m);
  if (stats.forward) run.predicted_bytes_forward = stats.forward->total_bytes();
  if (stats.backward) run.predicted_bytes_backward = stats.backward->total_bytes();
  if (!work.options.compare) return run;
  run.errors = compare_results({work.batch, work.plan.shape, mask.reference->truth, mask.found,
                                mask.reference->single_device, wire_rounding(work.plan, m),
                                weight_dtype_of(work), mask.has_forward, mask.has_backward});
  return run;
}

// Removes times that say nothing.
void forget_times(MaskRun& run) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  run.forward_s = run.backward_s = run.exposed_s = kUnknown;
  for (std::vector<RankRun>& by_rank : run.repeats) {
    for (RankRun& rank : by_rank) {
      for (ExecutionStats* stats : {&rank.forward, &rank.backward}) {
        stats->total_s = stats->attention_s = stats->exposed_s = kUnknown;
      }
    }
  }
}

std::int64_t plan_bytes(const ExecutorMemory& memory) {
  return memory.staging_bytes + memory.accumulator_bytes + memory.conversion_bytes;
}

std::int64_t predicted_memory_bytes(const Plan& plan) {
  std::int64_t largest = 0;
  for (std::size_t round = 0; round < plan.rounds.size(); ++round) {
    for (std::size_t mask = 0; mask < plan.rounds[round].masks.size(); ++mask) {
      for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
        for (const Direction direction : kDirections) {
          largest =
              std::max(largest, device_memory(plan, round, mask, direction, Rank{r}).total_bytes());
        }
      }
    }
  }
  return largest;
}

// The batch alone, without a mask.
RunReference make_inputs(std::span<const Range> sequences, const AttentionShape& shape,
                         std::uint64_t seed) {
  RunReference reference;
  reference.workload.sequences.assign(sequences.begin(), sequences.end());
  reference.workload.shape = shape;
  reference.batch = random_batch(reference.workload, seed);
  return reference;
}

// True results of the plan's masks: only those that a backward without a forward starts from, or
// all that are compared.
enum class Needed { kToRun, kToCompare };
std::vector<RunReference::OfMask> true_results(const Plan& plan, const RunOptions& options,
                                               const BatchTensors& batch, Needed needed) {
  std::vector<RunReference::OfMask> masks;
  for (std::size_t m = 0; m < plan.rounds[0].masks.size(); ++m) {
    RunReference::OfMask& of_mask = masks.emplace_back();
    const ProgramPair& pair = plan.rounds[0].devices.at(0).programs.at(m);
    if (needed == Needed::kToRun && pair.forward) continue;
    const Passes passes =
        needed == Needed::kToCompare && pair.backward ? Passes::kForwardBackward : Passes::kForward;
    const Mask mask = whole_mask(plan, m);
    of_mask.truth = oracle(batch, plan.shape, mask, passes);
    if (needed == Needed::kToRun) continue;
    of_mask.single_device = run_single_device(
        batch, plan.shape, mask, find_kernel(options.kernel, plan.shape.dtype), passes);
  }
  return masks;
}

// Throws InvalidArgument when the plan is for another batch.
void check_same_batch(const Plan& plan, const RunReference& reference) {
  const Workload& workload = reference.workload;
  CONTEXTILE_CHECK(plan.sequences == workload.sequences,
                   "run: expected a plan of the reference's {} sequences, {} tokens, found one of "
                   "{}, {} tokens",
                   workload.sequences.size(), workload.num_tokens(), plan.sequences.size(),
                   plan.num_tokens());
  AttentionShape shape = workload.shape;
  shape.scale = shape.effective_scale();  // plans have it filled in
  CONTEXTILE_CHECK(plan.shape == shape,
                   "run: expected a plan of the reference's attention shape, found another");
  CONTEXTILE_CHECK(plan.rounds[0].masks.size() == workload.masks.size(),
                   "run: expected a plan of {} masks as the reference, found {}",
                   workload.masks.size(), plan.rounds[0].masks.size());
  for (std::size_t m = 0; m < workload.masks.size(); ++m) {
    const std::int64_t pairs = whole_mask(plan, m).num_pairs();
    CONTEXTILE_CHECK(pairs == workload.masks[m].mask.num_pairs(),
                     "run: mask {}: expected the reference's {} attended pairs, found {}",
                     workload.masks[m].name, workload.masks[m].mask.num_pairs(), pairs);
  }
}

Work make_work(const Plan& plan, const RunOptions& options, const RunReference& reference) {
  CONTEXTILE_CHECK(options.repeats >= 1, "run: expected at least 1 repetition, found {}",
                   options.repeats);
  Work work{plan,
            options,
            find_kernel(options.kernel, plan.shape.dtype),
            reference.batch,
            inputs_of(reference.batch, plan.shape),
            {}};
  for (std::size_t m = 0; m < plan.rounds[0].masks.size(); ++m) {
    MaskWork& mask = work.masks.emplace_back(make_mask_work(plan, m, options));
    mask.reference = &reference.masks[m];
  }
  return work;
}

// The options of this process: it compares nothing unless its results are whole.
RunOptions own_options(RunOptions options) {
  options.compare = options.compare && is_whole(options);
  return options;
}

void check_plan(const std::shared_ptr<const Plan>& plan) {
  CONTEXTILE_CHECK(plan != nullptr, "run: expected a plan, found none");
  check_structure(*plan);
  CONTEXTILE_CHECK(!plan->rounds.empty(), "run: expected a plan with a round, found none");
}

// Checks the options that all ranks of a group of processes must share, in addition to the plan.
void check_same_options(const RunOptions& options) {
  const Setting settings[] = {
      {"kernel", options.kernel.empty() ? "the preferred one" : options.kernel},
      {"repeats", fmt::format("{}", options.repeats)},
      {"seed", fmt::format("{}", options.seed)}};
  check_same_settings(options.rank->control(), "run", settings);
}

// `complete` computes the results to compare with, after the runs: on rank 0 of a group of
// processes it takes longer than the others may have to wait.
RunReport execute(std::shared_ptr<const Plan> plan, const RunOptions& options,
                  const RunReference& reference, const std::function<void()>& complete) {
  Work work = make_work(*plan, options, reference);
  const PlanRanks::RunOn run_on{.kernel = work.kernel,
                                .transport = options.transport,
                                .rank = options.rank,
                                .host = options.host};
  PlanRanks ranks(std::move(plan), run_on, options.executor);
  if (options.rank != nullptr) check_same_options(options);
  RunReport report;
  report.is_emulated = options.host != nullptr && options.host->is_emulated();
  report.memory = std::ranges::max(ranks.memory(), {}, plan_bytes);
  for (std::size_t m = 0; m < work.masks.size(); ++m) {
    run_mask(work, m, ranks);
  }
  complete();
  for (std::size_t m = 0; m < work.masks.size(); ++m) {
    report.masks.push_back(report_mask(work, m));
    if (report.is_emulated) forget_times(report.masks.back());
  }
  report.predicted_memory_bytes = predicted_memory_bytes(work.plan);
  return report;
}

// Describes the arrays of inputs and results.
std::string size_text(std::int64_t tokens, const AttentionShape& shape) {
  return fmt::format(
      "inputs and results of {} tokens with {} query heads and {} KV heads of {} and {} elements",
      tokens, shape.q_heads, shape.kv_heads, shape.head_dim, shape.value_dim);
}

double flops_of_pairs(std::int64_t pairs, const AttentionShape& shape, Passes passes) {
  return forward_flops(pairs, shape.q_heads, shape) +
         (passes == Passes::kForwardBackward ? backward_flops(pairs, shape.q_heads, shape) : 0);
}

}  // namespace

bool RunReport::ok() const {
  for (const MaskRun& run : masks) {
    if (run.sent_bytes_forward != run.predicted_bytes_forward) return false;
    if (run.sent_bytes_backward != run.predicted_bytes_backward) return false;
    for (const RunError& error : run.errors) {
      if (!(error.error <= error.bound)) return false;  // NaN fails
    }
  }
  return plan_bytes(memory) == predicted_memory_bytes;
}

RunReference make_run_reference(const Workload& workload, const RunOptions& options,
                                Passes passes) {
  check_workload(workload);
  RunReference reference = make_inputs(workload.sequences, workload.shape, options.seed);
  reference.workload = workload;
  const AttentionShape& shape = workload.shape;
  for (const NamedMask& named : workload.masks) {
    reference.masks.push_back(
        {.truth = oracle(reference.batch, shape, named.mask, passes),
         .single_device = run_single_device(reference.batch, shape, named.mask,
                                            find_kernel(options.kernel, shape.dtype), passes)});
  }
  return reference;
}

RunReport run_plan(std::shared_ptr<const Plan> plan, const RunOptions& options) {
  check_plan(plan);
  const RunOptions own = own_options(options);
  return with_memory_for(
      [&] { return size_text(plan->num_tokens(), plan->shape); },
      [&] {
        RunReference reference = make_inputs(plan->sequences, plan->shape, own.seed);
        reference.masks = true_results(*plan, own, reference.batch, Needed::kToRun);
        return execute(plan, own, reference, [&] {
          if (!own.compare) return;
          // Moved one by one, because the current work holds pointers to them.
          std::ranges::move(true_results(*plan, own, reference.batch, Needed::kToCompare),
                            reference.masks.begin());
        });
      });
}

RunReport run_plan(std::shared_ptr<const Plan> plan, const RunOptions& options,
                   const RunReference& reference) {
  check_plan(plan);
  check_same_batch(*plan, reference);
  const RunOptions own = own_options(options);
  return with_memory_for([&] { return size_text(plan->num_tokens(), plan->shape); },
                         [&] { return execute(plan, own, reference, [] {}); });
}

double oracle_flops(const Plan& plan) {
  std::int64_t pairs = 0;
  for (const PlanRound& round : plan.rounds) {
    for (const NamedMask& mask : round.masks) pairs += mask.mask.num_pairs();
  }
  return flops_of_pairs(
      pairs, plan.shape,
      plan.has_direction(Direction::kBackward) ? Passes::kForwardBackward : Passes::kForward);
}

double oracle_flops(const Workload& workload, Passes passes) {
  std::int64_t pairs = 0;
  for (const NamedMask& mask : workload.masks) pairs += mask.mask.num_pairs();
  return flops_of_pairs(pairs, workload.shape, passes);
}

void check_run_memory(const Plan& plan, const PlanStats& statistics) {
  const AttentionShape& shape = plan.shape;
  const double elements = static_cast<double>(plan.num_tokens()) *
                          (shape.q_heads + shape.kv_heads) * (shape.head_dim + shape.value_dim);
  // Inputs and the oracle's results in fp64, and the run itself.
  check_machine_memory("run", plan, 2 * sizeof(double) * elements + inproc_bytes(plan, statistics));
}

}  // namespace contextile

// Predicts one training step: its time, the causes of that time, and whether it fits into memory.
//
//   TrainingStep step = {.model = load_model("llama-3-8b"),
//                        .cluster = load_cluster("dgx-h200:1x8")};
//   step.sizes.tp = 8;
//   step.replicas = {{even_micro_batch(131072, step.sizes.cp)}};
//   if (out_of_memory(step.cluster, step_memory(step))) return 1;
//
// The step is of a model on a cluster in tensor, context, pipeline and data parallelism, with
// attention from plans and everything else from the model's sizes. Nothing here plans: attention
// times are inputs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/collective_traffic.h"
#include "contextile/advanced/model.h"
#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

// ---------------------------------------------------------------------------------------- pipeline
//
// Pipeline parallelism: the order in which every stage runs its micro-batches, and the time of that
// order when micro-batches differ. Orders are data; times follow from dependencies, not from
// formulas.

enum class PipelineSchedule : std::uint8_t {
  // Warm-up forwards, then alternately one forward and one backward (PipeDream-Flush, Megatron-LM).
  k1F1B,
  // The same over several model chunks per stage (Narayanan et al., SC 2021, section 2.2.2).
  kInterleaved,
  // Ticks in which all stages run forwards, or all run backwards, so that the attention of a tick
  // can be balanced over the devices of all stages (DistCA, section 4.1).
  kSamePhase,
};
[[nodiscard]] std::string_view to_string(PipelineSchedule schedule);  // "1f1b", "interleaved", …
[[nodiscard]] PipelineSchedule parse_pipeline_schedule(std::string_view text);

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int32_t stages = 1;
  std::int32_t micro_batches = 1;
  std::int32_t chunks = 1;  // of the model on every stage; above 1 not with 1F1B
  std::int32_t group = 0;   // several chunks: micro-batches that a chunk runs in a row; 0: `stages`

  // Number of virtual stages. Chunk c of stage r is virtual stage c · stages + r; layers are in the
  // order of virtual stages.
  [[nodiscard]] std::int32_t virtual_stages() const { return stages * chunks; }
  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};
// Throws InvalidArgument on counts below 1, chunks with 1F1B, interleaving of fewer than 2 chunks
// or stages, and groups (or a last group) of several chunks with fewer than `stages` micro-batches:
// most of those would wait for themselves.
void check_pipeline(const PipelineShape& shape);

inline constexpr std::int32_t kNoTick = -1;

// The forward or backward of one micro-batch through one chunk of a stage.
struct PipelineStep {
  Direction direction = Direction::kForward;
  std::int32_t micro_batch = 0;
  std::int32_t chunk = 0;
  std::int32_t tick = kNoTick;  // same phase: the step begins when all stages are done with earlier
                                // ticks

  friend bool operator==(const PipelineStep&, const PipelineStep&) = default;
};

// Returns the steps of a stage, in order.
//  * 1F1B: min(stages - 1 - stage, m) forwards first.
//  * Interleaved: for each group of micro-batches, for each chunk, for each micro-batch of the
//    group; min(2(stages - stage - 1) + (chunks - 1) · group, m · chunks) forwards first; backward
//    visits the chunks from the last to the first.
//  * Same phase: its steps of pipeline_ticks.
[[nodiscard]] std::vector<PipelineStep> pipeline_order(const PipelineShape& shape,
                                                       std::int32_t stage);

// One tick of a same-phase pipeline.
struct PipelineTick {
  Direction direction = Direction::kForward;
  std::int32_t number = 0;  // among the ticks of its direction
  // By stage; nothing: the stage is idle, and only serves the attention of the others.
  std::vector<std::optional<PipelineStep>> steps;

  friend bool operator==(const PipelineTick&, const PipelineTick&) = default;
};

// Returns the ticks of a same-phase pipeline of p stages. A stage has n = m · chunks forwards, in
// the order of interleaving; backward visits the chunks from the last to the first. Forward tick t
// runs forward t - stage, and backward tick t runs backward t - (p - 1 - stage). Outside [0, n) the
// stage is idle.
//
// The first w = p - 1 + (chunks - 1) · min(group, m) ticks run forward, until the last stage can
// run a backward. Then forward tick w + i and backward tick i alternate, and the remaining backward
// ticks follow. These are 2(n + p - 1) ticks, as many as 1F1B needs. Throws InvalidArgument if the
// schedule is another or check_pipeline refuses the shape.
[[nodiscard]] std::vector<PipelineTick> pipeline_ticks(const PipelineShape& shape);

// Returns the largest sum of `weight` over steps whose forward has run and whose backward has not:
// with weight 1 the chunks in flight, with bytes the memory they hold. 1F1B: min(m, p - r);
// interleaved: min(m·v, 2(p-r-1) + (v-1)·group + 1); same phase: min(m·v, 2(p-1-r) + (v-1)·group +
// 1).
[[nodiscard]] double peak_in_flight(std::span<const PipelineStep> order,
                                    const std::function<double(const PipelineStep&)>& weight);

// Times of steps, µs. Indices: [virtual stage][micro-batch].
struct PipelineTimes {
  std::vector<std::vector<double>> forward_us;
  std::vector<std::vector<double>> backward_us;
  // From virtual stage s to s + 1, and gradients back; one entry fewer than virtual stages.
  // Transfers occupy no stage. Empty: they take no time.
  std::vector<std::vector<double>> transfer_us;
};

struct PipelineSpan {
  PipelineStep step;
  double start_us = 0;
  double end_us = 0;
};

struct PipelineTimeline {
  double time_us = 0;                             // the last end
  std::vector<std::vector<PipelineSpan>> stages;  // in order

  [[nodiscard]] double busy_us(std::int32_t stage) const;
  // The share of the time of all stages in which they are idle.
  [[nodiscard]] double bubble_share() const;
};

// Runs every stage's order as early as dependencies allow. A forward runs after the same
// micro-batch's forward on the virtual stage before and its transfer. A backward runs after the one
// on the virtual stage after (on the last: after its own forward). Exact. Throws InvalidArgument
// when the times do not fit the shape, or are negative or not finite. O(steps).
[[nodiscard]] PipelineTimeline run_pipeline(const PipelineShape& shape, const PipelineTimes& times);

// ---------------------------------------------------------------------------------------- training

// -------------------------------------------------------------------------- parallel sizes

// Sizes of the parallel dimensions, in rank order TP-CP-DP-PP: `tp` consecutive devices of a node
// are one context-parallel rank, `cp` consecutive ranks one context-parallel group, `dp`
// consecutive groups one pipeline stage.
//
// Experts are spread over `ep` consecutive devices of a stage, whichever of its TP, CP and DP ranks
// these are, and every expert is whole on its device. Megatron-core does the same with
// --expert-model-parallel-size and --expert-tensor-parallel-size 1 (rank order
// etp-ep-edp-pp, megatron/core/parallel_state.py).
struct ParallelSizes {
  std::int32_t tp = 1;
  std::int32_t cp = 1;
  std::int32_t dp = 1;
  std::int32_t pp = 1;
  std::int32_t ep = 1;  // divides tp · cp · dp and the experts; no factor of num_devices()

  // Devices of a stage.
  [[nodiscard]] std::int64_t stage_devices() const { return std::int64_t{tp} * cp * dp; }
  [[nodiscard]] std::int64_t num_devices() const { return std::int64_t{tp} * cp * dp * pp; }
  friend bool operator==(const ParallelSizes&, const ParallelSizes&) = default;
};

// Returns why such sizes are impossible, or nothing: devices that do not match the cluster's, TP
// groups or stages that cut nodes unevenly, heads that TP does not divide, fewer layers than
// virtual stages, experts or stages that EP does not divide.
[[nodiscard]] std::optional<std::string> parallel_sizes_problem(const ModelSpec& model,
                                                                const Cluster& cluster,
                                                                const ParallelSizes& sizes,
                                                                std::int32_t chunks = 1);
// Returns the cluster that plans of one context-parallel group are for. Throws InvalidArgument.
[[nodiscard]] Cluster context_parallel_cluster(const Cluster& cluster, const ParallelSizes& sizes);
// The same for the groups of all stages of a pipeline together, stage after stage: the cluster on
// which the attention of a same-phase tick runs.
[[nodiscard]] Cluster pooled_cluster(const Cluster& cluster, const ParallelSizes& sizes);

// ------------------------------------------------------------------------------- attention

// Times that a collective takes alone, as multiples of the time of attention alone.
inline constexpr std::array<double, 3> kSharedLoads = {0.5, 1, 2};
using SharedTimesOfLoads = std::array<double, kSharedLoads.size()>;

// One direction of the attention of one layer (the mean over the model's masks), µs.
struct AttentionTimes {
  double time_us = 0;     // as simulated: from the start to the end of all devices
  double compute_us = 0;  // of time_us, the busiest device's work
  // Time of moving inputs in and results out while nothing computes. Only for plans that ping-pong.
  double input_us = 0;
  double output_us = 0;
  // How much later than attention alone everything ends if a collective of weights or gradients
  // begins with it, by kSharedLoads. Unset: the collective begins at attention's end.
  std::optional<SharedTimesOfLoads> shared_us = {};

  // The same for a collective that alone takes `us`, between the loads in proportion.
  [[nodiscard]] double later_us(double us) const;
  // Attention after attention. Shared times are known if both are.
  AttentionTimes& operator+=(const AttentionTimes& other);
};

struct MicroBatchAttention {
  AttentionTimes forward;
  AttentionTimes backward;
  std::int64_t staging_bytes = 0;   // of a device, in addition to activations, while attention runs
  std::int64_t retained_bytes = 0;  // of a device and layer, from forward to backward
};

// The share of one context-parallel rank: the tokens it owns, and how long before the last rank it
// ends attention.
struct DeviceShare {
  std::int64_t tokens = 0;
  double forward_idle_us = 0;
  double backward_idle_us = 0;
};
// All ranks in one round under one mask.
struct RoundShares {
  double layers = 1;  // share of the model's layers that use the mask
  std::vector<DeviceShare> devices;
};

// The data that a step needs of documents that go through the model together.
struct BatchPart {
  std::int64_t tokens = 0;
  std::int64_t device_tokens = 0;  // of the context-parallel rank that owns most; sum over rounds
  double attention_flops = 0;      // forward, one layer (mean over masks), all heads
  MicroBatchAttention attention;   // with kSamePhase: zero, see TrainingStep::ticks
  // By round and mask. Empty: every rank owns device_tokens, and all end attention at once.
  std::vector<RoundShares> shares = {};
  // Tokens whose activations a rank holds at a time. Unset: device_tokens. It is less if a part
  // stands for micro-batches that a rank runs one after another.
  std::optional<std::int64_t> tokens_at_once = {};

  [[nodiscard]] std::int64_t held_tokens() const { return tokens_at_once.value_or(device_tokens); }
};
enum class AttentionDetail : std::uint8_t {
  kTimes,       // input_us and output_us stay 0
  kSeparately,  // also simulates the transfers alone
};
// Makes a part from a plan of the context-parallel group; `tp` is the number that its heads were
// divided by. Times of several masks are weighted by their layers. Simulates the plan once or
// twice, and once more for each of kSharedLoads if there is a collective to share links with.
[[nodiscard]] BatchPart batch_part_of(const Plan& plan, const Cluster& cluster, std::int32_t tp,
                                      AttentionDetail detail = AttentionDetail::kTimes,
                                      const CollectiveTraffic& collective = {});

// One part, or two that alternate, with the transfers of one during the compute of the other
// (ping-pong; DistCA, section 4.1).
struct MicroBatchWork {
  std::vector<BatchPart> parts;

  [[nodiscard]] std::int64_t tokens() const;
  [[nodiscard]] std::int64_t device_tokens() const;
  [[nodiscard]] std::int64_t held_tokens() const;
};

// ------------------------------------------------------------------------------- the step

enum class Recompute : std::uint8_t {
  kNone,
  kSelective,  // outputs of norms and of the feed-forward's activation are recomputed from their
               // inputs
  kFull,       // only the input of every layer is kept; backward runs forward again
};
[[nodiscard]] std::string_view to_string(Recompute recompute);  // "none", "selective", "full"
[[nodiscard]] Recompute parse_recompute(std::string_view text);

enum class OptimizerShards : std::uint8_t {
  kNone,   // every rank holds the state of all its weights
  kZero1,  // spread over the ranks with the same weights: context- and data-parallel ones
  kFsdp,   // weights and gradients, too (ZeRO-3): every forward and backward gathers the weights of
           // a layer, every backward scatters its gradients
};
[[nodiscard]] std::string_view to_string(OptimizerShards shards);  // "replicated", "zero1", "fsdp"
[[nodiscard]] OptimizerShards parse_optimizer_shards(std::string_view text);

// The time at which collectives of weights and gradients run.
enum class GradientOverlap : std::uint8_t {
  kOff,  // while no layer runs
  kOn,   // during the layers, attention included: reductions in the last backward, gathers in the
         // next first forward; with kFsdp both in every phase
};
[[nodiscard]] std::string_view to_string(GradientOverlap overlap);  // "off", "on"
[[nodiscard]] GradientOverlap parse_gradient_overlap(std::string_view text);

// Constants of the prediction that the cluster does not have.
struct IterationOptions {
  Recompute recompute = Recompute::kNone;
  OptimizerShards optimizer = OptimizerShards::kZero1;
  GradientOverlap gradient_overlap = GradientOverlap::kOn;
  // Share of Cluster::peak_tflops that everything outside attention reaches.
  double linear_mfu = kLinearMfu;
  // Share of the links' rates that ring collectives reach. Rates of presets are what collectives
  // get. Collectives with a cost in Cluster::collectives reach what was measured, whatever this
  // share is.
  double collective_share = 1;
  // Share of the all-gathers and reduce-scatters of TP that is hidden behind the matrix products
  // they belong to.
  double tensor_parallel_overlap = 0;
  // Memory that no part of the model accounts for: CUDA context, communicators, fragmentation. This
  // is a guess.
  std::int64_t reserve_bytes = 4'000'000'000;
};
void check_iteration_options(const IterationOptions& options);  // throws InvalidArgument

// Returns the traffic of the collectives that run during attention: none without overlap, or if no
// two ranks have the same weights (experts aside). Its ranks are those of context_parallel_cluster.
[[nodiscard]] CollectiveTraffic gradient_traffic(const Cluster& cluster, const ParallelSizes& sizes,
                                                 const IterationOptions& options);

struct TrainingStep {
  ModelSpec model;
  Cluster cluster;  // all devices
  ParallelSizes sizes;
  PipelineShape pipeline;  // stages = sizes.pp, micro_batches = those of a replica
  IterationOptions options;
  std::vector<std::vector<MicroBatchWork>> replicas;  // sizes.dp of pipeline.micro_batches each
  // With kSamePhase: attention of forward tick t (and of backward tick t, whose micro-batches are
  // the same) on all stages together; [replica][tick][part], stages + chunks · micro_batches - 1
  // ticks.
  std::vector<std::vector<std::vector<MicroBatchAttention>>> ticks;
};

// Memory of one device of a stage, bytes.
struct StageMemory {
  std::int64_t weights_bytes = 0;    // bf16
  std::int64_t gradients_bytes = 0;  // fp32
  std::int64_t optimizer_bytes = 0;  // fp32 master weights and two moments
  std::int64_t activations_bytes =
      0;  // of all micro-batches in flight, including the data that attention retains
  std::int64_t working_bytes = 0;    // logits; with kFull the layer that is recomputed
  std::int64_t attention_bytes = 0;  // staging of the plan
  std::int64_t reserve_bytes = 0;
  std::int32_t in_flight = 0;  // chunk activations at the peak

  [[nodiscard]] std::int64_t total_bytes() const {
    return weights_bytes + gradients_bytes + optimizer_bytes + activations_bytes + working_bytes +
           attention_bytes + reserve_bytes;
  }
};

// The part that takes the most memory: "weights", "gradients", "optimizer", "activations", "working
// memory" or "attention".
struct LargestPart {
  std::string_view name;
  std::int64_t bytes = 0;
};
[[nodiscard]] LargestPart largest_part(const StageMemory& memory);
// Returns the index of the stage that needs the most memory. Throws InvalidArgument when there is
// none.
[[nodiscard]] std::size_t fullest_stage(const std::vector<StageMemory>& memory);

// Times of one step on the devices of one stage that others wait for, µs, means over replicas.
// Together they add up to the step's time.
struct StageTimes {
  double linear_us = 0;             // everything outside attention
  double attention_us = 0;          // the busiest device's work
  double exposed_attention_us = 0;  // waiting inside attention: transfers, imbalance of its stages
  double tensor_parallel_us = 0;    // all-gathers and reduce-scatters of TP that are not hidden
  double expert_parallel_us = 0;    // all-to-alls that dispatch tokens to experts and combine them
  double recompute_us = 0;          // forward (attention, too) run again, cheap parts recomputed
  double gradients_us = 0;          // gradient and weight collectives that are not hidden
  double optimizer_us = 0;
  double bubble_us = 0;  // waiting for other stages and replicas

  [[nodiscard]] double total_us() const {
    return linear_us + attention_us + exposed_attention_us + tensor_parallel_us +
           expert_parallel_us + recompute_us + gradients_us + optimizer_us + bubble_us;
  }
  [[nodiscard]] double exposed_us() const {
    return exposed_attention_us + tensor_parallel_us + expert_parallel_us + gradients_us;
  }
};

struct StepPrediction {
  double time_us = 0;
  std::int64_t tokens = 0;
  double model_flops = 0;  // 3 x forward of linear layers and attended pairs; recompute not counted
  double mfu = 0;          // over the peak of all devices
  double bubble_share = 0;       // mean over stages
  double exposed_share = 0;      // of communication, mean over stages
  double replica_imbalance = 0;  // (max - mean) / max of the replicas' pipeline times
  std::vector<StageTimes> stages;
  std::vector<StageMemory> memory;          // of every stage
  std::vector<PipelineTimeline> timelines;  // of every replica

  [[nodiscard]] double tokens_per_s() const {
    return time_us > 0 ? static_cast<double>(tokens) / time_us * 1e6 : 0;
  }
};

// Predicts a step. Throws InvalidArgument when the parts of the step do not fit each other.
// Deterministic. O(replicas · micro-batches · virtual stages · layers of one).
[[nodiscard]] StepPrediction predict_step(const TrainingStep& step);

// Predicts memory alone. It needs only the tokens of the micro-batches (and the bytes of
// attention).
[[nodiscard]] std::vector<StageMemory> step_memory(const TrainingStep& step);
// Returns "out of memory on stage 0: expected at most 80.0 GB, found 97.3 GB, 61.2 of them
// activations", or nothing if the step fits. Also returns nothing when the cluster's memory is
// unknown (0).
[[nodiscard]] std::optional<std::string> out_of_memory(const Cluster& cluster,
                                                       const std::vector<StageMemory>& memory);

// Returns a micro-batch of which only the number of tokens is known, spread evenly over a group of
// `cp` ranks: for a verdict on memory before anything is planned.
[[nodiscard]] MicroBatchWork even_micro_batch(std::int64_t tokens, std::int32_t cp);

}  // namespace contextile

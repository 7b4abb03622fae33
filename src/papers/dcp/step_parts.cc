// Where the time of a step goes, predicted: DCP (SOSP 2025), Figs. 1 and 22. The paper measured
// GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/registry.h"
#include "contextile/simulate.h"
#include "contextile/step_planner.h"
#include "contextile/training.h"
#include "papers/paper_table.h"
#include "papers/steps.h"

namespace contextile {
namespace {

constexpr std::int32_t kStepTp = 4;
// A step of GPT-8B on one device, seconds. Communication is that of context parallelism; what is
// overlapped lies under attention. All but `overlapped_s` add up to `step_s`.
struct StepParts {
  std::string skipped;
  double step_s = kInfinity;  // infinity: skipped
  double attention_s = 0;     // attention and merging, mean over devices
  double exposed_s = 0;       // waiting for transfers, mean over devices
  double idle_s = 0;          // done with attention, others not
  double other_s = 0;         // everything outside attention
  double overlapped_s = 0;    // messages move and the device computes

  [[nodiscard]] double communication_s() const { return exposed_s + overlapped_s; }
};

using Span = std::pair<double, double>;

// Time in both of two lists of intervals; those of `a` may overlap each other.
double common_us(std::vector<Span> a, const std::vector<Span>& b) {
  std::ranges::sort(a);
  double us = 0;
  double covered_until = 0;  // of a
  for (auto [begin, end] : a) {
    begin = std::max(begin, covered_until);
    covered_until = std::max(covered_until, end);
    for (const auto& [other_begin, other_end] : b) {
      us += std::max(0.0, std::min(end, other_end) - std::max(begin, other_begin));
    }
  }
  return us;
}

// Mean over devices of the time in which they compute while messages from or to them move.
double overlapped_us(const SimulatedDirection& direction) {
  const std::size_t num_devices = direction.devices.size();
  double us = 0;
  for (const SimulatedProgram& program : direction.programs) {
    std::vector<std::vector<Span>> messages(num_devices);
    std::vector<std::vector<Span>> work(num_devices);
    for (const MessageSpan& message : program.messages) {
      for (const Rank end : {message.src, message.dst}) {
        messages[static_cast<std::size_t>(end.value)].emplace_back(message.start_us,
                                                                   message.end_us);
      }
    }
    for (const ActivitySpan& span : program.activities) {
      if (span.activity != Activity::kAttention && span.activity != Activity::kMerge) continue;
      work[static_cast<std::size_t>(span.device.value)].emplace_back(span.start_us, span.end_us);
    }
    for (std::size_t device = 0; device < num_devices; ++device) {
      us += common_us(std::move(messages[device]), work[device]);
    }
  }
  return us / static_cast<double>(num_devices);
}

void add_attention(const SimulatedDirection& direction, double layers_s, StepParts& parts) {
  const double share_s = layers_s / static_cast<double>(direction.devices.size());
  for (const DeviceTimes& device : direction.devices) {
    parts.attention_s += share_s * device.busy_us();
    parts.exposed_s += share_s * device.of(Activity::kExposed);
    parts.idle_s += share_s * device.idle_us;
  }
  parts.overlapped_s += layers_s * overlapped_us(direction);
}

// Adds a share of one batch's step, the plan of whose attention is made once for all of it; returns
// why that is impossible, or nothing.
std::string add_step(const StrategyChoice& choice, const TrainingJob& job, const MaskUse& mask,
                     const BatchLengths& lengths, double share, StepParts& parts) {
  const TrainingStep step = one_group_step(job, kStepTp);
  if (auto problem = placement_problem(job.model, job.cluster, step.sizes, 1)) return *problem;
  PlanInput group;
  group.options = job.plan;
  group.cluster = context_parallel_cluster(job.cluster, step.sizes);
  const Workload workload =
      make_workload(lengths, attention_shape_of(job.model, kStepTp), {&mask, 1});
  if (auto reason = unsupported_reason(workload, group.cluster, choice, group.options))
    return *reason;
  const PlannedBatch planned = plan_and_check(workload, group.cluster, choice, group.options);
  const StepPrediction prediction = predict_parts(
      step, {batch_part_of(*planned.plan, group.cluster, kStepTp, AttentionDetail::kTimes)});
  if (auto reason = out_of_memory(job.cluster, prediction.memory)) return *reason;
  parts.step_s += 1e-6 * share * prediction.time_us;
  const Simulation simulation = simulate(*planned.plan, group.cluster, {.timeline = true});
  const double layers_s = 1e-6 * share * job.model.layers;
  add_attention(*simulation.forward, layers_s, parts);
  add_attention(*simulation.backward, layers_s, parts);
  return {};
}

// Means over the batches, one batch a step.
StepParts step_parts(const StrategyChoice& choice, const BenchSetting& setting,
                     const std::string& mask) {
  TrainingJob job;
  job.model = load_model("gpt-8b");
  job.cluster = setting.input.cluster;
  job.plan = setting.input.options;
  const MaskUse use = parse_mask_use(mask);
  StepParts parts;
  parts.step_s = 0;
  const auto batches = batches_from_dataset(setting.datasets.front(), setting.batch);
  for (const BatchLengths& lengths : batches) {
    const double share = 1.0 / static_cast<double>(batches.size());
    std::string problem = add_step(choice, job, use, lengths, share, parts);
    if (problem.empty()) continue;
    StepParts none;
    none.skipped = std::move(problem);
    return none;
  }
  parts.other_s = parts.step_s - parts.attention_s - parts.exposed_s - parts.idle_s;
  return parts;
}

// The faster of the two ways TransformerEngine can be set up.
std::pair<StepParts, std::string> transformer_engine(const BenchSetting& setting,
                                                     const std::string& mask) {
  std::pair<StepParts, std::string> fastest;
  for (const StrategyChoice& choice : transformer_engine_choices()) {
    StepParts parts = step_parts(choice, setting, mask);
    if (fastest.second.empty() || parts.step_s < fastest.first.step_s) {
      fastest = {std::move(parts), choice_text(choice)};
    }
  }
  return fastest;
}

std::vector<Column> part_columns(std::vector<Column> first) {
  for (const Column& column :
       std::vector<Column>{{"step_s", "step\nms", Format::kMilliseconds},
                           {"attention_s", "attention\nms", Format::kMilliseconds},
                           {"exposed_s", "exposed\nms", Format::kMilliseconds},
                           {"overlapped_s", "overlap\nms", Format::kMilliseconds},
                           {"idle_s", "idle\nms", Format::kMilliseconds},
                           {"other_s", "other\nms", Format::kMilliseconds},
                           {"exposed_share", "exposed\nof step", Format::kPercent}}) {
    first.push_back(column);
  }
  return first;
}

void add_parts(const StepParts& parts, std::vector<Cell> labels, Table& table) {
  if (!parts.skipped.empty()) {
    const std::string name = std::get<std::string>(labels.back());
    table.add_row(std::move(labels), fmt::format("{} skipped: {}", name, parts.skipped));
    return;
  }
  for (const double value : {parts.step_s, parts.attention_s, parts.exposed_s, parts.overlapped_s,
                             parts.idle_s, parts.other_s}) {
    labels.emplace_back(value);
  }
  labels.emplace_back(parts.exposed_s / parts.step_s);
  table.add_row(std::move(labels));
}

BenchSetting step_setting(const BenchOverrides& overrides, std::string_view table,
                          std::string cluster_name) {
  refuse_overrides(
      overrides, table,
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  BenchSetting setting;
  setting.datasets = {"longalign"};
  setting.batch.tokens = 131072;
  setting.batch.batches = 4;
  setting.cluster_name = std::move(cluster_name);
  setting.input.options.wire = Dtype::kBf16;
  apply_overrides(overrides, setting);
  setting.batch.max_length = setting.batch.tokens;
  return setting;
}

PaperResult steps_result(const BenchSetting& setting, Table table) {
  PaperResult result{.setting = setting.description(),
                     .table = std::move(table),
                     .findings = {},
                     .differences = {kStepsAreModelled, kLengthsAreSampled}};
  result.setting[1] = {"model", fmt::format("gpt-8b, TP {} x CP {}, ZeRO-1", kStepTp,
                                            setting.input.cluster.num_devices() / kStepTp)};
  return result;
}

const std::string kOverlapMeans =
    "Exposed: a device waits for transfers inside attention. Overlap: it computes attention while "
    "messages from or to it move. Idle: it is done, others are not. Means over devices and "
    "batches; all but overlap add up to the step.";

// Numbers of nodes up to the cluster's own, doubling.
std::vector<std::int32_t> fig1_nodes(const Cluster& cluster) {
  std::vector<std::int32_t> nodes;
  for (std::int32_t n = std::min(2, cluster.nodes); n < cluster.nodes; n *= 2) nodes.push_back(n);
  nodes.push_back(cluster.nodes);
  return nodes;
}

std::vector<Finding> fig1_findings(const std::vector<double>& shares,
                                   const std::optional<StepParts>& papers) {
  std::vector<Finding> findings;
  if (shares.size() > 1) {
    findings.push_back(
        {"the communication of context parallelism grows with the cluster",
         fmt::format("{:.1f}% to {:.1f}% of the step", 100 * shares.front(), 100 * shares.back()),
         std::ranges::is_sorted(shares), "the exposed share falls nowhere"});
  }
  if (papers) {
    const double exposed = papers->exposed_s / papers->step_s;
    findings.push_back(
        {"27.7% to 44.6% of the step on TP 4 x CP 16",
         fmt::format("{:.1f}% exposed, {:.1f}% with what is overlapped", 100 * exposed,
                     100 * papers->communication_s() / papers->step_s),
         exposed >= 0.277 && exposed <= 0.446, "the exposed share is in that range"});
  }
  return findings;
}

PaperResult dcp_fig1(const BenchOverrides& overrides) {
  constexpr std::int64_t kPaperCp = 16;
  BenchSetting setting = step_setting(overrides, "dcp-fig1", "p4de:16x8");
  const std::vector<std::int32_t> nodes = fig1_nodes(setting.input.cluster);
  Table table(part_columns({{"devices", "GPUs"}, {"cp", "CP"}, {"strategy", "TE is"}}));
  Progress progress(overrides, std::ssize(nodes));
  std::vector<double> shares;
  std::optional<StepParts> papers;  // at the paper's placement
  for (const std::int32_t n : nodes) {
    setting.input.cluster.nodes = n;
    const std::int64_t devices = setting.input.cluster.num_devices();
    progress.step(fmt::format("{} devices", devices));
    const auto [parts, name] = transformer_engine(setting, "causal");
    add_parts(parts, {devices, devices / kStepTp, name}, table);
    if (!parts.skipped.empty()) continue;
    shares.push_back(parts.exposed_s / parts.step_s);
    if (devices == kPaperCp * kStepTp) papers = parts;
  }
  PaperResult result = steps_result(setting, std::move(table));
  result.setting[1] = {"model", fmt::format("gpt-8b, TP {}, ZeRO-1, causal", kStepTp)};
  result.setting[2] = {"cluster", fmt::format("{}, nodes of {}", setting.input.cluster.name,
                                              setting.input.cluster.devices_per_node)};
  result.plots = {{.x = "devices", .y = {"attention_s", "exposed_s", "overlapped_s"}},
                  {.x = "devices", .y = {"exposed_share"}}};
  result.findings = fig1_findings(shares, papers);
  result.differences.insert(
      result.differences.end(),
      {kOverlapMeans,
       "The paper's text has TP 4 x CP 16; what the bars of its figure are is not in it, and the "
       "two numbers are labels of bars that others report. Here one batch is spread over more and "
       "more devices.",
       kTransformerEngineIs});
  return result;
}

// DCP and TransformerEngine under one mask.
struct MaskParts {
  std::string_view mask;
  StepParts dcp;
  StepParts te;
};

// What the paper says of the causal mask.
void add_causal_findings(const MaskParts& causal, std::vector<Finding>& findings) {
  const auto share = [](const StepParts& parts) {
    return parts.communication_s() > 0 ? parts.overlapped_s / parts.communication_s() : 0;
  };
  findings.push_back({"causal: noticeably less of it overlapped",
                      fmt::format("{} of DCP's, {} of TE's ({:.0f} ms and {:.0f} ms)",
                                  whole_percent(share(causal.dcp)), whole_percent(share(causal.te)),
                                  1e3 * causal.dcp.overlapped_s, 1e3 * causal.te.overlapped_s),
                      share(causal.dcp) < 0.9 * share(causal.te),
                      "the overlapped share of its communication is below 0.9 of TE's"});
  const double gain = causal.te.step_s / causal.dcp.step_s;
  findings.push_back({"causal: slightly slower than TE", fmt::format("{:.2f}x as fast", gain),
                      gain > 0.9 && gain < 1, "0.9x to 1x as fast"});
}

std::vector<Finding> fig22_findings(std::span<const MaskParts> masks) {
  constexpr double kSlightly = 0.75;
  bool less = true;
  bool slightly = true;
  std::vector<std::string> communication;
  std::vector<std::string> attention;
  for (const auto& [mask, dcp, te] : masks) {
    if (!(te.communication_s() > 0)) return {};  // one device: nothing to compare
    communication.push_back(
        fmt::format("{} {:.2f}", mask, dcp.communication_s() / te.communication_s()));
    less = less && dcp.communication_s() < te.communication_s();
    if (mask == "causal") continue;
    const double ratio = dcp.attention_s / te.attention_s;
    attention.push_back(fmt::format("{} {:.2f}", mask, ratio));
    slightly = slightly && ratio >= kSlightly && ratio < 1;
  }
  std::vector<Finding> findings;
  if (masks.size() == kDcpMasks.size()) {
    findings = {{"less communication in all, exposed and overlapped together, under every mask",
                 fmt::format("of TE's: {}", fmt::join(communication, ", ")), less},
                {"slightly less time in attention under sparse masks",
                 fmt::format("of TE's: {}", fmt::join(attention, ", ")), slightly,
                 fmt::format("{} of TE's or more, and less than it, under each", kSlightly)}};
  }
  for (const MaskParts& parts : masks) {
    if (parts.mask == "causal") add_causal_findings(parts, findings);
  }
  return findings;
}

PaperResult dcp_fig22(const BenchOverrides& overrides) {
  const BenchSetting setting = step_setting(overrides, "dcp-fig22", "p4de:8x8");
  Table table(part_columns({{"mask", "mask"}, {"strategy", "strategy"}}));
  Progress progress(overrides, 2 * std::ssize(kDcpMasks));
  std::vector<MaskParts> compared;
  for (const auto& [name, mask] : kDcpMasks) {
    progress.step(fmt::format("{}, dcp", name));
    const StepParts dcp = step_parts({"dcp", {}}, setting, mask);
    progress.step(fmt::format("{}, TransformerEngine", name));
    const auto [te, te_name] = transformer_engine(setting, mask);
    add_parts(dcp, {std::string(name), std::string("dcp")}, table);
    add_parts(te, {std::string(name), te_name}, table);
    if (dcp.skipped.empty() && te.skipped.empty()) compared.push_back({name, dcp, te});
  }
  PaperResult result = steps_result(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {{.x = "strategy",
                   .y = {"attention_s", "exposed_s", "overlapped_s", "idle_s", "other_s"},
                   .panels = {"mask"}}};
  result.findings = fig22_findings(compared);
  result.differences.insert(result.differences.end(), {kOverlapMeans, kTransformerEngineIs});
  return result;
}

constexpr std::array<PaperTable, 2> kTables = {
    {{"dcp-fig1", "DCP (SOSP 2025), Fig. 1",
      "what context parallelism's communication is of a step, by devices", dcp_fig1},
     {"dcp-fig22", "DCP (SOSP 2025), Fig. 22", "where the time of a step goes, by mask",
      dcp_fig22}}};

}  // namespace

std::span<const PaperTable> step_part_paper_tables() { return kTables; }

}  // namespace contextile

// DistCA, Fig. 11: the ablation of ping-pong. The paper measured GPUs; here
// everything outside attention comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "labs/papers/distca/ping_pong.h"
#include "labs/papers/distca/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/steps.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// "-0.3% to +1.2%".
std::string change_text(const Extent& extent) {
  return fmt::format("{:+.1f}% to {:+.1f}%", 100 * extent.least, 100 * extent.most);
}

// The time if every transfer is one byte, which takes no time.
double signal_us(const NanoBatchPair& pair) {
  std::vector<BatchPart> parts(pair.part.begin(), pair.part.end());
  for (BatchPart& part : parts) {
    for (AttentionTimes* times : {&part.attention.forward, &part.attention.backward}) {
      times->input_us = 0;
      times->output_us = 0;
    }
  }
  return predict_parts(pair.step, std::move(parts)).time_us;
}

// The same tasks on one stream: attention waits for its inputs, and later work for its results.
double single_stream_us(const NanoBatchPair& pair) {
  BatchPart both;
  const auto add = [](const AttentionTimes& from, AttentionTimes& to) {
    to.time_us += from.input_us + from.compute_us + from.output_us;
    to.compute_us += from.compute_us;
  };
  for (const BatchPart& part : pair.part) {
    both.tokens += part.tokens;
    both.device_tokens += part.device_tokens;
    both.attention_flops += part.attention_flops;
    add(part.attention.forward, both.attention.forward);
    add(part.attention.backward, both.attention.backward);
  }
  return predict_parts(pair.step, {both}).time_us;
}

// Mean times with one byte, in ping-pong, and on one stream; then the last two with relays.
std::array<double, 5> ablation_us(const DistcaPoint& point, const TableOverrides& overrides,
                                  std::int64_t batches) {
  const TrainingJob job = unlimited_job(point, overrides);
  const double share = 1.0 / static_cast<double>(batches);
  std::array<double, 5> mean{};
  for (const BatchLengths& documents :
       stretched_documents(distca_dataset(overrides), point.batch * point.max_length,
                           point.max_length, job.plan.seed, batches)) {
    const NanoBatchPair pair = plan_halves(job, documents, {});
    mean[0] += share * signal_us(pair);
    mean[1] += share * ping_pong_us(pair);
    mean[2] += share * single_stream_us(pair);
    const NanoBatchPair relayed = plan_halves(job, documents, {{"relays", "on"}});
    mean[3] += share * ping_pong_us(relayed);
    mean[4] += share * single_stream_us(relayed);
  }
  return mean;
}

// The quantities that the claims are about, over all points.
struct AblationSummary {
  Extent slower;        // one stream compared with ping-pong
  Extent exposed;       // ping-pong compared with one byte, all but the exception
  double small_8b = 0;  // the exception: 8B on 8 nodes

  void take(const DistcaPoint& point, double over_signal, double single_slower) {
    slower.take(single_slower);
    if (point.model == "llama-3-8b" && point.devices == 64) {
      small_8b = over_signal;
    } else {
      exposed.take(over_signal);
    }
  }
  // `how`: appended to the claims.
  void add_findings(std::string_view how, std::vector<Finding>& findings) const {
    findings.push_back({fmt::format("one stream is 10% to 17% slower{}", how), change_text(slower),
                        slower.within(0.08, 0.19), "every point lies in 8% to 19%"});
    findings.push_back(
        {fmt::format("ping-pong takes as long as with signals of one byte, all but 8B on 8 nodes{}",
                     how),
         fmt::format("{} above them; 8B on 8 nodes {:+.1f}%", change_text(exposed), 100 * small_8b),
         exposed.within(-0.01, 0.02) && small_8b > exposed.most,
         "all others are at most 2% above, and 8B on 8 nodes is more than any of them"});
  }
};

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(
      overrides, "distca-fig11",
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  refuse_nodes(overrides, "distca-fig11");
  const std::int64_t batches = overrides.batches.value_or(30);
  Table table({{"model", ""},
               {"size", "size"},
               {"nodes", "nodes"},
               {"signal_s", "one\nbyte ms", Format::kMilliseconds},
               {"ping_pong_s", "ping-\npong ms", Format::kMilliseconds},
               {"single_s", "one\nstream ms", Format::kMilliseconds},
               {"over_signal", "ping-pong\nover byte", Format::kPercent},
               {"single_slower", "stream\nslower", Format::kPercent},
               {"relays_over_signal", "relays:\nover byte", Format::kPercent},
               {"relays_single_slower", "stream\nslower", Format::kPercent}});
  Progress progress(overrides,
                    static_cast<std::int64_t>(kDistcaModels.size() * kDistcaAblationNodes.size()));
  AblationSummary summary;
  AblationSummary relayed;
  for (const std::string_view model : kDistcaModels) {
    for (const std::int32_t nodes : kDistcaAblationNodes) {
      const std::int64_t tokens = distca_ablation_tokens(model, overrides);
      const std::int64_t longest = std::min(tokens, kDistcaAblationLongest);
      const DistcaPoint point = {model, nodes * kDistcaTp, longest, tokens / longest};
      progress.step(fmt::format("{}, {} devices", point.model, point.devices));
      const std::array<double, 5> us = ablation_us(point, overrides, batches);
      const double over = us[1] / us[0] - 1;
      const double single = us[2] / us[1] - 1;
      summary.take(point, over, single);
      relayed.take(point, us[3] / us[0] - 1, us[4] / us[3] - 1);
      table.add_row({std::string(model), distca_size(model), std::int64_t{nodes}, 1e-6 * us[0],
                     1e-6 * us[1], 1e-6 * us[2], over, single, us[3] / us[0] - 1,
                     us[4] / us[3] - 1});
    }
  }
  PaperResult result{
      .setting = {{"models", "llama-3-8b and llama-34b, TP 8, all nodes one pool, tolerance 0.1"},
                  {"lengths",
                   fmt::format("{}, documents up to 128K; {} of {}", distca_dataset(overrides),
                               count(batches, "batch"), distca_ablation_text(overrides))},
                  {"cluster", distca_cluster_text(overrides)}},
      .table = std::move(table),
      .differences = {kStepsAreModelled, kLengthsAreSampled}};
  summary.add_findings("", result.findings);
  relayed.add_findings("; here with relays=on", result.findings);
  result.differences.emplace_back(
      "One stream: the two halves one after the other, nothing moves while anything computes. One "
      "byte: the same plans, transfers take no time. Ticks end when the slower of compute and "
      "transfer does. Relays are not the paper's: servers pass keys on to each other. The paper "
      "names the tokens of a step for Fig. 12 only; here they are the same.");
  result.plots = {
      {.x = "nodes", .y = {"signal_s", "ping_pong_s", "single_s"}, .panels = {"model"}}};
  return result;
}

}  // namespace

PaperTable distca_fig11() {
  return {"distca-fig11", "DistCA, Fig. 11",
          "one stream, ping-pong, and transfers of one byte, 8 and 16 nodes", make};
}

}  // namespace contextile

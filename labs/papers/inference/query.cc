// Inference: how the query of a decoding step comes to all ranks that share its cache.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "labs/papers/findings.h"
#include "labs/papers/inference/setting.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// Section 4.1: keys cannot move to the query, that would be terabytes a second. A context of 1M
// tokens, a user at 20 tokens/s, a cache on four ranks; one holds the query.
Finding moved_finding(const HelixModel& model) {
  constexpr double kTokens = 1e6;
  constexpr double kRanks = 4;
  constexpr double kTokensPerS = 20;
  const double of_other_ranks = (kRanks - 1) / kRanks;
  const double keys = 2.0 * kTokens * model.shape.kv_heads * model.shape.head_dim * model.kv_bytes *
                      of_other_ranks * model.shape.layers;
  // To every other rank a query, and back a partial result with its LSE.
  const double query = (kRanks - 1) * model.shape.q_heads *
                       (2.0 * model.shape.head_dim * model.activation_bytes + 4) *
                       model.shape.layers;
  return {"the query moves to the keys, whose move would be terabytes a second",
          fmt::format("{:.1f} TB/s of keys, {:.1f} GB/s of queries and results",
                      1e-12 * keys * kTokensPerS, 1e-9 * query * kTokensPerS),
          keys * kTokensPerS >= 1e12 && query < keys,
          "at 1M tokens, four ranks and 20 tokens/s: 1 TB/s or more of keys, less of queries"};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "inference-query", {});
  const HelixModel model = bf16_model("llama-3-70b");
  const HelixHardware hardware = load_helix_hardware("h100");
  const auto send_s = [&](double bytes) {
    return 1e-6 * hardware.latency_us + bytes / (1e9 * hardware.network_gbytes_per_s);
  };
  Table table({{"devices", "N"},
               {"batch", "batch"},
               {"broadcast_bytes", "broadcast:\nbytes"},
               {"broadcast_s", "ms", Format::kMilliseconds},
               {"all_gather_bytes", "all-gather:\nbytes"},
               {"all_gather_s", "ms", Format::kMilliseconds},
               {"replicated_s", "replicated:\nms", Format::kMilliseconds}});
  Extent gains;
  Extent replicated;
  for (const std::int32_t ranks : {2, 4, 8}) {
    for (const std::int32_t batch : {1, 8, 64, 512}) {
      const double query = static_cast<double>(batch) * model.shape.q_heads * model.shape.head_dim *
                           model.activation_bytes;
      const double broadcast = (ranks - 1) * query;
      const double gather = (ranks - 1) * query / ranks;
      // All ranks read the whole matrix instead of their part.
      const double matrix = static_cast<double>(model.shape.hidden) * model.shape.q_heads *
                            model.shape.head_dim * model.weight_bytes;
      const double read_s = matrix * (1 - 1.0 / ranks) / (1e9 * hardware.memory_gbytes_per_s);
      gains.take(send_s(broadcast) / send_s(gather));
      replicated.take(send_s(gather) / read_s);
      table.add_row({std::int64_t{ranks}, std::int64_t{batch}, broadcast, send_s(broadcast), gather,
                     send_s(gather), read_s});
    }
  }
  PaperResult result{.setting = {{"layer", "64 query heads of 128, hidden size 8192, bf16"},
                                 {"devices", "H100, 450 GB/s, 7 us a message"}},
                     .table = std::move(table)};
  result.findings = {moved_finding(model)};
  result.differences = {
      fmt::format("The source claims no speed of a way to spread queries, so none has a verdict. "
                  "It names broadcasts (4.2) and, of one engine, an all-gather (6.2). Here an "
                  "all-gather is {} as fast as a broadcast, and takes {} of the time of computing "
                  "all queries on every rank.",
                  range_text(gains.least, gains.most),
                  range_text(replicated.least, replicated.most)),
      "A rank that broadcasts sends to one rank after the other. A tree would take log2(N) "
      "latencies instead of one.",
      "Without tensor parallelism outside of attention, one rank may have all heads; then an "
      "all-gather is not possible without a scatter."};
  result.plots = {{.x = "batch", .y = {"broadcast_s", "all_gather_s"}, .panels = {"devices"}}};
  return result;
}

}  // namespace

PaperTable inference_query() {
  return {"inference-query", "survey of inference, sections 4.2 and 6.2",
          "broadcast, all-gather and repeated projection of queries", make};
}

}  // namespace contextile

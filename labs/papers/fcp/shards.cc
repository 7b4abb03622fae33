// FCP (flexible context parallelism, MLSys 2026), section 3.1, Fig. 3: the costs of pieces of few
// tokens.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/simulate.h"
#include "labs/papers/fcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

// Bytes of forward that a strategy's plans move for the documents of at most `longest` tokens; none
// if it cannot plan them.
std::optional<double> forward_bytes(const StrategyChoice& choice, const PaperSetting& setting,
                                    std::span<const std::vector<std::int64_t>> batches,
                                    std::int64_t longest) {
  const MaskUse causal = parse_mask_use("causal");
  double bytes = 0;
  for (const std::vector<std::int64_t>& lengths : batches) {
    std::vector<std::int64_t> documents;
    std::ranges::copy_if(lengths, std::back_inserter(documents),
                         [longest](std::int64_t length) { return length <= longest; });
    if (documents.empty()) continue;
    const Workload workload = make_workload(documents, setting.shape, {&causal, 1});
    if (unsupported_reason(workload, setting.input.cluster, choice, setting.input.options))
      return std::nullopt;
    const PlannedBatch planned =
        plan_and_check(workload, setting.input.cluster, choice, setting.input.options);
    bytes += static_cast<double>(planned.statistics.forward->total_bytes());
  }
  return bytes;
}

constexpr std::array<std::int64_t, 6> kLengths = {512, 1024, 2048, 4096, 8192, 16384};

// Findings from its first row, 512 tokens, and its fourth, 4096. Cases that cannot be planned have
// no number.
std::vector<Finding> shard_findings(const Table& table) {
  constexpr double kPieceMfu = 0.25;
  constexpr double kPieceSlack = 0.08;
  constexpr double kHalf = 0.5;
  constexpr double kHalfSlack = 0.1;
  const auto share = [&table](std::size_t row, std::size_t column) {
    const double* value = std::get_if<double>(&table.cells(row)[column]);
    return value == nullptr ? std::optional<double>() : *value;
  };
  const double shortest = *share(0, 2);
  std::vector<Finding> findings = {
      {"64 blocks of 512 tokens reach 25% of the tensor cores' peak",
       fmt::format("{} as causal documents, {} as pieces that attend all their keys",
                   whole_percent(shortest), whole_percent(*share(0, 1))),
       std::abs(shortest - kPieceMfu) <= kPieceSlack,
       "as causal documents, within 8 percentage points; FlashAttention-3's own chart has 29.5%"}};
  if (const auto short_bytes = share(3, 3)) {
    findings.push_back(
        {"sequences under 4K cause about half of the communication of plain context "
         "parallelism",
         fmt::format("{} of the ring's bytes", whole_percent(*short_bytes)),
         std::abs(*short_bytes - kHalf) <= kHalfSlack,
         "documents of 4096 tokens or fewer, within 10 percentage points of 50%"});
  }
  if (const auto fcp_bytes = share(3, 4)) {
    findings.push_back(
        {"they could stay on one GPU and move nothing",
         fmt::format("FCP moves {:.1f}% of the ring's bytes for them", 100 * *fcp_bytes),
         *fcp_bytes == 0});
  }
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-shards",
                   {"--dataset", "--tokens", "--batches", "--seed", "--heads", "--kv-heads",
                    "--head-dim", "--cluster", "--block-size"});
  PaperSetting setting = fcp_setting(overrides, 32);
  setting.input.options.backward = false;
  // The figure's Hopper has 989 TFLOP/s and 4.8 TB/s: an H200.
  const Cluster hopper =
      overrides.cluster.empty() ? load_cluster("dgx-h200:1x1") : setting.input.cluster;
  const TileCosts costs(setting.shape, hopper);
  const auto mfu = [&](std::int64_t length, std::int64_t pairs) {
    const double flops = forward_flops(pairs, setting.shape.q_heads, setting.shape);
    return flops / (costs.piece_us(Direction::kForward, length, length, pairs, 1) * 1e6 *
                    peak_tflops_of(hopper));
  };
  const auto batches = batches_from_dataset(setting.datasets.front(), setting.batch);
  const StrategyChoice ring{"zigzag", {}};
  const StrategyChoice fcp{"fcp", {}};
  const std::int64_t longest = setting.batch.max_length;
  Table table({{"length", "tokens"},
               {"piece_mfu", "whole piece\nof the peak", Format::kPercent},
               {"causal_mfu", "document\nof the peak", Format::kPercent},
               {"ring_share", "ring's bytes\nup to here", Format::kPercent},
               {"fcp_share", "FCP's", Format::kPercent}});
  Progress progress(overrides, static_cast<std::int64_t>(2 * kLengths.size() + 2));
  progress.step("zigzag");
  const auto ring_bytes = forward_bytes(ring, setting, batches, longest);
  const auto share_of = [&](const StrategyChoice& choice, std::int64_t length) -> Cell {
    const auto bytes = forward_bytes(choice, setting, batches, length);
    if (!bytes || ring_bytes.value_or(0) <= 0) return {};  // on one device nothing moves
    return *bytes / *ring_bytes;
  };
  for (const std::int64_t length : kLengths) {
    progress.step(fmt::format("zigzag, {}", length));
    Cell ring_share = share_of(ring, length);
    progress.step(fmt::format("fcp, {}", length));
    Cell fcp_share = share_of(fcp, length);
    table.add_row({length, mfu(length, length * length), mfu(length, length * (length + 1) / 2),
                   std::move(ring_share), std::move(fcp_share)});
  }
  std::vector<Finding> findings = shard_findings(table);
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {{.x = "length", .y = {"piece_mfu", "causal_mfu"}},
                  {.x = "length", .y = {"ring_share", "fcp_share"}}};
  result.findings = std::move(findings);
  result.differences.push_back(fmt::format(
      "The kernel is the preset's {}, of {} TFLOP/s; the bytes are of plans on GPU-X. The lengths' "
      "model was made such that half of the tokens are in documents under 4096.",
      hopper.name, peak_tflops_of(hopper)));
  result.differences.emplace_back("The points of the figure are not in the paper's text.");
  return result;
}

}  // namespace

PaperTable fcp_shards() {
  return {"fcp-shards", "FCP, Fig. 3", "what pieces of few tokens cost: kernels and transfers",
          make};
}

}  // namespace contextile

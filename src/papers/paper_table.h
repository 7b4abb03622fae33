// The tables and figures of papers that `contextile bench` prints again: the registry, and what
// the tables share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/data.h"
#include "contextile/planner.h"
#include "contextile/registry.h"
#include "contextile/workload.h"
#include "report/table.h"

namespace contextile {

// What the command line changes of a paper's setting. Unset: as the paper has it.
struct BenchOverrides {
  std::string dataset;
  std::string cluster;
  std::optional<std::int64_t> tokens;
  std::optional<std::int64_t> block_size;
  std::optional<std::int32_t> q_heads;
  std::optional<std::int32_t> kv_heads;
  std::optional<std::int32_t> head_dim;
  std::optional<Dtype> wire;
  std::optional<std::int64_t> batches;
  std::optional<std::uint64_t> seed;
  // Not an override: told how far a table has come.
  std::function<void(std::int64_t done, std::int64_t total, std::string_view what)> notice;
};

// The steps of one table, for BenchOverrides::notice.
class Progress {
 public:
  Progress(const BenchOverrides& overrides, std::int64_t total)
      : overrides_(overrides), total_(total) {}
  // Names the step that begins now.
  void step(std::string_view what) {
    if (overrides_.notice) overrides_.notice(done_, total_, what);
    ++done_;
  }

 private:
  const BenchOverrides& overrides_;
  std::int64_t total_;
  std::int64_t done_ = 0;
};

// What a paper says, what was found here, and whether the two agree.
struct Finding {
  std::string claim;
  std::string ours;
  bool agrees = false;
  std::string criterion = {};  // what `agrees` was decided by, where the claim does not say it
};

// How a table is drawn (scripts/plot-table): columns by key. A panel for each combination of the
// values of `panels`, in the order of rows; in it a series for each combination of those of
// `series`. With several columns `y`, each is a series by itself; one whose key holds "paper" is
// drawn as published.
struct TablePlot {
  std::string x;
  std::vector<std::string> y;
  std::vector<std::string> series = {};
  std::vector<std::string> panels = {};
};

struct PaperResult {
  std::vector<std::pair<std::string, std::string>> setting;  // what, value
  Table table;
  std::vector<Finding> findings;
  std::vector<std::string> differences;  // between the paper's experiment and this one
  std::vector<TablePlot> plots = {};
};

struct PaperTable {
  std::string_view name;
  std::string_view source;  // paper and figure
  std::string_view shows;   // one line
  // Throws InvalidArgument on overrides the table cannot follow, CheckFailed when a plan does not
  // verify.
  PaperResult (*make)(const BenchOverrides& overrides);
};

// In the order lists show them.
[[nodiscard]] std::span<const PaperTable> paper_tables();
// Throws InvalidArgument with the names and a "did you mean".
[[nodiscard]] const PaperTable& find_paper_table(std::string_view name);

// A paper's experiment after the overrides.
struct BenchSetting {
  std::vector<std::string> datasets;
  BatchOptions batch;
  AttentionShape shape;
  std::string cluster_name;
  PlanInput input;  // cluster and options; batches are made for each dataset and mask

  // The batches of one dataset under one mask rule.
  [[nodiscard]] std::vector<Workload> batches(const std::string& dataset,
                                              const std::string& mask) const;
  // For PaperResult::setting.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> description() const;
};
// `setting` holds the paper's values; its cluster is loaded by name.
void apply_overrides(const BenchOverrides& overrides, BenchSetting& setting);

// What the plans of one strategy move in forward and backward of one layer: means over batches.
struct Movement {
  double inter_bytes = 0;       // between nodes
  double device_bytes = 0;      // all bytes over the number of devices
  double max_device_bytes = 0;  // busiest device of each direction
  double compute_overload = 0;  // max / mean - 1 of forward FLOPs
  double token_overload = 0;    // of owned tokens
  double arrange_s = 0;
  double build_s = 0;
  double tiles = 0;  // forward
};
[[nodiscard]] Movement movement_of(const StrategyChoice& choice, const PlanInput& input,
                                   std::span<const Workload> batches);

// DCP (SOSP 2025): redundant transfers of a ring; ablations; speed; where a step's time goes.
[[nodiscard]] std::span<const PaperTable> transfer_paper_tables();
[[nodiscard]] std::span<const PaperTable> dcp_paper_tables();
[[nodiscard]] std::span<const PaperTable> time_paper_tables();
[[nodiscard]] std::span<const PaperTable> step_part_paper_tables();
// Balance and speed of the FCP paper (MLSys 2026), simulated; and what its block size rests on.
[[nodiscard]] std::span<const PaperTable> fcp_paper_tables();
[[nodiscard]] std::span<const PaperTable> fcp_speed_tables();
[[nodiscard]] std::span<const PaperTable> fcp_block_tables();
// Whole training steps of the DCP and DistCA papers, modelled.
[[nodiscard]] std::span<const PaperTable> iteration_paper_tables();
// DistCA: what its baselines lose; ping-pong and tolerance.
[[nodiscard]] std::span<const PaperTable> distca_paper_tables();
[[nodiscard]] std::span<const PaperTable> distca_overlap_paper_tables();
// What papers work out without an experiment: DistCA's kernel and shards, Megatron-LM's rounds.
[[nodiscard]] std::span<const PaperTable> example_paper_tables();
// Not of a paper: every strategy over datasets, masks and sizes.
[[nodiscard]] std::span<const PaperTable> sweep_tables();

}  // namespace contextile

// The setup of a paper's experiment, and the parts that the command line may change.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/data.h"
#include "contextile/planner.h"
#include "contextile/workload.h"
#include "labs/papers/paper_table.h"

namespace contextile {

// A paper's experiment after the overrides.
struct PaperSetting {
  std::vector<std::string> datasets;
  BatchOptions batch;
  AttentionShape shape;
  std::string cluster_name;
  PlanInput input;  // cluster and options; batches are made for each dataset and mask

  // The batches of one dataset under one mask rule.
  [[nodiscard]] std::vector<Workload> batches(const std::string& dataset,
                                              const std::string& mask) const;
  // For PaperResult::setting: "lengths", "shape", "cluster", in this order.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> description() const;
};
// `setting` holds the paper's values; its cluster is loaded by name.
void apply_overrides(const TableOverrides& overrides, PaperSetting& setting);

// Runs a method on its own engine, one of engine_presets(), unless the command line chose one.
void use_engine_of_method(const std::string& engine, Cluster& cluster);

// Throws InvalidArgument if the command line changes anything except what `followed` names, as
// options ("--dataset").
void refuse_overrides(const TableOverrides& overrides, std::string_view table,
                      std::initializer_list<std::string_view> followed);
// For tables that vary the number of nodes: throws InvalidArgument if --cluster states one.
void refuse_nodes(const TableOverrides& overrides, std::string_view table);

// For PaperResult::differences.
extern const std::string kLengthsAreSampled;

}  // namespace contextile

// Plans to report on, and readers of the page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"

namespace contextile {

struct PlanChoice {
  std::vector<std::int64_t> lengths;
  std::vector<std::string> masks;  // as the CLI's --mask
  std::string strategy;
  std::int32_t nodes = 2;
  std::int32_t devices = 4;  // of a node
  bool forward_only = false;
  std::string name = "a.plan";
};

// A plan with everything that a report needs.
struct Reported {
  explicit Reported(const PlanChoice& choice);
  Reported(Plan made, const Cluster& on);
  Reported(const Reported&) = delete;
  Reported& operator=(const Reported&) = delete;

  [[nodiscard]] ReportedPlan reported() const {
    return {name, plan, cluster, simulation, verified};
  }

  std::string name = "a.plan";
  Cluster cluster;
  Plan plan;
  VerifyReport verified;
  Simulation simulation;

 private:
  void finish();
};

[[nodiscard]] std::string page_of(const std::vector<const Reported*>& reported,
                                  const ReportOptions& options = {});

// The first error in a page's tags, "" if every element that is opened is closed in order. Knows
// void elements and elements whose content is no markup.
[[nodiscard]] std::string unbalanced_tags(std::string_view page);

[[nodiscard]] std::size_t count_of(std::string_view text, std::string_view part);

// The data of the page's pictures.
[[nodiscard]] nlohmann::json data_of(std::string_view page);

// The exact values in the row of that name in a section's table.
[[nodiscard]] std::vector<double> row_values(const std::string& page, const std::string& section,
                                             const std::string& row);

// Numbers in base64, read independently of the code that wrote them.
class PackedReader {
 public:
  explicit PackedReader(const std::string& base64);
  [[nodiscard]] bool done() const { return at_ >= bytes_.size(); }
  std::int64_t next();
  std::int64_t next_signed();

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace contextile

#include "report/run_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "contextile/advanced/oracle.h"
#include "report/json.h"
namespace contextile {
namespace {

// Every rank of every repetition.
Json repeats_json(const MaskRun& run) {
  Json repeats = Json::array();
  for (const std::vector<RankRun>& by_rank : run.repeats) {
    Json ranks = Json::array();
    for (const RankRun& rank : by_rank) {
      Json directions;
      for (const auto& [name, stats] :
           {std::pair("forward", &rank.forward), std::pair("backward", &rank.backward)}) {
        directions[name] = {{"seconds", stats->total_s},
                            {"attention_s", stats->attention_s},
                            {"exposed_s", stats->exposed_s}};
      }
      ranks.push_back(std::move(directions));
    }
    repeats.push_back(std::move(ranks));
  }
  return repeats;
}

Json mask_run_json(const MaskRun& run) {
  Json errors = Json::array();
  for (const RunError& error : run.errors) {
    errors.push_back({{"array", error.array},
                      {"error", error.error},
                      {"single_device_error", error.single_device_error},
                      {"bound", error.bound}});
  }
  return {{"mask", run.mask},
          {"errors", std::move(errors)},
          {"forward_s", run.forward_s},
          {"backward_s", run.backward_s},
          {"exposed_s", run.exposed_s},
          {"repeats", repeats_json(run)},
          {"sent_bytes_forward", run.sent_bytes_forward},
          {"predicted_bytes_forward", run.predicted_bytes_forward},
          {"sent_bytes_backward", run.sent_bytes_backward},
          {"predicted_bytes_backward", run.predicted_bytes_backward},
          {"result_bits", fmt::format("{:016x}", run.result_bits)}};
}

// NaN counts as wrong.
bool within_bound(const RunError& error) { return error.error <= error.bound; }

double seconds_of_mask(const std::optional<SimulatedDirection>& simulated, std::int32_t mask) {
  double us = 0;
  if (!simulated) return us;
  for (const SimulatedProgram& program : simulated->programs) {
    if (program.mask == mask) us += program.time_us;
  }
  return us * 1e-6;
}

// The largest error of a direction's arrays, as a share of its bound. Gradients are called "d…".
double worst_error(const Json& errors, const std::string& direction) {
  double worst = 0;
  for (const Json& error : errors) {
    if (error["array"].get<std::string>().starts_with('d') != (direction == "backward")) continue;
    const double share = error["error"].get<double>() / error["bound"].get<double>();
    worst = share <= worst ? worst : share;  // NaN is the worst
  }
  return worst;
}

}  // namespace

std::string run_text(const RunReport& report, bool colour) {
  Table errors({{"mask", "mask"},
                {"array", "array"},
                {"error", "error", Format::kScientific},
                {"single_device_error", "one device", Format::kScientific},
                {"bound", "bound", Format::kScientific},
                {"ok", "ok", Format::kVerdict}});
  Table work({{"mask", "mask"},
              {"direction", "direction"},
              {"seconds", "ms", Format::kMilliseconds},
              {"sent_bytes", "moved\nMB", Format::kMegabytes},
              {"predicted_bytes", "predicted\nMB", Format::kMegabytes},
              {"ok", "ok", Format::kVerdict}});
  // An emulated GPU has no times.
  const auto time = [&](double seconds) {
    return report.is_emulated ? Cell{"emulated"} : Cell{seconds};
  };
  std::string exposed;
  for (const MaskRun& run : report.masks) {
    for (const RunError& error : run.errors) {
      errors.add_row({run.mask, error.array, error.error, error.single_device_error, error.bound,
                      within_bound(error)});
    }
    work.add_row({run.mask, "forward", time(run.forward_s), run.sent_bytes_forward,
                  run.predicted_bytes_forward,
                  run.sent_bytes_forward == run.predicted_bytes_forward});
    work.add_row({run.mask, "backward", time(run.backward_s), run.sent_bytes_backward,
                  run.predicted_bytes_backward,
                  run.sent_bytes_backward == run.predicted_bytes_backward});
    exposed += fmt::format("{}{} {}", exposed.empty() ? "" : ", ", printable(run.mask),
                           report.is_emulated ? "emulated" : milliseconds(run.exposed_s));
  }
  const bool compared = std::any_of(report.masks.begin(), report.masks.end(),
                                    [](const MaskRun& run) { return !run.errors.empty(); });
  const ExecutorMemory& memory = report.memory;
  return (compared ? "error against the fp64 oracle: max|x - ref| / max|ref|\n" +
                         errors.text(colour) + "\n"
                   : std::string("not compared with the oracle\n\n")) +
         work.text(colour) + fmt::format("waiting for transfers: {}\n", exposed) +
         fmt::format(
             "memory of the largest rank: {} staging, {} accumulators,\n"
             "  {} conversion (predicted {} in all), {} workspace in addition\n",
             megabytes(memory.staging_bytes), megabytes(memory.accumulator_bytes),
             megabytes(memory.conversion_bytes), megabytes(report.predicted_memory_bytes),
             megabytes(memory.workspace_bytes));
}

std::vector<std::string> run_failures(const RunReport& report) {
  std::vector<std::string> lines;
  const auto check_bytes = [&](const MaskRun& run, Direction direction, std::int64_t sent,
                               std::int64_t predicted) {
    if (sent == predicted) return;
    lines.push_back(fmt::format("mask {}, {}: expected {} bytes sent as planned, found {}",
                                printable(run.mask), to_string(direction), predicted, sent));
  };
  for (const MaskRun& run : report.masks) {
    for (const RunError& error : run.errors) {
      if (within_bound(error)) continue;
      lines.push_back(fmt::format(
          "mask {}, {}: expected an error of at most {:.2e}, found {:.2e} ({:.2e} on one device)",
          printable(run.mask), error.array, error.bound, error.error, error.single_device_error));
    }
    check_bytes(run, Direction::kForward, run.sent_bytes_forward, run.predicted_bytes_forward);
    check_bytes(run, Direction::kBackward, run.sent_bytes_backward, run.predicted_bytes_backward);
  }
  if (lines.empty() && !report.ok()) lines.emplace_back("expected a run within its promises");
  return lines;
}

Json run_json(const RunReport& report) {
  Json masks = Json::array();
  for (const MaskRun& run : report.masks) masks.push_back(mask_run_json(run));
  return {{"ok", report.ok()},
          {"times", report.is_emulated ? "emulated" : "measured"},
          {"masks", std::move(masks)},
          {"memory",
           {{"staging_bytes", report.memory.staging_bytes},
            {"accumulator_bytes", report.memory.accumulator_bytes},
            {"conversion_bytes", report.memory.conversion_bytes},
            {"workspace_bytes", report.memory.workspace_bytes},
            {"predicted_bytes", report.predicted_memory_bytes}}}};
}

MaskPrediction predicted_of_mask(const Simulation& simulation, std::int32_t mask) {
  return {seconds_of_mask(simulation.forward, mask), seconds_of_mask(simulation.backward, mask)};
}

Table run_prediction_table(const RunReport& report, const Simulation& simulation) {
  Table table({{"mask", "mask"},
               {"direction", "direction"},
               {"predicted_s", "predicted\nms", Format::kMilliseconds},
               {"measured_s", "measured\nms", Format::kMilliseconds},
               {"ratio", "predicted /\nmeasured"}});
  for (std::size_t m = 0; m < report.masks.size(); ++m) {
    const MaskRun& run = report.masks[m];
    const MaskPrediction predicted = predicted_of_mask(simulation, static_cast<std::int32_t>(m));
    const auto add = [&](Direction direction, double predicted_s, double measured_s) {
      table.add_row({run.mask, std::string(to_string(direction)), predicted_s, measured_s,
                     measured_s > 0 ? Cell{predicted_s / measured_s} : Cell{}});
    };
    if (simulation.forward) add(Direction::kForward, predicted.forward_s, run.forward_s);
    if (simulation.backward) add(Direction::kBackward, predicted.backward_s, run.backward_s);
  }
  return table;
}

void add_prediction(const Simulation& simulation, Json& masks) {
  for (std::size_t m = 0; m < masks.size(); ++m) {
    const MaskPrediction predicted = predicted_of_mask(simulation, static_cast<std::int32_t>(m));
    masks[m]["predicted_forward_s"] = predicted.forward_s;
    masks[m]["predicted_backward_s"] = predicted.backward_s;
  }
}

Json run_rows_json(const Json& masks) {
  Json rows = Json::array();
  for (const Json& mask : masks) {
    for (const std::string direction : {"forward", "backward"}) {
      Json row = {{"mask", mask["mask"]}, {"direction", direction}};
      const Json& seconds = mask[direction + "_s"];
      row["seconds"] = std::isfinite(seconds.get<double>()) ? seconds : Json("emulated");
      row["sent_bytes"] = mask["sent_bytes_" + direction];
      row["predicted_bytes"] = mask["predicted_bytes_" + direction];
      const std::string predicted = "predicted_" + direction + "_s";
      if (mask.contains(predicted)) row["predicted_s"] = mask[predicted];
      if (!mask["errors"].empty()) {
        row["error_of_bound"] = worst_error(mask["errors"], direction);
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace contextile

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "base/check.h"
#include "contextile/bounds.h"
#include "contextile/plan.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "report/html/headline.h"
#include "report/html/page.h"
#include "report/html/page_tables.h"
#include "report/html/palette.h"
#include "report/html/plan_workload.h"
#include "report/html/text.h"
#include "report/html/tile_view.h"
#include "report/html/timeline_view.h"
#include "report/html/traffic_view.h"
#include "report/html/varint_text.h"

namespace contextile {
namespace {

// -------------------------------------------------------------------------------- checks

void check_reported(const ReportedPlan& reported) {
  CONTEXTILE_CHECK(reported.verified.ok(), "report: {}: expected a valid plan, found {} violations",
                   reported.name, reported.verified.num_violations);
  CONTEXTILE_CHECK(!reported.plan.rounds.empty() && reported.plan.num_tokens() > 0,
                   "report: {}: expected a plan with tokens, found none", reported.name);
  for (const auto& [direction, simulated] : reported.simulation.directions()) {
    const auto devices = static_cast<std::size_t>(reported.plan.num_devices());
    CONTEXTILE_CHECK(simulated->devices.size() == devices,
                     "report: {}: expected a simulation of {} devices, as the plan's, found one of "
                     "{}",
                     reported.name, devices, simulated->devices.size());
    for (const SimulatedProgram& program : simulated->programs) {
      CONTEXTILE_CHECK(program.time_us == 0 || !program.activities.empty(),
                       "report: {}: expected a simulation with a timeline "
                       "(SimulateOptions::timeline), found none",
                       reported.name);
    }
  }
}

ReportSubject subject_of(const ReportedPlan& reported) {
  ReportSubject subject{reported, statistics(reported.plan), {}, {}, {}};
  const Workload workload = workload_of(reported.plan);
  const BoundOptions options = bound_options_beside(reported.plan, workload, reported.cluster);
  for (const Direction direction : kDirections) {
    if (!subject.simulated(direction)) continue;
    subject.path_us[static_cast<std::size_t>(direction)] =
        path_times_us(critical_path(*subject.simulated(direction)));
  }
  if (reported.simulation.forward) {
    subject.forward_bound = lower_bound(workload, reported.cluster, Direction::kForward, options);
  }
  if (reported.simulation.backward) {
    subject.backward_bound = lower_bound(workload, reported.cluster, Direction::kBackward, options);
  }
  return subject;
}

// ---------------------------------------------------------------------------------- data

ReportJson device_data(const ReportSubject& subject) {
  const Plan& plan = subject.reported.plan;
  ReportJson data = ReportJson::object();
  ReportJson owned = ReportJson::array();
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    std::int64_t tokens = 0;
    for (const PlanRound& round : plan.rounds) tokens += round.owned_tokens(Rank{r});
    owned.push_back(tokens);
  }
  data["owned_tokens"] = std::move(owned);
  for (const Direction direction : kDirections) {
    if (!subject.stats_of(direction) || !subject.simulated(direction)) continue;
    ReportJson of_direction = ReportJson::object();
    const auto add = [&](const char* name, const auto& value_of) {
      ReportJson values = ReportJson::array();
      for (std::size_t r = 0; r < static_cast<std::size_t>(plan.num_devices()); ++r) {
        values.push_back(value_of(subject.stats_of(direction)->devices[r],
                                  subject.simulated(direction)->devices[r]));
      }
      of_direction[name] = std::move(values);
    };
    using Stats = DeviceStats;
    using Times = DeviceTimes;
    add("flops", [](const Stats& s, const Times&) { return six_digits(s.flops); });
    add("sent_bytes", [](const Stats& s, const Times&) { return s.sent_bytes; });
    add("received_bytes", [](const Stats& s, const Times&) { return s.received_bytes; });
    add("inter_sent_bytes", [](const Stats& s, const Times&) { return s.inter_sent_bytes; });
    add("inter_received_bytes",
        [](const Stats& s, const Times&) { return s.inter_received_bytes; });
    add("memory_bytes", [](const Stats& s, const Times&) { return s.memory_bytes; });
    for (const Activity activity :
         {Activity::kAttention, Activity::kMerge, Activity::kLaunch, Activity::kExposed}) {
      const std::string name = std::string(to_string(activity)) + "_us";
      add(name.c_str(), [&](const Stats&, const Times& t) { return six_digits(t.of(activity)); });
    }
    add("idle_us", [](const Stats&, const Times& t) { return six_digits(t.idle_us); });
    data[std::string(to_string(direction))] = std::move(of_direction);
  }
  return data;
}

std::string packed_sequences(const Plan& plan) {
  VarintText packed;
  for (const Range& sequence : plan.sequences) packed.add(sequence.size());
  return packed.base64();
}

std::string palette_text(const Plan& plan) {
  std::string text;
  for (const Colour colour : device_colours(plan.nodes, plan.devices_per_node)) {
    text += hex_text(colour);
  }
  return text;
}

ReportJson mask_names(const Plan& plan) {
  ReportJson names = ReportJson::array();
  for (const NamedMask& mask : plan.rounds.front().masks) names.push_back(mask.name);
  return names;
}

// --------------------------------------------------------------------------------- page

// Pictures of one plan: their data and what they leave out.
struct Pictures {
  ReportJson data;
  std::vector<std::string> tile_notes;
  std::vector<std::string> timeline_notes;
  std::vector<std::string> traffic_notes;
};

// Tiles get the bytes that the others leave. Base64 makes four bytes of three.
Pictures pictures_of(const ReportSubject& subject, std::size_t budget_bytes) {
  const Plan& plan = subject.reported.plan;
  TimelinePicture timeline = timeline_picture(plan, subject.reported.cluster,
                                              subject.reported.simulation, budget_bytes / 6);
  TrafficPicture traffic = traffic_picture(plan, budget_bytes / 5);
  const std::size_t used = script_json(timeline.json).size() + script_json(traffic.json).size();
  const std::size_t left = budget_bytes - std::min(used, budget_bytes);
  TilePicture tiles = tile_picture(plan, std::max(left * 3 / 4, budget_bytes / 5));
  return {{{"name", subject.reported.name},
           {"strategy", plan.strategy},
           {"tokens", plan.num_tokens()},
           {"devices", plan.num_devices()},
           {"devices_per_node", plan.devices_per_node},
           {"nics_per_node", subject.reported.cluster.nics_per_node},
           {"palette", palette_text(plan)},
           {"masks", mask_names(plan)},
           {"rounds", plan.rounds.size()},
           {"sequences", packed_sequences(plan)},
           {"tiles", std::move(tiles.json)},
           {"timeline", std::move(timeline.json)},
           {"traffic", std::move(traffic.json)},
           {"device_data", device_data(subject)}},
          std::move(tiles.notes),
          std::move(timeline.notes),
          std::move(traffic.notes)};
}

std::string notes_html(const std::vector<std::string>& notes) {
  std::string html;
  for (const std::string& note : notes) {
    html += fmt::format("<p class=\"note\">{}</p>", html_text(note));
  }
  return html;
}

class PageWriter {
 public:
  PageWriter(ReportSubjects subjects, const std::vector<Pictures>& pictures, std::ostream& out)
      : subjects_(subjects), pictures_(pictures), out_(out) {}

  void write() {
    write_head();
    section("facts", "Plan", "");
    out_ << headline_html(subjects_) << facts_html(subjects_) << "</section>\n";
    write_pictures("tiles", "Batch and mask",
                   "Queries go down, keys go right. A cell has the colour of the device that "
                   "computes it; the strips at the edges show who owns the tokens.",
                   &Pictures::tile_notes);
    write_pictures("timeline", "Timeline",
                   "What every device does, as simulated: forward, then backward, one layer of "
                   "every mask. The critical path is what the time is made of: each step "
                   "could begin only when the one before had ended.",
                   &Pictures::timeline_notes);
    write_pictures("traffic", "Traffic", "Bytes from each device (row) to each device (column).",
                   &Pictures::traffic_notes);
    write_pictures("devices", "Devices", "Every device's share of work, bytes, memory and time.",
                   nullptr);
    section("statistics", "Statistics", "");
    out_ << statistics_html(subjects_) << "</section>\n";
    section("bounds", "Lower bound", "");
    out_ << bounds_html(subjects_) << "</section>\n";
    write_scripts();
  }

 private:
  [[nodiscard]] std::string title() const {
    std::string text = short_name(subjects_, 0);
    if (subjects_.size() == 2) text += " and " + short_name(subjects_, 1);
    return html_text(text);
  }

  void write_head() {
    out_ << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta name=\"color-scheme\" content=\"light dark\">\n"
            "<link rel=\"icon\" href=\"data:,\">\n<title>"
         << title() << " – Contextile report</title>\n<style>\n"
         << kPageStyle << "</style>\n</head>\n<body>\n<header><h1>" << title()
         << "</h1><p class=\"headline\">" << html_text(headline_text(subjects_))
         << "</p><nav aria-label=\"Sections\">";
    for (const auto& [id, name] : kSections) {
      out_ << "<a href=\"#" << id << "\">" << name << "</a>";
    }
    out_ << "</nav></header>\n<main>\n"
            "<noscript><p class=\"note\">Pictures are drawn by this page's own script, which is "
            "switched off here. All tables are complete without it.</p></noscript>\n";
  }

  void section(std::string_view id, std::string_view name, std::string_view text) {
    out_ << "<section id=\"" << id << "\"><h2>" << name << "</h2>\n";
    if (!text.empty()) out_ << "<p class=\"lead\">" << text << "</p>\n";
  }

  // The script fills <div class="picture">.
  void write_pictures(std::string_view id, std::string_view name, std::string_view text,
                      std::vector<std::string> Pictures::*notes) {
    section(id, name, text);
    out_ << "<div class=\"controls\" data-controls=\"" << id << "\"></div>\n<div class=\"plans "
         << id << "\">\n";
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      out_ << "<article>";
      if (subjects_.size() > 1) {
        out_ << "<h3>" << html_text(short_name(subjects_, i)) << "</h3>";
      }
      out_ << "<div class=\"picture\" data-picture=\"" << id << "\" data-plan=\"" << i
           << "\"></div>\n";
      if (notes != nullptr) out_ << notes_html(pictures_[i].*notes);
      if (id == "devices") write_details("Table of devices", devices_html(subjects_[i]));
      if (id == "traffic") {
        write_details("Table of nodes", node_traffic_html(subjects_[i].reported.plan));
      }
      out_ << "</article>\n";
    }
    out_ << "</div></section>\n";
  }

  void write_details(std::string_view name, const std::string& html) {
    if (html.empty()) return;
    out_ << "<details><summary>" << name << "</summary>\n" << html << "</details>\n";
  }

  void write_scripts() {
    ReportJson data = {{"plans", ReportJson::array()}};
    for (const Pictures& pictures : pictures_) data["plans"].push_back(pictures.data);
    out_ << "</main>\n<div id=\"readout\" role=\"status\" aria-live=\"polite\" hidden></div>\n"
            "<script type=\"application/json\" id=\"report-data\">"
         << script_json(data) << "</script>\n<script>\n(() => {\n'use strict';\n"
         << kPageScript << "})();\n</script>\n</body>\n</html>\n";
  }

  static constexpr std::array<std::pair<const char*, const char*>, 7> kSections = {{
      {"facts", "Plan"},
      {"tiles", "Batch and mask"},
      {"timeline", "Timeline"},
      {"traffic", "Traffic"},
      {"devices", "Devices"},
      {"statistics", "Statistics"},
      {"bounds", "Lower bound"},
  }};

  ReportSubjects subjects_;
  const std::vector<Pictures>& pictures_;
  std::ostream& out_;
};

}  // namespace

void write_report(std::span<const ReportedPlan> plans, std::ostream& out,
                  const ReportOptions& options) {
  CONTEXTILE_CHECK(!plans.empty() && plans.size() <= 2,
                   "report: expected one plan or two, found {}", plans.size());
  CONTEXTILE_CHECK(options.max_bytes > 0, "report: max_bytes: expected more than 0, found {}",
                   options.max_bytes);
  for (const ReportedPlan& reported : plans) check_reported(reported);
  std::vector<ReportSubject> subjects;
  std::vector<Pictures> pictures;
  subjects.reserve(plans.size());
  pictures.reserve(plans.size());
  for (const ReportedPlan& reported : plans) subjects.push_back(subject_of(reported));
  for (const ReportSubject& subject : subjects) {
    pictures.push_back(
        pictures_of(subject, static_cast<std::size_t>(options.max_bytes) / plans.size()));
  }
  PageWriter(subjects, pictures, out).write();
  if (!out) fail_io("report: expected to write the page, found a stream that fails");
}

}  // namespace contextile

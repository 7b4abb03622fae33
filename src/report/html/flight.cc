// The page about a failed group: a picture drawn as it is written, no script.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "contextile/advanced/flight_report.h"
#include "contextile/report.h"
#include "report/flight_tables.h"
#include "report/html/page.h"
#include "report/html/text.h"

namespace contextile {
namespace {

using Records = std::span<const FlightRecord>;

// Widths in CSS pixels.
constexpr double kLabelWidth = 150;
constexpr double kBarsWidth = 900;
constexpr double kArrowsWidth = 150;
constexpr double kRowHeight = 26;
constexpr double kTop = 8;
constexpr double kThinnest = 0.4;  // bars below are left out
constexpr std::size_t kMostArrows = 400;

// The part of a large group that is drawn.
struct Detail {
  std::size_t rows = 256;        // ranks from 0 on, and culprits among the others
  std::size_t steps = SIZE_MAX;  // the last ones of each
};

struct Window {
  std::int64_t begin_us = 0;
  std::int64_t end_us = 0;

  [[nodiscard]] double x(std::int64_t time_us) const {
    const double share = static_cast<double>(time_us - begin_us) /
                         static_cast<double>(std::max<std::int64_t>(end_us - begin_us, 1));
    return kLabelWidth + kBarsWidth * std::clamp(share, 0.0, 1.0);
  }
};

// The time from which on ranks hung takes the larger part of the picture, the steps before it the
// rest.
Window window_of(Records records) {
  Window window{INT64_MAX, 0};
  std::int64_t hung_us = INT64_MAX;
  for (const FlightRecord& record : records) {
    window.end_us = std::max(window.end_us, record.failed_us);
    if (!record.steps.empty()) {
      window.begin_us = std::min(window.begin_us, record.steps.front().began_us);
    }
    if (const FlightStep* step = last_step(record)) hung_us = std::min(hung_us, step->began_us);
  }
  if (hung_us != INT64_MAX) {
    window.begin_us = std::max(window.begin_us, hung_us - (window.end_us - hung_us) / 2);
  }
  window.begin_us = std::min(window.begin_us, window.end_us);
  return window;
}

std::string_view colour_of(const FlightStep& step) {
  if (step.is_wait()) return "exposed";
  if (step.op == "attention") return "attention";
  if (step.op == "launch") return "launch";
  return "merge";
}

// Rows of ranks from above; the others have none.
std::map<Rank, std::size_t> rows_of(Records records, const FlightVerdict& verdict,
                                    const Detail& detail) {
  const std::int32_t size = records.front().num_ranks;
  std::vector<Rank> shown;
  for (std::int32_t r = 0; r < size && std::cmp_less(r, detail.rows); ++r) shown.emplace_back(r);
  for (std::size_t i = 0; i < verdict.culprits.size() && i < detail.rows / 4; ++i) {
    if (verdict.culprits[i].rank.index() >= detail.rows) shown.push_back(verdict.culprits[i].rank);
  }
  std::map<Rank, std::size_t> rows;
  for (std::size_t i = 0; i < shown.size(); ++i) rows[shown[i]] = i;
  return rows;
}

bool is_culprit(const FlightVerdict& verdict, Rank rank) {
  return std::ranges::find(verdict.culprits, rank, &FlightVerdict::Culprit::rank) !=
         verdict.culprits.end();
}

std::string bars_svg(const FlightRecord& record, const Window& window, double top,
                     const Detail& detail) {
  std::string svg;
  const std::size_t shown = std::min(record.steps.size(), detail.steps);
  for (const FlightStep& step : std::span(record.steps).last(shown)) {
    const bool is_open = step.ended_us == -1;
    const double begin = window.x(step.began_us);
    const double end = window.x(is_open ? record.failed_us : step.ended_us);
    if (end - begin < kThinnest) continue;
    const double seconds =
        1e-6 * static_cast<double>((is_open ? record.failed_us : step.ended_us) - step.began_us);
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"var(--{})\"{}><title>{}, {:.4g} s{}</title></rect>",
        begin, top + 4, end - begin, kRowHeight - 8, colour_of(step),
        is_open ? " stroke=\"var(--critical)\" stroke-width=\"2\"" : "", html_text(step_text(step)),
        seconds, is_open ? ", never ended" : "");
  }
  return svg;
}

std::string row_svg(Rank rank, const FlightRecord* record, bool culprit, const Window& window,
                    double top, const Detail& detail) {
  std::string svg;
  if (culprit) {
    svg += fmt::format(
        "<rect x=\"0\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"var(--exposed)\" "
        "fill-opacity=\"0.25\"/>",
        top, kLabelWidth + kBarsWidth + kArrowsWidth, kRowHeight);
  }
  svg += fmt::format("<text x=\"4\" y=\"{:.1f}\"{}>rank {}</text>", top + 18,
                     culprit ? " font-weight=\"700\"" : "", rank.value);
  if (record == nullptr) {
    return svg + fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">no record</text>", kLabelWidth + 4,
                             top + 18);
  }
  return svg + bars_svg(*record, window, top, detail);
}

// Arrows from a rank that waits to the rank that it waits for.
std::string arrows_svg(Records records, const std::map<Rank, std::size_t>& rows,
                       const FlightVerdict& verdict) {
  std::string svg;
  std::size_t drawn = 0;
  const double x = kLabelWidth + kBarsWidth + 6;
  for (const FlightRecord& record : records) {
    for (const FlightTransfer& transfer : record.transfers) {
      const auto from = rows.find(record.rank);
      const auto to = rows.find(transfer.peer);
      if (transfer.is_send || from == rows.end() || to == rows.end() || drawn == kMostArrows) {
        continue;
      }
      ++drawn;
      const double begin = kTop + kRowHeight * (static_cast<double>(from->second) + 0.5);
      const double end = kTop + kRowHeight * (static_cast<double>(to->second) + 0.5);
      const double bend = x + std::min(30 + std::abs(end - begin) / 3, kArrowsWidth - 20);
      svg += fmt::format(
          "<path d=\"M{0:.1f} {1:.1f} C{2:.1f} {1:.1f} {2:.1f} {3:.1f} {0:.1f} {3:.1f}\" "
          "fill=\"none\" stroke=\"var(--{4})\" stroke-width=\"1.5\" marker-end=\"url(#head)\">"
          "<title>rank {5} waits for {6} bytes from rank {7}</title></path>",
          x, begin, bend, end, is_culprit(verdict, transfer.peer) ? "exposed" : "strong-line",
          record.rank.value, transfer.size_bytes, transfer.peer.value);
    }
  }
  return svg;
}

std::string picture_html(Records records, const FlightVerdict& verdict, const Detail& detail) {
  const Window window = window_of(records);
  const std::map<Rank, std::size_t> rows = rows_of(records, verdict, detail);
  const double height = kTop + kRowHeight * static_cast<double>(rows.size()) + 34;
  std::string svg = fmt::format(
      "<div class=\"scroll\"><svg viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"What every rank did last\" "
      "font-size=\"14\" fill=\"currentColor\"><defs><marker id=\"head\" viewBox=\"0 0 8 8\" "
      "refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path "
      "d=\"M0 0L8 4L0 8z\" fill=\"context-stroke\"/></marker></defs>",
      kLabelWidth + kBarsWidth + kArrowsWidth, height);
  for (const auto& [rank, row] : rows) {
    const auto record = std::ranges::find(records, rank, &FlightRecord::rank);
    svg += row_svg(rank, record == records.end() ? nullptr : &*record, is_culprit(verdict, rank),
                   window, kTop + kRowHeight * static_cast<double>(row), detail);
  }
  svg += arrows_svg(records, rows, verdict);
  const double seconds = 1e-6 * static_cast<double>(window.end_us - window.begin_us);
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" "
      "stroke=\"var(--strong-line)\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\">{4:.3g} s before the last "
      "error</text><text x=\"{1:.1f}\" y=\"{3:.1f}\" text-anchor=\"end\">the last error</text>"
      "</svg></div>",
      kLabelWidth, kLabelWidth + kBarsWidth, height - 26, height - 8, seconds);
  return svg;
}

std::string legend_html() {
  std::string html = "<div class=\"legend\">";
  for (const auto& [colour, name] : std::to_array<std::pair<const char*, const char*>>(
           {{"attention", "attention"},
            {"launch", "launch"},
            {"merge", "reduce, copy, rows, prepare"},
            {"exposed", "wait, barrier, exchange, rendezvous"}})) {
    html += fmt::format("<span><i style=\"background:var(--{})\"></i>{}</span>", colour, name);
  }
  return html + "<span><i class=\"outlined\"></i>never ended</span></div>";
}

// The picture in at most `most_bytes`, or with the least detail there is.
std::string bounded_picture_html(Records records, const FlightVerdict& verdict,
                                 std::size_t most_bytes) {
  constexpr std::size_t kFewestSteps = 4;
  constexpr std::size_t kFewestRows = 4;
  Detail detail;
  std::string html = picture_html(records, verdict, detail);
  if (html.size() <= most_bytes) return html;
  detail.steps = 256;
  for (; html.size() > most_bytes && detail.steps > kFewestSteps; detail.steps /= 2) {
    html = picture_html(records, verdict, detail);
  }
  for (; html.size() > most_bytes && detail.rows > kFewestRows; detail.rows /= 2) {
    html = picture_html(records, verdict, detail);
  }
  return html +
         "<p class=\"note\">To keep the page small, earlier steps, or ranks, are left out of "
         "the picture (--max-size).</p>";
}

// One row for each record, as far as they fit into `most_bytes`.
std::string ranks_html(Records records, const FlightVerdict& verdict, std::size_t most_bytes) {
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>rank</th><th>host, process</th><th>was in</th>"
      "<th>open transfers</th><th>error</th></tr></thead><tbody>";
  std::size_t shown = 0;
  for (; shown < records.size() && html.size() < most_bytes; ++shown) {
    const FlightRecord& record = records[shown];
    const FlightStep* step = last_step(record);
    html += fmt::format("<tr><td>{}{}</td><td>{}, {}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                        record.rank.value, is_culprit(verdict, record.rank) ? " *" : "",
                        html_text(record.host), record.process,
                        step == nullptr ? "no call" : html_text(step_text(*step)),
                        html_text(waits_for_text(record)), html_text(record.error));
  }
  html += "</tbody></table></div>";
  if (shown == records.size()) return html;
  return html + fmt::format(
                    "<p class=\"note\">To keep the page small, {} more ranks are left out "
                    "(--max-size).</p>",
                    records.size() - shown);
}

}  // namespace

void write_flight_report(std::span<const FlightRecord> records, const FlightVerdict& verdict,
                         std::ostream& out, const ReportOptions& options) {
  const FlightRecord& first = records.front();
  const auto most_bytes = static_cast<std::size_t>(options.max_bytes);
  const std::string picture = bounded_picture_html(records, verdict, most_bytes / 2);
  const std::string ranks =
      ranks_html(records, verdict, most_bytes - std::min(most_bytes, picture.size()));
  out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'; img-src data:\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" "
         "href=\"data:,\">\n"
         "<title>Flight record – Contextile report</title>\n<style>\n"
      << kPageStyle
      << "</style>\n</head>\n<body>\n<header><h1>Who stopped the group</h1></header>\n"
      << "<main>\n<p class=\"note\">" << html_text(verdict.summary)
      << "</p>\n<section><h2>What every "
         "rank did last</h2>\n<p class=\"lead\">"
      << fmt::format(
             "{} ranks over {}, contextile {}; plan {}, strategy {}. Arrows go from who waits "
             "to whom it waits for.",
             first.num_ranks, html_text(first.transport), html_text(first.version),
             first.plan.empty() ? "none yet" : html_text(first.plan),
             first.strategy.empty() ? "none yet" : html_text(first.strategy))
      << "</p>\n"
      << legend_html() << picture << "</section>\n<section><h2>Ranks</h2>\n"
      << ranks << "</section>\n</main>\n</body>\n</html>\n";
  if (!out) fail_io("report: expected to write the page, found a stream that fails");
}

}  // namespace contextile

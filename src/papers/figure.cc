#include "papers/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <ostream>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "papers/axis.h"
#include "report/html/text.h"
#include "report/html/palette.h"

namespace contextile {
namespace {

// Pixels.
constexpr double kPlotWidth = 360;
constexpr double kPlotHeight = 220;
constexpr double kLeft = 64;  // of the plot area: ticks and the axis's name
constexpr double kRight = 20;
constexpr double kTop = 34;     // the panel's title
constexpr double kBottom = 50;  // ticks and the axis's name
constexpr double kMargin = 12;
constexpr double kLine = 18;
constexpr double kCharacter = 6.4;       // of text of 11 px, about
constexpr double kTitleCharacter = 7.6;  // of bold text of 14 px
constexpr double kLongestName = 150;     // of slanted names of bars
constexpr double kMark = 3.5;
constexpr double kLegendKey = 26;

constexpr double kXLogFactor = 8;
constexpr double kYLogFactor = 30;
constexpr std::size_t kNamedTicks = 8;  // most x that all get a tick of their own

constexpr std::string_view kStyle =
    "svg{color-scheme:light dark;--back:#fff;--text:#16191d;--muted:#5c6570;--line:#d5dae0}"
    "@media(prefers-color-scheme:dark){svg{--back:#14171b;--text:#e8eaed;--muted:#9aa4b0;"
    "--line:#343b43}}"
    "text{font:11px system-ui,sans-serif;fill:var(--muted)}"
    ".title{font:bold 14px system-ui,sans-serif;fill:var(--text)}"
    ".panel{font:bold 12px system-ui,sans-serif;fill:var(--text)}"
    ".name{fill:var(--text)}.grid{stroke:var(--line);fill:none}.back{fill:var(--back)}";

struct Look {
  std::string colour;
  bool bars = false;
  std::size_t mark = 0;
  SeriesStyle style = SeriesStyle::kOurs;
};
using Looks = std::map<std::string, Look>;

void check(const Figure& figure) {
  CONTEXTILE_CHECK(!figure.panels.empty(), "figure: expected a panel, found none");
  for (const FigurePanel& panel : figure.panels) {
    CONTEXTILE_CHECK(panel.names.empty() != panel.x.empty(),
                     "figure: panel '{}': expected names or numbers on the x axis, found "
                     "{} and {}",
                     panel.title, panel.names.size(), panel.x.size());
    CONTEXTILE_CHECK(!panel.series.empty(), "figure: panel '{}': expected a series, found none",
                     panel.title);
    const std::size_t points = std::max(panel.names.size(), panel.x.size());
    for (const double x : panel.x) {
      CONTEXTILE_CHECK(std::isfinite(x), "figure: panel '{}': expected finite x, found {}",
                       panel.title, x);
    }
    for (std::size_t i = 1; i < panel.x.size(); ++i) {
      CONTEXTILE_CHECK(panel.x[i - 1] < panel.x[i],
                       "figure: panel '{}': expected x that ascends, found {} after {}",
                       panel.title, panel.x[i], panel.x[i - 1]);
    }
    for (const FigureSeries& series : panel.series) {
      CONTEXTILE_CHECK(series.y.size() == points,
                       "figure: panel '{}', series '{}': expected {} values, found {}", panel.title,
                       series.name, points, series.y.size());
    }
  }
}

// Names in the order in which they first occur, and how each looks.
std::pair<std::vector<std::string>, Looks> looks_of(const Figure& figure) {
  std::vector<std::string> names;
  Looks looks;
  for (const FigurePanel& panel : figure.panels) {
    for (const FigureSeries& series : panel.series) {
      const Look look{"", !panel.names.empty(), names.size(), series.style};
      if (!looks.try_emplace(series.name, look).second) continue;
      names.push_back(series.name);
    }
  }
  const auto colours = device_colours(static_cast<std::int32_t>(names.size()), 1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    looks[names[i]].colour = '#' + hex_text(colours[i]);
  }
  return {std::move(names), std::move(looks)};
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text,
                    std::string_view more = "") {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>)", x, y, anchor,
                     more, html_text(text));
}

// The sign of a point of a line.
std::string mark_at(double x, double y, const Look& look, std::string_view tooltip) {
  const double r = kMark;
  const bool hollow = look.style == SeriesStyle::kPublished;
  const std::string paint =
      fmt::format(R"(fill="{}" stroke="{}")", hollow ? "var(--back)" : look.colour, look.colour);
  const std::string inside = fmt::format("><title>{}</title></", html_text(tooltip));
  switch (look.mark % 4) {
    case 0:
      return fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" {}{}circle>)", x, y, r, paint,
                         inside);
    case 1:
      return fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{}" height="{}" {}{}rect>)", x - r,
                         y - r, 2 * r, 2 * r, paint, inside);
    case 2:
      return fmt::format(R"(<path d="M{:.1f} {:.1f}l{} {}h{}z" {}{}path>)", x, y - 1.2 * r, 1.2 * r,
                         2.2 * r, -2.4 * r, paint, inside);
    default:
      return fmt::format(R"(<path d="M{:.1f} {:.1f}l{} {}l{} {}l{} {}z" {}{}path>)", x, y - 1.3 * r,
                         1.3 * r, 1.3 * r, -1.3 * r, 1.3 * r, -1.3 * r, -1.3 * r, paint, inside);
  }
}

std::string_view dashes(const Look& look) {
  return look.style == SeriesStyle::kPublished ? R"( stroke-dasharray="5 3")" : "";
}

std::string bar_fill(const Look& look) {
  return look.style == SeriesStyle::kPublished ? "var(--back)" : look.colour;
}

// One panel, its upper left corner at the origin.
class PanelDrawing {
 public:
  PanelDrawing(const FigurePanel& panel, const Looks& looks)
      : panel_(panel),
        looks_(looks),
        x_(panel.x, log_factor(panel, kXLogFactor), Axis::Begin::kData),
        y_(all_y(panel), log_factor(panel, kYLogFactor), Axis::Begin::kZero) {}

  // Of slanted names below the bars: what they take beyond kBottom.
  static double extra_height(const FigurePanel& panel) {
    double longest = 0;
    for (const std::string& name : panel.names) {
      longest = std::max(longest, kCharacter * static_cast<double>(name.size()));
    }
    return slanted(panel) ? 0.55 * std::min(longest, kLongestName) : 0;
  }

  [[nodiscard]] std::string svg() {
    out_ = text_at(kLeft, kTop - 14, "start", panel_.title, R"( class="panel")");
    draw_y_axis();
    if (panel_.names.empty()) {
      draw_x_ticks();
      for (const FigureSeries& series : panel_.series) draw_line(series);
    } else {
      draw_names();
      draw_bars();
    }
    out_ +=
        text_at(kLeft + kPlotWidth / 2, kTop + kPlotHeight + kBottom - 12 + extra_height(panel_),
                "middle", panel_.x_label);
    return std::move(out_);
  }

 private:
  static double log_factor(const FigurePanel& panel, double factor) {
    const bool linear = !panel.names.empty() || panel.scale == FigureScale::kLinear;
    return linear ? std::numeric_limits<double>::infinity() : factor;
  }

  static std::vector<double> all_y(const FigurePanel& panel) {
    std::vector<double> all;
    for (const FigureSeries& series : panel.series) {
      all.insert(all.end(), series.y.begin(), series.y.end());
    }
    return all;
  }
  // Names that would touch each other side by side.
  static bool slanted(const FigurePanel& panel) {
    const double room = kPlotWidth / std::max<double>(1, static_cast<double>(panel.names.size()));
    return std::ranges::any_of(panel.names, [&](const std::string& name) {
      return kCharacter * static_cast<double>(name.size()) > room - 4;
    });
  }

  [[nodiscard]] double x_at(double value) const { return kLeft + kPlotWidth * x_.at(value); }
  [[nodiscard]] double y_at(double value) const { return kTop + kPlotHeight * (1 - y_.at(value)); }

  void draw_y_axis() {
    for (const AxisTick& tick : y_.ticks()) {
      const double y = y_at(tick.value);
      out_ += fmt::format(R"(<path class="grid" d="M{} {:.1f}h{}"/>)", kLeft, y, kPlotWidth);
      out_ += text_at(kLeft - 6, y + 4, "end", tick.text);
    }
    out_ += text_at(
        0, 0, "middle", panel_.y_label,
        fmt::format(R"svg( transform="translate(14 {}) rotate(-90)")svg", kTop + kPlotHeight / 2));
  }

  // Every x where they are few, else round numbers; none over another.
  void draw_x_ticks() {
    std::vector<AxisTick> ticks;
    if (panel_.x.size() <= kNamedTicks) {
      for (const double x : panel_.x) ticks.push_back({x, count_text(x)});
    } else {
      ticks = x_.ticks();
    }
    double free = -kLeft;
    for (const AxisTick& tick : ticks) {
      const double x = x_at(tick.value);
      const double half = 0.5 * kCharacter * static_cast<double>(tick.text.size());
      out_ += fmt::format(R"(<path class="grid" d="M{:.1f} {}v5"/>)", x, kTop + kPlotHeight);
      if (x - half < free + 4) continue;
      out_ += text_at(x, kTop + kPlotHeight + 18, "middle", tick.text);
      free = x + half;
    }
  }

  [[nodiscard]] static std::string tooltip(const std::string& series, const std::string& x,
                                           double y) {
    return fmt::format("{}, {}: {}", series, x, tick_text(y));
  }

  void draw_line(const FigureSeries& series) {
    const Look& look = looks_.at(series.name);
    std::string path;
    std::string marks;
    bool pen_down = false;
    for (std::size_t i = 0; i < series.y.size(); ++i) {
      if (!std::isfinite(series.y[i])) continue;  // other series have a point there
      const double x = x_at(panel_.x[i]);
      const double y = y_at(series.y[i]);
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', x, y);
      marks += mark_at(x, y, look, tooltip(series.name, count_text(panel_.x[i]), series.y[i]));
      pen_down = true;
    }
    out_ += fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="1.6"{}/>)", path,
                        look.colour, dashes(look));
    out_ += marks;
  }

  void draw_names() {
    const double room = kPlotWidth / static_cast<double>(panel_.names.size());
    for (std::size_t i = 0; i < panel_.names.size(); ++i) {
      const double x = kLeft + room * (static_cast<double>(i) + 0.5);
      const double y = kTop + kPlotHeight + 16;
      std::string name = panel_.names[i];
      const auto most = static_cast<std::size_t>(kLongestName / kCharacter);
      if (slanted(panel_) && name.size() > most) name = name.substr(0, most - 1) + "…";
      const std::string turn = fmt::format(R"svg( transform="translate({:.1f} {:.1f}){}")svg", x, y,
                                           slanted(panel_) ? " rotate(-33)" : "");
      out_ += text_at(0, 0, slanted(panel_) ? "end" : "middle", name, turn);
    }
  }

  void draw_bars() {
    const double room = kPlotWidth / static_cast<double>(panel_.names.size());
    const auto count = static_cast<double>(panel_.series.size());
    const double width = std::min(40.0, 0.8 * room / count);
    for (std::size_t s = 0; s < panel_.series.size(); ++s) {
      const FigureSeries& series = panel_.series[s];
      const Look& look = looks_.at(series.name);
      for (std::size_t i = 0; i < series.y.size(); ++i) {
        if (!std::isfinite(series.y[i])) continue;
        const double middle = kLeft + room * (static_cast<double>(i) + 0.5);
        const double x = middle + width * (static_cast<double>(s) - count / 2);
        const double zero = y_at(0);
        const double y = y_at(series.y[i]);
        out_ += fmt::format(
            R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}" stroke="{}"{}>)"
            "<title>{}</title></rect>",
            x, std::min(y, zero), 0.92 * width, std::abs(zero - y), bar_fill(look), look.colour,
            dashes(look), html_text(tooltip(series.name, panel_.names[i], series.y[i])));
      }
    }
  }

  const FigurePanel& panel_;
  const Looks& looks_;
  Axis x_;
  Axis y_;
  std::string out_;
};

// Text in lines of at most so many characters, broken at spaces.
std::vector<std::string> lines_of(std::string_view text, std::size_t most) {
  std::vector<std::string> lines;
  while (text.size() > most) {
    std::size_t stop = text.substr(0, most + 1).find_last_of(' ');
    if (stop == std::string_view::npos) stop = std::min(text.find(' '), text.size());
    lines.emplace_back(text.substr(0, stop));
    text.remove_prefix(std::min(text.size(), stop + 1));
  }
  lines.emplace_back(text);
  return lines;
}

// Keys of the series in rows of `width` pixels, and how high they are.
std::pair<std::string, double> legend(const std::vector<std::string>& names, const Looks& looks,
                                      double width) {
  std::string out;
  double x = 0;
  double y = 0;
  for (const std::string& name : names) {
    const double size = kLegendKey + kCharacter * static_cast<double>(name.size()) + 18;
    if (x > 0 && x + size > width) {
      x = 0;
      y += kLine;
    }
    const Look& look = looks.at(name);
    if (look.bars) {
      out += fmt::format(
          R"(<rect x="{:.1f}" y="{:.1f}" width="16" height="10" fill="{}" stroke="{}"{}/>)", x + 2,
          y + 3, bar_fill(look), look.colour, dashes(look));
    } else {
      out += fmt::format(R"(<path d="M{:.1f} {:.1f}h20" stroke="{}" stroke-width="1.6"{}/>)", x,
                         y + 8, look.colour, dashes(look));
      out += mark_at(x + 10, y + 8, look, name);
    }
    out += text_at(x + kLegendKey, y + 12, "start", name, R"( class="name")");
    x += size;
  }
  return {std::move(out), y + kLine};
}

// Panels beside each other.
std::size_t columns_of(std::size_t panels) {
  if (panels <= 4) return std::min<std::size_t>(2, panels);
  return panels % 4 == 0 ? 4 : 3;
}

}  // namespace

void write_figure(const Figure& figure, std::ostream& out) {
  check(figure);
  const auto [names, looks] = looks_of(figure);
  const std::size_t columns = columns_of(figure.panels.size());
  const double panel_width = kLeft + kPlotWidth + kRight;
  const double width = panel_width * static_cast<double>(columns) + 2 * kMargin;
  std::string body;
  double y = kMargin;
  for (const std::string& line :
       lines_of(figure.title, static_cast<std::size_t>((width - 2 * kMargin) / kTitleCharacter))) {
    body += text_at(kMargin, y + 12, "start", line, R"( class="title")");
    y += kLine;
  }
  for (std::size_t first = 0; first < figure.panels.size(); first += columns) {
    double height = 0;
    for (std::size_t i = first; i < std::min(first + columns, figure.panels.size()); ++i) {
      const FigurePanel& panel = figure.panels[i];
      body += fmt::format(R"svg(<g transform="translate({} {:.1f})">{}</g>)svg",
                          kMargin + panel_width * static_cast<double>(i - first), y,
                          PanelDrawing(panel, looks).svg());
      height = std::max(height, kTop + kPlotHeight + kBottom + PanelDrawing::extra_height(panel));
    }
    y += height;
  }
  const auto [keys, keys_height] = legend(names, looks, width - 2 * kMargin - kLeft);
  body +=
      fmt::format(R"svg(<g transform="translate({} {:.1f})">{}</g>)svg", kMargin + kLeft, y, keys);
  y += keys_height + kMargin;
  out << fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" )"
                     R"(viewBox="0 0 {0:.0f} {1:.0f}"><style>{2}</style>)"
                     R"(<rect class="back" width="100%" height="100%"/>{3}</svg>)"
                     "\n",
                     width, y, kStyle, body);
}

}  // namespace contextile

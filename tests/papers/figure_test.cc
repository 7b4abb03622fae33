#include "papers/figure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/base.h"
#include "papers/axis.h"
#include "report/report_support.h"

namespace contextile {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string svg_of(const Figure& figure) {
  std::ostringstream out;
  write_figure(figure, out);
  return out.str();
}

FigurePanel lines_panel() {
  return {
      .title = "lines",
      .x_label = "block",
      .y_label = "ms",
      .names = {},
      .x = {512, 1024, 2048, 4096},
      .series = {{"ours", {1, 2, kNone, 4}}, {"theirs", {4, 4, 4, 4}, SeriesStyle::kPublished}}};
}
FigurePanel bars_panel() {
  return {.title = "bars",
          .x_label = "component",
          .y_label = "share",
          .names = {"base", "+ pipelining"},
          .x = {},
          .series = {{"ours", {0.25, 0.5}}, {"theirs", {1, kNone}, SeriesStyle::kPublished}}};
}

struct Point {
  double x = 0;
  double y = 0;
  std::string tooltip;
};
// Circles that carry a tooltip with numbers: points of the first series.
std::vector<Point> circles(const std::string& svg) {
  std::vector<Point> points;
  const std::regex circle(R"re(<circle cx="([^"]*)" cy="([^"]*)"[^>]*><title>([^<]*, [^<]*)</)re");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), circle); it != std::sregex_iterator();
       ++it) {
    points.push_back({std::stod((*it)[1]), std::stod((*it)[2]), (*it)[3]});
  }
  return points;
}

TEST(Figure, PutsPointsWhereTheirNumbersSay) {
  const std::vector<Point> points = circles(svg_of({"t", {lines_panel()}}));
  ASSERT_EQ(points.size(), 3U);  // none where there is no value
  EXPECT_EQ(points[0].tooltip, "ours, 512: 1");
  EXPECT_EQ(points[1].tooltip, "ours, 1K: 2");
  EXPECT_EQ(points[2].tooltip, "ours, 4K: 4");
  // x spans a factor of 8: logarithmic. y does not: linear.
  EXPECT_NEAR(points[2].x - points[1].x, 2 * (points[1].x - points[0].x), 0.2);
  EXPECT_NEAR(points[1].y - points[2].y, 2 * (points[0].y - points[1].y), 0.2);
}

TEST(Figure, DrawsWideRangesOnALogarithmicAxis) {
  FigurePanel panel = lines_panel();
  panel.series = {{"ours", {1, 10, 100, 1000}}};
  const std::vector<Point> points = circles(svg_of({"t", {panel}}));
  ASSERT_EQ(points.size(), 4U);
  for (std::size_t i = 2; i < 4; ++i) {
    EXPECT_NEAR(points[i - 1].y - points[i].y, points[0].y - points[1].y, 0.2);
  }
}

TEST(Figure, KeepsAxesLinearWhereAsked) {
  FigurePanel panel = lines_panel();
  panel.x = {1, 2, 50, 99};
  panel.series = {{"ours", {1, 2, 50, 99}}};
  panel.scale = FigureScale::kLinear;
  const std::vector<Point> points = circles(svg_of({"t", {panel}}));
  ASSERT_EQ(points.size(), 4U);
  for (std::size_t i = 1; i < 4; ++i) {  // on a straight line
    EXPECT_NEAR((points[i].y - points[0].y) * (points[3].x - points[0].x),
                (points[3].y - points[0].y) * (points[i].x - points[0].x), 100);
  }
}

TEST(Figure, ConnectsThePointsOfASeriesThatLieBetweenThoseOfOthers) {
  FigurePanel panel = lines_panel();
  panel.series = {{"ours", {1, kNone, 3, kNone}}, {"theirs", {kNone, 2, kNone, 4}}};
  const std::string svg = svg_of({"t", {panel}});
  const std::regex line(R"re(<path d="M[^LM"]*L[^LM"]*" fill="none")re");  // two points, one stroke
  EXPECT_EQ(std::distance(std::sregex_iterator(svg.begin(), svg.end(), line), {}), 2);
}

TEST(Figure, DrawsBarsFromZeroAsHighAsTheirNumbers) {
  const std::string svg = svg_of({"t", {bars_panel()}});
  const std::regex bar(
      R"re(<rect x="[^"]*" y="([^"]*)" width="[^"]*" height="([^"]*)"[^>]*><title>([^<]*, [^<]*)<)re");
  std::vector<double> heights;
  std::vector<double> feet;
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), bar); it != std::sregex_iterator();
       ++it) {
    heights.push_back(std::stod((*it)[2]));
    feet.push_back(std::stod((*it)[1]) + heights.back());
  }
  ASSERT_EQ(heights.size(), 3U);
  EXPECT_NEAR(heights[1], 2 * heights[0], 0.2);
  EXPECT_NEAR(heights[2], 4 * heights[0], 0.2);
  for (const double foot : feet) EXPECT_NEAR(foot, feet[0], 0.2);
  EXPECT_THAT(svg, HasSubstr("ours, + pipelining: 0.5"));
}

TEST(Figure, TellsPublishedSeriesFromOurs) {
  for (const FigurePanel& panel : {lines_panel(), bars_panel()}) {
    FigurePanel ours = panel;
    for (FigureSeries& series : ours.series) series.style = SeriesStyle::kOurs;
    EXPECT_THAT(svg_of({"t", {panel}}), HasSubstr("stroke-dasharray"));
    EXPECT_THAT(svg_of({"t", {ours}}), Not(HasSubstr("stroke-dasharray")));
  }
}

TEST(Figure, IsOneWellFormedImageWhateverTextsHold) {
  const std::string hostile = "</title></svg><script>x</script> \"q\" 'a' &amp; \xff\x01 ]]>";
  FigurePanel panel = bars_panel();
  panel.title = panel.x_label = panel.y_label = panel.names[0] = panel.series[0].name = hostile;
  const std::string svg = svg_of({hostile + std::string(300, 'w'), {panel, lines_panel(), panel}});
  EXPECT_EQ(unbalanced_tags(svg), "");
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, Not(HasSubstr("\xff")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\" ", 0), 0U);
}

TEST(Figure, SaysWhatIsWrongWithAPanel) {
  const auto message = [](const FigurePanel& panel) -> std::string {
    try {
      (void)svg_of({"t", {panel}});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THROW((void)svg_of({"t", {}}), InvalidArgument);
  FigurePanel both = lines_panel();
  both.names = {"a"};
  EXPECT_THAT(message(both), HasSubstr("found 1 and 4"));
  FigurePanel neither = lines_panel();
  neither.x.clear();
  EXPECT_THAT(message(neither), HasSubstr("found 0 and 0"));
  FigurePanel falling = lines_panel();
  falling.x[3] = 7;
  EXPECT_THAT(message(falling), HasSubstr("ascends, found 7 after 2048"));
  FigurePanel endless = lines_panel();
  endless.x[3] = std::numeric_limits<double>::infinity();
  EXPECT_THAT(message(endless), HasSubstr("finite x, found inf"));
  FigurePanel empty = lines_panel();
  empty.series.clear();
  EXPECT_THAT(message(empty), HasSubstr("expected a series"));
  FigurePanel uneven = lines_panel();
  uneven.series[0].y.pop_back();
  EXPECT_THAT(message(uneven), HasSubstr("'ours': expected 4 values, found 3"));
}

TEST(Axis, HoldsEveryValueBetweenRoundEnds) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<double> values;
    const double scale = std::pow(10, 6 * rng.uniform() - 3);
    const double shift = rng.uniform() < 0.5 ? 0 : rng.normal();
    for (int i = 0; i < 5; ++i) values.push_back(scale * (rng.uniform() + shift));
    values.push_back(kNone);
    const Axis axis(values, 30, Axis::Begin::kZero);
    for (const double value : values) {
      if (std::isnan(value)) continue;
      EXPECT_GE(axis.at(value), -1e-9);
      EXPECT_LE(axis.at(value), 1 + 1e-9);
    }
    const std::vector<AxisTick> ticks = axis.ticks();
    EXPECT_GE(ticks.size(), 2U);
    EXPECT_LE(ticks.size(), 12U);
    EXPECT_NEAR(axis.at(ticks.front().value), 0, 1e-9);
    if (axis.scale() == AxisScale::kLinear) {
      EXPECT_NEAR(axis.at(ticks.back().value), 1, 1e-9);
      EXPECT_LE(axis.low(), 0);
    }
    for (std::size_t i = 1; i < ticks.size(); ++i) EXPECT_NE(ticks[i].text, ticks[i - 1].text);
  }
}

TEST(Axis, StandsForNothingAndForOneValue) {
  EXPECT_DOUBLE_EQ(Axis({}, 30, Axis::Begin::kZero).at(0.5), 0.5);
  const std::vector<double> zero = {0, 0};
  EXPECT_TRUE(std::isfinite(Axis(zero, 30, Axis::Begin::kZero).at(0)));
  const std::vector<double> same = {7, 7};
  EXPECT_TRUE(std::isfinite(Axis(same, 8, Axis::Begin::kData).at(7)));
}

TEST(Axis, WritesNumbersShortly) {
  EXPECT_EQ(tick_text(0.5), "0.5");
  EXPECT_EQ(tick_text(4096), "4096");
  EXPECT_EQ(tick_text(1.5e-5), "1.5e-05");
  EXPECT_EQ(count_text(131072), "128K");
  EXPECT_EQ(count_text(64), "64");
  EXPECT_EQ(count_text(1000), "1000");
}

}  // namespace
}  // namespace contextile

// Figures: series of numbers drawn as lines or bars in an SVG file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace contextile {

enum class SeriesStyle : std::uint8_t {
  kOurs,
  kPublished,  // what someone else reported: dashed lines, hollow bars
};

struct FigureSeries {
  std::string name;       // series of the same name look the same in all panels
  std::vector<double> y;  // one for each x of the panel; NaN: no point, the line passes by
  SeriesStyle style = SeriesStyle::kOurs;
};

enum class FigureScale : std::uint8_t {
  kBySpan,  // logarithmic where values are positive and span a factor of 8 (x) or 30 (y)
  kLinear,
};

// One pair of axes. With `names` on the x axis, bars; else lines over `x`.
struct FigurePanel {
  std::string title;  // may be empty
  std::string x_label;
  std::string y_label;
  std::vector<std::string> names;  // either these
  std::vector<double> x;           // or these, ascending
  std::vector<FigureSeries> series;
  FigureScale scale = FigureScale::kBySpan;  // of lines; bars are linear
};

struct Figure {
  std::string title;
  std::vector<FigurePanel> panels;  // beside and below each other in this order
};

// An SVG image that needs no other file, readable on light and dark backgrounds; each point carries
// its numbers as a tooltip. A linear y axis begins at 0, or at the least value below it. Texts may
// hold anything. Throws InvalidArgument when there is no panel, or a panel has neither or both of
// names and x, x that is not finite or does not ascend, no series, or a series of another length.
void write_figure(const Figure& figure, std::ostream& out);

}  // namespace contextile
